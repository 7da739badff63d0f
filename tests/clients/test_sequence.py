"""Both real clients and sequences: one after the other, at once, on streams; with numbers and texts
as ids."""

import queue
import unittest

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from shared import GRPC, HTTP, tensor
from tritonclient.utils import InferenceServerException

VALUES = [11, 7, 5, 3, 2, 0, 1]
#: Model, the ids of two sequences, whether the last answer has the id added.
MODELS = [
    ("simple_sequence", 1000, 1001, False),
    ("simple_dyna_sequence", 1002, 1003, True),
    ("simple_string_dyna_sequence", "1004", "1005", True),
]


def steps(first, sign):
    """Each value with its flags."""
    values = [first] + [sign * value for value in VALUES]
    last = len(values) - 1
    return [(value, index == 0, index == last) for index, value in enumerate(values)]


def expected(first, sign, added):
    values = [first + 1] + [sign * value for value in VALUES]
    values[-1] += int(added)
    return values


def inputs(client, value):
    return [tensor(client, "INT32", np.array([[value]], np.int32), "INPUT")]


def output(result):
    return result.as_numpy("OUTPUT").item()


class SequenceTest(unittest.TestCase):
    def setUp(self):
        self.http = http.InferenceServerClient(HTTP, concurrency=4)
        self.grpc = grpc.InferenceServerClient(GRPC)
        self.addCleanup(self.http.close)
        self.addCleanup(self.grpc.close)

    def each(self):
        for model, one, two, is_added in MODELS:
            sequences = [(one, 0, 1), (two, 100, -1)]
            with self.subTest(model):
                yield model, sequences, is_added

    def check(self, answers, sequences, is_added):
        for id, first, sign in sequences:
            self.assertEqual(answers[id], expected(first, sign, id if is_added else 0))

    def test_one_request_after_the_other(self):
        for client, asked in ((http, self.http), (grpc, self.grpc)):
            for model, sequences, is_added in self.each():
                answers = {id: [] for id, _, _ in sequences}
                for step in range(len(VALUES) + 1):
                    for id, first, sign in sequences:
                        value, start, end = steps(first, sign)[step]
                        result = asked.infer(
                            model,
                            inputs(client, value),
                            sequence_id=id,
                            sequence_start=start,
                            sequence_end=end,
                        )
                        answers[id].append(output(result))
                self.check(answers, sequences, is_added)

    def test_asynchronous_requests_of_one_sequence_after_the_other(self):
        for model, sequences, is_added in self.each():
            answers = {id: [] for id, _, _ in sequences}
            for step in range(len(VALUES) + 1):
                pending = []
                for id, first, sign in sequences:
                    value, start, end = steps(first, sign)[step]
                    flags = {"sequence_start": start, "sequence_end": end}
                    asked = self.http.async_infer(
                        model, inputs(http, value), sequence_id=id, **flags
                    )
                    pending.append((id, asked))
                for id, asked in pending:
                    answers[id].append(output(asked.get_result()))
            self.check(answers, sequences, is_added)

    def test_a_stream_that_does_not_wait(self):
        for model, sequences, is_added in self.each():
            done = queue.Queue()
            self.grpc.start_stream(lambda result, error: done.put((result, error)))
            answers = {id: [] for id, _, _ in sequences}
            for step in range(len(VALUES) + 1):
                for id, first, sign in sequences:
                    value, start, end = steps(first, sign)[step]
                    self.grpc.async_stream_infer(
                        model,
                        inputs(grpc, value),
                        request_id=f"{id}_{step}",
                        sequence_id=id,
                        sequence_start=start,
                        sequence_end=end,
                    )
            numbered = {id: {} for id, _, _ in sequences}
            for _ in range(2 * (len(VALUES) + 1)):
                result, error = done.get(timeout=60)
                self.assertIsNone(error)
                id, step = result.get_response().id.split("_")
                known = {str(it): it for it in numbered}[id]
                numbered[known][int(step)] = output(result)
            self.grpc.stop_stream()
            for id, found in numbered.items():
                answers[id] = [found[step] for step in sorted(found)]
            self.check(answers, sequences, is_added)

    def test_what_is_refused(self):
        text = "must specify the START flag on the first request of the sequence"
        for client, asked in ((http, self.http), (grpc, self.grpc)):
            for model, id in (("simple_sequence", 77), ("simple_string_dyna_sequence", "77")):
                with self.assertRaises(InferenceServerException) as caught:
                    asked.infer(model, inputs(client, 1), sequence_id=id)
                self.assertEqual(
                    caught.exception.message(),
                    f"inference request for sequence 77 to model '{model}' {text}",
                )
            with self.assertRaises(InferenceServerException) as caught:
                asked.infer("simple_dyna_sequence", inputs(client, 1))
            self.assertIn("non-zero or non-empty correlation ID", caught.exception.message())
