"""The files of deploy/ for Prometheus and Grafana, and the tools that read them. AFT_PROMETHEUS names a folder with
promtool and prometheus (`fetch_prometheus` of tests/commands.sh)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
RULES = [PROMETHEUS / "slo.rules.yml", PROMETHEUS / "alerts.rules.yml"]
TOOLS = os.environ.get("AFT_PROMETHEUS")
if not TOOLS:
  print("SKIPPED: AFT_PROMETHEUS names no folder with promtool and prometheus; ./dev test fetches them")
  sys.exit(77)


def promtool(*arguments):
  """Runs promtool. Returns (exit code, output)."""
  done = subprocess.run([f"{TOOLS}/promtool", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
  return done.returncode, done.stdout


class Dashboard:

  def __init__(self):
    self.json = json.loads((ROOT / "deploy/grafana/aft-serve.json").read_text())
    self.panels = self.json["panels"]
    self.targets = [target for panel in self.panels for target in panel.get("targets", [])]

  def choices(self):
    """Yields (series, label) of each variable that lists existing values."""
    for variable in self.json["templating"]["list"]:
      if variable["type"] == "query":
        yield re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()

  def fill_in(self, expr):
    """The expression as Grafana would send it with all values chosen and the last hour shown."""
    values = {"job": "aft-serve", "instance": ".*", "model": ".*", "__rate_interval": "1m", "__range": "1h"}
    return re.sub(r"\$(\w+)", lambda found: values[found.group(1)], expr)
