#!/usr/bin/env python3
"""The Python client with two real servers, one of which is killed, and with servers that it cannot reach:

  aft_client_real_test.py AFT_SERVER MODEL
"""

import os
import subprocess
import sys
import threading
import unittest

os.environ["no_grpc_proxy"] = "127.0.0.1"

try:
  from aft_client import AftError, Client, Delta, Finished, Sampling, Started, Tls
except ModuleNotFoundError as missing:
  if missing.name not in ("grpc", "google", "google.protobuf"):
    raise
  print(f"no Python with gRPC: {missing}")
  sys.exit(77)

import aft_server

PROGRAM = MODEL = ""
TOKENS = 8_000


class RealServersTest(unittest.TestCase):

  def check(self, **sampling):
    while not self.breaks_and_is_whole(**sampling):
      pass

  def start(self):
    self.doCleanups()  # Ends the servers of an earlier try.
    folder = aft_server.new_folder(self)
    servers = [aft_server.Server(folder, PROGRAM, MODEL, name) for name in ("a", "b")]
    for server in servers:
      self.addCleanup(server.stop, hard=True)
    client = Client([server.address for server in servers])
    self.addCleanup(client.close)
    return servers, client

  def breaks_and_is_whole(self, **sampling):
    """Kills the server of a stream. Returns False if the server had already sent everything."""
    servers, client = self.start()
    options = {"max_tokens": TOKENS, "ignore_eos": True, "sampling": Sampling(**sampling)}
    undisturbed = client.generate("It is a truth", **options)
    text = undisturbed.text()
    generation = client.generate("It is a truth", **options)
    events = []
    for event in generation:
      events.append(event)
      if len(events) == 20:
        for server in servers:
          if server.metric("aft_requests_running") > 0:
            server.stop(hard=True)
    self.assertEqual((type(events[0]), type(events[-1])), (Started, Finished))
    self.assertEqual("".join(event.text for event in events if isinstance(event, Delta)), text)
    self.assertEqual(generation.token_ids, undisturbed.token_ids)
    self.assertTrue(generation.exact)
    finished = generation.finished
    self.assertEqual((finished.reason, finished.limit), (undisturbed.finished.reason, undisturbed.finished.limit))
    self.assertEqual(finished.usage.generated_tokens, TOKENS)
    self.assertEqual(finished.usage.prompt_tokens, undisturbed.finished.usage.prompt_tokens)
    self.assertEqual(finished.usage.resumed_tokens > 0, generation.resumes > 0)
    return generation.resumes == 1

  def test_several_answers_are_complete_when_their_server_is_killed(self):
    resumes = 0
    while resumes == 0:
      servers, client = self.start()
      options = {"n": 3, "max_tokens": TOKENS // 2, "ignore_eos": True, "sampling": Sampling(seed=2**64 - 2)}
      undisturbed = client.generate("It is a truth", **options)
      list(undisturbed)
      generation = client.generate("It is a truth", **options)
      for count, _ in enumerate(generation):
        if count == 20:
          for server in servers:
            if server.metric("aft_requests_running") > 0:
              server.stop(hard=True)
      self.assertEqual([output.token_ids for output in generation.outputs],
                       [output.token_ids for output in undisturbed.outputs])
      self.assertEqual([output.text for output in generation.outputs],
                       [output.text for output in undisturbed.outputs])
      self.assertEqual([output.finished.usage.prompt_tokens for output in generation.outputs],
                       [output.finished.usage.prompt_tokens for output in undisturbed.outputs])
      self.assertTrue(generation.exact)
      resumes = generation.resumes

  def test_a_scoring_is_complete_when_its_server_is_killed(self):
    text = "It is a truth universally acknowledged, that " * 2_000
    resumes = 0
    while resumes == 0:
      servers, client = self.start()
      undisturbed = client.score(text)

      def kill():
        while not (running := [server for server in servers if server.metric("aft_requests_running") > 0]):
          pass
        running[0].stop(hard=True)

      killer = threading.Thread(target=kill)
      killer.start()
      scores = client.score(text)
      while killer.is_alive():  # the scoring ended before the kill
        client.score(text)
      killer.join()
      self.assertEqual((scores.token_ids, scores.logprobs, scores.logprob, scores.scored_bytes),
                       (undisturbed.token_ids, undisturbed.logprobs, undisturbed.logprob, undisturbed.scored_bytes))
      self.assertTrue(scores.exact)
      resumes = scores.resumes

  def test_a_greedy_stream_is_complete_when_its_server_is_killed(self):
    self.check(temperature=0)

  def test_a_sampled_stream_is_complete_when_its_server_is_killed(self):
    self.check(temperature=0.8, seed=7, repetition_penalty=1.1)

  def test_says_why_it_cannot_reach_a_server(self):
    folder = aft_server.new_folder(self)
    certificate, key = folder / "certificate", folder / "key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-out", certificate, "-keyout", key],
                   check=True, capture_output=True)
    server = aft_server.Server(folder, PROGRAM, MODEL, config=(
        f'security {{ tls {{ cert_file: "{certificate}" key_file: "{key}" }} }} http_address: "127.0.0.1:0"'))
    self.addCleanup(server.stop, hard=True)
    trusting = Tls(authorities=certificate.read_bytes())
    for address, tls, why in (
        (server.metrics_address, None, "it is an HTTP port; use the address of gRPC, by default 127.0.0.1:8500"),
        (server.http_address, trusting, "it is an HTTP port"),
        (server.http_address, None, "does it expect TLS"),
        (server.address, Tls(), "give the authority's certificate (tls=Tls(authorities=...))"),
        (server.address, trusting, "the server's certificate is for another host name")):
      with Client(address, tls=tls) as client, self.assertRaises(AftError) as caught:
        client.list_models()
      self.assertIn(why, caught.exception.message)


if __name__ == "__main__":
  PROGRAM, MODEL = sys.argv[1:3]
  unittest.main(argv=sys.argv[:1] + sys.argv[3:])
