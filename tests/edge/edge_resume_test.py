#!/usr/bin/python3
"""Streams through the shipped edge continue without their replica: edge_resume_test.py AFT_SERVER DESCRIPTORS MODEL

AFT_ENVOY names the program; without it the tests are skipped.
"""

import os

os.environ["no_grpc_proxy"] = "127.0.0.1"

import edge
from aft_client import Client, Delta, Sampling, Tls

TOKENS = 8_000


class EdgeResumeTest(edge.EdgeTest):

  def start(self, config="drain { lame_duck_ms: 0 grace_ms: 20 }", **sites):
    """Starts two servers, the edge in front of them, and a client."""
    servers = [self.start_server(name, config) for name in ("a", "b")]
    front = self.start_edge(*servers, **sites)
    return servers, front, self.client_of(front)

  def client_of(self, front, **options):
    client = Client(front.address, tls=Tls(front.certificates.authority.read_bytes()), **options)
    self.addCleanup(client.close)
    return client

  def break_one(self, hard):
    """Stops the server of a stream, which must still be complete. Returns whether it had to be resumed."""
    self.doCleanups()  # Ends the programs of an earlier try.
    self.folder = edge.new_folder(self)
    servers, _, client = self.start()
    options = {"max_tokens": TOKENS, "ignore_eos": True, "sampling": Sampling(seed=7)}
    undisturbed = client.generate("It is a truth", **options)
    text = undisturbed.text()
    generation = client.generate("It is a truth", **options)
    seen = ""
    stopped = False
    for event in generation:
      seen += event.text if isinstance(event, Delta) else ""
      if len(seen) >= 20 and not stopped:
        stopped = True
        for server in servers:
          if server.metric("aft_requests_running") > 0:
            server.stop(hard)
    self.assertEqual(seen, text)
    self.assertEqual(generation.token_ids, undisturbed.token_ids)
    self.assertTrue(generation.exact)
    self.assertEqual(generation.finished.usage.generated_tokens, TOKENS)
    return generation.resumes > 0

  def test_a_stream_is_complete_when_its_replica_is_killed(self):
    while not self.break_one(hard=True):
      pass

  def test_a_stream_is_complete_when_its_replica_is_drained(self):
    while not self.break_one(hard=False):
      pass

  def test_an_old_connection_accepts_no_new_streams_and_keeps_its_own(self):
    # Connections become old only after a slow client's handshake. The stream is read slowly meanwhile.
    _, front, client = self.start(edge.SLOW_READERS, max_age=("20s", "2s"), drain=("30s", "0.1s"))
    generation = client.generate("It is a truth", max_tokens=1_000_000, ignore_eos=True)
    events = iter(generation)
    next(events)
    edge.wait_until(lambda: (next(events), client.tokenize("It is"), front.stat("http.edge.downstream_cx_total") >= 4)[-1],
                    "new connections, the third after the stream's")
    for _ in range(100):
      next(events)
    self.assertEqual(generation.resumes, 0)
    generation.close()

  def test_a_draining_replica_fails_no_client(self):
    servers, front, _ = self.start("drain { lame_duck_ms: 600000 }")
    # Each client has a connection of its own, so the Watch of some would reach that replica.
    clients = [self.client_of(front, max_attempts=1, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(8)]
    for client in clients:
      client.tokenize("It is")
    servers[0].terminate()
    edge.wait_until(lambda: front.stat("cluster.aft.membership_healthy") == 1, "the edge knows that it drains")
    for client in clients:
      client.tokenize("It is")


if __name__ == "__main__":
  edge.main()
