#!/usr/bin/env python3
"""Runs the rules and the dashboard of deploy/ in a real Prometheus that scrapes a real server: live_test.py AFT_SERVER MODEL"""

import contextlib
import http.client
import itertools
import json
import math
import os
import re
import sys
import time
import unittest
import urllib.parse

os.environ["no_grpc_proxy"] = "127.0.0.1"

import aft_server
from shipped import PROMETHEUS, RULES, TOOLS, Dashboard

try:
  from aft_client import AftError, Client, Priority
except ModuleNotFoundError as missing:
  if missing.name not in ("grpc", "google", "google.protobuf"):
    raise
  print(f"SKIPPED: no Python with gRPC: {missing}")
  sys.exit(77)

PROGRAM = MODEL = ""


class Prometheus(aft_server.Process):
  """Prometheus with the shipped config, but with this target, and scraping every 3 seconds instead of 15."""

  def __init__(self, folder, target):
    for path in RULES:
      (folder / path.name).write_text(path.read_text())
    text = (PROMETHEUS / "prometheus.yml").read_text()
    text, seconds = re.subn(r"_(interval|timeout): 1[05]s", r"_\1: 3s", text)
    text, targets = re.subn(r"(?m)^    dns_sd_configs:\n(      .*\n)+",
                            f'    static_configs: [{{ targets: ["{target}"] }}]\n', text)
    assert (seconds, targets) == (3, 1), "prometheus.yml is not as this test knows it"
    config = folder / "prometheus.yml"
    config.write_text(text)
    super().__init__(folder, "prometheus", [
        f"{TOOLS}/prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0"])
    listening = re.compile(r'msg="Listening on" address=(\S+)')
    self.wait_for(lambda: listening.search(self.log.read_text()), "Prometheus listens")
    self._address = listening.search(self.log.read_text()).group(1)
    self.wait_for(lambda: self._page("/-/ready")[0] == 200, "Prometheus is ready")

  def _page(self, path):
    with contextlib.closing(http.client.HTTPConnection(self._address, timeout=aft_server.PATIENCE)) as connection:
      connection.request("GET", path)
      response = connection.getresponse()
      return response.status, response.read()

  def get(self, path, **parameters):
    status, body = self._page(f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
    if status != 200:
      raise AssertionError(f"{path} {parameters}: {body}")
    return json.loads(body)["data"]

  def rules(self):
    return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

  def query(self, expr):
    """The finite samples of an expression as (labels, value)."""
    samples = [(one["metric"], float(one["value"][1])) for one in self.get("query", query=expr)["result"]]
    return [(labels, value) for labels, value in samples if math.isfinite(value)]


def selectors(expr):
  """Yields what an expression reads as metric{matcher, ...}, once for each alternative a|b|c of a matcher."""
  expr = re.sub(r"\[[^]]*\]", "", expr)  # ranges
  for name, matchers in re.findall(r"\b(\w+:[\w:]+|(?:aft|process)_\w+|up\b)(?:\{([^}]*)\})?", expr):
    choices = [[f'{label}{operator}"{one}"' for one in (value.split("|") if re.fullmatch(r"\w+(\|\w+)+", value)
                                                        and operator == "=~" else [value])]
               for label, operator, value in re.findall(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"', matchers)]
    for chosen in itertools.product(*choices):
      yield f"{name}{{{', '.join(chosen)}}}"


class LiveTest(unittest.TestCase):

  def traffic(self):
    """Makes a few calls of each kind."""
    client = self.client
    state = client.generate("It is a truth universally acknowledged, that a man", max_tokens=8, store=True,
                            priority=Priority.INTERACTIVE)
    state.text()
    client.generate(" is", max_tokens=8, previous=state.finished.state.id).text()
    client.complete("It is a truth universally acknowledged, that a woman", max_tokens=8, priority=Priority.BATCH)
    client.score("It is a truth universally acknowledged")
    client.detokenize(client.tokenize("It is").ids)
    try:
      client.score("a", model="no such model")
    except AftError:
      pass

  def data_of(self, exprs):
    """Queries under traffic until each expression has finite samples. Returns the labels of these samples."""
    found = {}
    end = time.monotonic() + aft_server.PATIENCE
    while left := [expr for expr in exprs if expr not in found]:
      if time.monotonic() > end:
        self.fail("no data for:\n" + "\n".join(left))
      self.traffic()
      found.update((expr, samples) for expr in left if (samples := self.prometheus.query(expr)))
      time.sleep(0.2)  # The next scrape is seconds away.
    return {expr: [labels for labels, _ in samples] for expr, samples in found.items()}

  def test_all_shipped_rules_and_panels_find_data(self):
    folder = aft_server.new_folder(self)
    server = aft_server.Server(folder, PROGRAM, MODEL, config="states { max_bytes: 268435456 }")
    self.addCleanup(server.stop)
    self.client = Client([server.address])
    self.addCleanup(self.client.close)
    self.prometheus = prometheus = Prometheus(folder, server.metrics_address)
    self.addCleanup(prometheus.stop)

    rules = prometheus.rules()
    self.data_of([rule["name"] for rule in rules if rule["type"] == "recording"])
    for rule in prometheus.rules():
      self.assertEqual(rule["health"], "ok", rule)
    # An alert that reads a misspelt metric, label or value would never fire.
    read = {one for rule in rules for one in selectors(rule["query"]) if 'job=~"(.+/)?aft-edge"' not in one}
    self.assertGreater(len(read), 50)
    self.data_of(sorted(read))

    dashboard = Dashboard()
    queries = {dashboard.fill_in(target["expr"]): target.get("legendFormat", "") for target in dashboard.targets}
    for expr, labels in self.data_of(queries).items():
      with self.subTest(expr):
        self.assertLessEqual(set(re.findall(r"{{(\w+)}}", queries[expr])), set.intersection(*map(set, labels)))
    choices = {dashboard.fill_in(series): label for series, label in dashboard.choices()}
    for series, labels in self.data_of(choices).items():
      with self.subTest(series):
        self.assertTrue([one for one in labels if one.get(choices[series])])

    # The server is healthy, so no alert fires. A slow machine may miss an objective.
    self.assertEqual(prometheus.query('ALERTS{alertname!~"AftErrorBudget.*", alertstate="firing"}'), [])
    self.assertEqual(prometheus.query('ALERTS{alertname=~"AftModel.*"}'), [])
    server.stop(hard=True)
    for name in ("AftTargetDown", "AftNoServer"):
      aft_server.wait_until(lambda: prometheus.query(f'ALERTS{{alertname="{name}", alertstate="pending"}}'), name)


if __name__ == "__main__":
  PROGRAM, MODEL = sys.argv[1:3]
  unittest.main(argv=sys.argv[:1] + sys.argv[3:])
