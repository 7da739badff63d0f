"""The real HTTP client of Triton, one request after the other."""

import unittest

import numpy as np
import tritonclient.http as triton
from shared import HTTP, JSON_TYPES, PRODUCT, TYPES, bf16_tensor, pipeline_inputs, tensor
from tritonclient.utils import InferenceServerException


class HttpTest(unittest.TestCase):
    def setUp(self):
        self.client = triton.InferenceServerClient(HTTP, concurrency=4)
        self.addCleanup(self.client.close)

    def refuses(self, status, text, call, *arguments, **named):
        with self.assertRaises(InferenceServerException) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.status(), status)
        self.assertIn(text, caught.exception.message())

    def test_readiness(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("ensemble"))
        self.assertTrue(self.client.is_model_ready("ensemble", "1"))
        self.assertFalse(self.client.is_model_ready("nobody"))

    def test_metadata(self):
        self.assertIn("binary_tensor_data", self.client.get_server_metadata()["extensions"])
        model = self.client.get_model_metadata("ensemble")
        self.assertEqual(model["platform"], "ensemble")
        self.assertEqual(model["outputs"], [{"name": "OUTPUT", "datatype": "FP32", "shape": [4]}])

    def test_config(self):
        config = self.client.get_model_config("ensemble")
        steps = config["ensemble_scheduling"]["step"]
        self.assertEqual([step["model_name"] for step in steps], ["add_sub", "mul"])
        self.assertEqual(steps[0]["model_version"], -1)

    def test_the_pipeline(self):
        for binary in (True, False):
            outputs = [triton.InferRequestedOutput("OUTPUT", binary_data=binary)]
            result = self.client.infer(
                "ensemble", pipeline_inputs(triton), outputs=outputs, request_id="seven"
            )
            np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)
            self.assertEqual(result.get_response()["id"], "seven")
            self.assertEqual(result.get_response()["model_version"], "1")

    def test_every_type_as_bytes(self):
        for dtype, data in TYPES.items():
            with self.subTest(dtype):
                result = self.client.infer("id_" + dtype, [tensor(triton, dtype, data)])
                np.testing.assert_array_equal(result.as_numpy("y"), data)
                self.assertEqual(result.get_output("y")["datatype"], dtype)

    def test_every_type_as_json(self):
        outputs = [triton.InferRequestedOutput("y", binary_data=False)]
        for dtype in JSON_TYPES:
            with self.subTest(dtype):
                inputs = [tensor(triton, dtype, TYPES[dtype], binary_data=False)]
                result = self.client.infer("id_" + dtype, inputs, outputs=outputs)
                got = result.as_numpy("y")
                if dtype == "BYTES":
                    got = np.array([it.encode() if isinstance(it, str) else it for it in got.flat],
                                   np.object_).reshape(got.shape)
                np.testing.assert_array_equal(got, TYPES[dtype])

    def test_bf16(self):
        data = np.array([[1.0, -2.5]], np.float32)
        result = self.client.infer("id_BF16", [bf16_tensor(triton, data)])
        np.testing.assert_array_equal(np.asarray(result.as_numpy("y"), np.float32), data)

    def test_tensors_of_no_elements(self):
        for dtype in TYPES:
            with self.subTest(dtype):
                data = TYPES[dtype][:0]
                result = self.client.infer("id_" + dtype, [tensor(triton, dtype, data)])
                self.assertEqual(result.as_numpy("y").shape, (0, 2))

    def test_large_tensors(self):
        data = np.arange(1 << 20, dtype=np.float32).reshape(-1, 2)
        result = self.client.infer("id_FP32", [tensor(triton, "FP32", data)])
        np.testing.assert_array_equal(result.as_numpy("y"), data)

    def test_compression_both_ways(self):
        for sent in (None, "gzip", "deflate"):
            for received in (None, "gzip", "deflate"):
                with self.subTest(sent=sent, received=received):
                    result = self.client.infer(
                        "ensemble",
                        pipeline_inputs(triton),
                        request_compression_algorithm=sent,
                        response_compression_algorithm=received,
                    )
                    np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)

    def test_async_infer(self):
        calls = [self.client.async_infer("ensemble", pipeline_inputs(triton)) for _ in range(20)]
        for call in calls:
            np.testing.assert_array_equal(call.get_result().as_numpy("OUTPUT"), PRODUCT)

    def test_parameters_and_sequences_are_taken(self):
        result = self.client.infer(
            "ensemble",
            pipeline_inputs(triton),
            priority=2,
            timeout=60_000_000,
            sequence_id=7,
            sequence_start=True,
            parameters={"mine": "a value", "number": 3, "yes": True},
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)

    def test_errors_have_tritons_codes_and_texts(self):
        self.refuses(
            "404", "Request for unknown model: 'nobody' is not found",
            self.client.infer, "nobody", pipeline_inputs(triton),
        )
        self.refuses(
            "400", "unexpected inference output 'NO' for model 'ensemble'",
            self.client.infer, "ensemble", pipeline_inputs(triton),
            outputs=[triton.InferRequestedOutput("NO")],
        )
        self.refuses(
            "400", "expected 2 inputs but got 1 inputs for model 'ensemble'",
            self.client.infer, "ensemble", pipeline_inputs(triton)[:1],
        )
        self.refuses(
            "400", "unexpected shape for input 'INPUT0' for model 'ensemble'. Expected [4], got [5].",
            self.client.infer, "ensemble",
            [tensor(triton, "FP32", np.zeros(5, np.float32), "INPUT0"), pipeline_inputs(triton)[1]],
        )
        self.refuses(
            "500", "ValueError: no luck", self.client.infer, "raises", pipeline_inputs(triton)[:1]
        )
        self.refuses("404", "unknown model: 'nobody'", self.client.get_model_metadata, "nobody")
        self.refuses(
            "400", "requested model 'nobody' is not available",
            self.client.get_inference_statistics, "nobody",
        )

    def test_statistics(self):
        def count(model):
            stats = self.client.get_inference_statistics(model)["model_stats"][0]
            return stats["inference_stats"]["success"]["count"]

        before = count("http_only")
        for _ in range(3):
            self.client.infer("http_only", [tensor(triton, "FP32", TYPES["FP32"])])
        self.assertEqual(count("http_only"), before + 3)
        everything = self.client.get_inference_statistics()["model_stats"]
        self.assertIn("ensemble", [stats["name"] for stats in everything])

    def test_log_settings(self):
        def summary(settings):
            return settings["log_verbose_level"], settings["log_format"]

        self.assertEqual(summary(self.client.get_log_settings()), (0, "default"))
        change = {"log_verbose_level": 1, "log_format": "ISO8601", "log_error": None}
        self.assertEqual(summary(self.client.update_log_settings(change)), (1, "ISO8601"))
        call = self.client.update_log_settings
        self.refuses("501", "log file location can not be updated", call, {"log_file": "x"})
        self.refuses("503", "invalid argument for --log_format, got: x", call, {"log_format": "x"})
        back = call({"log_verbose_level": 0, "log_format": "default"})
        self.assertEqual(summary(back), (0, "default"))

    def test_loading_and_unloading(self):
        def state():
            index = self.client.get_model_repository_index()
            return next(model.get("state") for model in index if model["name"] == "http_comes")

        self.client.load_model("http_comes")
        self.assertEqual(state(), "READY")
        self.client.infer("http_comes", [tensor(triton, "FP32", TYPES["FP32"])])
        config = self.client.get_model_config("http_comes")
        self.assertEqual(config["max_batch_size"], 0)
        self.client.unload_model("http_comes")
        self.assertFalse(self.client.is_model_ready("http_comes"))
        self.assertEqual(state(), "UNAVAILABLE")
        self.refuses("500", "failed to poll from model repository", self.client.load_model, "nobody")


if __name__ == "__main__":
    unittest.main()
