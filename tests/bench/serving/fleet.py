#!/usr/bin/env python3
"""Measures the costs that tools/fleet_sim.py needs, and checks its results, with aft-server and aftload on this machine.

  fleet.py measure --model DIR [--weight_format F] --to FILE   the costs of a model's steps
  fleet.py check --model DIR [--weight_format F] --costs FILE  one replica, simulated, over the real one: ratios

Client and server share the machine, so the client's work adds to the costs. Medians of --rounds, each of --seconds.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from server import Server
from tables import processor

ROOT = Path(__file__).resolve().parents[3]
SLOTS, STEP = 64, 256
STEP_TARGET = 0.020  # the server's default
ROWS, PROMPTS = (1, 2, 4, 8, 16, 32, 64), (1, 8, 32, 128, 256)
LENGTHS = (64, 0.8, 512)  # prompts and outputs of the check: median, sigma, most
LOADS = (0.2, 0.4, 0.6, 0.8)
SEEDS = itertools.count(1)


def load(options, server, *arguments):
  """One run of aftload. No other run has its prompts, so none is in the prefix cache."""
  ended = subprocess.run([options.bin / "aftload", "--json", f"--address={server.address}", "--connections", "4",
                          f"--seed={next(SEEDS)}", *map(str, arguments)], capture_output=True, text=True, check=False)
  if ended.returncode:
    sys.exit(f"fleet.py: aftload failed: {ended.stderr}{ended.stdout[-2000:]}")
  return json.loads(ended.stdout)


def measure(options, server):
  decodes, prompts = {rows: [] for rows in ROWS}, {tokens: [] for tokens in PROMPTS}
  for _ in range(options.rounds):  # in turn, so that other work on the machine affects all of them equally
    for rows, seconds in decodes.items():
      run = load(options, server, "--streams", rows, "--prompt-bytes", 8, "--max-tokens", 1_000_000, "--duration",
                 options.seconds)
      seconds.append(rows / run["output_throughput"])
    for tokens, seconds in prompts.items():
      run = load(options, server, "--prompt-bytes", tokens, "--max-tokens", 1, "--duration", options.seconds)
      seconds.append(run["median_ttft_ms"] / 1000)
  decodes, prompts = ({count: statistics.median(values) for count, values in points.items()}
                      for points in (decodes, prompts))
  # A step with one prompt token costs the same as a step of one stream.
  overhead = max(0.0, prompts[PROMPTS[0]] - decodes[1])
  costs = {"model": options.name, "date": datetime.date.today().isoformat(),
           "machine": f"{processor()}, {os.cpu_count()} cores, {platform.machine()}",
           "decode_seconds": [[rows, round(seconds, 7)] for rows, seconds in decodes.items()],
           "prompt_seconds": [[tokens, round(seconds - overhead, 7)] for tokens, seconds in prompts.items()],
           "overhead_seconds": round(overhead, 7), "slots": SLOTS, "max_step_tokens": STEP,
           "step_target_seconds": STEP_TARGET}
  text = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in costs.items())
  options.to.write_text(f"{{\n{text}\n}}\n")
  print(options.to.read_text())


def check(options, server):
  sys.path.insert(0, str(ROOT / "tools"))
  from fleet import experiments  # pylint: disable=import-outside-toplevel; `measure` does not need SimPy
  from fleet.costs import Costs
  from fleet.fleet import Fleet, Workload
  costs = Costs.load(options.costs)
  most = experiments.capacity(costs, LENGTHS, LENGTHS)
  lengths = "lognormal:{}:{}:{}".format(*LENGTHS)
  columns = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "p99_e2el_ms")
  print(f"{'of capacity':>12}" + "".join(f"{name:>26}" for name in columns))
  for share in LOADS:
    rate = share * most
    runs = [load(options, server, "--rate", f"{rate:.4g}", "--duration", options.seconds,
                 "--max-tokens", lengths, "--prompt-bytes", lengths, "--warmup", 8) for _ in range(options.rounds)]
    real = [statistics.median(run[name] for run in runs) for name in columns]
    until = max(options.seconds * options.rounds, 2000 / rate)
    fleet = Fleet(costs, 1, exact=True).run(Workload(rate, LENGTHS, LENGTHS), until)
    tokens = fleet.itl.count + fleet.completed
    simulated = [tokens / fleet.env.now, *(1000 * spread.quantile(at) for spread, at in (
        (fleet.ttft, 0.5), (fleet.ttft, 0.99), (fleet.itl, 0.5), (fleet.itl, 0.99), (fleet.e2e, 0.99)))]
    print(f"{share:12.2f}" + "".join(f"{s:11.4g} /{r:8.4g} {s / r:4.2f}" for s, r in zip(simulated, real)), flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("what", choices=("measure", "check"))
  parser.add_argument("--bin", type=Path, default=ROOT / "build/default/bin")
  parser.add_argument("--model", type=Path, default=ROOT / "model/zoo/austen-aft-local")
  parser.add_argument("--weight_format", default="int8")
  parser.add_argument("--name", default="austen-aft-local, int8", help="what the costs are of, for their reader")
  parser.add_argument("--to", type=Path, default=Path("build/costs.json"))
  parser.add_argument("--costs", type=Path, default=ROOT / "tools/fleet/austen-int8.json")
  parser.add_argument("--seconds", type=int, default=4)
  parser.add_argument("--rounds", type=int, default=3)
  options = parser.parse_args()
  with Server(options.bin, options.model, SLOTS, STEP, weight_format=options.weight_format) as server:
    load(options, server, "--streams", SLOTS, "--requests", SLOTS, "--max-tokens", 32)
    {"measure": measure, "check": check}[options.what](options, server)


if __name__ == "__main__":
  main()
