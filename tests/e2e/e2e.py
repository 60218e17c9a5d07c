#!/usr/bin/python3
"""Tests that streams continue while a cluster kills, replaces, scales and evicts their servers:

  e2e.py PROGRAMS KUBECTL DOCKER_ROOT VERSION

./dev e2e starts it in namespaces of its own. The load is aftload in a pod, which finds the servers by the name of the
headless Service, as deploy/README.md says. aftload compares its answers token by token with those that the same
requests gave before the trouble.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from cluster import PATIENCE, Cluster, wait_until

HERE = Path(__file__).resolve().parent
STREAMS = 24
LOAD = ["aftload", "--json", "--progress", "--allow-remote", "--address=dns:///aft-serve:8500", "--resume",
        "--verify=12", f"--streams={STREAMS}", "--max-tokens=uniform:1000:16000", "--duration=3600"]

BREAKING = ("kubectl delete pod --force", "kill -9 of the server")
FAULTS = ("failed", "lost_tokens", "repeated_tokens", "changed_tokens")
COLUMNS = {"trouble": "trouble", "s": "s", "completed": "completed", "failed": "failed", "lost_tokens": "lost",
           "repeated_tokens": "repeated", "changed_tokens": "changed", "resumed_streams": "resumed",
           "most_resumes": "most", "inexact_streams": "inexact", "output_throughput": "tokens/s",
           "median_longest_gap_ms": "longest gap p50", "p99_longest_gap_ms": "p99", "max_longest_gap_ms": "max, ms", "spread_s": "all used within, s"}


class Deployment:
  """The Deployment aft-serve in the cluster."""

  def __init__(self, cluster, image):
    self.cluster, self.image = cluster, image

  def pods(self):
    """Returns all pods by name, including those that are being deleted."""
    found = self.cluster.get("pods", "-l", "app.kubernetes.io/name=aft-serve")["items"]
    return {pod["metadata"]["name"]: pod for pod in found}

  def ready(self):
    return {name for name, pod in self.pods().items() if "deletionTimestamp" not in pod["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))}

  def wait_for(self, replicas, without=()):
    """Waits until there are exactly `replicas` pods, all ready and none of `without`."""
    wait_until(lambda: len(ready := self.ready()) == replicas and ready == set(self.pods()) - set(without) and
               not ready & set(without), f"{replicas} pods are ready")

  def wait_for_use(self):
    """Waits until each server has had a stream. A client finds a new server when a connection breaks or reaches
    `connections.max_age_ms`."""
    wait_until(lambda: all(self._metric(name, 'aft_requests_total{.*method="Generate"') > 0
                           for name in self.ready()), "every server has had a stream")

  def busy(self):
    """Returns a pod that computes at least four streams. Most pods have computed and sent their streams before the
    clients read them, so that killing these would break none."""
    return wait_until(lambda: next((name for name in self.ready() if self._metric(name, "aft_requests_running{") >= 4),
                                   None), "a server computes four streams")

  def _metric(self, name, series):
    address = self.pods()[name]["status"]["podIP"]
    with urllib.request.urlopen(f"http://{address}:8501/metrics", timeout=60) as page:
      return sum(float(line.split()[-1]) for line in page.read().decode().splitlines() if re.match(series, line))

  def restarts(self):
    return sum(one["restartCount"] for pod in self.pods().values()
               for one in pod["status"].get("containerStatuses", []))

  # ---- Troubles. Each returns when the Deployment has all its replicas again -----------------------
  def nothing(self):
    pass

  def delete(self):
    victim = self.busy()
    self.cluster.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    self.wait_for(3, without=[victim])

  def kill(self):
    before = self.restarts()
    status = self.pods()[self.busy()]["status"]["containerStatuses"][0]
    container = status["containerID"].removeprefix("docker://")
    os.kill(int(self.cluster.docker("inspect", "-f", "{{.State.Pid}}", container)), signal.SIGKILL)
    wait_until(lambda: self.restarts() > before, "the server is started again")
    self.wait_for(3)

  def roll_out(self):
    old = self.ready()
    self.cluster.kubectl("set", "image", "deployment/aft-serve", f"aft-server={self.image}-next")
    self.wait_for(3, without=old)

  def scale(self):
    for replicas in (5, 2, 3):
      self.cluster.kubectl("scale", "deployment/aft-serve", f"--replicas={replicas}")
      self.wait_for(replicas)
      self.wait_for_use()

  def drain(self):
    """Drains the only node. New pods cannot start until it is uncordoned, and until then the budget protects the other
    pods."""
    old = self.ready()
    with open(self.cluster.folder / "drain.log", "w+") as log:
      drain = subprocess.Popen([*self.cluster.kubectl_command, "drain", "node", f"--timeout={PATIENCE}s",
                                "--pod-selector=app.kubernetes.io/name=aft-serve"], stdout=log, stderr=log)
      try:
        wait_until(lambda: "violate the pod's disruption budget" in Path(log.name).read_text() and
                   len(self.ready()) == 2 or drain.poll() is not None, "the budget holds a pod, and two are ready")
        assert drain.poll() is None, Path(log.name).read_text()
        self.cluster.kubectl("uncordon", "node")
        assert drain.wait(PATIENCE) == 0, Path(log.name).read_text()
      finally:
        drain.kill()
    self.wait_for(3, without=old)

  def roll_back(self):
    """Rolls out an image whose server does not start, and undoes it."""
    old = self.ready()
    before = self.restarts()
    self.cluster.kubectl("set", "image", "deployment/aft-serve", f"aft-server={self.image}-bad")
    wait_until(lambda: self.restarts() >= before + 2, "the bad image has failed twice")
    wait_until(lambda: self.ready() == old, "the old pods still serve")
    self.cluster.kubectl("rollout", "undo", "deployment/aft-serve")
    self.wait_for(3)
    wait_until(lambda: self.ready() == old, "the old pods are not replaced")


class Load:
  """aftload in a pod."""

  def __init__(self, cluster, image):
    self.cluster = cluster
    cluster.kubectl("apply", "-f", "-", input=json.dumps({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "load"},
        "spec": {"restartPolicy": "Never", "automountServiceAccountToken": False,
                 "containers": [{"name": "load", "image": image, "command": LOAD}]}}))

  def completed(self):
    lines = re.findall(r"(\d+) done, ", self.cluster.kubectl("logs", "load", "--tail=1", check=False))
    return int(lines[-1]) if lines else 0

  def wait_for_more(self):
    """Waits until 2 * STREAMS more streams have ended."""
    goal = self.completed() + 2 * STREAMS
    wait_until(lambda: self.completed() >= goal, "more streams of the load end")

  def finish(self):
    self.cluster.kubectl("exec", "load", "--", "bash", "-c", "kill -INT 1")
    wait_until(lambda: self.cluster.get("pod", "load")["status"]["phase"] in ("Succeeded", "Failed"), "the load ends")
    page = self.cluster.kubectl("logs", "load")
    self.cluster.kubectl("delete", "pod", "load")
    return json.loads(next(line for line in page.splitlines() if line.startswith("{")))


def endure(cluster, version):
  """Yields a row of results for each trouble."""
  cluster.kubectl("apply", "-f", "-", input=cluster.kubectl("kustomize", HERE))
  servers = Deployment(cluster, f"aft-serve:{version}")
  start = time.monotonic()
  servers.wait_for(3)
  print(f"e2e: three replicas are ready after {time.monotonic() - start:.0f} s", flush=True)
  for what, trouble in (
      ("none", servers.nothing), (BREAKING[0], servers.delete), (BREAKING[1], servers.kill),
      ("rollout of another image", servers.roll_out), ("scaled 3, 5, 2, 3", servers.scale),
      ("node drained, within the budget", servers.drain), ("bad image, rolled back", servers.roll_back)):
    load = Load(cluster, f"aft-serve-tools:{version}")
    load.wait_for_more()
    start = time.monotonic()
    trouble()
    seconds = time.monotonic() - start
    load.wait_for_more()
    servers.wait_for_use()
    row = {"trouble": what, "s": seconds, "spread_s": time.monotonic() - start - seconds} | load.finish()
    print("e2e:", {name: row[name] for name in [*COLUMNS, "errors"]}, flush=True)
    yield row


def main(programs, kubectl, docker_root, version):
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("e2e: ended"))
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    start = time.monotonic()
    with Cluster(programs, kubectl, docker_root, folder) as cluster:
      print(f"e2e: the cluster is ready after {time.monotonic() - start:.0f} s", flush=True)
      try:
        for row in endure(cluster, version):
          rows.append(row)
      except AssertionError:
        print(cluster.kubectl("describe", "pods", check=False))
        raise
  print()
  print("|", " | ".join(COLUMNS.values()), "|\n" + "|---" * len(COLUMNS) + "|")
  for row in rows:
    print("|", " | ".join(f"{row[name]:.0f}" if name != "trouble" else row[name] for name in COLUMNS), "|")
  broken = [row["resumed_streams"] for row in rows if row["trouble"] in BREAKING]
  return 0 if all(broken) and not any(row[name] for row in rows for name in FAULTS) else 1


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
