#!/usr/bin/env python3
"""Checks deploy/ against the server that it deploys: deploy_test.py AFT_SERVER. tests/deploy checks what kustomize
makes of it."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVER = ""


def print_config(path):
  return subprocess.run([SERVER, f"--config={path}", "--print_config"], capture_output=True, text=True)


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

  def test_every_overlay_for_cpus_has_the_same_model(self):
    """deploy/sizing.md says why it has 16 slots."""
    def model(overlay):
      printed = print_config(DEPLOY / f"k8s/{overlay}/server.textproto").stdout
      return re.search(r"^models \{\n.*?^\}", printed, re.DOTALL | re.MULTILINE).group()
    self.assertIn("  slots: 16\n", model("cpu"))
    for overlay in ("edge", "ha"):
      self.assertEqual(model(overlay), model("cpu"), overlay)


class EdgeTest(unittest.TestCase):

  def test_ports_agree_everywhere(self):
    exposed = re.search(r"^EXPOSE (\d+) (\d+) (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE).groups()
    container = (DEPLOY / "config/container.textproto").read_text()
    self.assertEqual(re.findall(r'address: "0\.0\.0\.0:(\d+)"', container), list(exposed))
    self.assertIn(f"port: {exposed[1]}", (DEPLOY / "prometheus/prometheus.yml").read_text())

  def test_the_page_installs_the_key_for_envoy_only(self):
    commands = re.findall(r"^\$ sudo install (.*)$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    self.assertTrue(any("tls.key" in command for command in commands))
    for command in commands:
      self.assertIn(" -m 400 -o envoy " if "tls.key" in command else " -m 644 ", command)

  def test_the_edge_fits_its_server(self):
    envoy = (DEPLOY / "envoy/envoy.yaml").read_text()
    server = print_config(DEPLOY / "config/server.textproto").stdout
    # A gRPC message has five bytes before it.
    self.assertEqual(number(r"max_request_bytes: (\d+)", envoy), number(r"max_message_bytes: (\d+)", server) + 5)
    self.assertEqual(number(r'get\("most"\) or (\d+)', envoy), number(r"max_message_bytes: (\d+)", server))
    # The server decides which streams stay open, so the edge allows more of them than a server keeps.
    streams = number(r"kMostInferStreams = (\d+);", (ROOT / "server/config/memory_plan.cc").read_text())
    for site, bound in (("watches", number(r"\bmax_watches: (\d+)", server)), ("streams", streams)):
      self.assertGreater(number(rf"max_requests: (\d+).*# site: {site}\n", envoy), bound, site)
    # The edge has one address, to which a server allows half of its connections.
    beside = print_config(DEPLOY / "k8s/edge/server.textproto").stdout
    self.assertLess(number(r"max_connections: (\d+).*# site: http_connections\n", envoy),
                    number(r"\bmax_connections: (\d+)", beside) // 2)
    limits = re.findall(r"limits: {memory: (\d+)Mi}", (DEPLOY / "envoy/sidecar.yaml").read_text())
    self.assertEqual(number(r"max_heap_size_bytes: (\d+)", envoy), int(limits[-1]) * 2**20 * 3 // 4)

  def test_no_connection_to_the_edge_lasts_longer_than_its_servers_lame_duck(self):
    """Envoy as a sidecar does not tell its clients that its server drains."""
    envoy, page = (DEPLOY / "envoy/envoy.yaml").read_text(), (ROOT / "SECURITY.md").read_text()
    config = {overlay: print_config(DEPLOY / f"k8s/{overlay}/server.textproto").stdout for overlay in ("cpu", "edge")}
    # The lame duck without the edge lasts until endpoints and DNS have forgotten the server.
    forgotten, lame_duck = (number(r"lame_duck_ms: (\d+)", config[overlay]) for overlay in ("cpu", "edge"))
    age, over_http = map(int, re.findall(r"max_connection_duration: (\d+)s  # site: max_age\n", envoy))
    idle = number(r"idle_timeout: (\d+)s  # site: http_idle\n", envoy)
    self.assertEqual(age, over_http)
    self.assertGreaterEqual(lame_duck, forgotten + (age + idle) * 1000)
    self.assertIn(f"take no new streams after {age} s,", page)
    self.assertIn(f"{idle} s idle between requests", page)
    # Clients that balance over servers look for new ones at least as often with the edge as without it.
    self.assertLessEqual(age * 1000, number(r"max_age_ms: (\d+)", config["cpu"]))


class MonitoringTest(unittest.TestCase):

  def test_discovery_by_the_api_finds_the_job_of_the_rules(self):
    config = (DEPLOY / "prometheus/prometheus-kubernetes.yml").read_text()
    job = re.search(r'job=~"([^"]*)"', (DEPLOY / "prometheus/alerts.rules.yml").read_text()).group(1)
    replacement = re.search(r"replacement: (\S+)\n +target_label: job\n", config).group(1)
    self.assertRegex(replacement.replace("$1", "prod"), f"^{job}$")
    kept = re.search(r"_port_name\]\n +regex: (\w+)\n +action: keep\n", config).group(1)
    self.assertRegex((DEPLOY / "k8s/base/deployment.yaml").read_text(), rf"- name: {kept}\n +containerPort: 8501\n")

  def test_the_runbook_says_how_a_server_without_a_model_ends(self):
    addresses = ["--listen_address=127.0.0.1:0", "--metrics_address=127.0.0.1:0"]
    result = subprocess.run([SERVER, "--model=/missing", *addresses], capture_output=True, text=True)
    self.assertIn("no model could be loaded", result.stderr)
    sections = re.split(r"(?m)^## (\w+)$", (DEPLOY / "runbook.md").read_text())
    for alert in ("AftNoServer", "AftTargetDown", "AftModelFailed"):
      self.assertRegex(sections[sections.index(alert) + 1], rf"(?i)exit code {result.returncode}\b", alert)


class ImageTest(unittest.TestCase):

  def test_its_revision_reaches_the_programs(self):
    stages = [stage for stage in (ROOT / "Dockerfile").read_text().split("\nFROM ") if "./dev build" in stage]
    self.assertEqual(len(stages), 2)
    for stage in stages:
      self.assertRegex(stage, r"(?s)\nARG AFT_GIT_REVISION=.*\./dev build")
    with tempfile.TemporaryDirectory() as folder:
      (Path(folder) / "CMakeLists.txt").write_text(
          "cmake_minimum_required(VERSION 3.25)\nproject(stub LANGUAGES NONE)\nfunction(aft_library)\nendfunction()\n"
          f'function(target_include_directories)\nendfunction()\nadd_subdirectory("{ROOT}/base" base)\n')
      subprocess.run(["cmake", "-G", "Ninja", "-S", folder, "-B", f"{folder}/build"], check=True, capture_output=True,
                     env={**os.environ, "AFT_GIT_REVISION": "1234567-dirty"})
      header = Path(folder, "build/generated/base/version.h").read_text()
    self.assertIn('kGitRevision[] = "1234567-dirty";', header)

  def test_its_health_check_asks_what_the_liveness_probe_asks(self):
    """Some platforms restart a container that is not healthy."""
    probe = re.search(r"livenessProbe:\n +grpc:\n +port: (\d+)\n +service: (\w+)\n",
                      (DEPLOY / "k8s/base/deployment.yaml").read_text())
    check = re.search(r"^HEALTHCHECK .*\\\n +CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE).group(1)
    self.assertIn(f'"--address=127.0.0.1:{probe[1]}", "--service={probe[2]}"]', check)

  def test_nothing_that_git_ignores_gets_into_it(self):
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    copied = {line[1:] for line in lines if line.startswith("!")}
    for pattern in (ROOT / ".gitignore").read_text().splitlines():
      path = pattern.strip("/")
      folders = [path[:end.start()] for end in re.finditer("/|$", path)]
      if pattern.startswith("/") and copied.isdisjoint(folders):
        continue
      left_out = {*folders, f"{path}/*"} if pattern.startswith("/") else {f"**/{path}"}
      self.assertFalse(left_out.isdisjoint(lines), pattern)


if __name__ == "__main__":
  SERVER = sys.argv.pop(1)
  unittest.main()
