#!/usr/bin/env python3
"""Tests deploy/k8s/ha: runs its Redis and its server with their configs, and its queries in Prometheus' own unit
tests. ha_test.py AFT_SERVER"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from rendered import DEPLOY, ROOT, kustomize, yaml

sys.path.insert(0, str(ROOT / "tests/support"))
from aft_server import PATIENCE, Process, ServerProcess, new_folder, wait_until  # noqa: E402

SERVER = ""


class StatesTest(unittest.TestCase):

  def setUp(self):
    self.folder = new_folder(self)
    self.documents = kustomize(DEPLOY / "k8s/ha")
    self.socket = str(self.folder / "redis.socket")
    (self.folder / "state.key").write_bytes(bytes(range(32)))
    (self.folder / "redis.password").write_text("of-this-test")

  def data(self, name):
    """The file `name` of whichever ConfigMap has it."""
    return next(document["data"][name] for document in self.documents
                if document["kind"] == "ConfigMap" and name in document["data"])

  def container(self):
    """The container of Redis."""
    return next(document for document in self.documents
                if document["kind"] == "StatefulSet")["spec"]["template"]["spec"]["containers"][0]

  def start_redis(self, password="of-this-test"):
    """Starts Redis with the arguments of the container."""
    container = self.container()
    config = self.data("redis.conf")
    self.assertIn("dir /data\n", config)
    (self.folder / "redis.conf").write_text(config.replace("dir /data\n", f"dir {self.folder}\n"))
    arguments = [argument.replace("/etc/redis/", f"{self.folder}/").replace("$(REDISCLI_AUTH)", password)
                 for argument in container["args"]]
    # Debian's redis-tools installs this program; the package redis-server would start a service.
    redis = Process(self.folder, "redis", [*arguments, "--port", "0", "--unixsocket", self.socket],
                    executable=shutil.which("redis-check-rdb"))
    self.addCleanup(redis.stop, hard=True)
    probe = container["readinessProbe"]["exec"]["command"][-1].replace("redis-cli", f"redis-cli -s {self.socket}")
    wait_until(lambda: subprocess.run(probe, shell=True, capture_output=True, check=False, env={
        **os.environ, "REDISCLI_AUTH": password}).returncode == 0, "Redis is ready")
    return redis

  def redis(self, *command, password="of-this-test"):
    return subprocess.run(["redis-cli", "-s", self.socket, *command], capture_output=True, text=True, check=False,
                          env={**os.environ, "REDISCLI_AUTH": password}, timeout=PATIENCE).stdout.split("\n")

  def start_server(self, name, config):
    path = self.folder / f"{name}.textproto"
    path.write_text(config)
    server = ServerProcess(self.folder, name, SERVER, path)
    self.addCleanup(server.stop, hard=True)
    return server

  def aftctl(self, address, *arguments):
    return subprocess.run([Path(SERVER).with_name("aftctl"), "--address", address, *arguments], capture_output=True,
                          check=False, timeout=PATIENCE)

  def test_redis_keeps_stored_values_and_requires_the_password(self):
    self.start_redis()
    self.assertEqual(self.redis("config", "get", "maxmemory-policy")[1], "noeviction")
    memory = int(self.redis("config", "get", "maxmemory")[1])
    self.assertGreater(memory, 0)
    part = re.search(r"max_client_bytes: (\d+)", self.data("server.textproto")).group(1)
    self.assertLessEqual(2 * int(part), memory)  # No client may fill Redis alone.
    limit = re.fullmatch(r"(\d+)Gi", self.container()["resources"]["limits"]["memory"]).group(1)
    self.assertGreaterEqual(int(limit) << 30, 2 * memory)  # A copy of the process rewrites the file.
    self.assertEqual(self.redis("config", "get", "appendonly")[1], "yes")
    self.assertNotIn("PONG", self.redis("ping", password="another"))

  def test_the_password_of_redis_can_be_changed(self):
    """Follows docs/upgrading.md."""
    redis = self.start_redis()
    server = self.start_server_of_ha()
    wait_until(lambda: server.metric("aft_states_redis_up") == 1, "the server has found Redis")
    self.assertEqual(self.redis("acl", "setuser", "default", ">new")[0], "OK")
    for password in ("of-this-test", "new"):
      self.assertIn("PONG", self.redis("ping", password=password))
    (self.folder / "redis.password").write_text("new")
    redis.stop()
    self.start_redis("new")
    wait_until(lambda: server.metric("aft_states_redis_up") == 1, "the server has found Redis again")
    stored = self.aftctl(server.address, "generate", "--store", "--max-tokens=1", "--prompt=It is")
    self.assertEqual(stored.returncode, 0, stored.stderr)

  def test_the_server_finds_redis_by_its_config(self):
    self.start_redis()
    server = self.start_server_of_ha()
    wait_until(lambda: server.metric("aft_states_redis_up") == 1, "the server has found Redis")

  def start_server_of_ha(self):
    config = self.data("server.textproto")
    for old, new in [("/etc/aft-states/", f"{self.folder}/"), ("aft-redis:6379", f"unix:{self.socket}"),
                     ("/models/", f"{ROOT}/model/zoo/")]:
      self.assertIn(old, config)
      config = config.replace(old, new)
    return self.start_server("server", config)

  def test_servers_accept_each_others_states_while_a_key_is_replaced(self):
    """Follows docs/upgrading.md: during a rollout, servers of two consecutive steps run at the same time."""
    steps = [["old"], ["old", "new"], ["new", "old"], ["new"]]
    addresses, states = [], []
    for key in steps[1]:
      (self.folder / key).write_bytes(key.encode().ljust(32))
    for step, keys in enumerate(steps):
      files = "".join(f'key_files: "{self.folder}/{key}" ' for key in keys)
      address = self.start_server(str(step), f'models {{ path: "{ROOT}/model/zoo/austen-aft-local" intra_op_threads: 1 }}'
                                             f"states {{ {files}}}").address
      stored = self.aftctl(address, "generate", "--store", "--max-tokens=1", "--prompt=It is").stderr.decode()
      exported = self.aftctl(address, "state", "export", re.search(r"[0-9a-f]{32}", stored).group())
      (self.folder / f"{step}.state").write_bytes(exported.stdout)
      addresses.append(address)
    takes = lambda step, other: self.aftctl(addresses[step], "state", "import", self.folder / f"{other}.state").returncode == 0
    for step in range(3):
      self.assertTrue(takes(step, step + 1), steps[step])
      self.assertTrue(takes(step + 1, step), steps[step])
    self.assertFalse(takes(0, 2))  # The second step is needed for this reason.


class ScalingTest(unittest.TestCase):

  def test_the_queries_say_how_many_replicas_are_needed(self):
    if "AFT_PROMETHEUS" not in os.environ:
      self.skipTest("AFT_PROMETHEUS names no folder with promtool; ./dev test fetches it")
    scaled = next(document for document in kustomize(DEPLOY / "k8s/ha") if document["kind"] == "ScaledObject")
    queries = {trigger["name"]: trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]}
    service, = [document for document in kustomize(DEPLOY / "kserve") if document["kind"] == "InferenceService"]
    of_kserve = [metric["external"]["metric"]["query"] for metric in service["spec"]["predictor"]["autoScaling"]["metrics"]]
    metrics = "".join(path.read_text() for path in (ROOT / "server/observability").glob("*.[hc]*"))
    for query in [*queries.values(), *of_kserve]:
      self.assertIn(f'"{re.search("aft_[a-z_]+", query).group()}"', metrics)
    labels = '{namespace="default", pod="%s", model="%s"}'
    series = {
        "aft_requests_waiting" + labels % ("a", "m"): 6, "aft_requests_waiting" + labels % ("a", "n"): 1,
        "aft_requests_waiting" + labels % ("b", "m"): 5, 'aft_requests_waiting{namespace="other"}': 100,
        # The model of a server with the higher load counts.
        "aft_requests_waiting" + labels % ("c", "austen"): 3, "aft_slots_used_ratio" + labels % ("c", "austen"): 0.125,
        "aft_slots_used_ratio" + labels % ("a", "m"): 0.5, "aft_slots_used_ratio" + labels % ("a", "n"): 0.25,
        "aft_slots_used_ratio" + labels % ("b", "m"): 1, 'aft_slots_used_ratio{namespace="other"}': 1,
    }
    tests = {"evaluation_interval": "1m", "tests": [{
        "interval": "1m",
        "input_series": [{"series": name, "values": str(value)} for name, value in series.items()],
        "promql_expr_test": [
            {"expr": queries["waiting"], "eval_time": "0m", "exp_samples": [{"labels": "{}", "value": 15}]},
            {"expr": queries["slots"], "eval_time": "0m", "exp_samples": [{"labels": "{}", "value": 1.625}]},
            *[{"expr": query, "eval_time": "0m", "exp_samples": [{"labels": "{}", "value": value}]}
              for query, value in zip(of_kserve, (3, 0.125), strict=True)],
        ]}]}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
      yaml.safe_dump(tests, file)
      file.flush()
      result = subprocess.run([Path(os.environ["AFT_PROMETHEUS"]) / "promtool", "test", "rules", file.name],
                              capture_output=True, text=True, check=False, timeout=PATIENCE)
    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
  SERVER = sys.argv.pop(1)
  unittest.main()
