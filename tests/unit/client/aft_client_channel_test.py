#!/usr/bin/env python3
"""Tests the channel of the Python client: its options, and what ends when a client is closed."""

import asyncio
import json
import threading
import unittest
from unittest import mock

from aft_fake_server import Code, Server, started
import grpc.aio
import aft_client
from aft.v1 import inference_pb2
from aft_client import AftError, _channel, _resumable, _wire as wire


class OptionsTest(unittest.TestCase):

  class Module:
    """Keeps the options of the channel that it would open."""

    @staticmethod
    def insecure_channel(target, options):
      return dict(options)

  def options(self, target, *given, **more):
    return _channel.open_channel(self.Module, target, None, 5, given, **more)

  def test_a_server_that_is_gone_or_back_is_noticed_soon(self):
    options = self.options("aft:8500")
    config = json.loads(options.pop("grpc.service_config"))
    self.assertEqual(options, {
        "grpc.min_reconnect_backoff_ms": 5000, "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 1000, "grpc.dns_min_time_between_resolutions_ms": 1000,
        "grpc.keepalive_time_ms": 20_000, "grpc.keepalive_timeout_ms": 10_000,
        "grpc.http2.max_pings_without_data": 0, "grpc.per_rpc_retry_buffer_size": 16 << 20,
        "grpc.max_receive_message_length": -1})
    self.assertEqual(config["healthCheckConfig"], {"serviceName": ""})
    states = [{"service": "aft.v1.StateService", "method": method} for method in ("Export", "Get", "List")]
    infer = [{"service": "inference.GRPCInferenceService", "method": method}
             for method in ("ModelInfer", "ModelMetadata", "ModelStatistics", "RepositoryIndex")]
    self.assertEqual(config["methodConfig"][0]["name"], [
        {"service": "aft.v1.InferenceService"}, {"service": "aft.v1.ModelService"}, *states, *infer])
    self.assertNotIn("healthCheckConfig",
                     json.loads(self.options("aft:8500", watch_health=False)["grpc.service_config"]))

  def test_the_options_of_the_application_win(self):
    options = self.options("127.0.0.1:8500", ("grpc.keepalive_time_ms", 9), ("grpc.enable_http_proxy", 1), ("own", 2))
    self.assertEqual([options[name] for name in ("grpc.keepalive_time_ms", "grpc.enable_http_proxy", "own")], [9, 1, 2])
    self.assertEqual(options["grpc.keepalive_timeout_ms"], 10_000)

  def test_no_proxy_is_between_servers_of_this_machine(self):
    for target in ("127.0.0.1:8500", "127.90.8.1:8500", "localhost:8500", "[::1]:8500", "unix:/run/aft.sock",
                   "dns:///localhost:8500", "ipv4:127.0.0.1:8500,127.0.0.2:8500", "ipv6:[::1]:8500,[::1]:8501"):
      self.assertEqual(self.options(target).get("grpc.enable_http_proxy"), 0, target)
    for target in ("10.0.0.1:8500", "127.example.org:8500", "localhost.example:8500", "aft:8500", "0.0.0.0:8500",
                   "[::2]:8500", "ipv4:127.0.0.1:8500,10.0.0.1:8500"):
      self.assertNotIn("grpc.enable_http_proxy", self.options(target), target)


class LargeAnswersTest(unittest.TestCase):

  def test_an_inference_may_be_larger_than_grpcs_default_limit(self):
    server, size = Server(self), 5 << 20
    server.others.answer = wire.oip.ModelInferResponse(
        outputs=[{"name": "y", "datatype": "UINT8", "shape": [size]}],
        raw_output_contents=[bytes(size)]).SerializeToString()

    async def call():
      async with aft_client.AsyncClient(server.address, max_attempts=1) as client:
        return await client.infer("m", [])

    with aft_client.Client(server.address, max_attempts=1) as client:
      for answer in (client.infer("m", []), asyncio.run(call())):
        self.assertEqual(len(answer.outputs[0].values), size)


class CloseTest(unittest.TestCase):
  """A generation that is under way, of one sequence or of several that have been resumed, when its client is closed."""

  def server(self, sequences):
    server, self.stalled = Server(self), threading.Semaphore(0)

    def stall(request, context):
      over = threading.Event()
      context.add_callback(over.set)
      yield started(fingerprint=1)
      self.stalled.release()
      over.wait()

    def break_off(request, context):
      server.answer = stall
      yield started(fingerprint=1)
      context.abort(Code.UNAVAILABLE, "broken")

    server.answer = stall if sequences == 1 else break_off
    return server

  def wait(self, semaphore, times):
    for _ in range(times):
      self.assertTrue(semaphore.acquire(timeout=60))

  def check(self, error):
    self.assertIsInstance(error, AftError)
    self.assertEqual((error.code, error.of_server), (Code.CANCELLED, False))
    self.assertIn("the client has been closed", error.message)

  def close_in_call(self, address, call, semaphore, times, **options):
    """Closes a client when its call has released the semaphore `times` times, and checks how the call ends."""
    client, errors = aft_client.Client(address, max_attempts=1, **options), []

    def run():
      try:
        call(client)
      except Exception as error:  # pylint: disable=broad-except  # it is checked below
        errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    self.wait(semaphore, times)
    client.close()
    thread.join(60)
    self.assertFalse(thread.is_alive())
    self.check(*errors)

  def end_task(self, address, call, semaphore, times, cancel=False, **options):
    """Makes a call in a task, and closes the client, or cancels the task, when the call has released the semaphore so
    many times. Returns the task, which has ended."""

    async def run():
      client = aft_client.AsyncClient(address, max_attempts=1, **options)
      task = asyncio.create_task(call(client))
      await asyncio.to_thread(self.wait, semaphore, times)
      if cancel:
        task.cancel()
      else:
        await client.close()
      await asyncio.wait([task], timeout=60)
      await client.close()
      return task

    return asyncio.run(run())

  def test_it_ends(self):
    for sequences in (1, 3):

      def read(client, sequences=sequences):
        for _ in client.generate("hello", n=sequences):
          self.stalled.release()  # Started, which the server may have sent long before

      server = self.server(sequences)
      self.close_in_call(server.address, read, self.stalled, 1 + sequences)

  def end_generation(self, sequences, cancel=False):
    server = self.server(sequences)
    return self.end_task(server.address, lambda client: client.generate("hello", n=sequences).text(), self.stalled,
                         sequences, cancel)

  def test_it_ends_asynchronously(self):
    for sequences in (1, 3):
      self.check(self.end_generation(sequences).exception())

  def test_a_task_that_is_cancelled_stays_cancelled(self):
    for sequences in (1, 3):
      self.assertTrue(self.end_generation(sequences, cancel=True).cancelled())

  def test_an_asynchronous_call_without_events_ends_too(self):
    server, begun, over = Server(self), threading.Semaphore(0), threading.Event()
    self.addCleanup(over.set)

    def stall(request, context):
      begun.release()
      over.wait()
      yield from ()

    server.answer_encode = stall
    self.check(self.end_task(server.address, lambda client: client.encode("ab"), begun, 1).exception())

  def test_no_call_begins_later(self):
    server = Server(self)
    calls = [lambda client: client.score("abc"), lambda client: client.list_models()]
    client = aft_client.Client(server.address)
    client.close()
    for call in calls:
      with self.assertRaisesRegex(ValueError, "closed"):
        call(client)

    async def run():
      client = aft_client.AsyncClient(server.address)
      await client.close()
      for call in calls:
        with self.assertRaisesRegex(grpc.aio.UsageError, "closed"):
          await call(client)

    asyncio.run(run())

  def test_a_signal_handler_may_close_a_generation_whose_call_begins(self):
    client, ended = aft_client.Client(Server(self).address), []
    generation = client.generate("hello")
    start = generation._start

    def close_first(*arguments, **options):
      generation.close()
      return start(*arguments, **options)

    generation._start = close_first
    thread = threading.Thread(target=lambda: ended.append(list(generation)), daemon=True)
    thread.start()
    thread.join(60)
    self.assertEqual(ended, [[]])
    client.close()

  # The streams of these calls break. Then the server refuses to continue them for an hour.
  PAUSING = [(1, lambda client: client.generate("hello").text()), (1, lambda client: client.score("abc")),
             (3, lambda client: client.generate("hello", n=3).text())]

  def pausing_server(self):
    server = Server(self)

    def refuse(request, context):
      context.set_trailing_metadata((("grpc-retry-pushback-ms", "3600000"),))
      context.abort(Code.UNAVAILABLE, "full")
      yield

    def break_off(request, context):
      scores = isinstance(request, inference_pb2.ScoreRequest)
      server.answer = server.answer_score = refuse
      yield inference_pb2.ScoreResponse(started={"tokens": 3, "fingerprint": 1}) if scores else started(fingerprint=1)
      context.abort(Code.UNAVAILABLE, "broken")

    server.answer = server.answer_score = break_off
    return server

  def count_breaks(self):
    """A semaphore that counts the breaks from now on."""
    breaks = threading.Semaphore(0)

    def count(*_):
      breaks.release()
      return 0.0

    patch = mock.patch.object(_resumable, "back_off", count)
    patch.start()
    self.addCleanup(patch.stop)
    return breaks

  def test_a_pause_ends(self):
    for sequences, call in self.PAUSING:
      self.close_in_call(self.pausing_server().address, call, self.count_breaks(), 1 + sequences, timeout=None)

  def test_a_pause_ends_asynchronously(self):
    for sequences, call in self.PAUSING:
      task = self.end_task(self.pausing_server().address, call, self.count_breaks(), 1 + sequences, timeout=None)
      self.check(task.exception())


if __name__ == "__main__":
  unittest.main()
