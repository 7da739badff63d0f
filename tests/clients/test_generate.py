"""The generate extension, asked with no client but Python's own."""

import http.client
import json
import unittest

from shared import HTTP


class GenerateTest(unittest.TestCase):
    def setUp(self):
        self.connection = http.client.HTTPConnection(HTTP, timeout=60)
        self.addCleanup(self.connection.close)

    def ask(self, path, request):
        body = json.dumps(request)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        self.connection.request("POST", "/v2/models/" + path, body, headers)
        return self.connection.getresponse()

    def events(self, answer):
        """Reads events one by one, as they come."""
        self.assertEqual(answer.headers["Content-Type"], "text/event-stream; charset=utf-8")
        while line := answer.readline():
            self.assertTrue(line.startswith(b"data: "), line)
            self.assertEqual(answer.readline(), b"\n")
            yield json.loads(line[len(b"data: "):])

    def test_one_answer(self):
        answer = self.ask("parrot/generate", {"PROMPT": "hello world", "STREAM": False})
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/json"))
        self.assertEqual(
            json.load(answer),
            {"model_name": "parrot", "model_version": "1", "TEXT": "hello world"},
        )

    def test_a_stream_of_events_on_one_connection(self):
        for count in (3, 0, 1, 50):
            request = {"PROMPT": ["h\u00e9\n"], "STREAM": True, "parameters": {"REPETITION": count}}
            answer = self.ask("parrot/generate_stream", request)
            self.assertEqual(answer.status, 200)
            texts = [event["TEXT"] for event in self.events(answer)]
            self.assertEqual(texts, ["h\u00e9\n"] * count)

    def test_errors(self):
        answer = self.ask("parrot/generate", {"PROMPT": "p", "STREAM": True, "REPETITION": 2})
        self.assertEqual(answer.status, 500)
        self.assertIn("expects model to produce exactly 1 response", json.load(answer)["error"])
        failing = {"PROMPT": "p", "STREAM": True, "REPETITION": 1, "FAIL_LAST": True}
        answer = self.ask("parrot/generate_stream", failing)
        self.assertEqual(answer.status, 200)
        first, second = self.events(answer)
        self.assertEqual((first["TEXT"], second), ("p", {"error": "out of words"}))
        answer = self.ask("parrot/generate_stream", {**failing, "REPETITION": 0})
        self.assertEqual(answer.status, 503)
        self.assertEqual(list(self.events(answer)), [{"error": "out of words"}])
        answer = self.ask("parrot/generate_stream", {})
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (400, "application/json"))
        self.assertIn("but got 0 inputs", json.load(answer)["error"])

    def test_a_client_that_leaves_cancels_its_request(self):
        def cancelled():
            answer = self.ask("ticks/generate", {"x": 0})
            self.assertEqual(answer.status, 200)
            return json.load(answer)["y"]

        before = cancelled()
        other = http.client.HTTPConnection(HTTP, timeout=60)
        other.request("POST", "/v2/models/ticks/generate_stream", json.dumps({"x": 1}))
        answer = other.getresponse()
        events = self.events(answer)
        for _ in range(100):
            self.assertEqual(next(events)["y"], 1)
        answer.close()
        other.close()
        while cancelled() == before:
            pass


if __name__ == "__main__":
    unittest.main()
