#!/usr/bin/python3
"""Traces through the shipped edge: edge_tracing_test.py AFT_SERVER DESCRIPTORS MODEL

AFT_ENVOY names the program; without it the tests are skipped.
"""

import re
import sys
import threading
import unittest
from concurrent import futures

import attacker
import edge
import grpc
from edge import PATIENCE, wait_until
from http2 import Connection

PROGRAM, DESCRIPTORS, MODEL = sys.argv[1:4]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def fields(data):
  """(number, value) of each field of a protobuf message; values are bytes, or numbers."""
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
  """The messages at this path of field numbers."""
  for number, value in fields(data):
    if number == path[0]:
      yield from [value] if len(path) == 1 else inside(value, *path[1:])


class Collector(grpc.GenericRpcHandler):
  """Takes spans over OTLP: (trace, span, parent) of each, in hexadecimal digits."""

  def __init__(self, test):
    self._lock, self._spans = threading.Lock(), []
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[self])
    self.address = "127.0.0.1:%d" % server.add_insecure_port("127.0.0.1:0")
    server.start()
    test.addCleanup(server.stop, None)

  def service(self, details):
    return grpc.unary_unary_rpc_method_handler(self._export) if details.method == EXPORT else None

  def _export(self, request, _):
    with self._lock:
      for span in inside(request, 1, 2, 2):  # resource_spans, scope_spans, spans
        ids = {number: value.hex() for number, value in fields(span) if number in (1, 2, 4)}
        self._spans.append((ids[1], ids[2], ids.get(4, "")))
    return b""

  def spans(self, trace):
    with self._lock:
      return {span: parent for of, span, parent in self._spans if of == trace}


class TracingTest(unittest.TestCase):

  def setUp(self):
    folder = edge.new_folder(self)
    self.collector = Collector(self)
    self.server = edge.Server(folder, PROGRAM, MODEL)
    self.addCleanup(self.server.stop, hard=True)
    self.edge = edge.Edge(folder, [self.server.address], DESCRIPTORS, collector=self.collector.address)
    self.addCleanup(self.edge.stop, hard=True)

  def generate(self, *headers):
    """(trace, span, parent) of the server's line of the call, whose client sees the same trace and span."""
    connection = Connection(self.edge.address, self.edge.client_tls())
    self.addCleanup(connection.close)
    number = connection.request(attacker.GENERATE, headers)
    connection.data(number, attacker.generate(3))
    connection.settle(PATIENCE)
    self.assertEqual(connection.streams[number].outcome, "OK")
    _, trace, span, _ = connection.streams[number].headers["traceparent"].split("-")
    line = rf"event=request\.done .* trace_id={trace} span_id={span} parent_id=(\w+)"
    wait_until(lambda: re.search(line, self.server.log.read_text()), "the server's line of the call")
    return trace, span, re.search(line, self.server.log.read_text()).group(1)

  def test_a_clients_trace_goes_through_the_edge_to_the_server_and_the_collector(self):
    trace, span, parent = self.generate(("traceparent", f"00-{TRACE}-{PARENT}-01"))
    self.assertEqual(trace, TRACE)
    wait_until(lambda: len(self.collector.spans(TRACE)) == 2, "both spans of the edge")
    spans = self.collector.spans(TRACE)
    self.assertNotIn(span, spans)
    # client <- the edge's request <- its try of a replica <- the server's call
    self.assertEqual(spans[spans[parent]], PARENT)

  def test_without_one_the_edge_begins_it(self):
    trace, _, parent = self.generate()
    wait_until(lambda: len(self.collector.spans(trace)) == 2, "both spans of the edge")
    spans = self.collector.spans(trace)
    self.assertEqual(spans[spans[parent]], "")


if __name__ == "__main__":
  if not edge.ENVOY:
    print("skipped: AFT_ENVOY is not set; ./dev test --full fetches Envoy and sets it")
    sys.exit(77)
  unittest.main(argv=sys.argv[:1])
