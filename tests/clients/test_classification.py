"""The real clients of Triton ask for classes, as its image clients do."""

import unittest

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from shared import GRPC, HTTP, tensor
from tritonclient.utils import InferenceServerException

LABELS = "../models/onnx/densenet_onnx/densenet_labels.txt"
DATA = np.array([[0.25, 15.34623, 2.0, 2.0], [3.0, -1.0, 4.0, 5.5]], np.float32)


class ClassificationTest(unittest.TestCase):
    def setUp(self):
        self.clients = [
            (over_http, over_http.InferenceServerClient(HTTP)),
            (over_grpc, over_grpc.InferenceServerClient(GRPC)),
        ]
        for _, client in self.clients:
            self.addCleanup(client.close)

    def test_the_largest_with_their_labels(self):
        for triton, client in self.clients:
            outputs = [triton.InferRequestedOutput("y", class_count=3)]
            result = client.infer("pets", [tensor(triton, "FP32", DATA)], outputs=outputs)
            rows = result.as_numpy("y")
            self.assertEqual(rows.shape, (2, 3))
            said = ["{} ({}) = {}".format(*it.decode().split(":")) for it in rows[0][:1]]
            self.assertEqual(said, ["15.346230 (1) = COFFEE MUG"])
            self.assertEqual([it.decode() for it in rows[0][1:]], ["2.000000:2:dog", "2.000000:3"])
            self.assertEqual(rows[1][0], b"5.500000:3")

    def test_a_classifier_of_pictures(self):
        picture = np.random.default_rng(7).normal(size=(3, 224, 224)).astype(np.float32)
        for triton, client in self.clients:
            image = triton.InferInput("data_0", picture.shape, "FP32")
            image.set_data_from_numpy(picture)
            all_classes = client.infer("densenet_onnx", [image]).as_numpy("fc6_1").ravel()
            self.assertEqual(all_classes.size, 1000)
            best = np.argsort(-all_classes, kind="stable")[:3]
            outputs = [triton.InferRequestedOutput("fc6_1", class_count=3)]
            rows = client.infer("densenet_onnx", [image], outputs=outputs).as_numpy("fc6_1")
            names = open(LABELS).read().splitlines()
            expected = [f"{all_classes[it]:.6f} ({it}) = {names[it]}" for it in best]
            said = ["{} ({}) = {}".format(*it.decode().split(":")) for it in rows]
            self.assertEqual(said, expected)

    def test_as_json(self):
        _, client = self.clients[0]
        outputs = [over_http.InferRequestedOutput("y", binary_data=False, class_count=1)]
        result = client.infer("pets", [tensor(over_http, "FP32", DATA)], outputs=outputs)
        self.assertEqual(list(result.as_numpy("y").flat), ["15.346230:1:COFFEE MUG", "5.500000:3"])

    def test_what_cannot_be_classified(self):
        data = np.array([[b"a", b"b"]], np.object_)
        for triton, client in self.clients:
            outputs = [triton.InferRequestedOutput("y", class_count=1)]
            with self.assertRaises(InferenceServerException) as caught:
                client.infer("id_BYTES", [tensor(triton, "BYTES", data)], outputs=outputs)
            text = "class result not available for output due to unsupported type 'BYTES'"
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
