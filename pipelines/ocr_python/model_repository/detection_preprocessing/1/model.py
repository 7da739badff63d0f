"""Reads a picture from the bytes of its file and gives back its middle square."""

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils

#: text_detection halves a picture five times on the way down.
STEP = 32


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    files = pb_utils.get_input_tensor_by_name(request, "detection_preprocessing_input").as_numpy()
    try:
        squares = [middle_square(file) for file in files]
        # Pictures that share a request have to share a size, too.
        pixels = np.stack(squares).astype(np.float32)
    except ValueError as error:
        wrong = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(error=wrong)
    return pb_utils.InferenceResponse([pb_utils.Tensor("detection_preprocessing_output", pixels)])


def middle_square(file):
    """RGB [side, side, 3] of 0..255; the largest side that is a multiple of 32."""
    # Upright, if the camera noted how it was held; OpenCV raises for no bytes at all.
    picture = cv2.imdecode(file, cv2.IMREAD_COLOR) if file.size else None
    if picture is None:
        raise ValueError(f"OpenCV can read no picture in the {file.size} bytes given")
    height, width = picture.shape[:2]
    side = min(height, width) // STEP * STEP
    if side == 0:
        raise ValueError(f"expected at least {STEP}x{STEP} pixels, got {width}x{height}")
    top, left = round((height - side) / 2), round((width - side) / 2)
    return cv2.cvtColor(picture[top : top + side, left : left + side], cv2.COLOR_BGR2RGB)
