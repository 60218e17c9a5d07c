#!/usr/bin/env python3
"""Compares a step of 1 to 64 rows with what limits it, without gRPC: models, weight formats and threads in turn.

  rows.py [--only 'M int8|S'] [--threads 1,2] [--measured] [--rounds N] [--realtime]

S: 6.4 M weights (d = 256, 8 layers), M: 85 M (d = 768, 12 layers), both AFT-local with random weights, and the shipped
model. AFT_INSTRUCTION_SET limits the instructions. In milliseconds, medians of the rounds:

  step      a step of the runner with r rows, each in a sequence of its own
  reading   the weights read once by as many threads, at the fastest: the first limit
  prompt    r rows of a prompt of 256 tokens: the second limit
  ratio     step / the larger limit; the median over the rounds of the ratio in each
  sampling  r draws of a token on one thread, part of the step
  engine    what a step of the engine takes longer than the runner's: schedules, checks stops, hands tokens over.
            Only for models whose step is short; in M's it is lost in the noise
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/bench/serving"), str(ROOT / "tests/bench/peers")]
from peers import engine_figures, machine, output_of
from server import model_config, write_model
from tables import table

MODELS = {"S": model_config("aft_local", 256, 8, window=32), "M": model_config("aft_local", 768, 12, window=32),
          "shipped": None}
FORMATS = ("fp32", "bf16", "int8")
ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 64)
ENGINE_ROWS = (1, 8, 64)
SHORT = ("S", "shipped")  # models whose engine is measured too
PROMPT = 256
GOAL = 1.25


def milliseconds(figures):
  """The table's lines of one process's figures (peers.engine_figures): name -> a value for each of ROWS, or None."""
  lines = {"step": [1000 * rows / figures[f"step/{rows}"] for rows in ROWS],
           "reading": [1000 / figures["read/1"]] * len(ROWS),
           "prompt": [1000 * rows / figures[f"prompt/{PROMPT}"] for rows in ROWS]}
  lines["ratio"] = [step / max(limits) for step, *limits in zip(*lines.values())]
  lines["sampling"] = [1000 * rows / figures["draw"] for rows in ROWS]
  lines["engine"] = [1000 * rows / figures[f"engine step/{rows}"] - step if f"engine step/{rows}" in figures else None
                     for rows, step in zip(ROWS, lines["step"])]
  return lines


def medians(rounds):
  """The same of several processes' figures."""
  every = [milliseconds(figures) for figures in rounds]
  return {name: [statistics.median(cell) if None not in cell else None for cell in zip(*(one[name] for one in every))]
          for name in every[0]}


def rounded(name, value):
  return "" if value is None else f"{value:.2f}" if name == "ratio" else f"{value:.3g}"


def show(results):
  """results[model, format, threads]: the figures of each round."""
  cells = []
  for (model, number, threads), rounds in results.items():
    lines = medians(rounds)
    print(f"\n{model} {number}, threads: {threads}")
    table(("rows", *map(str, ROWS)), [[name, *(rounded(name, value) for value in values)]
                                      for name, values in lines.items() if any(values)])
    cells += [(ratio, f"{model} {number}, threads: {threads}, rows: {rows}")
              for ratio, rows in zip(lines["ratio"], ROWS)]
  above = sorted((cell for cell in cells if cell[0] > GOAL), reverse=True)
  print(f"\n{len(above)} of {len(cells)} cells are above {GOAL}:")
  for ratio, cell in above:
    print(f"  {ratio:.2f}  {cell}")


def measure(options, model, folder, number, threads):
  """The threads run on the last cores, because other work prefers the first ones."""
  cores = range(os.cpu_count() - min(threads, os.cpu_count()), os.cpu_count())
  first = ["chrt", "--rr", "1", "taskset", "--cpu-list", ",".join(map(str, cores))] if options.realtime else []
  names = f"ReadWeights|Draw|RunnerDecode/({'|'.join(map(str, ROWS))})/|RunnerPrefill/{PROMPT}/"
  if model in SHORT:
    names += f"|EngineDecode/({'|'.join(map(str, ENGINE_ROWS))})/"
  return engine_figures(output_of(
      *first, options.bin / "engine_bench", f"--benchmark_filter={names}", "--benchmark_format=json",
      f"--benchmark_min_time={options.seconds}", AFT_MODEL=str(folder), AFT_WEIGHT_FORMAT=number,
      AFT_THREADS=str(threads), AFT_MEASURE_THREADS=str(int(options.measured))))


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--only", default="", metavar="PATTERN", help="of 'S|M|shipped fp32|bf16|int8'")
  parser.add_argument("--threads", default="1,2", metavar="N,N")
  parser.add_argument("--measured", action="store_true",
                      help="each step takes as many of the threads as a measurement at load chooses (measure_threads)")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--seconds", type=float, default=0.1, help="at least, of each figure")
  parser.add_argument("--realtime", action="store_true",
                      help="run before all other work, on cores of its own (needs CAP_SYS_NICE)")
  parser.add_argument("--bin", type=Path, default=ROOT / "build/default/bin")
  options = parser.parse_args()
  results = {(model, number, threads): [] for threads in map(int, options.threads.split(","))
             for model in MODELS for number in FORMATS if re.search(options.only, f"{model} {number}")}
  before = machine()
  with tempfile.TemporaryDirectory() as scratch:
    folders = {name: Path(scratch) / name if config else ROOT / "model/zoo/austen-aft-local"
               for name, config in MODELS.items()}
    for name in {model for model, *_ in results} - {"shipped"}:
      folders[name].mkdir()
      write_model(folders[name], MODELS[name])
    for i in range(options.rounds):
      for (model, number, threads), rounds in results.items():
        print(f"round {i + 1} of {options.rounds}: {model} {number}, threads: {threads}", file=sys.stderr, flush=True)
        rounds.append(measure(options, model, folders[model], number, threads))
  print(f"{before} before, {os.getloadavg()[0]:.1f} after; medians of {options.rounds}; milliseconds")
  show(results)


if __name__ == "__main__":
  main()
