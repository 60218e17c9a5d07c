#!/usr/bin/python3
"""Attacks next to a well-behaved client: attacks_test.py AFT_SERVER DESCRIPTORS MODEL

As tests they go through the shipped edge. With --table [ATTACK...] each is measured without and with the
edge, and nothing is asserted. The output is a table for tests/bench/RESULTS.md.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import attacker
import edge
import http2
from edge import Edge, PATIENCE, Server
from http2 import Connection

TOKENS = 200  # In each call of the well-behaved client.
CALLS = 10  # The least number of its calls during each attack.
LIST_SERVICES = http2.message(attacker.field(7, b""))

# Each entry has an attack, its numbers, and how its streams may end behind the edge. None: it asks only for what it may
# have, so its streams may end in any way.
ATTACKS = [
    ("gzip_bomb", {"megabytes": 2048}, {"UNIMPLEMENTED"}),
    ("unannounced_gzip", {"megabytes": 1024}, {"INVALID_ARGUMENT", "INTERNAL", "UNIMPLEMENTED"}),
    ("big_message", {"megabytes": 1024}, {"RESOURCE_EXHAUSTED"}),
    ("half_messages", {"streams": 60, "megabytes": 10}, {"RESOURCE_EXHAUSTED"}),
    ("half_messages", {"streams": 90, "megabytes": 3}, {"open", "reset INTERNAL_ERROR"}),
    ("half_messages", {"streams": 90, "megabytes": 3, "connections": 4}, {"open", "reset INTERNAL_ERROR"}),
    # The server accepts tensors up to max_tensor_message_bytes. Therefore the edge forwards an error in the place of a
    # message, and it becomes an error among the stream's answers.
    ("big_message", {"megabytes": 1024, "path": attacker.STREAM_INFER}, {"OK"}),
    ("half_messages", {"streams": 60, "megabytes": 10, "path": attacker.STREAM_INFER}, {"open"}),
    ("half_messages", {"streams": 90, "megabytes": 3, "path": attacker.STREAM_INFER}, {"open", "RESOURCE_EXHAUSTED"}),
    ("half_messages", {"streams": 20, "megabytes": 60, "path": attacker.IMPORT}, {"open", "reset INTERNAL_ERROR"}),
    ("half_messages", {"streams": 90, "megabytes": 3, "path": attacker.REFLECTION}, {"INVALID_ARGUMENT"}),
    ("split_heads", {"megabytes": 5}, {"open", "RESOURCE_EXHAUSTED"}),
    ("split_heads", {"megabytes": 3072}, {"open", "RESOURCE_EXHAUSTED"}),
    ("watch_names", {"streams": 194, "megabytes": 10}, {"RESOURCE_EXHAUSTED"}),
    ("long_model_name", {"kilobytes": 5120}, {"RESOURCE_EXHAUSTED"}),
    ("header_flood", {"kilobytes": 17}, {"reset INTERNAL_ERROR"}),
    ("header_flood", {"kilobytes": 5000}, {"reset INTERNAL_ERROR"}),
    ("endless_headers", {"megabytes": 64}, {"reset INTERNAL_ERROR", "reset closed", "reset ConnectionResetError"}),
    ("rapid_resets", {"streams": 20000}, {"reset CANCEL"}),
    ("pings", {"count": 100000}, set()),
    ("idle_connections", {"count": 900}, set()),
    ("idle_watches", {"connections": 23, "streams": 95}, {"open", "RESOURCE_EXHAUSTED"}),
    ("idle_infer_streams", {"connections": 4, "streams": 90}, {"open", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}),
    ("stalled_readers", {"streams": 100}, None),
    ("deaf_readers", {"streams": 100}, None),
    ("long_generations", {"streams": 64}, None),
    ("long_scores", {"streams": 64}, None),
]

# The megabytes that the server may need for requests that it accepted, or for messages within its limit. Default: 64.
ALLOWED = {"long_scores streams=64": 512, f"half_messages streams=90 megabytes=3 path={attacker.STREAM_INFER}": 256}


def title(name, numbers):
  return " ".join([name, *(f"{key}={value}" for key, value in numbers.items())])


class Neighbour:
  """The well-behaved client. It repeats the same generation."""

  def __init__(self, address, tls):
    self._connection = Connection(address, tls, token="neighbour")
    self.outcomes, self.gaps, self.firsts, self.answers = [], [], [], set()

  def call(self):
    connection = self._connection
    number = connection.request(attacker.GENERATE)
    body = http2.message(attacker.field(2, b"It is a truth") + attacker.field(5, attacker.field(4, 7)) +
                         attacker.field(6, attacker.field(1, TOKENS) + attacker.field(5, 1)))
    connection.data(number, body)
    stream, last, seen = connection.streams[number], time.monotonic(), 0
    while not stream.ended and connection.turn(PATIENCE):
      if len(stream.data) > seen:
        now = time.monotonic()
        (self.gaps if seen else self.firsts).append(now - last)
        last, seen = now, len(stream.data)
    self.outcomes.append(stream.outcome)
    if stream.outcome == "OK":
      self.answers.add(tokens_of(bytes(stream.data)))
    del connection.streams[number]

  def close(self):
    self._connection.close()


def tokens_of(data):
  """The token ids of a Generate stream."""
  tokens, at = b"", 0
  while at < len(data):
    size = int.from_bytes(data[at + 1:at + 5], "big")
    for number, event in attacker.fields(data[at + 5:at + 5 + size]):
      tokens += b"".join(ids for part, ids in attacker.fields(event) if part == 2) if number == 3 else b""
    at += 5 + size
  return tokens


def start_server(folder):
  """A server that knows its two clients by their tokens."""
  (folder / "clients.textproto").write_text("".join(
      f'clients {{ name: "{name}" token_sha256: "{hashlib.sha256(name.encode()).hexdigest()}" }}\n'
      for name in ("attacker", "neighbour")))
  return Server(folder, edge.PROGRAM, edge.MODEL, config="""
      security { clients_file: "clients.textproto" trusted_proxies: "127.0.0.1" } drain { lame_duck_ms: 0 }""")


def start_attack(name, numbers, address, tls):
  """Starts the attacker's process. It prints one line when it begins to hold, and one at the end of its input."""
  command = [sys.executable, "-B", str(Path(attacker.__file__)), name, address, "--hold", "--token=attacker",
             "--source=127.0.0.2",  # The edge identifies clients by their addresses.
             *(["--tls"] if tls else []), *(f"--{key}={value}" for key, value in numbers.items())]
  attack = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  os.set_blocking(attack.stdout.fileno(), False)
  return attack


def attack_beside(name, numbers, address, tls, watched):
  """Runs the attack next to a neighbour. Returns the attacker's reports before and after it held its connections,
  the neighbour, and the megabytes of the watched processes before the attack and at their peak."""
  neighbour = Neighbour(address, tls)
  for _ in range(3):
    neighbour.call()
  neighbour.gaps.clear(), neighbour.firsts.clear()
  before = [process.megabytes() for process in watched]
  for process in watched:
    process.reset_peak()
  with start_attack(name, numbers, address, tls) as attack:
    said, calls = b"", 0
    while calls < CALLS or (not said and attack.poll() is None):
      neighbour.call()
      calls += 1
      said += attack.stdout.read() or b""
    rest, errors = attack.communicate(b"\n", PATIENCE)
  if attack.returncode:
    raise AssertionError(errors.decode())
  peaks = [process.megabytes("VmHWM") for process in watched]
  neighbour.close()
  lines = (said + (rest or b"")).splitlines()
  return json.loads(lines[0]), json.loads(lines[-1]), neighbour, before, peaks


def quantile(values, q):
  return sorted(values)[min(len(values) - 1, int(q * len(values)))] * 1000 if values else float("nan")


class AttackTest(unittest.TestCase):

  def test_attacks_through_the_edge(self):
    for name, numbers, ends in ATTACKS:
      with self.subTest(title(name, numbers)):
        self.doCleanups()  # Ends the programs of the attack before it, if that one failed.
        folder = edge.new_folder(self)
        server = start_server(folder)
        self.addCleanup(server.stop, hard=True)
        front = Edge(folder, [server.address], edge.DESCRIPTORS)
        self.addCleanup(front.stop, hard=True)
        first, last, neighbour, before, peaks = attack_beside(
            name, numbers, front.address, front.client_tls(), [server, front])
        self.assertEqual(set(neighbour.outcomes), {"OK"})
        self.assertEqual(len(neighbour.answers), 1)
        if ends is not None:
          self.assertLessEqual(set(last["streams"]), ends)
          self.assertEqual(bool(last["streams"]), bool(ends))
        allowed = ALLOWED.get(title(name, numbers), 64)
        self.assertLess(peaks[0] - before[0], allowed, "the server's memory")
        self.assertLess(peaks[1], 512, "the edge's memory")
        self.assertEqual(front.stop(), 0)
        self.assertEqual(server.stop(), 0)


class IdleStreamsTest(unittest.TestCase):
  """Streams that one client keeps open without a request take no places from other clients."""

  def beside(self, kind, name, **numbers):
    """Runs the attack while a neighbour has streams and opens more. Returns the number of streams of this kind that
    are open during the attack, the number that gave way, and the ends of the attacker's streams."""
    self.doCleanups()  # Ends the programs of the attack before it.
    folder = edge.new_folder(self)
    server = start_server(folder)
    self.addCleanup(server.stop, hard=True)
    front = Edge(folder, [server.address], edge.DESCRIPTORS)
    self.addCleanup(front.stop, hard=True)
    before = self.connect(front)
    watch = self.answered(before, before.request(attacker.WATCH), http2.message(b""))
    stream = self.answered(before, before.request(attacker.STREAM_INFER), attacker.infer(), end=False)
    with start_attack(name, numbers, front.address, True) as attack:
      said = b""
      while not said and attack.poll() is None:
        before.turn(0.05)
        said += attack.stdout.read() or b""
      after = self.connect(front)  # A client that arrives now.
      for path, body, end in ((attacker.GENERATE, attacker.generate(5), True), (attacker.WATCH, http2.message(b""), True),
                              (attacker.STREAM_INFER, attacker.infer(), False), (attacker.REFLECTION, LIST_SERVICES, False)):
        with self.subTest(path):
          self.answered(after, after.request(path), body, end)
      self.answered(before, stream, attacker.infer(), end=False)
      self.assertEqual(before.streams[watch].outcome, "open")
      is_open, gave_way = (server.metric(rf'{metric}\{{kind="{kind}"\}}')
                           for metric in ("aft_open_streams", "aft_streams_gave_way_total"))
      rest, errors = attack.communicate(b"\n", PATIENCE)
    self.assertEqual(attack.returncode, 0, errors.decode())
    for cluster in ("aft", "aft_watches"):
      self.assertEqual(front.stat(f"cluster.{cluster}.upstream_rq_pending_overflow"), 0)
    return is_open, gave_way, json.loads((said + rest).splitlines()[-1])["streams"]

  def connect(self, front):
    connection = Connection(front.address, front.client_tls(), token="neighbour")
    self.addCleanup(connection.close)
    return connection

  def answered(self, connection, number, body, end=True):
    """Sends a message on the stream and waits for another answer."""
    stream = connection.streams[number]
    had = len(stream.data)
    connection.data(number, body, end)
    while len(stream.data) == had and not stream.ended and connection.turn(PATIENCE):
      pass
    self.assertGreater(len(stream.data), had, stream.outcome)
    return number

  def test_watches(self):
    is_open, gave_way, ends = self.beside("watches", "idle_watches")
    self.assertLessEqual(is_open, 512 + 3)  # Including the neighbour's.
    self.assertGreater(gave_way, 1000)
    self.assertGreater(ends["RESOURCE_EXHAUSTED"], 1000)

  def test_infer_streams(self):
    for connections, streams in ((1, 64), (4, 90)):
      with self.subTest(streams=connections * streams):
        is_open, gave_way, ends = self.beside("infer_streams", "idle_infer_streams", connections=connections, streams=streams)
        self.assertLessEqual(is_open, 64 + 2)
        # The edge itself ends some of the streams that wait for longer than request_timeout.
        self.assertLessEqual(set(ends), {"open", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})
        (self.assertEqual if streams == 64 else self.assertGreater)(gave_way, 0)


def table(chosen):
  print("| attack | where | its streams ended | server MB before, peak | edge MB | neighbour | ITL p50, p99, max ms | TTFT max ms |")
  print("|---|---|---|---|---|---|---|---|")
  for name, numbers, _ in [("", {}, None), *ATTACKS]:
    if chosen and name not in chosen:
      continue
    for where in ("bare", "edge"):
      with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        server = start_server(folder)
        watched, address, tls = [server], server.address, None
        if where == "edge":
          front = Edge(folder, [server.address], edge.DESCRIPTORS)
          watched, address, tls = [server, front], front.address, front.client_tls()
        try:
          _, last, neighbour, before, peaks = attack_beside(name or "pings", numbers or {"count": 1}, address, tls, watched)
        except Exception as error:  # The other measurements continue.
          print(f"| {title(name, numbers)} | {where} | {error!r} |", flush=True)
          continue
        finally:
          alive = [process.alive() for process in watched]
          for process in watched:
            process.stop(hard=True)
        ok = neighbour.outcomes.count("OK")
        memory = [f"{low:.0f}, {high:.0f}" for low, high in zip(before, peaks)] + [""]
        print(f"| {title(name, numbers) or 'none'} | {where} | {last['streams']} {last['connection_ends'] or ''} | {memory[0]}"
              f"{'' if alive[0] else ' dead'} | {memory[1]} | {ok} of {len(neighbour.outcomes)} OK, {len(neighbour.answers)} answer"
              f" | {', '.join(f'{quantile(neighbour.gaps, q):.2f}' for q in (.5, .99, 1))} | {quantile(neighbour.firsts, 1):.1f} |",
              flush=True)


if __name__ == "__main__":
  edge.take_arguments()
  if sys.argv[1:2] == ["--table"]:
    table(sys.argv[2:])
  else:
    unittest.main()
