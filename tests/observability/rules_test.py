#!/usr/bin/env python3
"""Checks rules, alerts, runbook and dashboard of deploy/ without a server."""

import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from shipped import PROMETHEUS, ROOT, RULES, Dashboard, promtool

HERE = Path(__file__).resolve().parent


def alerts():
  """A map from each alert's name to the text of its rule."""
  text = "".join(path.read_text() for path in RULES)
  found = {name: rule for name, rule in re.findall(r"- alert: (\w+)\n((?: {8}.*\n)+)", text)}
  assert len(found) == text.count("- alert:"), "an alert that this test does not understand"
  return found


class RulesTest(unittest.TestCase):

  def succeeds(self, *arguments):
    code, output = promtool(*arguments)
    self.assertEqual(code, 0, output)

  def test_rules_and_configs_are_valid(self):
    self.succeeds("check", "rules", "--lint=all", "--lint-fatal", *RULES)
    self.succeeds("check", "config", "--lint=all", "--lint-fatal", PROMETHEUS / "prometheus.yml")
    # Debian's Prometheus does not support discovery by Kubernetes' API, so this part is removed.
    text = (PROMETHEUS / "prometheus-kubernetes.yml").read_text()
    text, count = re.subn(r"(?m)^    kubernetes_sd_configs:\n(      .*\n)+", "", text)
    self.assertEqual(count, 2)
    with tempfile.TemporaryDirectory() as folder:
      config = Path(folder) / "prometheus.yml"
      config.write_text(text.replace("rule_files:\n  - ", f"rule_files:\n  - {PROMETHEUS}/").replace(
          "\n  - alerts", f"\n  - {PROMETHEUS}/alerts"))
      self.succeeds("check", "config", config)

  def test_replicas_that_are_not_ready_are_scraped(self):
    """Checks the Service in prometheus.yml. Only a headless one with publishNotReadyAddresses resolves to them."""
    config = (PROMETHEUS / "prometheus.yml").read_text()
    name, port = re.search(r"names: \[([\w-]+)\.\w+\]\n +type: A\n +port: (\d+)", config).groups()
    service, = [one for one in (ROOT / "deploy/k8s/base/service.yaml").read_text().split("\n---\n")
                if f"\n  name: {name}\n" in one]
    for line in ("  clusterIP: None", "  publishNotReadyAddresses: true", f"      port: {port}"):
      self.assertIn(f"\n{line}\n", service)

  def test_the_jobs_of_servers_and_edges_are_separate(self):
    """If the servers' job included an Envoy that answers, AftNoServer would not fire when no server does."""
    monitors = (ROOT / "deploy/k8s/components/monitoring/podmonitor.yaml").read_text()
    ports = {re.search(r"\n  name: (\S+)", one).group(1): re.findall(r"- port: (\S+)", one)
             for one in monitors.split("\n---\n")}
    jobs = set(re.findall(r'job=~"([^"]*)"', "".join(path.read_text() for path in RULES)))
    chosen = {job: [ports[name] for name in ports if re.fullmatch(job, f"prod/{name}")] for job in jobs}
    self.assertEqual(chosen, {"(.+/)?aft-serve": [["metrics"]], "(.+/)?aft-edge": [["edge-status"]],
                              "(.+/)?aft-(serve|edge)": [["metrics"], ["edge-status"]]})

  def test_rules_behave_as_in_the_yml_files(self):
    tests = sorted(HERE.glob("*_test.yml"))
    self.assertEqual(len(tests), 4)
    for path in tests:
      with self.subTest(path.name):
        self.succeeds("test", "rules", path)

  def test_every_alert_is_tested_to_fire_and_not_to_fire(self):
    text = "".join(path.read_text() for path in sorted(HERE.glob("*_test.yml")))
    for name in alerts():
      with self.subTest(name):
        self.assertRegex(text, rf"alertname: {name}(\n +|, )exp_alerts:")
        self.assertRegex(text, rf"alertname: {name}(}}|\n(?! +exp_alerts))")

  def test_resources_of_the_operator_are_the_same_rules(self):
    made = subprocess.run([PROMETHEUS / "prometheusrule.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout
    self.assertEqual(made, (PROMETHEUS / "prometheusrule.yaml").read_text(), "run prometheusrule.sh")
    specs = re.findall(r"(?ms)^spec:\n(.*?)(?=^---$|\Z)", made)
    self.assertEqual([re.sub(r"(?m)^  ", "", spec) for spec in specs], [path.read_text() for path in RULES])

  def test_the_runbook_has_a_section_for_every_alert_and_no_other(self):
    runbook = (ROOT / "deploy/runbook.md").read_text()
    sections = re.split(r"(?m)^## (Aft\w+)$", runbook)
    self.assertEqual(sorted(sections[1::2]), sorted(alerts()))
    for name, body in zip(sections[1::2], sections[2::2]):
      with self.subTest(name):
        self.assertRegex(body, r"(?s)\*\*Symptom\.\*\* .*\*\*Look at\*\* .*\*\*Do\*\* ")
    for name, rule in alerts().items():
      with self.subTest(name):
        self.assertIn(f'runbook_url: "deploy/runbook.md#{name.lower()}"', rule)
        self.assertRegex(rule, r"severity: (page|ticket)\b")
        self.assertRegex(rule, r'summary: "')


class DashboardTest(unittest.TestCase):

  def test_every_metric_is_in_a_panel_or_an_alert(self):
    """Every metric is used by a panel or an alert."""
    seen = "".join(path.read_text() for path in RULES) + "".join(target["expr"] for target in Dashboard().targets)
    for cells in re.findall(r"(?m)^\| (`(?:aft|process)_[^|]*)\|", (ROOT / "docs/metrics.md").read_text()):
      for name in set(re.findall(r"\w+_\w+", cells)) - {"process_virtual_memory_bytes"}:  # It means nothing.
        self.assertRegex(seen, rf"\b{name}(_bucket|_count|_sum)?\b")

  def test_panels_show_the_chosen_jobs(self):
    for target in Dashboard().targets:
      self.assertIn("$job", target["expr"])

  def test_panels_are_complete_and_do_not_overlap(self):
    panels = Dashboard().panels
    ids = [panel["id"] for panel in panels]
    self.assertEqual(sorted(ids), sorted(set(ids)))
    titles = [panel["title"] for panel in panels]
    self.assertEqual(sorted(titles), sorted(set(titles)))
    taken = set()
    for panel in panels:
      with self.subTest(panel["title"]):
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        self.assertLessEqual(at["x"] + at["w"], 24)
        self.assertFalse(cells & taken)
        taken |= cells
        if panel["type"] != "row":
          self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"})
          self.assertIn("unit", panel["fieldConfig"]["defaults"])
          names = [target["refId"] for target in panel["targets"]]
          self.assertTrue(names)
          self.assertEqual(names, sorted(set(names)))

  @unittest.skipUnless(os.environ.get("AFT_GRAFANA"), "AFT_GRAFANA names no folder; ./dev test fetches it")
  def test_grafana_knows_every_field(self):
    """Grafana's types read and write the dashboard. They drop every field that they do not know."""
    sys.path.insert(0, os.environ["AFT_GRAFANA"])
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models import dashboard as grafana
    register_default_plugins()

    def lost(ours, theirs, path):
      if isinstance(ours, dict):
        for key, value in ours.items():
          yield from lost(value, theirs[key], f"{path}.{key}") if key in theirs else [f"{path}.{key}"]
      elif isinstance(ours, list):
        for i, (value, kept) in enumerate(zip(ours, theirs, strict=True)):
          yield from lost(value, kept, f"{path}[{i}]")
      elif ours != theirs:
        yield path

    def unknown(ours):
      theirs = json.loads(JSONEncoder().encode(grafana.Dashboard.from_json(copy.deepcopy(ours))))
      return list(lost(ours, theirs, ""))

    ours = Dashboard().json
    self.assertEqual(unknown(ours), [])
    ours["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    ours["panels"][2]["targets"][0]["legend"] = "a"
    self.assertEqual(unknown(ours), [".panels[1].fieldConfig.defaults.units", ".panels[2].targets[0].legend"])

  def test_every_query_parses(self):
    dashboard = Dashboard()
    with tempfile.TemporaryDirectory() as folder:
      path = Path(folder) / "queries.yml"
      path.write_text("groups: [{name: queries, rules: [\n" + ",\n".join(
          f"{{record: query_{i}, expr: '{dashboard.fill_in(target['expr'])}'}}"
          for i, target in enumerate(dashboard.targets)) + "]}]\n")
      code, output = promtool("check", "rules", "--lint=none", path)
      self.assertEqual(code, 0, output)
      self.assertIn(f"{len(dashboard.targets)} rules found", output)


if __name__ == "__main__":
  unittest.main()
