"""The real asyncio HTTP client of Triton."""

import asyncio
import unittest

import numpy as np
import tritonclient.http.aio as triton
from shared import HTTP, PRODUCT, TYPES, pipeline_inputs, tensor
from tritonclient.utils import InferenceServerException


class HttpAsyncioTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = triton.InferenceServerClient(HTTP)
        self.addAsyncCleanup(self.client.close)

    async def test_readiness_and_metadata(self):
        self.assertTrue(await self.client.is_server_live())
        self.assertTrue(await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready("ensemble"))
        self.assertEqual((await self.client.get_model_metadata("ensemble"))["platform"], "ensemble")
        self.assertEqual((await self.client.get_model_config("ensemble"))["name"], "ensemble")

    async def test_many_at_once(self):
        calls = [self.client.infer("ensemble", pipeline_inputs(triton)) for _ in range(64)]
        for result in await asyncio.gather(*calls):
            np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)

    async def test_compression_and_json(self):
        inputs = [tensor(triton, "FP32", TYPES["FP32"], binary_data=False)]
        for algorithm in ("gzip", "deflate"):
            result = await self.client.infer(
                "id_FP32",
                inputs,
                outputs=[triton.InferRequestedOutput("y", binary_data=False)],
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            np.testing.assert_array_equal(result.as_numpy("y"), TYPES["FP32"])

    async def test_errors(self):
        with self.assertRaises(InferenceServerException) as caught:
            await self.client.infer("nobody", pipeline_inputs(triton))
        self.assertIn("Request for unknown model: 'nobody' is not found", str(caught.exception))
        with self.assertRaises(InferenceServerException) as caught:
            await self.client.infer("raises", pipeline_inputs(triton)[:1])
        self.assertIn("ValueError: no luck", str(caught.exception))

    async def test_a_cancelled_call_leaves_the_client_usable(self):
        call = asyncio.ensure_future(self.client.infer("ensemble", pipeline_inputs(triton)))
        await asyncio.sleep(0)
        call.cancel()
        result = await self.client.infer("ensemble", pipeline_inputs(triton))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), PRODUCT)


if __name__ == "__main__":
    unittest.main()
