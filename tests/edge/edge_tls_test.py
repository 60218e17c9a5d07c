#!/usr/bin/python3
"""The shipped edge, and replicas with TLS that trust only it: edge_tls_test.py AFT_SERVER DESCRIPTORS MODEL

AFT_ENVOY names the program; without it the tests are skipped.
"""

import contextlib
import hashlib
import re

import attacker
import edge
import http1
from edge import Certificates, PATIENCE, wait_until
from http2 import message

# Addresses of clients. For a client at 127.0.0.1 Envoy would report this machine's address in its network.
HERE, THERE = "127.0.0.2", "127.0.0.3"
FORGED = [("x-forwarded-for", THERE)]


class ReplicaTlsTest(edge.EdgeTest):

  def setUp(self):
    super().setUp()
    self.inner = Certificates(self.folder / "inner")

  def start_server(self, more="", config="", certificate=None, name="server"):
    """Starts a replica as docs/security.md describes. `more` are further fields of its security."""
    certificate, key = certificate or self.inner.make("replica", "aft-serve")
    return super().start_server(name, f"""
        security {{
          tls {{ cert_file: "{certificate}" key_file: "{key}" client_ca_file: "{self.inner.authority}" }}
          trusted_proxies: "127.0.0.1" {more}
        }}
        {config}""")

  def start_edge(self, server, **options):
    return super().start_edge(server, inner=self.inner, **options)

  def answered(self, connection, path, body, headers=()):
    """Makes a call and waits for its first answer or its end."""
    number = connection.request(path, headers)
    connection.data(number, body)
    stream = connection.streams[number]
    while not stream.data and not stream.ended and connection.turn(PATIENCE):
      pass
    return stream

  def generate(self, connection, headers=()):
    """Generates three tokens. Returns the outcome."""
    stream = self.answered(connection, attacker.GENERATE, attacker.generate(3), headers)
    connection.settle(PATIENCE)
    return stream.outcome

  def client_of(self, server, identifier):
    """The name of the client that the server logs for the request with this id."""
    line = rf"event=request\.done .*\bid={identifier} .*?\bclient=(\S+)"
    wait_until(lambda: re.search(line, server.log.read_text()), "the server's line of the call")
    return re.search(line, server.log.read_text()).group(1)

  def test_a_token_identifies_a_client_and_the_edges_certificate_does_not(self):
    (self.folder / "clients.textproto").write_text(
        f'clients {{ name: "shop" token_sha256: "{hashlib.sha256(b"a token").hexdigest()}" }}')
    server = self.start_server('clients_file: "clients.textproto"', 'http_address: "127.0.0.1:0"')
    front = self.start_edge(server, mtls=True)
    tls = front.client_tls(*front.certificates.make("client"))
    for token, outcome in (("a token", "OK"), ("another", "UNAUTHENTICATED"), (None, "UNAUTHENTICATED")):
      with self.subTest(token=token):
        self.assertEqual(self.generate(self.connect_to(front.address, tls, token=token), [("x-request-id", "named")]), outcome)
    self.assertEqual(self.client_of(server, "named"), "shop")
    with contextlib.closing(http1.Talk(front.http_address, tls)) as talk:
      for token, status in (("a token", 200), ("another", 401)):
        headers = [f"Authorization: Bearer {token}", "x-request-id: over-http"]
        self.assertEqual(talk.ask(http1.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, *headers)).status, status)
    self.assertEqual(self.client_of(server, "over-http"), "shop")

  def test_clients_are_identified_by_the_addresses_that_the_edge_saw(self):
    server = self.start_server(config="limits { max_client_watches: 1 }")
    front = self.start_edge(server)
    here, there = (self.connect(front, source=source) for source in (HERE, THERE))
    for number, (connection, headers, client) in enumerate((
        (here, [], HERE), (there, [], THERE), (here, FORGED, HERE), (here, [("x-forwarded-for", f"{THERE}, {THERE}")], HERE))):
      with self.subTest(headers=headers, client=client):
        identifier = f"call-{number}"
        self.assertEqual(self.generate(connection, [("x-request-id", identifier), *headers]), "OK")
        self.assertEqual(self.client_of(server, identifier), client)
    # Each address has its own limit: its second watch replaces its first, whatever the header says.
    first, other = (self.answered(connection, attacker.WATCH, message(b"")) for connection in (here, there))
    second = self.answered(here, attacker.WATCH, message(b""), FORGED)
    wait_until(lambda: (here.turn(0), first.outcome)[1] == "RESOURCE_EXHAUSTED", "the first one gives way")
    self.assertEqual((second.outcome, other.outcome), ("open", "open"))
    self.assertEqual(server.metric(r'aft_open_streams\{kind="watches"\}'), 2)

  def test_a_client_that_bypasses_the_edge_is_refused_or_not_trusted(self):
    server = self.start_server()
    other = Certificates(self.folder / "other")
    for name, tls in (("plaintext", None),
                      ("no certificate", attacker.client_tls(authority=self.inner.authority)),
                      ("another authority's", attacker.client_tls(*other.make("client"), self.inner.authority))):
      with self.subTest(name):
        try:
          outcome = self.generate(self.connect_to(server.address, tls))
        except OSError as error:  # With TLS 1.3 the client sees the refusal at its first read.
          outcome = type(error).__name__
        self.assertNotEqual(outcome, "OK")
    self.assertEqual(server.metric("aft_requests_total"), 0)
    # A client with a certificate may call, but the header is believed only from a trusted proxy's address.
    tls = attacker.client_tls(*self.inner.make("client"), self.inner.authority)
    for source, client in ((HERE, HERE), ("127.0.0.1", THERE)):
      with self.subTest(source):
        connection = self.connect_to(server.address, tls, source=source)
        self.assertEqual(self.generate(connection, [("x-request-id", source), *FORGED]), "OK")
        self.assertEqual(self.client_of(server, source), client)

  def test_the_edge_sends_nothing_to_an_unknown_server(self):
    other = Certificates(self.folder / "other").make("replica", "aft-serve")
    for name, certificate, refusal in (("stranger", other, "fail_verify_error"),
                                       ("another", self.inner.make("another"), "fail_verify_san")):
      with self.subTest(name):
        server = self.start_server(certificate=certificate, name=name)
        front = self.start_edge(server, healthy=0, name=f"before-{name}")
        self.assertEqual(self.generate(self.connect(front)), "UNAVAILABLE")
        self.assertEqual(server.metric("aft_requests_total"), 0)
        self.assertGreater(front.stat(f"cluster.aft.ssl.{refusal}"), 0)

  def install(self, front, authority):
    front.install(*self.inner.make("renewed"), authority, "/etc/envoy-replicas")

  def test_a_new_authority_of_the_replicas_needs_no_restart(self):
    other = Certificates(self.folder / "other")
    server = self.start_server(certificate=other.make("replica", "aft-serve"))
    front = self.start_edge(server, healthy=0)
    self.assertEqual(self.generate(self.connect(front)), "UNAVAILABLE")
    self.install(front, other.authority)
    wait_until(lambda: self.generate(self.connect(front)) == "OK", "the edge trusts the new authority")

  def test_a_new_certificate_for_the_replicas_needs_no_restart(self):
    server = self.start_server()
    front = self.start_edge(server)
    updates = "cluster.aft.client_ssl_socket_factory.ssl_context_update_by_sds"
    before = front.stat(updates)
    self.install(front, self.inner.authority)
    wait_until(lambda: front.stat(updates) > before, "the new certificate is read")
    self.assertEqual(self.generate(self.connect(front)), "OK")


if __name__ == "__main__":
  edge.main()
