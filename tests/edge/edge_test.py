#!/usr/bin/python3
"""The shipped edge, deploy/envoy, in front of real servers: edge_test.py AFT_SERVER DESCRIPTORS MODEL

AFT_ENVOY names the program; without it the tests are skipped.
"""

import base64
import json
import re
import socket
import ssl
import struct
import subprocess
import threading
import urllib.request

import attacker
import edge
import http2
from edge import PATIENCE, wait_until
from http2 import Connection, message

GENERATE, SCORE = attacker.GENERATE, attacker.SCORE
OPEN_INFERENCE = "/inference.GRPCInferenceService/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ORIGIN = "https://app.example.com"


class Capture:
  """A replica without gRPC. It keeps the headers and bodies of requests and never answers, even to health checks.
  So the edge uses it only if no replica is healthy."""

  def __init__(self, test):
    self._listener = socket.create_server(("127.0.0.1", 0))
    self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
    self.requests = []  # The headers and body of each request except health checks.
    self._sockets = [self._listener]
    threading.Thread(target=self._accept, daemon=True).start()
    test.addCleanup(self.close)

  def close(self):
    for one in self._sockets:
      try:
        one.shutdown(socket.SHUT_RDWR)
      except OSError:
        pass
      one.close()

  def _accept(self):
    try:
      while True:
        peer, _ = self._listener.accept()
        self._sockets.append(peer)
        threading.Thread(target=self._read, args=[peer], daemon=True).start()
    except OSError:
      pass

  def _read(self, peer):
    decoder, requests = http2.hpack.Decoder(), {}
    try:
      with peer.makefile("rb") as stream:
        stream.read(24)
        peer.sendall(bytes([0, 0, 0, http2.SETTINGS, 0, 0, 0, 0, 0]))
        while head := stream.read(9):
          payload = stream.read(int.from_bytes(head[:3], "big"))
          kind, flags, number = struct.unpack(">BBI", head[3:])
          if kind == http2.HEADERS:
            headers = dict(decoder.decode(payload))
            requests[number] = {**headers, "body": b""}
            if "Health/" not in headers[":path"]:
              self.requests.append(requests[number])
          elif kind == http2.DATA:
            requests[number]["body"] += payload
          elif kind == http2.SETTINGS and not flags & http2.ACK:
            peer.sendall(bytes([0, 0, 0, http2.SETTINGS, http2.ACK, 0, 0, 0, 0]))
    except (OSError, ValueError):
      pass


class EdgeTest(edge.EdgeTest):

  def curl(self, front, path, *arguments, body="{}", headers=()):
    """Calls curl. Returns (status, headers, body)."""
    command = ["curl", "-sS", "-i", "--cacert", front.certificates.authority,
               *([] if body is None else ["--data-binary", body]), f"https://{front.address}{path}", *arguments]
    for header in headers:
      command += ["-H", header]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
    self.assertEqual(done.returncode, 0, done.stderr)
    head, _, answer = done.stdout.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), answer


class SidecarTest(EdgeTest):

  def test_json_by_curl(self):
    front = self.start_edge(self.start_server())
    json_body = ["content-type: application/json"]
    status, headers, body = self.curl(front, GENERATE, headers=json_body, body=json.dumps(
        {"text": "It is", "stop": {"max_tokens": 3}, "sampling": {"seed": "18446744073709551615"}}))
    self.assertEqual((status, headers["content-type"]), (200, "application/json"))
    events = [json.loads(line) for line in body.splitlines() if line.startswith(b"{")]
    self.assertEqual([*events[0], *events[-1]], ["started", "finished"])
    self.assertEqual(events[0]["started"]["seed"], "18446744073709551615")
    self.assertEqual(sum(len(event["delta"]["token_ids"]) for event in events[1:-1]), 3)

    status, _, body = self.curl(front, "/aft.v1.ModelService/List", headers=json_body)
    self.assertEqual((status, json.loads(body)["models"][0]["name"]), (200, "m"))
    status, _, body = self.curl(front, "/aft.v1.ModelService/Get", headers=json_body, body='{"name": "x"}')
    self.assertEqual((status, json.loads(body)["code"]), (404, 5))
    status, _, _ = self.curl(front, GENERATE, headers=json_body, body="{")
    self.assertEqual(status, 400)
    too_large = self.call(front, GENERATE, bytes(5 << 20), [("content-type", "application/json")])
    self.assertEqual(too_large.outcome, "http 413")

  def file(self, content):
    path = self.folder / "body"
    path.write_bytes(content)
    return str(path)

  def test_grpc_web_from_a_browser(self):
    front = self.start_edge(self.start_server())
    body = self.file(attacker.generate(3))
    status, headers, answer = self.curl(front, GENERATE, body="@" + body, headers=[
        "content-type: application/grpc-web+proto", f"origin: {ORIGIN}", "x-grpc-web: 1"])
    self.assertEqual((status, headers["content-type"]), (200, "application/grpc-web+proto"))
    self.assertEqual(headers["access-control-allow-origin"], ORIGIN)
    self.assertIn("grpc-status", headers["access-control-expose-headers"])
    self.assertIn(b"grpc-status:0", answer)
    # As text, both directions are in base64.
    text = self.file(base64.b64encode(attacker.generate(3)))
    _, _, answer = self.curl(front, GENERATE, body="@" + text, headers=[
        "content-type: application/grpc-web-text", "accept: application/grpc-web-text"])
    parts = re.findall(rb"[\w+/]+=*", answer)  # Each part is as long as it arrived, with its own padding.
    self.assertIn(b"grpc-status:0", b"".join(map(base64.b64decode, parts)))
    # A browser also gets a status that comes from the edge itself.
    refused = self.call(front, "/aft.v1.Nothing/Here", attacker.generate(3),
                        [("content-type", "application/grpc-web+proto")])
    self.assertEqual(refused.outcome, "UNIMPLEMENTED")
    for origin, allowed in ((ORIGIN, True), ("https://elsewhere.example", False)):
      _, headers, _ = self.curl(front, GENERATE, "-X", "OPTIONS", body=None, headers=[
          f"origin: {origin}", "access-control-request-method: POST"])
      self.assertEqual("access-control-allow-origin" in headers, allowed)

  def test_grpc_and_its_refusals(self):
    server = self.start_server()
    front = self.start_edge(server)
    answer = self.call(front, GENERATE, attacker.generate(3), [("x-request-id", "my-own-id")])
    self.assertEqual((answer.outcome, answer.headers["x-request-id"]), ("OK", "my-own-id"))
    self.assertGreater(len(self.call(front, GENERATE, attacker.generate(1)).headers["x-request-id"]), 30)
    self.assertEqual(self.call(front, GENERATE, message(b"\xff")).outcome, "INVALID_ARGUMENT")
    for path in ("/aft.v1.InferenceService", "/aft.v1.Other/Generate", "/", "/aft.v1.InferenceService/Generate/x"):
      with self.subTest(path=path):
        answer = self.call(front, path, attacker.generate(1))
        self.assertEqual((answer.outcome, answer.headers[":status"]), ("UNIMPLEMENTED", "200"))
    big = self.call(front, GENERATE, message(bytes((4 << 20) + 1)))
    self.assertEqual((big.outcome, big.headers[":status"]), ("RESOURCE_EXHAUSTED", "200"))
    largest = self.call(front, GENERATE, message(attacker.field(2, b"x" * ((4 << 20) - 5))))
    self.assertIn(largest.outcome, ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"))
    self.assertIn("x-envoy-upstream-service-time", largest.headers)  # The answer comes from the server.

  def test_headers_beyond_the_limit(self):
    front = self.start_edge(self.start_server())
    values = {"fits": (12, "OK"), "too long": (17, "reset INTERNAL_ERROR")}
    for what, (kilobytes, outcome) in values.items():
      with self.subTest(what):
        headers = [(f"x-{i}", "v" * 1000) for i in range(kilobytes)]
        self.assertEqual(self.call(front, GENERATE, attacker.generate(1), headers).outcome, outcome)
    many = [(f"x-{i}", "v") for i in range(101)]
    self.assertNotEqual(self.call(front, GENERATE, attacker.generate(1), many).outcome, "OK")

  def test_compressed_requests_are_refused_before_their_body(self):
    server = self.start_server()
    front = self.start_edge(server)
    connection = self.connect(front)
    for encoding, refused in (("gzip", True), ("deflate", True), ("identity,gzip", True), ("identity", False)):
      with self.subTest(encoding):
        number = connection.request(GENERATE, [("grpc-encoding", encoding)])
        if not refused:
          connection.data(number, attacker.generate(1))
        connection.settle(PATIENCE)  # A refused request has sent no byte of its body.
        self.assertEqual(connection.streams[number].outcome, "UNIMPLEMENTED" if refused else "OK")
    number = connection.request(GENERATE, [("content-type", "application/json"), ("content-encoding", "gzip")])
    connection.settle(PATIENCE)
    self.assertEqual(connection.streams[number].headers[":status"], "415")
    self.assertEqual(server.metric("aft_requests_total"), 1)

  def test_a_request_is_forwarded_when_it_is_complete(self):
    capture = Capture(self)
    front = self.start_edge(capture, healthy=0)
    body = attacker.generate(1)
    connection = self.connect(front)
    half = connection.request(GENERATE, [("x-forwarded-for", "203.0.113.7"), ("x-envoy-external-address", "203.0.113.8"),
                                         ("aft-cache-salt", "forged")])
    connection.data(half, body[:-1], end=False)
    whole = connection.request(SCORE)
    connection.data(whole, body)
    connection.flush()
    self.until(connection, lambda: capture.requests and capture.requests[0]["body"] == body,
               "the whole request arrives")
    self.assertEqual([request[":path"] for request in capture.requests], [SCORE])
    connection.data(half, body[-1:])
    connection.flush()
    wait_until(lambda: len(capture.requests) == 2 and capture.requests[1]["body"] == body, "the other follows")
    # The rightmost address is the peer's, whatever the client sent. For a loopback peer Envoy writes its own.
    self.assertEqual(capture.requests[1]["x-forwarded-for"], "203.0.113.7," + capture.requests[0]["x-forwarded-for"])
    # Only the edge may set a salt, and it sets none.
    self.assertNotIn("aft-cache-salt", capture.requests[1])

  def test_streams_of_many_messages_are_not_buffered(self):
    front = self.start_edge(self.start_server())
    connection = self.connect(front)
    stream = connection.request(REFLECTION)
    for messages in (1, 2):
      connection.data(stream, message(attacker.field(7, b"*")), end=False)  # list_services
      self.until(connection, lambda: connection.streams[stream].data.count(b"aft.v1.ModelService") == messages,
                 "an answer before the end of the request")

  def test_the_open_inference_protocol(self):
    front = self.start_edge(self.start_server())
    self.assertEqual(bytes(self.call(front, OPEN_INFERENCE + "ServerReady", message(b"")).data),
                     message(attacker.field(1, 1)))
    answer = self.call(front, OPEN_INFERENCE + "ModelInfer", attacker.infer())
    self.assertEqual((answer.outcome, b"text_output" in answer.data), ("OK", True))
    big = self.call(front, OPEN_INFERENCE + "ModelInfer", message(bytes((4 << 20) + 1)))
    self.assertEqual((big.outcome, front.stat("http.edge.downstream_rq_too_large")), ("RESOURCE_EXHAUSTED", 1))
    packed = self.call(front, OPEN_INFERENCE + "ModelStreamInfer", b"", [("grpc-encoding", "gzip")])
    self.assertEqual(packed.outcome, "UNIMPLEMENTED")
    connection = self.connect(front)
    stream = connection.request(OPEN_INFERENCE + "ModelStreamInfer")
    for requests in (1, 2):
      before = len(connection.streams[stream].data)
      connection.data(stream, attacker.infer(), end=False)
      self.until(connection, lambda: len(connection.streams[stream].data) > before, "an answer before its end")
    connection.frame(http2.DATA, http2.END_STREAM, stream)
    connection.settle(PATIENCE)
    self.assertEqual(connection.streams[stream].outcome, "OK")

  def test_half_a_message_times_out(self):
    server = self.start_server()
    front = self.start_edge(server, request_timeout=("30s", "0.5s"))
    connection = self.connect(front)
    half = connection.request(GENERATE)
    connection.data(half, attacker.generate(1)[:-1], end=False)
    long = connection.request(GENERATE)
    connection.data(long, attacker.generate(10000))
    connection.settle(PATIENCE)
    self.assertEqual(connection.streams[half].outcome, "DEADLINE_EXCEEDED")
    self.assertEqual(connection.streams[long].outcome, "OK")
    self.assertEqual(server.metric("aft_requests_total"), 1)

  def test_the_network_cannot_reach_the_admin_pages(self):
    front = self.start_edge(self.start_server())
    for path, status in (("/ready", "200"), ("/stats/prometheus", "200"), ("/quitquitquit", "404"), ("/", "404"),
                         ("/config_dump", "404"), ("/stats/prometheus/../../config_dump", "404")):
      with self.subTest(path):
        done = subprocess.run(["curl", "-sS", "--path-as-is", "-X", "POST" if status == "404" else "GET", "-o", "/dev/null",
                               "-w", "%{http_code}", f"http://{front.status_address}{path}"],
                              capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.stdout, status)
    with urllib.request.urlopen(f"http://{front.status_address}/stats/prometheus", timeout=PATIENCE) as page:
      self.assertIn(b"# TYPE envoy_server_days_until_first_cert_expiring gauge\n", page.read())  # AftCertificateExpires
    self.assertTrue(front.alive())

  def test_http1_is_not_spoken(self):
    front = self.start_edge(self.start_server())
    tls = front.client_tls()
    tls.set_alpn_protocols(["http/1.1"])
    host, port = front.address.split(":")
    answer = b""
    with socket.create_connection((host, int(port)), PATIENCE) as plain, tls.wrap_socket(
        plain, server_hostname="localhost") as peer:
      try:
        peer.sendall(f"POST {GENERATE} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n".encode())
        while part := peer.recv(1 << 16):
          answer += part
      except ConnectionError:
        pass  # A refusal too.
    self.assertNotIn(b"HTTP/1", answer)

  def test_a_client_that_fills_the_heap_loses_streams_and_others_are_served(self):
    front = self.start_edge(self.start_server(), heap=("402653184", "134217728"),
                            request_timeout=("30s", "600s"))
    half = message(bytes(400 << 10))[:-1]
    for _ in range(4):
      attack = self.connect(front)
      for _ in range(90):
        attack.data(attack.request(GENERATE), half, end=False)
      attack.flush()
    reset = "envoy.overload_actions.reset_high_memory_stream.count"
    wait_until(lambda: (front.stat(reset) or 0) > 0, "the edge resets streams")
    wait_until(lambda: self.call(front, GENERATE, attacker.generate(1)).outcome == "OK", "others are served")

  def test_unread_streams_do_not_delay_others(self):
    server = self.start_server(config="limits { write_stall_ms: 600000 }")
    front = self.start_edge(server)
    reads_nothing = self.connect(front, window=1, updates=False)
    score = message(attacker.field(2, b"it is a truth " * 80) + attacker.field(5, attacker.field(1, 20)))
    for _ in range(30):
      reads_nothing.data(reads_nothing.request(SCORE), score)
    self.until(reads_nothing,
               lambda: front.stat("cluster.aft.upstream_flow_control_paused_reading_total") >= 30, "all wait")
    for _ in range(8):  # Eight connections reach both threads of the edge.
      self.assertEqual(self.call(front, GENERATE, attacker.generate(1)).outcome, "OK")

  def test_a_client_has_a_rate(self):
    server = self.start_server()
    front = self.start_edge(server, rate=("max_tokens: 400, tokens_per_fill: 200, fill_interval: 1s",
                                          "max_tokens: 5, tokens_per_fill: 5, fill_interval: 3600s"))
    connection = self.connect(front)
    answers = [self.call(front, GENERATE, attacker.generate(1), connection=connection) for _ in range(7)]
    self.assertEqual([answer.outcome for answer in answers], ["OK"] * 5 + ["RESOURCE_EXHAUSTED"] * 2)
    self.assertEqual(answers[-1].headers["grpc-retry-pushback-ms"], "1000")
    self.assertEqual(server.metric("aft_requests_total"), 5)
    # Another address has its own rate.
    done = subprocess.run(["curl", "-sS", "--interface", "127.0.0.2", "--cacert", front.certificates.authority,
                           "-d", "{}", "-H", "content-type: application/json",
                           f"https://{front.address}/aft.v1.ModelService/List"], capture_output=True, timeout=PATIENCE)
    self.assertIn(b"models", done.stdout)

  def test_connections_and_their_streams_are_bounded(self):
    front = self.start_edge(self.start_server(), connections=("1000", "2"),
                            rate=("max_tokens: 400,", "max_tokens: 4000,"))
    connections = [self.connect(front) for _ in range(2)]
    with self.assertRaises(OSError):
      self.connect(front)
    self.assertEqual(front.stat("listener.127.0.0.1_0.downstream_global_cx_overflow"), 1)
    first, second = connections
    for _ in range(1001):
      first.request(GENERATE)
    self.until(first, lambda: http2.outcomes([first]) != {"open": 1001}, "the 1001st stream is refused")
    self.assertEqual(http2.outcomes([first]), {"open": 1000, "reset REFUSED_STREAM": 1})
    self.assertEqual(self.call(front, GENERATE, attacker.generate(1), connection=second).outcome, "OK")

  def test_the_log_has_a_line_for_each_request(self):
    front = self.start_edge(self.start_server())
    self.call(front, GENERATE, attacker.generate(1), [("x-request-id", "logged")])
    wait_until(lambda: '"request_id":"logged"' in front.log.read_text(), "the line is written")
    line = json.loads(next(line for line in front.log.read_text().splitlines() if "logged" in line))
    self.assertEqual((line["client"], line["grpc"], line["path"]), ("127.0.0.1", "OK", GENERATE))


class TlsTest(EdgeTest):

  def test_without_mtls_any_client_may_call_and_the_server_is_authenticated(self):
    front = self.start_edge(self.start_server())
    self.assertEqual(self.call(front, GENERATE, attacker.generate(1)).outcome, "OK")
    stranger = edge.Certificates(self.folder / "other")
    with self.assertRaises(ssl.SSLCertVerificationError):
      Connection(front.address, attacker.client_tls(authority=stranger.authority))

  def accepts(self, front, *certificate):
    """Whether a client with this certificate and key may call."""
    try:
      with Connection(front.address, front.client_tls(*certificate)) as connection:
        return self.call(front, GENERATE, attacker.generate(1), connection=connection).outcome == "OK"
    except OSError:  # With TLS 1.3 the client sees the refusal at its first read.
      return False

  def test_mtls_accepts_only_certificates_of_its_authority(self):
    front = self.start_edge(self.start_server(), mtls=True)
    known = front.certificates.make("client")
    stranger = edge.Certificates(self.folder / "other").make("client")
    for certificate, allowed in ((known, True), (stranger, False), ((None, None), False)):
      with self.subTest(allowed=allowed):
        self.assertEqual(self.accepts(front, *certificate), allowed)
    wait_until(lambda: "CN=client" in front.log.read_text(), "the log names the certificate")

  def test_a_new_authority_of_clients_needs_no_restart(self):
    front = self.start_edge(self.start_server(), mtls=True)
    other = edge.Certificates(self.folder / "other")
    old, new = front.certificates.make("client"), other.make("client")
    self.assertTrue(self.accepts(front, *old))
    front.install(*front.certificates.make("localhost"), other.authority)
    wait_until(lambda: self.accepts(front, *new), "the edge trusts the new authority")
    self.assertFalse(self.accepts(front, *old))

  def test_a_new_certificate_needs_no_restart(self):
    front = self.start_edge(self.start_server())
    open_one = self.connect(front)

    def served():
      with socket.create_connection(("127.0.0.1", int(front.address.split(":")[1]))) as plain:
        with front.client_tls().wrap_socket(plain, server_hostname="localhost") as wrapped:
          return dict(part[0] for part in wrapped.getpeercert()["subject"])["commonName"]

    self.assertEqual(served(), "localhost")
    front.install(*front.certificates.make("renewed"), front.certificates.authority)
    wait_until(lambda: served() == "renewed", "the new certificate is served")
    self.assertEqual(self.call(front, GENERATE, attacker.generate(1), connection=open_one).outcome, "OK")


class BalancerTest(EdgeTest):

  def start_three(self, config="", **options):
    servers = [self.start_server(f"server{i}", config) for i in range(3)]
    return servers, self.start_edge(*servers, **options)

  def test_requests_are_spread(self):
    servers, front = self.start_three()
    connection = self.connect(front)
    streams = [connection.request(GENERATE) for _ in range(60)]
    for stream in streams:
      connection.data(stream, attacker.generate(50))
    connection.settle(PATIENCE)
    self.assertEqual(http2.outcomes([connection]), {"OK": 60})
    for server in servers:
      self.assertGreaterEqual(server.metric("aft_requests_total"), 3)

  def test_a_client_that_retries_survives_a_killed_replica(self):
    servers, front = self.start_three()
    connection = self.connect(front)
    for _ in range(30):
      connection.data(connection.request(GENERATE), attacker.generate(1000000))
    streams = connection.streams.values()
    running = lambda: [server.metric("aft_requests_running") for server in servers]
    self.until(connection, lambda: sum(running()) == 30, "all are running")
    lost = running()[0]
    self.assertTrue(0 < lost < 30, lost)
    servers[0].stop(hard=True)
    self.until(connection, lambda: sum(stream.ended for stream in streams) >= lost, "its streams end")
    # Envoy resets streams that have begun. No other stream is affected by the dead replica, even at first.
    others = [(stream, len(stream.data)) for stream in streams if not stream.ended]
    self.until(connection, lambda: all(len(stream.data) > before for stream, before in others), "the others continue")
    outcomes = http2.outcomes([connection])
    self.assertEqual(outcomes.pop("open"), 30 - lost)
    self.assertLessEqual(set(outcomes), {"UNAVAILABLE", "reset INTERNAL_ERROR"})
    again = self.connect(front)
    for _ in range(int(lost)):
      again.data(again.request(GENERATE), attacker.generate(500))
    again.settle(PATIENCE)
    self.assertEqual(http2.outcomes([again]), {"OK": lost})
    wait_until(lambda: front.stat("cluster.aft.membership_healthy") == 2, "the dead one counts as unhealthy")

  def test_requests_to_a_dead_replica_are_sent_to_another(self):
    servers, front = self.start_three()
    servers[0].stop(hard=True)
    connection = self.connect(front)
    for _ in range(99):  # All at once, before the edge has noticed.
      connection.data(connection.request(GENERATE), attacker.generate(1000000))
    streams = connection.streams.values()
    self.until(connection, lambda: all(stream.headers for stream in streams), "all are answered")
    self.assertEqual(http2.outcomes([connection]), {"open": 99})

  def test_a_drained_replica_fails_no_request(self):
    # One client stands for many and needs their rate: on a fast machine it exceeds the rate of one.
    servers, front = self.start_three(config="drain { grace_ms: 600000 }",
                                      rate=("max_tokens: 400, tokens_per_fill: 200,",
                                            "max_tokens: 20000, tokens_per_fill: 10000,"))
    connection = self.connect(front)
    for _ in range(30):
      connection.data(connection.request(GENERATE), attacker.generate(1000))

    def all_work():
      if http2.outcomes([connection]).get("open", 0) < 30:  # The first streams may have ended.
        connection.data(connection.request(GENERATE), attacker.generate(1000))
      return all(server.metric("aft_requests_running") for server in servers)

    self.until(connection, all_work, "every replica works")
    servers[0].terminate()
    while servers[0].alive():
      if http2.outcomes([connection]).get("open", 0) < 50:
        connection.data(connection.request(GENERATE), attacker.generate(20))
      connection.turn(0.01)
    connection.settle(PATIENCE)
    self.assertEqual(set(http2.outcomes([connection])), {"OK"})

  def test_errors_caused_by_clients_eject_no_replica(self):
    servers, front = self.start_three()
    connection = self.connect(front)
    for _ in range(60):
      connection.data(connection.request(GENERATE, [("grpc-timeout", "1u")]), attacker.generate(100000))
      connection.data(connection.request(GENERATE), message(b"\xff"))
    connection.settle(PATIENCE)
    self.assertNotIn("OK", http2.outcomes([connection]))
    self.assertEqual(front.stat("cluster.aft.outlier_detection.ejections_enforced_total"), 0)
    wait_until(lambda: front.stat("cluster.aft.membership_healthy") == 3, "a slow health check has succeeded again")


if __name__ == "__main__":
  edge.main()
