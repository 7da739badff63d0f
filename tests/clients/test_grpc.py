"""The real gRPC client of Triton: calls, callbacks, asyncio and streams."""

import queue
import unittest

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as aio
from shared import GRPC, PRODUCT, TYPES, bf16_tensor, pipeline_inputs, tensor
from tritonclient.utils import InferenceServerException


class GrpcTest(unittest.TestCase):
    def setUp(self):
        self.client = triton.InferenceServerClient(GRPC)
        self.addCleanup(self.client.close)

    def refuses(self, status, text, call, *arguments, **named):
        with self.assertRaises(InferenceServerException) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.status(), "StatusCode." + status)
        self.assertIn(text, caught.exception.message())

    def test_readiness_and_metadata(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("ensemble", "1"))
        self.assertIn("statistics", self.client.get_server_metadata().extensions)
        self.assertEqual(self.client.get_model_metadata("ensemble").platform, "ensemble")
        config = self.client.get_model_config("ensemble", as_json=True)["config"]
        self.assertEqual(config["ensemble_scheduling"]["step"][1]["model_name"], "mul")

    def test_the_pipeline(self):
        result = self.client.infer("ensemble", pipeline_inputs(triton), request_id="seven")
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)
        self.assertEqual(result.get_response().id, "seven")

    def test_every_type(self):
        for dtype, data in TYPES.items():
            with self.subTest(dtype):
                result = self.client.infer("id_" + dtype, [tensor(triton, dtype, data)])
                np.testing.assert_array_equal(result.as_numpy("y"), data)
                result = self.client.infer("id_" + dtype, [tensor(triton, dtype, data[:0])])
                self.assertEqual(result.as_numpy("y").shape, (0, 2))

    def test_bf16(self):
        data = np.array([[1.0, -2.5]], np.float32)
        result = self.client.infer("id_BF16", [bf16_tensor(triton, data)])
        np.testing.assert_array_equal(np.asarray(result.as_numpy("y"), np.float32), data)

    def test_messages_larger_than_grpcs_own_default(self):
        data = np.arange(8 << 20, dtype=np.float32).reshape(-1, 2)
        result = self.client.infer("id_FP32", [tensor(triton, "FP32", data)])
        np.testing.assert_array_equal(result.as_numpy("y"), data)

    def test_compression(self):
        for algorithm in ("gzip", "deflate"):
            with self.subTest(algorithm):
                result = self.client.infer(
                    "ensemble", pipeline_inputs(triton), compression_algorithm=algorithm
                )
                np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)

    def test_callbacks(self):
        done = queue.Queue()
        for _ in range(20):
            self.client.async_infer(
                "ensemble",
                pipeline_inputs(triton),
                callback=lambda result, error: done.put((result, error)),
            )
        for _ in range(20):
            result, error = done.get(timeout=60)
            self.assertIsNone(error)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)

    def test_a_stream(self):
        done = queue.Queue()
        self.client.start_stream(callback=lambda result, error: done.put((result, error)))
        for number in range(20):
            self.client.async_stream_infer(
                "ensemble", pipeline_inputs(triton), request_id=str(number)
            )
        for number in range(20):
            result, error = done.get(timeout=60)
            self.assertIsNone(error)
            self.assertEqual(result.get_response().id, str(number))
            np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)
        self.client.async_stream_infer("nobody", pipeline_inputs(triton))
        result, error = done.get(timeout=60)
        self.assertIsNone(result)
        self.assertIn("Request for unknown model: 'nobody' is not found", str(error))
        self.client.async_stream_infer("ensemble", pipeline_inputs(triton))
        result, error = done.get(timeout=60)
        self.assertIsNone(error)
        self.client.stop_stream()

    def test_parameters(self):
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
        infer = self.client.infer
        inputs = pipeline_inputs(triton)
        self.refuses("NOT_FOUND", "Request for unknown model: 'nobody'", infer, "nobody", inputs)
        self.refuses(
            "INVALID_ARGUMENT", "expected 2 inputs but got 1 inputs for model 'ensemble'",
            infer, "ensemble", inputs[:1],
        )
        self.refuses("INTERNAL", "ValueError: no luck", infer, "raises", inputs[:1])
        self.refuses("NOT_FOUND", "'nobody'", self.client.get_model_config, "nobody")

    def test_a_deadline_is_kept_and_the_server_goes_on(self):
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer(
                "waits", [tensor(triton, "FP32", TYPES["FP32"])], client_timeout=0.05
            )
        self.assertEqual(caught.exception.status(), "StatusCode.DEADLINE_EXCEEDED")
        result = self.client.infer("ensemble", pipeline_inputs(triton))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)

    def test_statistics(self):
        def count(model):
            stats = self.client.get_inference_statistics(model).model_stats[0]
            return stats.inference_stats.success.count

        before = count("grpc_only")
        for _ in range(3):
            self.client.infer("grpc_only", [tensor(triton, "FP32", TYPES["FP32"])])
        self.assertEqual(count("grpc_only"), before + 3)

    def test_log_settings(self):
        def summary(settings):
            return settings.settings["log_info"].bool_param, settings.settings["log_warning"].bool_param

        self.assertEqual(summary(self.client.get_log_settings()), (True, True))
        self.assertEqual(summary(self.client.update_log_settings({"log_warning": False})), (True, False))
        with self.assertRaisesRegex(InferenceServerException, "invalid argument for log_format, got: x"):
            self.client.update_log_settings({"log_format": "x", "log_info": False})
        self.assertEqual(summary(self.client.update_log_settings({"log_warning": True})), (True, True))

    def test_loading_and_unloading(self):
        def state():
            index = self.client.get_model_repository_index().models
            return next(model.state for model in index if model.name == "grpc_comes")

        self.client.load_model("grpc_comes")
        self.assertEqual(state(), "READY")
        self.client.infer("grpc_comes", [tensor(triton, "FP32", TYPES["FP32"])])
        self.client.unload_model("grpc_comes")
        self.assertEqual(state(), "UNAVAILABLE")
        self.refuses("INTERNAL", "failed to poll", self.client.load_model, "nobody")


class GrpcAsyncioTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = aio.InferenceServerClient(GRPC)
        self.addAsyncCleanup(self.client.close)

    async def test_calls(self):
        self.assertTrue(await self.client.is_server_ready())
        result = await self.client.infer("ensemble", pipeline_inputs(triton))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)
        with self.assertRaises(InferenceServerException) as caught:
            await self.client.infer("nobody", pipeline_inputs(triton))
        self.assertEqual(caught.exception.status(), "StatusCode.NOT_FOUND")

    async def test_a_stream(self):
        async def requests():
            for number in range(20):
                yield {
                    "model_name": "nobody" if number == 7 else "ensemble",
                    "inputs": pipeline_inputs(triton),
                    "request_id": str(number),
                }

        number = 0
        async for result, error in self.client.stream_infer(requests()):
            if number == 7:
                self.assertIn("'nobody'", str(error))
            else:
                self.assertIsNone(error)
                self.assertEqual(result.get_response().id, str(number))
                np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)
            number += 1
        self.assertEqual(number, 20)


if __name__ == "__main__":
    unittest.main()
