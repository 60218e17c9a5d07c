#!/usr/bin/env python3
"""Trains a network of every kind with equal budgets, measures quality and speed, and writes a table and a plot.

  ./dev compare [--budget full|hour|small] [--only PATTERN] [--show] [--page docs/comparison.md]

Language models learn Jane Austen's novels, encoders the language of a text. All have as many weights (within 5 %), and
the same data, tokens, optimiser and learning rate. Each finished cell of the table is a file below --out, so the same
command continues after an interruption; a training that was killed continues from its last evaluation.

`--speeds` measures the speeds again, for a time without other work on the machine.
"""

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import kinds
import page

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/bench/serving"))
from tables import processor

TOLERANCE = 0.05  # of the number of weights
STREAMS = (1, 64)
SPEED_STEPS = (10, 60)  # of the two runs whose difference is the speed of training
LEAST_ROWS = 320  # of a table by position; engine_bench decodes 256 tokens after a prompt of 44


@dataclass(frozen=True)
class Budget:
  # Language models
  weights: int
  layers: int
  tokens: int  # trained on
  segment: int
  step_tokens: int
  lengths: tuple  # of the held-out texts
  held_out: float  # the part of each novel that is scored, at its end; never trained on
  seeds: int  # of the AFT kinds; others have one
  # Encoders
  encoder_weights: int
  encoder_layers: int
  examples: int
  longest: int  # bytes of an example
  # Both
  rate: float = 3e-3
  seconds: float = 0.5  # of each measurement of decoding

  @property
  def rows(self):
    """The number of positions that a language model's table covers."""
    return max(self.segment, LEAST_ROWS)


BUDGETS = {
    "full": Budget(weights=1_000_000, layers=4, tokens=4_800_000, segment=1024, step_tokens=2048,
                   lengths=(256, 1024, 4096), held_out=0.05, seeds=3, encoder_weights=200_000, encoder_layers=3,
                   examples=50_000, longest=200),
    "hour": Budget(weights=250_000, layers=3, tokens=1_024_000, segment=256, step_tokens=512,
                   lengths=(256, 1024, 4096), held_out=0.01, seeds=3, encoder_weights=100_000, encoder_layers=2,
                   examples=6_400, longest=200),
    "small": Budget(weights=60_000, layers=2, tokens=8_192, segment=256, step_tokens=1024,
                    lengths=(128, 256), held_out=0.05, seeds=2, encoder_weights=30_000, encoder_layers=1,
                    examples=640, longest=50, seconds=0.01),
}
HELD_OUT = 0.05  # of every novel, as for austen-aft-local
PIECES_HELD_OUT = 0.49  # of the test pieces; aft-train measures a part of its examples, always less than half
EXAMPLES_A_STEP = 16  # examples of an encoder's step


def write_json(path, value):
  """Writes the whole file or, when this process is killed, none of it."""
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_suffix(".partial")
  partial.write_text(json.dumps(value, indent=1) + "\n")
  partial.replace(path)


def run(*command, **environment):
  """What the program prints, and the seconds of CPU time that it took."""
  before = os.times()
  done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                        check=False, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment)
  if done.returncode != 0:
    sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
  after = os.times()
  return done.stdout + done.stderr, (after.children_user + after.children_system
                                     - before.children_user - before.children_system)


def number(pattern, text):
  found = re.search(pattern, text)
  return float(found[1].replace(",", "")) if found else None


class Comparison:

  def __init__(self, options):
    self.budget, self.bin, self.out = options.budget, options.bin, options.out
    self.texts, self.languages, self.show = options.texts, options.languages, options.show
    path, budget = self.out / "budget.json", json.loads(json.dumps(asdict(self.budget)))
    if path.exists() and json.loads(path.read_text()) != budget:
      sys.exit(f"{self.out} has the figures of another budget: choose another --out")
    write_json(path, budget)

  # ---- Cells
  def cell(self, name, make):
    """The figures of one cell: made once, then read from its file. With --show a missing cell is empty."""
    path = self.out / "cells" / f"{name}.json"
    if self.show and not path.exists():
      return {}
    if not path.exists():
      start = time.time()
      figures = make()
      write_json(path, {"hours": (time.time() - start) / 3600} | figures)
      print(f"{time.strftime('%H:%M:%S')} {name}: {figures}", flush=True)
    return json.loads(path.read_text())

  def train(self, name, config, wanted):
    """Trains, or continues. Returns the seconds of CPU time. `wanted` is the number of weights."""
    folder = self.out / "runs" / name
    write_json(folder.with_suffix(".json"), config)
    _, seconds = run(self.bin / "aft-train", "--config", folder.with_suffix(".json"), "--out", folder)
    weights = number(r"parameters +([\d,]+)", self.inspect(folder))
    if abs(weights / wanted - 1) > TOLERANCE:
      sys.exit(f"{name} has {weights:,.0f} weights instead of {wanted:,}")
    return seconds

  def trained(self, name, config, wanted):
    """Trains, or continues. Returns the hours of all starts, which the run's curve counts."""
    self.train(name, config, wanted)
    last = (self.out / "runs" / name / "curve.csv").read_text().splitlines()[-1]
    return {"hours": float(last.split(",")[2]) / 3600}

  def inspect(self, folder):
    return run(self.bin / "aft-convert", "inspect", folder)[0]

  def evaluate(self, name, what, config, *flags):
    """What aft-train prints about the run's checkpoint, with another config."""
    path = self.out / "runs" / f"{name}-{what}.json"
    write_json(path, config)
    return run(self.bin / "aft-train", "--config", path, "--evaluate", self.out / "runs" / name, *flags)[0]

  # ---- Language models
  def folder(self, name, seed):
    return self.out / "runs" / f"{name.replace(', ', '-')}-{seed}"

  def language_config(self, name, kind, seed):
    budget = self.budget
    steps = budget.tokens // budget.step_tokens
    return {"network": kinds.network(name, kind, budget.layers, budget.weights, budget.rows),
            "texts": [str(path.resolve()) for path in sorted(self.texts.glob("*.txt"))], "held_out": HELD_OUT,
            "segment": budget.segment, "batch": budget.step_tokens // budget.segment, "total_tokens": budget.tokens,
            "eval_tokens": 4 * budget.segment, "eval_every_steps": max(1, steps // 5),
            "learning_rate": budget.rate, "warmup_steps": min(100, steps // 5),
            "weight_spread": 0.06, "threads": 1, "seed": seed}

  def score(self, name, config, length):
    """Bits per byte of the held-out ends, in segments of this length that start from an empty state."""
    ends = {"segment": length, "eval_tokens": length, "held_out": self.budget.held_out}
    log = self.evaluate(name, length, config | ends, "--windows", "1")
    return {"bits": number(r"bits per byte: ([\d.]+) from", log),
            "carried": number(r"([\d.]+) carried", log)}

  def language_model(self, name, seed):
    kind = kinds.CAUSAL[name]
    config = self.language_config(name, kind, seed)
    run_name = self.folder(name, seed).name
    longest = config["network"].get("max_seq_len", kind.longest)
    self.cell(f"{run_name}/train", lambda: self.trained(run_name, config, self.budget.weights))
    return {length: self.cell(f"{run_name}/{length}", lambda: self.score(run_name, config, length))
            for length in self.budget.lengths if length <= longest}

  def speed(self, name):
    """Tokens/s of training, for each second of CPU time: the steps by which one run is longer than another, so that the
    start does not count. Tokens/s of decoding: those of the engine without gRPC."""
    config = self.language_config(name, kinds.CAUSAL[name], 1)
    seconds = []
    for steps in SPEED_STEPS:
      shutil.rmtree(self.out / "runs/speed", ignore_errors=True)  # a run that was killed would be continued
      brief = config | {"total_tokens": steps * self.budget.step_tokens, "eval_every_steps": steps}
      seconds.append(self.train("speed", brief, self.budget.weights))
    folder = self.out / "runs/speed"
    facts = self.inspect(folder)
    text, _ = run(self.bin / "engine_bench", "--benchmark_format=json", "--benchmark_repetitions=3",
                  f"--benchmark_min_time={self.budget.seconds}",
                  f"--benchmark_filter=^BM_Engine/({'|'.join(map(str, STREAMS))})/", AFT_MODEL=str(folder))
    figures = {"train": (SPEED_STEPS[1] - SPEED_STEPS[0]) * self.budget.step_tokens / (seconds[1] - seconds[0]),
               "state": number(r"state +([\d,]+)", facts),
               "state_per_token": number(r"sequence: ([\d,]+) per token", facts)}
    # Warnings may follow the JSON.
    for bench in json.JSONDecoder().raw_decode(text[text.index("{"):])[0]["benchmarks"]:
      if bench.get("aggregate_name") == "median":
        figures["decode/" + bench["run_name"].split("/")[1]] = bench["items_per_second"]
    return figures

  # ---- Encoders
  @functools.cached_property
  def examples(self):
    """(folder, labels, lengths). In the folder are every n-th training text and, for each length, a file of pieces."""
    folder = self.out / "examples"
    lines = (self.languages / "train.jsonl").read_text().splitlines()
    pieces = [json.loads(line) for line in (self.languages / "test.jsonl").read_text().splitlines()]
    folder.mkdir(parents=True, exist_ok=True)
    chosen = lines[::max(1, len(lines) // self.budget.examples)][:self.budget.examples]
    (folder / "train.jsonl").write_text("\n".join(chosen) + "\n")
    lengths = sorted({piece["length"] for piece in pieces})
    for length in lengths:
      (folder / f"{length}.jsonl").write_text("".join(
          json.dumps({"label": piece["label"], "text": piece["text"]}) + "\n"
          for piece in pieces if piece["length"] == length))
    return folder.resolve(), sorted({json.loads(line)["label"] for line in chosen}), lengths

  def encoder(self, name):
    budget, kind = self.budget, kinds.ENCODERS[name]
    folder, labels, lengths = self.examples
    config = {"network": kinds.network(name, kind, budget.encoder_layers, budget.encoder_weights, budget.longest,
                                       labels),
              "examples": [str(folder / "train.jsonl")], "held_out": 0.02, "segment": budget.longest,
              "least_tokens": 14, "epochs": 1, "batch": EXAMPLES_A_STEP, "eval_examples": 200,
              "eval_every_steps": max(1, budget.examples // EXAMPLES_A_STEP // 4), "learning_rate": budget.rate,
              "warmup_steps": 20, "weight_spread": 0.06, "threads": 1, "seed": 1}
    run_name = f"encoder-{name}"
    self.cell(f"{run_name}/train", lambda: self.trained(run_name, config, budget.encoder_weights))

    def identify(length):
      pieces = {"examples": [str(folder / f"{length}.jsonl")], "held_out": PIECES_HELD_OUT}
      return {"accuracy": number(r"accuracy ([\d.]+)", self.evaluate(run_name, length, config | pieces))}
    return {length: self.cell(f"{run_name}/{length}", lambda: identify(length)).get("accuracy") for length in lengths}

  # ---- The whole
  def measure(self, only):
    """(speeds by kind, quality by kind of each seed, accuracy by kind of encoder). What takes longest comes last."""
    chosen = [name for name in kinds.CAUSAL if re.search(only, name)]
    speeds = {name: self.cell(f"speeds/{name}", lambda: self.speed(name)) for name in chosen}
    chosen.sort(key=lambda name: kinds.CAUSAL[name].slow)
    models = {name: [self.language_model(name, 1)] for name in chosen}
    encoders = {name: self.encoder(name) for name in kinds.ENCODERS if re.search(only, name)}
    for seed in range(2, self.budget.seeds + 1):
      for name in chosen:
        if name in kinds.AFT:
          models[name].append(self.language_model(name, seed))
    return speeds, models, encoders

  def curves(self, models):
    """(tokens, held-out bits per byte) of the first seed's evaluations."""
    curves = {}
    for name in models:
      path = self.folder(name, 1) / "curve.csv"
      if path.exists():
        rows = [line.split(",") for line in path.read_text().splitlines()]
        bits = rows[0].index("held_out_fresh_bpb")
        curves[name] = [(int(row[1]), float(row[bits])) for row in rows[1:]]
    return curves

  def hours(self):
    return sum(json.loads(path.read_text())["hours"] for path in self.out.glob("cells/**/*.json"))


def fetch(script, folder):
  if not folder.exists():
    run(ROOT / "model/zoo" / script, folder.with_suffix(".partial"))
    folder.with_suffix(".partial").rename(folder)


def tables(comparison, speeds, models, encoders, budget):
  return "\n".join((
      page.model_table(speeds, models, comparison.budget.lengths, comparison.budget.segment),
      page.encoder_table(encoders),
      f"Budget `{budget}`, {comparison.hours():.1f} hours, one thread of {os.cpu_count()} cores, "
      f"{processor()}; {time.strftime('%Y-%m-%d')}.\n"))


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--budget", choices=BUDGETS, default="full",
                      help="full: at most 6 hours on two cores; hour: about one; small: minutes, for the test")
  parser.add_argument("--only", default="", metavar="PATTERN", help="kinds whose names match")
  parser.add_argument("--rate", type=float, help="another learning rate; needs another --out")
  parser.add_argument("--speeds", action="store_true", help="measure the speeds again")
  parser.add_argument("--show", action="store_true", help="only show what is finished")
  parser.add_argument("--page", type=Path, help="write the tables into this page, and the plot next to it")
  parser.add_argument("--texts", type=Path, default=ROOT / "build/compare/austen", help="a folder of .txt files")
  parser.add_argument("--languages", type=Path, default=ROOT / "build/compare/languages",
                      help="a folder with the train.jsonl and test.jsonl of model/zoo/languages-aft-local/get_texts.py")
  parser.add_argument("--bin", type=Path, default=ROOT / "build/default/bin")
  parser.add_argument("--out", type=Path, help="default: build/compare/BUDGET")
  options = parser.parse_args()
  name, options.budget = options.budget, BUDGETS[options.budget]
  options.out = options.out or ROOT / "build/compare" / name
  if options.rate:
    options.budget = replace(options.budget, rate=options.rate)
  fetch("austen-aft-local/get_text.py", options.texts)
  fetch("languages-aft-local/get_texts.py", options.languages)
  comparison = Comparison(options)
  if options.speeds:
    for path in options.out.glob("cells/speeds/*.json"):
      path.unlink()
  speeds, models, encoders = comparison.measure(options.only)
  text = tables(comparison, speeds, models, encoders, name)
  print(text)
  if options.page:
    page.write_tables(options.page, text)
    page.draw(options.page.with_suffix(".svg"), comparison.curves(models), speeds, models, options.budget.segment)


if __name__ == "__main__":
  main()
