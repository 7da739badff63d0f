"""Finds boxes in the answer of text_detection and cuts each out of the picture, straightened."""

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils

#: Boxes below this score are none; of two that overlap more than this, the better one stays.
SCORE, OVERLAP = 0.5, 0.4
#: Pixels between two neighbours in the answer of text_detection.
CELL = 4
#: What text_recognition reads.
WIDTH, HEIGHT = 100, 32
CORNERS = np.array(
    [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]], dtype=np.float32
)


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    score, geometry, picture = (
        pb_utils.get_input_tensor_by_name(request, f"detection_postprocessing_input_{n}").as_numpy()
        for n in (1, 2, 3)
    )
    if len(picture) != 1:
        # The crops of two pictures could not be told apart by the steps that follow.
        text = f"a request holds one picture, got {len(picture)}"
        wrong = pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(error=wrong)
    crops = cut_out(picture[0], boxes(score[0, :, :, 0], geometry[0]))
    return pb_utils.InferenceResponse([pb_utils.Tensor("detection_postprocessing_output", crops)])


def boxes(score, geometry):
    """Corners FP32 [n, 4, 2] (top left, top right, bottom right, bottom left), the surest first."""
    rows, columns = np.nonzero(score >= SCORE)
    top, right, bottom, left, angle = geometry[rows, columns].T
    height, width = top + bottom, right + left
    across = np.stack([np.cos(angle), -np.sin(angle)], axis=1)
    down = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    cell = CELL * np.stack([columns, rows], axis=1)
    bottom_right = cell + across * right[:, None] + down * bottom[:, None]
    top_left = bottom_right - across * width[:, None] - down * height[:, None]
    rectangles = list(
        zip(
            ((top_left + bottom_right) / 2).tolist(),
            np.stack([width, height], axis=1).tolist(),
            np.degrees(-angle).tolist(),
        )
    )
    if not rectangles:
        return np.empty((0, 4, 2), np.float32)
    kept = cv2.dnn.NMSBoxesRotated(rectangles, score[rows, columns].tolist(), SCORE, OVERLAP)
    kept = np.asarray(kept, dtype=np.intp).reshape(-1)
    top_right = top_left + across * width[:, None]
    bottom_left = bottom_right - across * width[:, None]
    corners = np.stack([top_left, top_right, bottom_right, bottom_left], axis=1)
    return corners[kept].astype(np.float32)


def cut_out(picture, found):
    """Crops FP32 [n, 1, 32, 100] of -1..1, straightened."""
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    crops = np.empty((len(found), 1, HEIGHT, WIDTH), np.float32)
    for crop, corners in zip(crops, found):
        straighten = cv2.getPerspectiveTransform(corners, CORNERS)
        crop[0] = cv2.warpPerspective(grey, straighten, (WIDTH, HEIGHT))
    return crops / 127.5 - 1
