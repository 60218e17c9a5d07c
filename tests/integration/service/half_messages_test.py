#!/usr/bin/env python3
"""Streams of requests whose messages never end: half_messages_test.py AFT_SERVER MODEL"""

import re
import sys
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "edge"))
import attacker  # noqa: E402
import http2  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import aft_server  # noqa: E402

PROGRAM, MODEL = "", ""
# gRPC's quota is at least 256 MiB. Of these, 192 MiB are for incomplete messages: 48 messages of 4 MiB.
CONFIG = "limits { max_memory_bytes: 67108864 }"
HALF = http2.message(bytes(4 << 20))[:-1]


class Holder(threading.Thread):
  """A client with its own address. Each of its streams holds a message without its last byte."""

  def __init__(self, server, source, streams):
    super().__init__()
    self.connection = http2.Connection(server.address, source=source, patience=aft_server.PATIENCE)
    self._streams = streams

  def run(self):
    # The server accepts at most 64 kB that it has not yet read, so writing may block.
    for _ in range(self._streams):
      self.connection.data(self.connection.request(attacker.STREAM_INFER), HALF, end=False)
    self.connection.flush()

  def open_streams(self):
    """Waits until the server has refused the streams beyond its limit. Returns the number of streams by outcome."""
    outcomes = lambda: http2.outcomes([self.connection])
    aft_server.wait_until(lambda: (self.connection.turn(0), outcomes()["open"] <= 24)[1], "others are refused")
    return outcomes()


class HalfMessagesTest(unittest.TestCase):

  def setUp(self):
    self.server = aft_server.Server(aft_server.new_folder(self), PROGRAM, MODEL, config=CONFIG)
    self.addCleanup(lambda: self.server.stop(hard=True))

  def read_until(self, connection, stream, size):
    """Reads until `size` bytes have come on the stream."""
    got = connection.streams[stream]
    aft_server.wait_until(lambda: connection.turn(0.1) and len(got.data) >= size or got.ended, "an answer")
    self.assertEqual(got.outcome, "open")

  def test_two_clients_at_their_limits_do_not_disturb_neighbours(self):
    with http2.Connection(self.server.address, window=http2.MAX_WINDOW) as neighbour:
      neighbour.turn(1)
      generation = neighbour.request(attacker.GENERATE)
      neighbour.data(generation, attacker.generate(1_000_000))
      infer = neighbour.request(attacker.STREAM_INFER)
      neighbour.data(infer, attacker.infer(), end=False)
      self.read_until(neighbour, generation, 1)
      self.read_until(neighbour, infer, 1)
      holders = [Holder(self.server, f"127.0.0.{i}", streams=40) for i in (2, 3)]
      for holder in holders:
        self.addCleanup(holder.connection.close)
        holder.start()
      while any(holder.is_alive() for holder in holders):
        neighbour.turn(0.01)
      for holder in holders:
        holder.join()
        # Each holder has half of the places. The server refused its other streams; no open stream gave way.
        outcomes = holder.open_streams()
        self.assertLessEqual(outcomes["open"], 24)
        self.assertEqual(outcomes, {"open": outcomes["open"], "RESOURCE_EXHAUSTED": 40 - outcomes["open"]})
      self.assertGreater(self.server.megabytes(), 200)
      # The neighbour's two streams continue, and the server accepts a new one.
      for stream in (generation, infer):
        if stream == infer:
          neighbour.data(infer, attacker.infer(), end=False)
        self.read_until(neighbour, stream, len(neighbour.streams[stream].data) + 1)
      late = neighbour.request(attacker.STREAM_INFER)
      neighbour.data(late, attacker.infer(), end=False)
      self.read_until(neighbour, late, 1)
    self.assertRegex(self.server.log.read_text(), re.compile("each of 48 max_infer_streams"))


if __name__ == "__main__":
  PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
  unittest.main()
