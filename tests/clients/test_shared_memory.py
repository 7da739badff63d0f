"""The real clients hand tensors over in system shared memory, as their examples do."""

import base64
import contextlib
import os
import queue
import unittest

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
import tritonclient.utils.shared_memory as shm
from shared import GRPC, HTTP, LEFT, PRODUCT, RIGHT, TYPES
from tritonclient.utils import (
    InferenceServerException,
    serialize_byte_tensor,
    triton_to_np_dtype,
)


def stored(data):
    """What a region holds of an array, and its bytes there."""
    if data.dtype != np.object_:
        return data, data.nbytes
    framed = serialize_byte_tensor(data)
    return framed, len(framed.item())


class SharedMemoryTest(unittest.TestCase):
    def setUp(self):
        self.clients = [
            (over_http, over_http.InferenceServerClient(HTTP)),
            (over_grpc, over_grpc.InferenceServerClient(GRPC)),
        ]
        for _, client in self.clients:
            self.addCleanup(client.close)

    @contextlib.contextmanager
    def region(self, client, name, size, slash=""):
        """A new object, registered as a region of this name; its handle."""
        key = f"{slash}troupe_test_{os.getpid()}_{name}"
        handle = shm.create_shared_memory_region(name, key, size, create_only=True)
        try:
            client.register_system_shared_memory(name, key, size)
            yield handle
        finally:
            client.unregister_system_shared_memory(name)
            shm.destroy_shared_memory_region(handle)

    def infer(self, triton, client, model, tensors, wanted):
        """Inputs one after another in one region, outputs each in a part of another of its own."""
        data = {name: stored(array) for name, (_, array) in tensors.items()}
        total = sum(size for _, size in data.values())
        inputs, outputs, offset = [], [], 0
        with self.region(client, "in", total) as source, self.region(client, "out", 4096) as target:
            shm.set_shared_memory_region(source, [array for array, _ in data.values()])
            for name, (dtype, array) in tensors.items():
                tensor = triton.InferInput(name, list(array.shape), dtype)
                tensor.set_shared_memory("in", data[name][1], offset)
                inputs.append(tensor)
                offset += data[name][1]
            for index, name in enumerate(wanted):
                output = triton.InferRequestedOutput(name)
                output.set_shared_memory("out", 2048, 2048 * index)
                outputs.append(output)
            result = client.infer(model, inputs, outputs=outputs)
            found = []
            for index, name in enumerate(wanted):
                output = result.get_output(name)
                is_json = triton is over_http
                shape = output["shape"] if is_json else list(output.shape)
                dtype = triton_to_np_dtype(output["datatype"] if is_json else output.datatype)
                array = shm.get_contents_as_numpy(target, dtype, shape, 2048 * index)
                found.append(array.copy())
                self.check_place(output, is_json, 2048 * index, stored(array)[1])
            if triton is over_grpc:
                empty = [b""] * len(wanted)
                self.assertEqual(list(result.get_response().raw_output_contents), empty)
            return found

    def check_place(self, output, is_json, offset, size):
        if is_json:
            # As Triton: with parameters, its client in C++ looks for bytes that follow.
            self.assertEqual(sorted(output), ["datatype", "name", "shape"])
            return
        place = {
            name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in output.parameters.items()
        }
        expected = {"shared_memory_region": "out", "shared_memory_byte_size": size}
        if offset:
            expected["shared_memory_offset"] = offset
        self.assertEqual(place, expected)

    def test_every_type_and_every_kind_of_model(self):
        for triton, client in self.clients:
            for dtype, data in TYPES.items():
                for model in [f"id_{dtype}", f"py_{dtype}"]:
                    with self.subTest(triton=triton.__name__, model=model):
                        (y,) = self.infer(triton, client, model, {"x": (dtype, data)}, ["y"])
                        np.testing.assert_array_equal(y, data)
            pair = {"INPUT0": ("FP32", LEFT), "INPUT1": ("FP32", RIGHT)}
            (product,) = self.infer(triton, client, "ensemble", pair, ["OUTPUT"])
            np.testing.assert_array_equal(product, PRODUCT)
            left, right = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
            pair = {"INPUT0": ("INT32", left), "INPUT1": ("INT32", right)}
            both = self.infer(triton, client, "simple", pair, ["OUTPUT1", "OUTPUT0"])
            np.testing.assert_array_equal(both[0], left - right)
            np.testing.assert_array_equal(both[1], left + right)

    def test_regions_beside_tensors_in_the_request(self):
        for triton, client in self.clients:
            left, right = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
            with self.region(client, "in", 64) as source:
                shm.set_shared_memory_region(source, [left])
                in_region = triton.InferInput("INPUT0", [1, 16], "INT32")
                in_region.set_shared_memory("in", 64)
                in_message = triton.InferInput("INPUT1", [1, 16], "INT32")
                in_message.set_data_from_numpy(right)
                for inputs in ([in_region, in_message], [in_message, in_region]):
                    result = client.infer("simple", inputs)
                    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), left - right)

    def test_large_tensors_of_python_models(self):
        data = np.random.default_rng(1).random((1 << 20, 2), np.float32)
        for triton, client in self.clients:
            with self.region(client, "in", data.nbytes) as source:
                with self.region(client, "out", data.nbytes) as target:
                    shm.set_shared_memory_region(source, [data])
                    tensor = triton.InferInput("x", list(data.shape), "FP32")
                    tensor.set_shared_memory("in", data.nbytes)
                    output = triton.InferRequestedOutput("y")
                    output.set_shared_memory("out", data.nbytes)
                    client.infer("py_FP32", [tensor], outputs=[output])
                    found = shm.get_contents_as_numpy(target, np.float32, data.shape)
                    np.testing.assert_array_equal(found, data)
                    del found

    def test_status_lists_what_is_registered(self):
        for triton, client in self.clients:
            as_json = {} if triton is over_http else {"as_json": True}
            status = lambda *name: client.get_system_shared_memory_status(*name, **as_json)
            # A key with a slash has two of them on its way.
            with self.region(client, "one", 8, slash="/"), self.region(client, "two", 16):
                named = status("one")
                listed = named[0] if triton is over_http else named["regions"]["one"]
                self.assertEqual((listed["name"], int(listed["byte_size"])), ("one", 8))
                self.assertTrue(listed["key"].startswith("/troupe_test_"))
                names = status() if triton is over_http else status()["regions"].values()
                self.assertEqual(sorted(it["name"] for it in names), ["one", "two"])
                client.unregister_system_shared_memory()
                self.assertFalse(status() if triton is over_http else status().get("regions"))
            with self.assertRaisesRegex(
                InferenceServerException, "Unable to find system shared memory region: 'one'"
            ):
                status("one")

    def test_names_may_hold_what_paths_do_not(self):
        for triton, client in self.clients:
            for name in ["a b", "a+b", "100%", "%2F", "h\u00e9"]:
                with self.subTest(triton=triton.__name__, name=name):
                    key = f"troupe_test_{os.getpid()}_odd"
                    handle = shm.create_shared_memory_region(name, key, 8)
                    client.register_system_shared_memory(name, key, 8)
                    regions = self.clients[1][1].get_system_shared_memory_status().regions
                    self.assertEqual(list(regions), [name])
                    client.get_system_shared_memory_status(name)
                    client.unregister_system_shared_memory(name)
                    regions = self.clients[1][1].get_system_shared_memory_status().regions
                    self.assertEqual(list(regions), [])
                    shm.destroy_shared_memory_region(handle)

    def test_cuda_memory_is_refused_as_by_a_triton_without_gpus(self):
        for triton, client in self.clients:
            as_json = {} if triton is over_http else {"as_json": True}
            status = client.get_cuda_shared_memory_status(**as_json)
            self.assertFalse(status if triton is over_http else status.get("regions"))
            handle = base64.b64encode(b"A" * 64)
            text = "failed to register CUDA shared memory region: 'r', GPUs not supported"
            with self.assertRaisesRegex(InferenceServerException, text):
                client.register_cuda_shared_memory("r", handle, 0, 8)
            client.unregister_cuda_shared_memory("r")

    def test_wrong_places_are_named(self):
        for triton, client in self.clients:
            with self.region(client, "in", 16) as source:
                shm.set_shared_memory_region(source, [LEFT])

                def infer(size, offset, room):
                    tensor = triton.InferInput("x", [2, 2], "FP32")
                    tensor.set_shared_memory("in", size, offset)
                    output = triton.InferRequestedOutput("y")
                    output.set_shared_memory("in", room)
                    client.infer("id_FP32", [tensor], outputs=[output])

                infer(16, 0, 16)
                for arguments, text in [
                    ((16, 16, 16), "Invalid offset for shared memory region: 'in'"),
                    ((16, 4, 16), r"Invalid offset \+ byte size for shared memory region: 'in'"),
                    ((12, 0, 16), "Expected 16, got 12"),
                    (
                        (16, 0, 15),
                        r"shared memory size specified with the request for output 'y' "
                        r"\(15 bytes\) should be at least 16 bytes to hold the results",
                    ),
                ]:
                    with self.assertRaisesRegex(InferenceServerException, text):
                        infer(*arguments)

    def test_a_stream_writes_each_answer(self):
        _, client = self.clients[1]
        answers = queue.Queue()
        with self.region(client, "in", 12) as source, self.region(client, "out", 4) as target:
            shm.set_shared_memory_region(source, [np.array([5, 6, 7], np.float32)])
            tensor = over_grpc.InferInput("x", [3], "FP32")
            tensor.set_shared_memory("in", 12)
            output = over_grpc.InferRequestedOutput("y")
            output.set_shared_memory("out", 4)
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer("repeats", [tensor], outputs=[output])
            for _ in range(3):
                result, error = answers.get(timeout=60)
                self.assertIsNone(error)
                self.assertEqual(list(result.get_response().raw_output_contents), [b""])
            client.stop_stream()
            self.assertEqual(shm.get_contents_as_numpy(target, np.float32, [1])[0], 7)
