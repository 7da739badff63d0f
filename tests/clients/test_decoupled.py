"""The real gRPC client of Triton and models that answer any number of times."""

import queue
import unittest

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as aio
from shared import GRPC, PRODUCT, pipeline_inputs, tensor


def numbers(*values):
    return [tensor(triton, "FP32", np.array(values, np.float32))]


def summary(result):
    """The id, the values and whether it was the last."""
    response = result.get_response()
    values = result.as_numpy("y")
    last = response.parameters["triton_final_response"].bool_param
    return response.id, [] if values is None else list(values), last


class DecoupledTest(unittest.TestCase):
    def setUp(self):
        self.client = triton.InferenceServerClient(GRPC)
        self.addCleanup(self.client.close)
        self.done = queue.Queue()

    def start(self, **how):
        self.client.start_stream(lambda result, error: self.done.put((result, error)), **how)

    def next(self):
        result, error = self.done.get(timeout=60)
        self.assertIsNone(error)
        return summary(result)

    def test_responses_and_the_end(self):
        self.start()
        self.client.async_stream_infer(
            "repeats", numbers(1, 2, 3), request_id="a", enable_empty_final_response=True
        )
        self.assertEqual(
            [self.next() for _ in range(4)],
            [("a", [1], False), ("a", [2], False), ("a", [3], False), ("a", [], True)],
        )
        # Without the wish, the end is not told; a later request's answer comes next.
        self.client.async_stream_infer("repeats", numbers(), request_id="b")
        self.client.async_stream_infer("ends_with_last", numbers(4, 5), request_id="c")
        self.assertEqual([self.next(), self.next()], [("c", [4], False), ("c", [5], True)])
        self.client.stop_stream()
        self.assertTrue(self.done.empty())

    def test_many_at_once_beside_models_that_answer_once(self):
        self.start()
        for number in range(20):
            self.client.async_stream_infer(
                "repeats",
                numbers(*range(number)),
                request_id=f"many {number}",
                enable_empty_final_response=True,
            )
            self.client.async_stream_infer(
                "ensemble", pipeline_inputs(triton), request_id=f"once {number}"
            )
        self.client.stop_stream()
        answers = {}
        order = []
        while not self.done.empty():
            result, error = self.done.get()
            self.assertIsNone(error)
            id, values, last = summary(result)
            if id.startswith("once"):
                order.append(id)
                np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)
            answers.setdefault(id, []).append((values, last))
        self.assertEqual(order, [f"once {number}" for number in range(20)])
        for number in range(20):
            expected = [([value], False) for value in range(number)] + [([], True)]
            self.assertEqual(answers[f"many {number}"], expected)

    def test_an_error_is_one_of_the_responses(self):
        self.start()
        self.client.async_stream_infer(
            "stumbles", numbers(1), request_id="a", enable_empty_final_response=True
        )
        self.assertEqual(self.next(), ("a", [1], False))
        result, error = self.done.get(timeout=60)
        self.assertIsNone(result)
        self.assertEqual(error.message(), "stumbled")
        self.assertEqual([self.next(), self.next()], [("a", [1], False), ("a", [], True)])
        self.client.async_stream_infer("repeats", numbers(2), request_id="b")
        self.assertEqual(self.next(), ("b", [2], False))
        self.client.stop_stream()

    def test_triton_grpc_error_makes_it_the_end_of_the_stream(self):
        self.start(headers={"triton_grpc_error": "true"})
        before = self.cancelled()
        self.client.async_stream_infer("ticks", numbers(1), request_id="t")
        self.assertEqual(self.next(), ("t", [1], False))
        self.client.async_stream_infer("stumbles", numbers(1), request_id="s")
        while True:
            result, error = self.done.get(timeout=60)
            if error is not None:
                break
        self.assertEqual(error.status(), "StatusCode.INVALID_ARGUMENT")
        self.assertEqual(error.message(), "stumbled")
        self.client.stop_stream()
        self.assertTrue(self.done.empty())
        while self.cancelled() == before:
            pass

    def test_a_cancelled_stream_cancels_its_requests(self):
        before = self.cancelled()
        self.start()
        for number in range(3):
            self.client.async_stream_infer("ticks", numbers(1), request_id=str(number))
        seen = set()
        while len(seen) < 3:
            seen.add(self.next()[0])
        self.client.stop_stream(cancel_requests=True)
        while self.cancelled() < before + 3:
            pass

    def test_single_calls_are_refused(self):
        with self.assertRaisesRegex(triton.InferenceServerException, "decoupled transaction"):
            self.client.infer("repeats", numbers(1))

    def cancelled(self):
        """How many requests of the model were cancelled so far."""
        client = triton.InferenceServerClient(GRPC)
        done = queue.Queue()
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer("ticks", numbers(0))
        result, error = done.get(timeout=60)
        client.stop_stream()
        client.close()
        self.assertIsNone(error)
        return int(result.as_numpy("y")[0])


class DecoupledAsyncioTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = aio.InferenceServerClient(GRPC)
        self.addAsyncCleanup(self.client.close)

    async def test_a_stream(self):
        async def requests():
            for number in range(1, 6):
                yield {
                    "model_name": "ends_with_last",
                    "inputs": numbers(*range(number)),
                    "request_id": str(number),
                }

        answers = {}
        async for result, error in self.client.stream_infer(requests()):
            self.assertIsNone(error)
            id, values, last = summary(result)
            answers.setdefault(id, []).append((values, last))
        for number in range(1, 6):
            expected = [([value], value + 1 == number) for value in range(number)]
            self.assertEqual(answers[str(number)], expected)

    async def test_a_cancelled_stream_cancels_its_requests(self):
        async def one(*values):
            yield {"model_name": "ticks", "inputs": numbers(*values)}

        async def cancelled():
            async for result, error in self.client.stream_infer(one(0)):
                self.assertIsNone(error)
                return int(result.as_numpy("y")[0])

        before = await cancelled()
        ticks = self.client.stream_infer(one(1))
        for _ in range(100):
            result, error = await ticks.__anext__()
            self.assertIsNone(error)
        self.assertTrue(ticks.cancel())
        while await cancelled() == before:
            pass


if __name__ == "__main__":
    unittest.main()
