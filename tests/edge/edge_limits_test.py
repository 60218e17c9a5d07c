#!/usr/bin/python3
"""Limits of the shipped edge that protect other clients: edge_limits_test.py AFT_SERVER DESCRIPTORS MODEL

AFT_ENVOY names the program; without it the tests are skipped.
"""

import os
import re
import subprocess
import unittest

os.environ["no_grpc_proxy"] = "127.0.0.1"

import grpc
import yaml

import attacker
import edge
import http2
from aft_client import Tls
from aft_client._channel import open_channel
from edge import wait_until
from http2 import message

REPLICAS = 24  # The number of replicas for which the limits are made.
MIB = 1 << 20


def seconds(text):
  return float(text.removesuffix("s"))


class ConfigTest(unittest.TestCase):
  """Checks relations between numbers in the shipped files, without waiting for their effects."""

  def setUp(self):
    self.config = yaml.safe_load((edge.DEPLOY / "envoy.yaml").read_text())
    self.manager = self.config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    host, = self.manager["route_config"]["virtual_hosts"]
    self.routes = {route["match"].get("path") or route["match"].get("prefix"): route.get("route")
                   for route in host["routes"]}
    self.limits = {cluster["name"]: cluster["circuit_breakers"]["thresholds"]
                   for cluster in self.config["static_resources"]["clusters"] if "circuit_breakers" in cluster}
    self.server = subprocess.run([edge.PROGRAM, f"--model={edge.MODEL}", "--print_config"], check=True,
                                 capture_output=True, text=True).stdout

  def default(self, field):
    return int(re.search(rf"(?m)^ *{field}: (\d+)", self.server).group(1))

  def test_the_edges_limits_exceed_those_of_its_replicas(self):
    requests, streams = (limits["max_requests"] for limits in self.limits["aft"])
    self.assertGreater(requests, REPLICAS * (self.default("slots") + self.default("max_queued_requests")))
    self.assertGreater(streams, REPLICAS * self.default("max_infer_streams"))

  def test_one_address_does_not_fill_the_cluster_of_reflection(self):
    rates, = (one for one in self.manager["http_filters"] if one["name"].endswith("local_ratelimit"))
    bucket = rates["typed_config"]["descriptors"][0]["token_bucket"]
    self.assertEqual(bucket["fill_interval"], "1s")
    length = seconds(self.routes["/grpc.reflection."]["max_stream_duration"]["max_stream_duration"])
    watches, = self.limits["aft_watches"]
    self.assertGreater(watches["max_requests"], 1.5 * (bucket["max_tokens"] + length * bucket["tokens_per_fill"]))
    self.assertGreater(watches["max_requests"], self.default("max_watches"))

  def test_a_connection_has_the_servers_limit_of_streams(self):
    self.assertEqual(self.manager["http2_protocol_options"]["max_concurrent_streams"],
                     self.default("max_concurrent_streams"))

  def test_a_retry_reaches_another_replica_than_a_dead_one(self):
    host, = self.manager["route_config"]["virtual_hosts"]
    retries = host["retry_policy"]
    # The balancer draws two of three replicas, with replacement, and chooses the emptier one. A dead one is the emptiest.
    dead = 5 / 9
    choices = 1 + retries["host_selection_retry_max_attempts"]
    self.assertLess(dead * (dead ** choices) ** retries["num_retries"], 1e-8)

  def test_openais_clients_do_not_send_a_request_again_that_took_too_long(self):
    listener, = (one for one in self.config["static_resources"]["listeners"] if one["name"] == "http")
    mappers = listener["filter_chains"][0]["filters"][1]["typed_config"]["local_reply_config"]["mappers"]
    added = {mapper["filter"]["status_code_filter"]["comparison"]["value"]["default_value"]:
             [one["header"] for one in mapper["headers_to_add"]] for mapper in mappers}
    self.assertEqual(added[504], [{"key": "x-should-retry", "value": "false"}])


class ProxyTest(edge.EdgeTest):

  def test_the_clients_of_another_proxy_have_rates_of_their_own(self):
    server = self.start_server(config='security { trusted_proxies: "127.0.0.0/8" }')
    front = self.start_edge(server, hops=("hops: 0", "hops: 1"),
                            rate=("max_tokens: 400, tokens_per_fill: 200, fill_interval: 1s",
                                  "max_tokens: 1, tokens_per_fill: 1, fill_interval: 3600s"))
    proxy = self.connect(front, source="127.0.0.2")  # In place of 127.0.0.1 Envoy would name its own address.
    outcomes = [self.call(front, attacker.GENERATE, attacker.generate(1), [("x-forwarded-for", client)], proxy).outcome
                for client in ("203.0.113.1", "203.0.113.2", "203.0.113.1")]
    self.assertEqual(outcomes, ["OK", "OK", "RESOURCE_EXHAUSTED"])
    for client in ("203.0.113.1", "203.0.113.2"):
      wait_until(lambda name=f"client={client}": name in server.log.read_text(), "the server knows the client")


class IdleTest(edge.EdgeTest):

  def test_idle_streams_on_every_replica_do_not_block_others(self):
    servers = [self.start_server(f"server{i}", 'security { trusted_proxies: "127.0.0.1" }') for i in range(3)]
    front = self.start_edge(*servers, request_timeout=("30s", "600s"))
    hostile = [self.connect(front, source="127.0.0.2") for _ in range(4)]
    for connection in hostile:
      for _ in range(90):
        connection.request(attacker.STREAM_INFER)

    def ended():
      for connection in hostile:
        connection.turn(0)
      return sum(stream.ended for connection in hostile for stream in connection.streams.values())

    wait_until(lambda: ended() == 360 - 3 * 64, "it has only its share of every replica")
    other = self.connect(front)
    for _ in range(12):
      stream = other.request(attacker.STREAM_INFER)
      other.data(stream, attacker.infer(), end=False)
      self.until(other, lambda: other.streams[stream].data or other.streams[stream].ended, "an answer")
      self.assertEqual(other.streams[stream].outcome, "open")
    self.assertEqual(ended(), 360 - 3 * 64)

  def test_our_client_has_more_than_a_hundred_streams_on_a_connection(self):
    front = self.start_edge(self.start_server())
    channel = open_channel(grpc, front.address, Tls(front.certificates.authority.read_bytes()), 1, [])
    self.addCleanup(channel.close)
    watches = [channel.unary_stream(attacker.WATCH)(b"", timeout=edge.PATIENCE) for _ in range(150)]
    for watch in watches:
      self.assertEqual(next(watch), attacker.field(1, 1))  # SERVING
    self.assertEqual(front.stat("http.edge.downstream_cx_total"), 1)

  def test_a_quiet_watch_lasts_until_its_own_limit(self):
    front = self.start_edge(self.start_server(), idle=("300s", "0.1s"), watch=("600s", "1s"))
    connection = self.connect(front)
    counted = lambda: [front.stat(f"http.edge.downstream_rq_{why}") for why in ("idle_timeout", "max_duration_reached")]
    answer, rounds = b"", 0

    def answered():
      nonlocal answer, rounds
      rounds += 1
      watch, quiet = connection.request(attacker.WATCH), connection.request(attacker.STREAM_INFER)
      connection.data(watch, message(b""))
      connection.flush()
      self.until(connection, lambda: all(connection.streams[one].ended for one in (quiet, watch)), "both end")
      self.assertEqual(connection.streams[quiet].outcome, "DEADLINE_EXCEEDED")
      wait_until(lambda: counted() == [rounds, rounds], "the edge has counted both")  # It may end a stream first.
      answer = connection.streams[watch].data
      return answer

    wait_until(answered, "an answer comes before the limit of its watch")  # A slow server may answer only after it.
    self.assertEqual(len(answer), 7)  # One answer.

  def test_a_request_that_waits_too_long_for_a_slot_is_not_sent_again(self):
    server = self.start_server(config=f"scheduling {{ max_client_slots: 1 strict_quotas: true }} {edge.SLOW_READERS}")
    front = self.start_edge(server, idle=("300s", "1s"))
    holder = self.connect_to(server.address, None)  # The edge would end its stream if that paused for a second.
    running = holder.request(attacker.GENERATE)
    holder.data(running, attacker.generate(1_000_000))
    self.until(holder, lambda: holder.streams[running].data, "it has the slot")
    connection = self.connect(front)
    waiting = connection.request(attacker.GENERATE)
    connection.data(waiting, attacker.generate(1))
    self.until(connection, lambda: (holder.turn(0), connection.streams[waiting].ended)[1], "the edge gives up")
    self.assertEqual(holder.streams[running].outcome, "open")
    self.assertEqual(connection.streams[waiting].outcome, "DEADLINE_EXCEEDED")
    self.assertEqual(len(connection.streams[waiting].data), 0)

  def test_large_incomplete_messages_to_reflection_are_refused(self):
    front = self.start_edge(self.start_server(), reflection=("10s", "600s"), request_timeout=("30s", "600s"))
    connection = self.connect(front)
    for size in [1_000] * 40 + [3 * MIB] * 40:
      connection.data(connection.request(attacker.REFLECTION), message(bytes(size))[:-1], end=False)
    connection.flush()
    self.until(connection, lambda: http2.outcomes([connection]).get("INVALID_ARGUMENT") == 40, "large ones are refused")
    self.assertEqual(http2.outcomes([connection])["open"], 40)

  def test_half_a_message_after_an_answer_ends_with_the_idle_timeout(self):
    front = self.start_edge(self.start_server(), request_timeout=("30s", "3s"), idle=("300s", "6s"))
    connection = self.connect(front)
    stream, unanswered = (connection.request(attacker.STREAM_INFER) for _ in range(2))
    connection.data(stream, attacker.infer(), end=False)
    self.until(connection, lambda: connection.streams[stream].data, "an answer")
    for half in (stream, unanswered):
      connection.data(half, attacker.infer()[:-1], end=False)
    connection.flush()
    self.until(connection, lambda: all(connection.streams[one].ended for one in (stream, unanswered)), "both end")
    self.assertEqual([connection.streams[one].outcome for one in (unanswered, stream)],
                     ["DEADLINE_EXCEEDED", "reset INTERNAL_ERROR"])
    self.assertEqual([front.stat(f"http.edge.downstream_rq_{why}") for why in ("timeout", "idle_timeout")], [1, 1])


class ImportTest(edge.EdgeTest):

  def start(self, front, total, chunk):
    """Imports a state of `total` MiB in messages of `chunk` MiB."""
    connection = self.connect(front)
    number = connection.request(attacker.IMPORT)
    for sent in range(0, total, chunk):
      body = attacker.field(1, b"m") + attacker.field(2, total * MIB) + attacker.field(4, bytes(chunk * MIB))
      connection.data(number, message(body), end=sent + chunk >= total)
    connection.settle(edge.PATIENCE)
    return connection.streams[number]

  def test_a_state_may_be_larger_than_a_message(self):
    server = self.start_server()
    front = self.start_edge(server, request_timeout=("30s", "600s"))
    before = server.megabytes()
    server.reset_peak()
    answer = self.start(front, 32, 2)  # The server answers to the beginning, so the edge has read all of it.
    self.assertEqual(answer.outcome, "INVALID_ARGUMENT")
    self.assertIn("largest that a state of", answer.headers["grpc-message"])
    self.assertEqual(self.start(front, 66, 2).outcome, "RESOURCE_EXHAUSTED")
    self.assertEqual(front.stat("http.edge.downstream_rq_too_large"), 1)
    large = self.start(front, 48, 48)  # One message, which the server must not buffer.
    self.assertEqual(large.outcome, "RESOURCE_EXHAUSTED")
    self.assertLess(server.megabytes("VmHWM") - before, 32)

  def test_half_an_import_does_not_reach_a_server(self):
    server = self.start_server()
    front = self.start_edge(server, request_timeout=("30s", "1s"))
    connection = self.connect(front)
    number = connection.request(attacker.IMPORT)
    for _ in range(5):
      connection.data(number, message(attacker.field(1, b"m") + attacker.field(4, bytes(MIB))), end=False)
    connection.settle(edge.PATIENCE)
    self.assertEqual(connection.streams[number].outcome, "DEADLINE_EXCEEDED")
    self.assertEqual(server.metric("aft_requests_total"), 0)


if __name__ == "__main__":
  edge.main()
