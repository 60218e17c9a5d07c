#!/usr/bin/python3
"""OpenAI's HTTP API through the shipped edge: edge_http_test.py AFT_SERVER DESCRIPTORS MODEL

AFT_ENVOY names the program; without it the tests are skipped.
"""

import contextlib
import hashlib
import json
import os
import signal
import ssl
import subprocess
import threading

import attacker
import edge
import http1
from edge import PATIENCE, wait_until
from http1 import head, post

COMPLETIONS = "/v1/completions"
HTTP = 'http_address: "127.0.0.1:0" drain { lame_duck_ms: 0 grace_ms: 600000 }'
TRUSTED = HTTP + ' security { trusted_proxies: "127.0.0.1" }'
LARGEST = 4 << 20  # max_message_bytes.
ONE_READER = ["a folded line", "another folded line", "two hosts"]  # The edge itself joins each of these to one line.
RATE_OF_MANY = ("max_tokens: 400, tokens_per_fill: 200,", "max_tokens: 200000, tokens_per_fill: 100000,")
RUNNING = "aft_requests_running"
TOTAL = "aft_requests_total"


def ask(tokens, **more):
  return {"prompt": "It is a truth universally acknowledged", "max_tokens": tokens, "ignore_eos": True, "seed": 7, **more}


def text_of(body):
  """The text of a stream's events."""
  said = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
  return "".join(choice["text"] for event in said for choice in event["choices"])


class HttpTest(edge.EdgeTest):

  def start_both(self, config=TRUSTED, **options):
    server = self.start_server(config=config)
    return server, self.start_edge(server, **options)

  def talk(self, front, **how):
    talk = http1.Talk(front.http_address, front.client_tls(), **how)
    self.addCleanup(talk.close)
    return talk

  def ask(self, front, request, **how):
    return self.talk(front, **how).ask(request)

  def stream(self, front, tokens, **more):
    """Begins a stream. Returns (connection, answer, the answer's further events)."""
    talk = self.talk(front)
    talk.send(post(COMPLETIONS, ask(tokens, stream=True, **more)))
    answer = talk.answer()
    self.assertEqual((answer.status, answer.headers["content-type"]), (200, "text/event-stream; charset=utf-8"))
    events = answer.parts()
    self.assertTrue(next(events))
    return talk, answer, events


class ApiTest(HttpTest):

  def test_answers_equal_the_servers(self):
    server, front = self.start_both()
    answer = self.ask(front, post(COMPLETIONS, ask(5), "X-Request-Id: mine"))
    self.assertEqual((answer.status, answer.headers["x-request-id"], answer.json()["id"]), (200, "mine", "cmpl-mine"))
    self.assertIn("traceparent", answer.headers)
    _, streamed, events = self.stream(front, 5)
    for _ in events:
      pass
    self.assertTrue(streamed.body.endswith(b"data: [DONE]\n\n"))
    self.assertEqual(text_of(streamed.body), answer.json()["choices"][0]["text"])
    talk = self.talk(front)  # One connection for several requests.
    for path in ("/v1/models", "/v1/models/m", "/health", "/version"):
      self.assertEqual(talk.ask(head(f"GET {path}")).status, 200, path)
    for what, body in (("", {"prompt": "a"}), ("de", {"tokens": [97]})):
      self.assertEqual(talk.ask(post(f"/{what}tokenize", body)).status, 200)
    self.assertEqual(talk.ask(post("/classify", {"input": "a"})).status, 400)  # The model is not a classifier.
    done = subprocess.run(["curl", "-sS", "--cacert", front.certificates.authority, "-d", json.dumps(ask(3)), "-H",
                           "content-type: application/json", f"https://{front.http_address}{COMPLETIONS}"],
                          capture_output=True, timeout=PATIENCE)
    self.assertEqual(json.loads(done.stdout)["object"], "text_completion")
    wait_until(lambda: '"request_id":"mine"' in front.log.read_text(), "the edge's line of the request")
    self.assertEqual(server.metric(r'aft_requests_total\{.*method="Completions".*\}'), 3)

  def test_the_log_has_no_id_of_a_response(self):
    _, front = self.start_both()
    identifier = "resp_" + 32 * "a"
    self.assertEqual(self.ask(front, head(f"GET /v1/responses/{identifier}", "X-Request-Id: over-http")).status, 404)
    self.assertEqual(self.call(front, attacker.GENERATE, attacker.generate(1), [("x-request-id", "over-grpc")]).outcome, "OK")
    lines = {}
    for name in ("over-http", "over-grpc"):
      wait_until(lambda: f'"request_id":"{name}"' in front.log.read_text(), f"the line of {name}")
      lines[name] = json.loads(next(line for line in front.log.read_text().splitlines() if name in line))
    self.assertEqual(lines["over-http"]["path"], "/v1/responses")
    self.assertEqual({*lines["over-http"]}, {*lines["over-grpc"]})  # Both listeners log the same fields.
    self.assertNotIn(identifier, front.log.read_text())

  def test_other_paths_are_not_found(self):
    server, front = self.start_both()
    for path, status in (("/", 404), ("/metrics", 404), ("/v1", 404), ("/v1/../metrics", 404), ("/v1/%2e%2e/metrics", 404),
                         ("/v1/..%2fmetrics", 400), ("/healthz", 404), ("/v1x/models", 404), (attacker.GENERATE, 404)):
      answer = self.ask(front, head(f"GET {path}"))
      self.assertEqual((answer.status, answer.headers["content-type"]), (status, "application/json"), path)
      self.assertEqual(answer.json()["error"]["type"], "edge_error")
    self.assertEqual(server.metric(TOTAL), 0)

  def test_tokens_come_one_by_one_and_a_client_that_leaves_cancels(self):
    server, front = self.start_both()
    talk, _, events = self.stream(front, 1_000_000)
    for _ in range(20):
      self.assertTrue(next(events))
    self.assertEqual(server.metric(RUNNING), 1)
    talk.close()
    wait_until(lambda: server.metric(r'aft_requests_total\{.*code="CANCELLED".*\}') == 1, "the request ends with its client")
    self.assertEqual(server.metric(RUNNING), 0)

  def test_an_unread_answer_is_cancelled(self):
    server, front = self.start_both(TRUSTED + " limits { write_stall_ms: 500 max_stream_buffer_bytes: 1073741824 }")
    talks = [self.stream(front, 1_000_000, logprobs=20)[0] for _ in range(4)]  # Large events fill the buffers soon.
    wait_until(lambda: server.metric("aft_stuck_calls_total") == len(talks), "the server gives up all of them")
    wait_until(lambda: server.metric(RUNNING) == 0, "no request runs")

  def test_a_client_is_identified_by_its_token_or_address(self):
    (self.folder / "clients.textproto").write_text(
        f'clients {{ name: "shop" token_sha256: "{hashlib.sha256(b"a token").hexdigest()}" }}')
    known, before_known = self.start_both(
        HTTP + ' security { trusted_proxies: "127.0.0.1" clients_file: "clients.textproto" }')
    statuses = {token: self.ask(before_known, post(COMPLETIONS, ask(1), *token)).status
                for token in ((), ("Authorization: Bearer a token",), ("Authorization: Bearer another",))}
    self.assertEqual([*statuses.values()], [401, 200, 401])
    wait_until(lambda: "client=shop" in known.log.read_text(), "the server knows the client")
    server = self.start_server("other", TRUSTED)
    front = self.start_edge(server, name="before-other")
    forged = ["X-Forwarded-For: 127.0.0.9", "x-forwarded-for: 127.0.0.8", "x-envoy-upstream-rq-timeout-ms: 1",
              "x-envoy-external-address: 127.0.0.9", "aft-cache-salt: " + 65 * "s"]
    self.assertEqual(self.ask(front, post(COMPLETIONS, ask(300), *forged), source="127.0.0.2").status, 200)
    wait_until(lambda: "client=127.0.0.2" in server.log.read_text(), "the server knows the address")

  def test_the_server_checks_host_and_origin(self):
    server, front = self.start_both(TRUSTED + ' http { allowed_hosts: "edge.example" allow_origins: "https://chat.example" }')
    for host, origin, status in (("edge.example:8444", None, 200), ("evil.example", None, 403),
                                 ("edge.example", "https://evil.example", 403), ("edge.example", "null", 403),
                                 ("edge.example", "https://edge.example", 200), ("edge.example", "https://chat.example", 200)):
      headers = [f"Origin: {origin}"] if origin else []
      answer = self.ask(front, post(COMPLETIONS, ask(1), *headers, host=host))
      self.assertEqual(answer.status, status, (host, origin))
      self.assertEqual("access-control-allow-origin" in answer.headers, origin == "https://chat.example")
    self.assertEqual(self.ask(front, post(COMPLETIONS, ask(1), "Content-Type: text/plain")).status, 415)
    self.assertEqual(server.metric(r'aft_requests_total\{.*code="OK".*\}'), 3)

  def test_mtls(self):
    _, front = self.start_both(mtls=True)
    known = front.client_tls(*front.certificates.make("client"))
    with contextlib.closing(http1.Talk(front.http_address, known)) as talk:
      self.assertEqual(talk.ask(head("GET /version")).status, 200)
    with self.assertRaises(OSError):
      self.ask(front, head("GET /version"))


class BalancerTest(HttpTest):

  def test_a_drained_replica_fails_no_request(self):
    servers = [self.start_server(f"server{i}", TRUSTED) for i in range(2)]
    # One client stands for many and needs their rate: on a fast machine it exceeds the rate of one.
    front = self.start_edge(*servers, rate=RATE_OF_MANY)
    streams = [self.stream(front, 1000) for _ in range(8)]

    def all_work():
      if all(server.metric(RUNNING) for server in servers):
        return True
      streams.append(self.stream(front, 1000))  # The first streams may have ended.
      return False

    wait_until(all_work, "every replica works")
    servers[0].terminate()
    talk = self.talk(front)
    while servers[0].alive():
      self.assertEqual(talk.ask(post(COMPLETIONS, ask(3))).status, 200)
      for _, answer, events in streams:
        next(events, None)
    for _, answer, events in streams:
      for _ in events:
        pass
      self.assertTrue(answer.body.endswith(b"data: [DONE]\n\n"))

  def test_without_a_healthy_server_refusals_have_a_retry_hint(self):
    server, front = self.start_both()
    before = self.talk(front)
    self.assertEqual(before.ask(head("GET /health")).status, 200)
    _, answer, events = self.stream(front, 1_000_000)
    server.terminate()
    refusals = []
    while not refusals or refusals[-1].status != 503:
      refusals.append(before.ask(post(COMPLETIONS, ask(1))))
      next(events)
    self.assertGreaterEqual(int(refusals[-1].headers["retry-after"]), 1)
    server.stop(hard=True)
    with self.assertRaises(ConnectionError):
      for _ in events:
        pass
    gone = self.ask(front, post(COMPLETIONS, ask(1)))
    self.assertEqual((gone.status, gone.headers["retry-after"], gone.json()["error"]["type"]), (503, "1", "edge_error"))

  def test_a_sidecars_clients_leave_a_lame_server_before_it_refuses(self):
    """deploy/k8s/edge: the lame duck is longer than the age of a connection and its idle time together."""
    server, front = self.start_both(TRUSTED.replace("lame_duck_ms: 0", "lame_duck_ms: 600000"), max_age=("20s", "0.5s"),
                                    rate=RATE_OF_MANY)
    other = self.start_edge(server, name="other", http_idle=("10s", "0.1s"))
    server.terminate()
    wait_until(lambda: front.stat("cluster.aft_http.membership_healthy") == 0, "the edge knows that it drains")

    def ends_with_an_answer():
      try:
        busy = self.talk(front)
        answer = busy.ask(post(COMPLETIONS, ask(1)))
      except OSError:
        return False  # A slow client's connection may be too old before its first request. Then the edge closes it.
      while answer.headers.get("connection") != "close":
        self.assertEqual(answer.status, 200)
        answer = busy.ask(post(COMPLETIONS, ask(1)))
      self.assertEqual(answer.status, 200)
      return True

    wait_until(ends_with_an_answer, "the edge ends the connection with an answer")
    # The edge closes it, on a slow machine within the handshake. Python's version decides which error that is.
    with self.assertRaises((ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)):
      self.talk(other).answer()


class AttackTest(HttpTest):
  """Each attack runs next to a client whose streams must complete, with the same text each time."""

  @contextlib.contextmanager
  def neighbour(self, front):
    over, texts, troubles = threading.Event(), [], []

    def work():
      try:
        while not over.is_set() or len(texts) < 2:
          _, answer, events = self.stream(front, 200)
          for _ in events:
            pass
          texts.append(text_of(answer.body))
          assert answer.body.endswith(b"data: [DONE]\n\n")
      except Exception as error:  # pylint: disable=broad-except; reported below.
        troubles.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
      yield
    finally:
      over.set()
      thread.join(PATIENCE)
    self.assertEqual((troubles, thread.is_alive(), len(set(texts))), ([], False, 1))

  def test_ambiguous_requests_are_refused(self):
    server, front = self.start_both()
    start, hidden = f"POST {COMPLETIONS}", head("GET /v1/models", "Connection: close")
    rows = {
        "two lengths": ["Content-Length: 2", "Content-Length: 3"],
        "a list of lengths": ["Content-Length: 2, 3"],
        "a length and chunks": ["Content-Length: 2", "Transfer-Encoding: chunked"],
        "chunks and a length": ["Transfer-Encoding: chunked", "Content-Length: 2"],
        "a folded line": ["Transfer-Encoding:", " chunked"],
        "another folded line": ["X-A: b", "\tTransfer-Encoding: chunked"],
        "a space before the colon": ["Transfer-Encoding : chunked"],
        "a coding like chunked": ["Transfer-Encoding: xchunked"],
        "chunked twice": ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        "chunked and another": ["Transfer-Encoding: chunked, identity"],
        "another and chunked": ["Transfer-Encoding: identity", "Transfer-Encoding: chunked"],
        "a control character": ["Transfer-Encoding: \x0bchunked"],
        "a length with a sign": ["Content-Length: +2"],
        "a length below 0": ["Content-Length: -2"],
        "a length in another base": ["Content-Length: 0x2"],
        "a length of 2^64": ["Content-Length: 18446744073709551618"],
        "a NUL": ["X-A: b\0c"],
        "no name": [": b"],
        "two hosts": ["Host: elsewhere"],
    }
    chunked = ["Transfer-Encoding: chunked"]
    tries = [(what, headers, body) for what, headers in rows.items() for body in (b"0\r\n\r\n", b"{}")]
    tries += [(str(chunk), chunked, chunk) for chunk in (b"FFFFFFFFFFFFFFFFF\r\n", b"-1\r\n", b"x\r\n", b"2\n{}\n0\n\n",
                                                         b"2;\n\r\n{}\r\n", b"2\r\n{}0\r\n\r\n")]
    listed = 0
    with self.neighbour(front):
      talks = [self.talk(front) for _ in tries]  # All at once, because Envoy closes a second after its refusal.
      for talk, (_, headers, body) in zip(talks, tries):
        talk.send(head(start, "Content-Type: application/json", *headers) + body + hidden)
      for talk, (what, _, body) in zip(talks, tries):
        with self.subTest(what, body=body):
          answers = []
          with contextlib.suppress(ConnectionError):
            while True:
              answers.append(talk.answer().read())
          self.assertIn(answers[0].status, (400, 403, 501))
          if what not in ONE_READER:
            self.assertEqual(len(answers), 1)
          listed += sum(answer.status == 200 for answer in answers)
    # Every request that the server got has an answer at the client.
    self.assertEqual(server.metric(r'aft_requests_total\{.*method="ListModels".*\}'), listed)

  def test_pipelined_requests_are_answered_in_order(self):
    server, front = self.start_both()
    with self.neighbour(front):
      talk = self.talk(front)
      talk.send(b"".join(post(COMPLETIONS, ask(1), f"X-Request-Id: ahead-{i}") for i in range(50)))
      answers = [talk.answer().read() for _ in range(50)]
    self.assertEqual([answer.headers["x-request-id"] for answer in answers], [f"ahead-{i}" for i in range(50)])
    self.assertEqual({answer.status for answer in answers}, {200})

  def test_bodies_that_do_not_parse(self):
    server, front = self.start_both()
    with self.neighbour(front):
      for what, body in {"deep": b"[" * 100_000, "deep objects": b'{"prompt":' * 100_000, "bad UTF-8": b'{"prompt": "\xff\xfe"}',
                         "a key twice": b'{"prompt": "a", "prompt": "b"}', "no JSON": b"\0", "nothing": b"",
                         "too large a number": b'{"prompt": "a", "max_tokens": 1e999}'}.items():
        with self.subTest(what):
          self.assertEqual(self.ask(front, post(COMPLETIONS, body)).status, 400)
    wait_until(lambda: server.metric("aft_memory_used_bytes") == 0, "the last call of the neighbour has released its memory")

  def test_bodies_that_are_too_large(self):
    server, front = self.start_both()
    server.reset_peak(), front.reset_peak()
    before = server.megabytes()
    announced = head(f"POST {COMPLETIONS}", "Content-Type: application/json", f"Content-Length: {4 << 30}")
    endless = head(f"POST {COMPLETIONS}", "Content-Type: application/json", "Transfer-Encoding: chunked")
    with self.neighbour(front):
      for _ in range(8):
        self.assertEqual(self.ask(front, announced).status, 413)
        self.assertEqual(self.ask(front, post(COMPLETIONS, bytes(LARGEST + (1 << 20)))).status, 413)
        talk, chunk = self.talk(front), b"%x\r\n%s\r\n" % (1 << 16, b" " * (1 << 16))
        talk.send(endless)
        sent = 0
        while talk.send(chunk):
          sent += 1 << 16
        self.assertLess(sent, 4 * LARGEST)
        self.assertEqual(talk.answer().status, 413)
      done = subprocess.run(["curl", "-sS", "--cacert", front.certificates.authority, "--data-binary", "@-", "-H",
                             "content-type: application/json", "-o", "/dev/null", "-w", "%{http_code} %{size_upload}",
                             f"https://{front.http_address}{COMPLETIONS}"], input=bytes(2 * LARGEST), capture_output=True,
                            timeout=PATIENCE)
    self.assertEqual(done.stdout, b"413 0", done.stderr)  # curl first sends Expect: 100-continue.
    self.assertLess(server.megabytes("VmHWM") - before, 64)
    self.assertLess(front.megabytes("VmHWM"), 128)

  def test_heads_and_bodies_that_never_arrive(self):
    server, front = self.start_both(headers_timeout=("10s", "2s"), request_timeout=("30s", "2s"))
    with self.neighbour(front):
      for _ in range(2):
        half_heads = [self.talk(front) for _ in range(20)]
        half_bodies = [self.talk(front) for _ in range(20)]
        for talk in half_heads:
          talk.send(head(f"POST {COMPLETIONS}")[:-2])
        for talk in half_bodies:
          talk.send(post(COMPLETIONS, ask(1))[:-1])
        wait_until(lambda: server.metric("aft_memory_used_bytes") > 0, "the server holds their bodies")
        for talk in half_heads + half_bodies:
          answer = talk.answer().read()
          self.assertEqual((answer.status, answer.headers["connection"]), (408, "close"))
      self.assertEqual(self.ask(front, post(COMPLETIONS, ask(1), *[f"x-{i}: v" for i in range(101)])).status, 431)
      self.assertEqual(self.ask(front, post(COMPLETIONS, ask(1), "x-a: " + "v" * 17_000)).status, 431)
    wait_until(lambda: server.metric("aft_memory_used_bytes") == 0, "nothing of them is left")

  def test_all_connections_together_fit_into_the_edge(self):
    server, front = self.start_both(rate=RATE_OF_MANY, headers_timeout=("10s", "600s"), request_timeout=("30s", "600s"))
    front.reset_peak()
    before = front.megabytes()
    for what, stopped, request in (("heads", False, head("GET /version", "x-a: " + "v" * 15_000)[:-2]),
                                   ("bodies that the server does not take", True, post(COMPLETIONS, bytes(1 << 20))),
                                   ("requests ahead", False, head("GET /v1/models") * (1 << 14)),
                                   ("large requests ahead", True, head("GET /version", "x-a: " + "v" * 15_000) * 64)):
      with self.subTest(what):
        if stopped:
          os.kill(server.pid, signal.SIGSTOP)
        talks = [self.talk(front) for _ in range(400)]
        for talk in talks:
          talk.send(request, patience=0.01)
        self.assertEqual(front.stat("http.http.downstream_cx_active"), 400)
        if stopped:
          os.kill(server.pid, signal.SIGCONT)
        self.assertEqual(self.call(front, attacker.GENERATE, attacker.generate(1)).outcome, "OK")
        for talk in talks:
          talk.close()
        wait_until(lambda: front.stat("http.http.downstream_cx_active") == 0, "all are gone")
    self.assertLess(front.megabytes("VmHWM") - before, 100)

  def test_connections_and_requests_of_an_address_are_bounded(self):
    _, front = self.start_both(http_connections=("400", "3"), rate=("max_tokens: 400, tokens_per_fill: 200, fill_interval: 1s",
                                                                  "max_tokens: 5, tokens_per_fill: 5, fill_interval: 3600s"))
    talks = [self.talk(front) for _ in range(3)]
    with self.assertRaises(OSError):
      self.ask(front, head("GET /version"))
    self.assertEqual(front.stat("connection_limit.http.limited_connections"), 1)
    self.assertEqual(self.call(front, attacker.GENERATE, attacker.generate(1)).outcome, "OK")  # Not limited.
    answers = [talks[i % 3].ask(head("GET /version")) for i in range(7)]
    self.assertEqual([answer.status for answer in answers], [200] * 5 + [429] * 2)
    self.assertEqual((answers[-1].headers["retry-after"], answers[-1].json()["error"]["type"]), ("1", "edge_error"))


if __name__ == "__main__":
  edge.main()
