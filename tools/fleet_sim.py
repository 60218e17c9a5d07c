#!/usr/bin/env python3
"""Simulates fleets of AFT servers, from the measured times of the steps of one server.

  fleet_sim.py [NAME...] [--costs FILE] [--replicas N,N,...] [--seed N] [--out DIR] [--plots]

Each NAME is an experiment; by default all of them run:
  grains        compares the simple replica, of which large fleets consist, with one that simulates every step: ratios
  policies      which replica gets the next request: random, round robin, the emptier of two, the emptiest; 10 to 10,000
                replicas
  slots         how many slots are used at which load; an autoscaler sees this number
  autoscaling   the load doubles: how long requests are late, by the autoscaler's target and the start time of a replica
  rollout       all replicas are replaced, and states move with their streams or not: the longest gap of a stream
  affinity      requests go to the replica that has their prefix in its cache, or to one that has room

Times are in seconds unless a unit is named. Needs SimPy, and matplotlib for --plots (./dev bench fleet fetches both).
`./dev bench fleet measure` measures the costs, and `./dev bench fleet check` compares the simulation with the real
server. deploy/sizing.md has the results.
"""

import argparse
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

try:
  import simpy  # pylint: disable=unused-import
except ImportError:
  sys.exit("fleet_sim.py needs SimPy, which ./dev bench fleet fetches")

from fleet import experiments
from fleet.costs import Costs

NAMES = {"grains": experiments.grains, "policies": experiments.policies, "slots": experiments.slots_by_load,
         "autoscaling": experiments.autoscaling, "rollout": experiments.rollout, "affinity": experiments.affinity}


def sizes(text):
  numbers = tuple(int(number) for number in text.split(","))
  if not all(1 <= number <= 100_000 for number in numbers):
    raise argparse.ArgumentTypeError("replicas must be in [1, 100000]")
  return numbers


def show(value):
  return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


class Table:
  """Prints a table row by row, as the rows are added."""

  def __init__(self):
    self._widths = None

  def add(self, row):
    cells = [show(value) for value in row.values()]
    if self._widths is None:
      self._widths = [max(len(name), 9, len(cell)) for name, cell in zip(row, cells)]
      print("  ".join(name.rjust(width) for name, width in zip(row, self._widths)))
    print("  ".join(cell.rjust(width) for cell, width in zip(cells, self._widths)), flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="*", metavar="NAME")
  parser.add_argument("--costs", type=Path, default=HERE / "fleet" / "m-int8.json")
  parser.add_argument("--replicas", type=sizes, default=None, help="numbers of replicas for policies")
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--out", type=Path, default=Path("build/fleet"), help="folder for the rows (NAME.json) and plots")
  parser.add_argument("--plots", action="store_true", help="draw NAME.svg for the experiments that have a plot")
  options = parser.parse_args()
  for name in options.names:
    if name not in NAMES:
      parser.error(f"no {name}: {', '.join(NAMES)}")
  try:
    costs = Costs.load(options.costs)
  except (OSError, ValueError, TypeError) as error:
    parser.error(f"--costs {options.costs}: {error}")
  print(f"{options.costs.name}: {json.dumps(costs.about)}; {experiments.capacity(costs):.3g} requests/s a replica at most")
  options.out.mkdir(parents=True, exist_ok=True)
  for name in options.names or NAMES:
    start, table, more = time.monotonic(), Table(), {}
    if name == "policies" and options.replicas:
      more = {"sizes": options.replicas, "loads": ()}
    series = more.setdefault("series", {}) if name == "autoscaling" else None
    print(f"\n{name}")
    rows = []
    for row in NAMES[name](costs, options.seed, **more):
      rows.append(row)
      table.add(row)
    print(f"{time.monotonic() - start:.0f} s")
    (options.out / f"{name}.json").write_text(json.dumps({"rows": rows, "series": series}, indent=1) + "\n")
    if options.plots:
      from fleet import plots  # pylint: disable=import-outside-toplevel; matplotlib is for plots alone
      plots.draw(name, rows, series, options.out)


if __name__ == "__main__":
  main()
