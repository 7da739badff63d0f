"""Trace settings by the real clients, as scripts that turn tracing on for a while do it."""

import unittest

import tritonclient.grpc as grpc
import tritonclient.http as http
from shared import GRPC, HTTP
from tritonclient.utils import InferenceServerException

FILE = "trace file location can not be updated through network protocol"


class Settings:
    """The same over both protocols; how a setting is written differs."""

    def test_update_and_clear(self):
        start = self.get()
        self.assertEqual(start["trace_level"], ["OFF"])
        self.assertEqual(self.value(start, "trace_rate"), "1000")
        one = self.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "7"}, "add_sub")
        self.assertEqual(one["trace_level"], ["TIMESTAMPS"])
        self.assertEqual(self.value(one, "trace_rate"), "7")
        self.assertEqual(self.get(), start)
        everywhere = self.update({"trace_rate": "5", "trace_count": "9"})
        self.assertEqual(self.value(everywhere, "trace_rate"), "5")
        own = self.get("add_sub")
        self.assertEqual(self.value(own, "trace_rate"), "7")
        self.assertEqual(self.value(own, "trace_count"), "9")
        cleared = self.update({"trace_rate": None, "trace_level": None}, "add_sub")
        self.assertEqual(self.value(cleared, "trace_rate"), "5")
        self.assertEqual(self.update({"trace_rate": None, "trace_count": None}), start)
        self.assertEqual(self.get("add_sub"), start)

    def test_wrong_settings(self):
        start = self.get()
        for settings, model, text in [
            ({"trace_file": "x"}, None, FILE),
            ({"trace_rate": "often"}, None, "Unable to parse 'trace_rate', got: often"),
            ({"trace_count": "-2"}, "add_sub", "Expecting value >= -1, got:"),
            ({"trace_level": ["OFF", "TENSORS"]}, None, "Expect only one trace level 'OFF'"),
            ({"trace_rate": "1"}, "nobody", "Request for unknown model : nobody"),
        ]:
            with self.assertRaises(InferenceServerException) as raised:
                self.update(settings, model)
            self.assertIn(text, raised.exception.message())
        with self.assertRaises(InferenceServerException):
            self.get("nobody")
        self.assertEqual(self.get(), start)


class Http(Settings, unittest.TestCase):
    def setUp(self):
        self.client = http.InferenceServerClient(HTTP)

    def get(self, model=None):
        return self.client.get_trace_settings(model_name=model)

    def update(self, settings, model=None):
        return self.client.update_trace_settings(model_name=model, settings=settings)

    def value(self, settings, name):
        return settings[name]


class Grpc(Settings, unittest.TestCase):
    def setUp(self):
        self.client = grpc.InferenceServerClient(GRPC)

    def get(self, model=None):
        return self.read(self.client.get_trace_settings(model_name=model))

    def update(self, settings, model=None):
        return self.read(self.client.update_trace_settings(model_name=model, settings=settings))

    def read(self, response):
        return {name: list(it.value) for name, it in response.settings.items()}

    def value(self, settings, name):
        (value,) = settings[name]
        return value


if __name__ == "__main__":
    unittest.main()
