#!/usr/bin/env python3
"""Tests the Python client's arguments, callbacks, results and errors as the application has them."""

import asyncio
import copy
import pickle
import unittest

from aft_fake_server import ClosedPort, Code, Server, response, started
import aft_client
from aft_client import AftError, Resumed, Sampling, Tensor, Tls


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

  def test_an_asynchronous_error_of_the_connection_is_explained(self):
    port = ClosedPort(self)

    async def run():
      async with aft_client.AsyncClient(port.address, max_attempts=1) as client:
        await client.generate("hello").text()

    with self.assertRaisesRegex(AftError, "cannot reach the server: connection refused; is the server running"):
      asyncio.run(run())


if __name__ == "__main__":
  unittest.main()
