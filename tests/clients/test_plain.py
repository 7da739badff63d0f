"""Models that are plain functions and classes, asked by the real clients."""

import queue
import unittest

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from shared import GRPC, HTTP, tensor

FEATURES = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
TEXTS = np.array([["a good day"], ["bad"]], np.object_)


class PlainTest(unittest.TestCase):
    def clients(self):
        yield triton_http, triton_http.InferenceServerClient(HTTP)
        yield triton_grpc, triton_grpc.InferenceServerClient(GRPC)

    def test_a_class_gets_the_rows_and_answers_by_fields(self):
        for triton, client in self.clients():
            answer = client.infer("plain_sentiment", [tensor(triton, "BYTES", TEXTS, "text")])
            self.assertEqual(answer.as_numpy("label").tolist(), [[b"yes"], [b"no"]])
            self.assertEqual(answer.as_numpy("score").tolist(), [[10.0], [3.0]])

    def test_a_batch_is_joined_over_requests(self):
        client = triton_grpc.InferenceServerClient(GRPC)
        answers = queue.Queue()
        inputs = [tensor(triton_grpc, "FP32", FEATURES, "features")]
        for _ in range(4):
            client.async_infer("plain_sums", inputs, lambda result, error: answers.put((result, error)))
        for _ in range(4):
            result, error = answers.get(timeout=60)
            self.assertIsNone(error)
            self.assertEqual(result.as_numpy("output").tolist(), [[10.0, 8.0], [26.0, 8.0]])

    def test_an_input_that_may_be_missing(self):
        x = np.array([1, 2], np.float32)
        for triton, client in self.clients():
            answer = client.infer("plain_optional", [tensor(triton, "FP32", x)])
            self.assertEqual(answer.as_numpy("y").tolist(), [2.0, 4.0])
            self.assertEqual(answer.as_numpy("name").tolist(), [b"nobody"])

    def test_a_generator_is_a_stream(self):
        client = triton_grpc.InferenceServerClient(GRPC)
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        text = np.array(["how can you be"], np.object_)
        client.async_stream_infer("plain_words", [tensor(triton_grpc, "BYTES", text, "text")])
        words = []
        for _ in range(4):
            result, error = answers.get(timeout=60)
            self.assertIsNone(error)
            words += result.as_numpy("output").tolist()
        client.stop_stream()
        self.assertEqual(words, [b"how", b"can", b"you", b"be"])

    def test_the_config_is_made_from_the_hints(self):
        client = triton_http.InferenceServerClient(HTTP)
        config = client.get_model_config("plain_sums")
        self.assertEqual((config["max_batch_size"], config["input"][0]["dims"]), (8, [4]))
        delay = config["dynamic_batching"]["max_queue_delay_microseconds"]
        self.assertEqual(delay, 60_000_000)
        self.assertTrue(client.get_model_config("plain_words")["model_transaction_policy"]["decoupled"])


if __name__ == "__main__":
    unittest.main()
