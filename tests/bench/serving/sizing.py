#!/usr/bin/env python3
"""Compares what `aft-convert inspect` says that a model takes with what it really takes. deploy/sizing.md has the table.

  sizing.py [--bin DIR] [--only 'austen|M|conv|dot']

Memory: the server's resident set when it is ready, without what a server of a model of next to nothing has. Rates:
engine_bench, no gRPC, one thread; the ceilings are of how fast it reads as many bytes as the weights have
(BM_ReadWeights) and computes a prompt of 512 tokens (BM_RunnerPrefill).
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

from server import Server, model_config, write_model, write_null_model
from serving import table

ROOT = Path(__file__).resolve().parents[3]
SLOTS = 64
MODELS = {"austen": None,  # the shipped one
          "M": model_config("aft_local", 768, 12, window=32),
          "conv": model_config("aft_conv", 512, 8, heads=8, window=31),
          "dot": model_config("dot_product", 512, 8, heads=8) | {"max_seq_len": 2048}}
CONTEXT = 1000


def engine_bench(options, folder, weight_format):
  """Rates by name: tokens a second, and bytes of BM_ReadWeights."""
  pattern = f"RunnerContext/streams:(1|8|64)/context:{CONTEXT}/|ReadWeights|RunnerPrefill/512/"
  ended = subprocess.run([options.bin / "engine_bench", f"--benchmark_filter={pattern}", "--benchmark_format=json",
                          "--benchmark_min_time=0.5"], capture_output=True, text=True, check=True,
                         env=os.environ | {"AFT_MODEL": str(folder), "AFT_WEIGHT_FORMAT": weight_format})
  rates = {}
  for bench in json.loads(ended.stdout)["benchmarks"]:
    if bench["run_type"] != "aggregate":
      name = re.sub(r"/(repeats:\d+/)?real_time.*", "", bench["name"]).removeprefix("BM_")
      rates[name] = max(rates.get(name, 0), bench.get("items_per_second", bench.get("bytes_per_second")))
  return rates


def resident(options, folder, weight_format, slots=SLOTS):
  with Server(options.bin, folder, slots, weight_format=weight_format) as server:
    return server.resident_mb() * 2**20


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--bin", type=Path, default=ROOT / "build/default/bin")
  parser.add_argument("--only", default=".")
  options = parser.parse_args()
  memory, speed = [], []
  with tempfile.TemporaryDirectory() as scratch:
    null = Path(scratch) / "null"
    null.mkdir()
    write_null_model(null)
    program = resident(options, null, "fp32", slots=1)
    for name, config in MODELS.items():
      if not re.search(options.only, name):
        continue
      folder = ROOT / "model/zoo/austen-aft-local" if config is None else Path(scratch) / name
      if config is not None:
        folder.mkdir()
        write_model(folder, config)
      for weight_format in ("fp32", "int8"):
        rates = engine_bench(options, folder, weight_format)
        inspect = [options.bin / "aft-convert", "inspect", folder, "--json", "--slots", str(SLOTS), "--context",
                   str(CONTEXT)]
        about = json.loads(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)["sizing"]
        flops = rates["RunnerPrefill/512"] * about["flops_per_token"]
        inspect += ["--bandwidth", str(rates["ReadWeights"] / 1e9), "--gflops", str(flops / 1e9)]
        about = json.loads(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)["sizing"]
        size = about["formats"][weight_format]
        took = resident(options, folder, weight_format) - program
        memory.append([name, weight_format, size["weight_bytes"] / 2**20, size["memory_bytes"] / 2**20, took / 2**20,
                       took / size["memory_bytes"]])
        for streams, most in size["tokens_per_second"].items():
          got = rates[f"RunnerContext/streams:{streams}/context:{CONTEXT}"]
          speed.append([name, weight_format, streams, rates["ReadWeights"] / 1e9, flops / 1e9, most, got, got / most])
  print(f"a server of next to nothing: {program / 2**20:.0f} MiB")
  table(("model", "weights", "MiB", "memory, MiB", "measured", "ratio"), memory)
  table(("model", "weights", "streams", "GB/s", "Gflop/s", "tokens/s at most", "measured", "ratio"), speed)


if __name__ == "__main__":
  main()
