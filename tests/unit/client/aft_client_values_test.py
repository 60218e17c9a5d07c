#!/usr/bin/env python3
"""Tests the Python client's arguments, callbacks, results and errors as the application has them."""

import asyncio
import copy
from functools import partial
import math
import pickle
import unittest
from unittest import mock

from aft_fake_server import ClosedPort, Code, Server, response, started
import aft_client
from aft_client import AftError, Resumed, Sampling, Tensor, Tls, _channel, _resumable, _wire as wire


class ArgumentsTest(unittest.TestCase):

  def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(self):
    for client in (aft_client.Client, aft_client.AsyncClient):
      for token in ("abc\n", "a bc", "abc\u00e4"):
        with self.assertRaisesRegex(ValueError, "^the token must be printable ASCII without spaces$"):
          client(token=token)

  def test_ids_that_cannot_be_sent_are_refused(self):
    server, traceparent = Server(self), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    cases = [({"request_id": bad}, "the request id must be") for bad in ("\u00e4", "two words", "line\n", "x" * 129)]
    cases += [({"traceparent": bad}, "the traceparent must be") for bad in (traceparent + "\n", traceparent.upper())]
    with aft_client.Client(server.address) as client:
      for wrong, why in cases:
        for call in (client.generate, client.complete, client.score, client.encode):
          with self.assertRaisesRegex(ValueError, why):
            call("hello", **wrong)

    async def run():
      async with aft_client.AsyncClient(server.address) as client:
        for wrong, why in cases:
          with self.assertRaisesRegex(ValueError, why):
            client.generate("hello", **wrong)
          for call in (client.complete, client.score, client.encode):
            with self.assertRaisesRegex(ValueError, why):
              await call("hello", **wrong)

    asyncio.run(run())
    self.assertEqual(server.requests, [])

  def test_a_text_is_not_taken_for_several(self):
    with aft_client.Client(Server(self).address) as client:
      for name, call in (
          ("stop", lambda: client.generate("hello", stop="END")), ("texts", lambda: client.score_all("abc")),
          ("texts", lambda: client.encode_all("abc")), ("bad_words", lambda: Sampling(bad_words="...")),
          ("outputs", lambda: client.infer("m", [Tensor("x", "INT8", [1], [7])], outputs="logits"))):
        with self.assertRaisesRegex(TypeError, f"{name} must be a sequence of texts"):
          call()

  def test_other_kinds_of_bytes_are_no_token_ids(self):
    server = Server(self)
    with aft_client.Client(server.address) as client:
      for text in (bytearray(b"\xff\x00"), memoryview(b"\xff\x00")):
        client.tokenize(text)
        self.assertEqual(server.requests.pop().raw, b"\xff\x00")

  def test_a_private_key_is_not_shown(self):
    self.assertNotIn("KEY", repr(Tls(authorities=b"A", certificate=b"C", key=b"KEY")))


  def test_an_incomplete_tls_is_refused(self):
    for halves in ({"certificate": b"C"}, {"key": b"K"}):
      with self.assertRaisesRegex(ValueError, "certificate and key need each other"):
        Tls(authorities=b"A", **halves)
    for empty in ("authorities", "certificate", "key"):
      with self.assertRaisesRegex(ValueError, "must not be empty"):
        Tls(**{"authorities": b"A", "certificate": b"C", "key": b"K", empty: b""})

  def test_an_address_needs_its_port(self):
    for address in ("localhost", "[::1]", "dns:///aft", "ipv4:10.0.0.1:80,10.0.0.2", ["10.0.0.1:80", "10.0.0.2"]):
      for client in (aft_client.Client, aft_client.AsyncClient):
        with self.assertRaisesRegex(ValueError, "the port is missing"):
          client(address)
    for address in ("aft.example:1", "[::1]:1", "unix:/run/aft.sock", "dns:///aft:1", "dns:aft:1", "xds:///aft",
                    "ipv4:10.0.0.1:80,10.0.0.2:81", "unix-abstract:aft"):
      self.assertEqual(_channel.target_of(address), address)

  def test_every_call_has_its_timeout_and_its_ids(self):
    server = Server(self)
    ids = {"request_id": "mine", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    with aft_client.Client(server.address, timeout=1000, max_attempts=1) as client:
      for named, call in (
          (ids, lambda **options: client.generate("a", **options).text()), (ids, partial(client.complete, "a")),
          (ids, partial(client.score, "abc")), (ids, partial(client.score_all, ["abc"])),
          (ids, partial(client.encode, "ab")), (ids, partial(client.encode_all, ["ab"])),
          (ids, partial(client.infer, "m", [])), (ids, lambda **options: list(client.stream_infer("m", [], **options))),
          ({}, partial(client.tokenize, "a")),
          ({}, partial(client.get_state, "s")), ({}, lambda **options: list(client.list_states(**options))),
          ({}, partial(client.delete_state, "s")), ({}, partial(client.export_state, "s")),
          ({}, partial(client.import_state, "m", b"x")),
          ({}, client.list_models), ({}, partial(client.get_model, "m")), ({}, client.health),
          ({}, partial(client.metadata, "m")), ({}, client.statistics), ({}, client.list_repository),
          ({}, partial(client.load_model, "m")), ({}, partial(client.unload_model, "m"))):
        with self.subTest(call=call):
          server.metadata.clear()
          call(timeout=100, **named)
          self.assertLessEqual(max(server.seconds), 102)  # gRPC rounds it up
          self.assertEqual(server.metadata[0].get("x-request-id"), named.get("request_id"))
          self.assertEqual(server.metadata[0].get("traceparent"), named.get("traceparent"))

  def test_a_timeout_may_be_infinite(self):
    server = Server(self)
    with aft_client.Client(server.address) as client:
      self.assertEqual(client.generate("hello", timeout=math.inf).text(), "a")
      client.complete("hello", timeout=1e10)
    self.assertGreater(min(server.seconds), 3e7)

  def test_the_timeout_of_a_generation_begins_with_its_call(self):
    clock = mock.Mock(monotonic=mock.Mock(return_value=0.0))
    with aft_client.Client(Server(self).address) as client, mock.patch.object(_resumable, "time", clock):
      generation = client.generate("hello", timeout=100)
      clock.monotonic.return_value = 1000.0
      self.assertEqual(generation.text(), "a")

  def test_values_that_a_tensor_cannot_have_are_refused(self):
    for datatype, value in (("INT8", 300), ("FP32", "a"), ("FP16", 1e6)):
      with self.assertRaisesRegex(ValueError, "^x: "):
        Tensor("x", datatype, [1], [value]).raw()
    with self.assertRaises(TypeError):
      Tensor("x", "BYTES", [1], [5]).raw()
    self.assertEqual(Tensor("x", "BYTES", [2], ["a", bytearray(b"b")]).raw(), b"\1\0\0\0a\1\0\0\0b")


class CallbackTest(unittest.TestCase):
  """A callback that raises the client's own kind of error, which is no break of the stream."""

  def breaking_server(self):
    server = Server(self)

    def answer(request, context):
      yield started(fingerprint=1)
      if len(server.requests) == 1:
        context.abort(Code.UNAVAILABLE, "broken")
      yield response(finished={"reason": 3})

    server.answer = answer
    return server

  def test_its_error_ends_the_stream(self):
    own = AftError(Code.UNAVAILABLE, "of the application")

    def fail(_):
      raise own

    server = self.breaking_server()
    with aft_client.Client(server.address, max_attempts=1) as client:
      with self.assertRaises(AftError) as caught:
        client.generate("hello", on_resumed=fail).text()
    self.assertIs(caught.exception, own)
    self.assertEqual(len(server.requests), 2)

    async def run():
      async with aft_client.AsyncClient(server.address, max_attempts=1) as client:
        await client.generate("hello", on_resumed=fail).text()

    server = self.breaking_server()
    with self.assertRaises(AftError) as caught:
      asyncio.run(run())
    self.assertIs(caught.exception, own)
    self.assertEqual(len(server.requests), 2)


class ResultsTest(unittest.TestCase):

  def test_the_text_is_that_of_the_first_answer(self):
    server = Server(self)
    server.answer = lambda request, context: iter([
        started(), response(sequence=1, delta={"token_ids": [98], "text": "b"}),
        response(delta={"token_ids": [97], "text": "a"}), response(finished={"reason": 3}),
        response(sequence=1, finished={"reason": 3})])
    with aft_client.Client(server.address) as client:
      self.assertEqual(client.generate("hello", n=2).text(), "a")

    async def run():
      async with aft_client.AsyncClient(server.address) as client:
        self.assertEqual(await client.generate("hello", n=2).text(), "a")

    asyncio.run(run())

  def test_an_error_can_be_copied_and_sent_to_another_process(self):
    error = AftError(Code.NOT_FOUND, "no model", request_id="mine", received_tokens=3, retry_after_ms=-1,
                     of_server=False)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error),
                  pickle.loads(pickle.dumps(Resumed(error, 3, True))).cause):
      self.assertEqual((type(other), str(other), vars(other)), (AftError, "NOT_FOUND: no model", vars(error)))

  def test_the_text_of_an_output_has_all_pieces(self):
    server, pieces = Server(self), ["a\r\n", "\u00e9", "\U0001f600\r", "b"]
    server.answer = lambda request, context: iter([
        started(), *(response(delta={"token_ids": [5], "first_index": i, "text": piece})
                     for i, piece in enumerate(pieces)), response(finished={"reason": 3})])
    seen = []
    with aft_client.Client(server.address) as client:
      generation = client.generate("hello")
      for event in generation:
        if isinstance(event, aft_client.Delta):
          seen.append(generation.outputs[0].text)
    self.assertEqual(seen, ["".join(pieces[:i + 1]) for i in range(len(pieces))])
    self.assertIn(f"text={seen[-1]!r}", repr(generation.outputs))

  def test_a_tensor_that_is_incomplete_is_a_broken_answer(self):
    for datatype, raw in (("INT32", b"abc"), ("BYTES", b"\5\0\0\0ab"), ("BYTES", b"\1\0\0\0a\0\0")):
      [tensor] = wire.oip.ModelInferResponse(outputs=[{"name": "x", "datatype": datatype, "shape": [1]}]).outputs
      with self.assertRaises(AftError) as caught:
        Tensor.of(tensor, raw)
      self.assertEqual(caught.exception.code, Code.DATA_LOSS)

  def test_an_asynchronous_error_of_the_connection_is_explained(self):
    port = ClosedPort(self)

    async def run():
      async with aft_client.AsyncClient(port.address, max_attempts=1) as client:
        await client.generate("hello").text()

    with self.assertRaisesRegex(AftError, "cannot reach the server: connection refused; is the server running"):
      asyncio.run(run())


if __name__ == "__main__":
  unittest.main()
