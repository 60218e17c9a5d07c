#!/usr/bin/python3
"""Traces through the shipped edge: edge_tracing_test.py AFT_SERVER DESCRIPTORS MODEL

AFT_ENVOY names the program; without it the tests are skipped.
"""

import re
import threading
from concurrent import futures

import attacker
import edge
import grpc
import http1
from edge import wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Collector(grpc.GenericRpcHandler):
  """Receives spans over OTLP and keeps (trace, span, parent) of each, in hexadecimal digits."""

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
      for span in attacker.inside(request, 1, 2, 2):  # resource_spans, scope_spans, spans
        ids = {number: value.hex() for number, value in attacker.fields(span) if number in (1, 2, 4)}
        self._spans.append((ids[1], ids[2], ids.get(4, "")))
    return b""

  def spans(self, trace):
    with self._lock:
      return {span: parent for of, span, parent in self._spans if of == trace}


class TracingTest(edge.EdgeTest):

  def setUp(self):
    super().setUp()
    self.collector = Collector(self)
    self.server = self.start_server(config='http_address: "127.0.0.1:0"')
    self.edge = self.start_edge(self.server, collector=self.collector.address, sampling=("timeout: 1s", "timeout: 600s"))

  def generate(self, *headers):
    """Makes a call. Returns (trace, span, parent) of its log line; the client sees the same trace and span."""
    stream = self.call(self.edge, attacker.GENERATE, attacker.generate(3), headers)
    self.assertEqual(stream.outcome, "OK")
    _, trace, span, _ = stream.headers["traceparent"].split("-")
    line = rf"event=request\.done .* trace_id={trace} span_id={span} parent_id=(\w+)"
    wait_until(lambda: re.search(line, self.server.log.read_text()), "the server's line of the call")
    return trace, span, re.search(line, self.server.log.read_text()).group(1)

  def test_a_clients_trace_goes_through_the_edge_to_the_server_and_the_collector(self):
    trace, span, parent = self.generate(("traceparent", f"00-{TRACE}-{PARENT}-01"))
    self.assertEqual(trace, TRACE)
    wait_until(lambda: len(self.collector.spans(TRACE)) == 2, "both spans of the edge")
    spans = self.collector.spans(TRACE)
    self.assertNotIn(span, spans)
    # client <- the edge's request <- its attempt at a replica <- the server's call
    self.assertEqual(spans[spans[parent]], PARENT)

  def test_http_requests_are_traced_the_same_way(self):
    talk = http1.Talk(self.edge.http_address, self.edge.client_tls())
    self.addCleanup(talk.close)
    answer = talk.ask(http1.post("/v1/completions", {"prompt": "It is", "max_tokens": 3}, f"traceparent: 00-{TRACE}-{PARENT}-01"))
    self.assertEqual((answer.status, answer.headers["traceparent"].split("-")[1]), (200, TRACE))
    wait_until(lambda: len(self.collector.spans(TRACE)) == 2, "both spans of the edge")
    self.assertIn(PARENT, self.collector.spans(TRACE).values())

  def test_without_a_trace_the_edge_begins_one(self):
    trace, _, parent = self.generate()
    wait_until(lambda: len(self.collector.spans(trace)) == 2, "both spans of the edge")
    spans = self.collector.spans(trace)
    self.assertEqual(spans[spans[parent]], "")


if __name__ == "__main__":
  edge.main()
