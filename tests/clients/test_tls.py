"""tritonclient over TLS, showing a certificate where the server wants one."""

import os
import ssl
import unittest

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

HTTP = os.environ["TROUPE_HTTP"].replace("127.0.0.1", "localhost")
GRPC = os.environ["TROUPE_GRPC"].replace("127.0.0.1", "localhost")
ROOTS = os.environ["TROUPE_ROOTS"]
CERTIFICATE = os.environ["TROUPE_CERTIFICATE"]
KEY = os.environ["TROUPE_KEY"]

DATA = np.arange(300_000, dtype=np.float32)


def http_client(shows):
    context = ssl.create_default_context(cafile=ROOTS)
    if shows:
        context.load_cert_chain(CERTIFICATE, KEY)
    return http.InferenceServerClient(HTTP, ssl=True, ssl_context_factory=lambda: context)


def grpc_client(shows):
    own = {"private_key": KEY, "certificate_chain": CERTIFICATE} if shows else {}
    return grpc.InferenceServerClient(GRPC, ssl=True, root_certificates=ROOTS, **own)


def infer(client, library):
    given = library.InferInput("x", list(DATA.shape), "FP32")
    given.set_data_from_numpy(DATA)
    return client.infer("identity", [given]).as_numpy("y")


class TlsTest(unittest.TestCase):
    def test_http(self):
        client = http_client(shows=True)
        for _ in range(3):
            np.testing.assert_array_equal(infer(client, http), DATA)

    def test_grpc(self):
        client = grpc_client(shows=True)
        for _ in range(3):
            np.testing.assert_array_equal(infer(client, grpc), DATA)

    def test_a_stream(self):
        client = grpc_client(shows=True)
        answers = []
        client.start_stream(lambda result, error: answers.append((result, error)))
        for _ in range(5):
            given = grpc.InferInput("x", list(DATA.shape), "FP32")
            given.set_data_from_numpy(DATA)
            client.async_stream_infer("identity", [given])
        client.stop_stream()
        self.assertEqual([error for _, error in answers], [None] * 5)

    @unittest.skipUnless(os.environ.get("TROUPE_MUTUAL"), "the server wants no certificates")
    def test_who_shows_no_certificate_is_not_let_in(self):
        with self.assertRaises((ssl.SSLError, OSError)):
            http_client(shows=False).is_server_live()
        with self.assertRaises(InferenceServerException) as caught:
            grpc_client(shows=False).is_server_live()
        self.assertEqual(caught.exception.status(), "StatusCode.UNAVAILABLE")


if __name__ == "__main__":
    unittest.main()
