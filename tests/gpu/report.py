#!/usr/bin/env python3
"""Prints the results of a GPU run as Markdown, with the ratios that matter: report.py FOLDER

Reads the files that the stages of run.sh wrote there: kernels.json, pytorch.json, model-FORMAT.json and
model-KIND-FORMAT.json, server-FORMAT.jsonl and server-KIND-FORMAT.jsonl.
"""

import json
import re
import sys
from pathlib import Path

# The sizes of run.sh's model, whose states are fp32 with a bf16 ring, and the bytes of a weight.
LAYERS, D, FF, VOCAB, WINDOW = 24, 1024, 4096, 50304, 32
BYTES = {"bf16": 2, "int8": 1}
MICROSECONDS = {"ns": 1e-3, "us": 1, "ms": 1e3}  # of the units of google-benchmark


def read(folder, name):
  path = folder / name
  return json.loads(path.read_text()) if path.exists() else None


def kind_and_format(path):
  """Returns the kind of model and the format of its weights, which are parts of the file's name."""
  *kind, weight_format = path.stem.split("-")[1:]
  return (kind or ["AFT-local-32"])[0], weight_format


def table(head, rows):
  print("| " + " | ".join(head) + " |")
  print("|" + "---|" * len(head))
  for row in rows:
    print("| " + " | ".join(str(x) for x in row) + " |")
  print()


def kernels_part(kernels):
  print(f"Copy: {kernels['copy_gbs']:.0f} GB/s, read plus written.\n")
  table(("kernel", "shape", "us", "% of copy", "TFLOP/s"),
        [(c["name"], c["shape"], f"{c['us']:.2f}", f"{100 * c['of_copy']:.0f}",
          f"{c['flops'] / c['us'] / 1e6:.1f}" if c["flops"] else "") for c in kernels["cases"]])


def pytorch_part(kernels, pytorch):
  ours = {}
  for case in kernels["cases"]:
    found = re.search(r"s=32 .*1 x (\d+) tokens", case["shape"])
    if case["name"] == "aft_prefill" and found:
      ours[int(found.group(1))] = case["us"]
  rows = []
  for case in pytorch["cases"]:
    if case["name"] == "gpt2":
      continue
    if "skipped" in case:
      rows.append((case["name"], case["tokens"], case["skipped"], "", ""))
    elif case["tokens"] in ours:
      mine = ours[case["tokens"]]
      rows.append((case["name"], case["tokens"], f"{case['us']:.0f}", f"{mine:.0f}",
                   f"{case['us'] / mine:.1f}"))
  print("PyTorch on the same GPU against aft_prefill (s=32, fp32 to bf16), one text:\n")
  table(("PyTorch", "tokens", "us", "ours, us", "ratio"), rows)


def minimal_bytes(streams, weight_format):
  """Returns the least bytes of one decode step: weights are read once, each state is read and written."""
  weights = BYTES[weight_format] * (LAYERS * (4 * D * D + 2 * D * FF) + VOCAB * D)
  state = LAYERS * D * (24 + 2 * 2 * (WINDOW - 1) + 2 * 2)
  return weights + streams * state


def model_part(model, kind_of_model, weight_format, kernels, pytorch):
  gpt2 = {c["streams"]: c["us"] for c in (pytorch or {"cases": []})["cases"]
          if c["name"] == "gpt2" and "us" in c}
  copy = kernels["copy_gbs"] * 1e9 if kernels else None
  rows = []
  for run in model["benchmarks"]:
    kind, size = (run["name"] + "/").split("/")[:2]
    us = run["real_time"] * MICROSECONDS[run["time_unit"]]
    if kind_of_model != "AFT-local-32" or kind != "BM_RunnerDecode":
      rate = f"{run['items_per_second']:.0f}" if "items_per_second" in run else ""
      rows.append((kind[3:], size, f"{us:.0f}", rate, "", ""))
      continue
    share = f"{100 * minimal_bytes(int(size), weight_format) / copy / (us * 1e-6):.0f}" if copy else ""
    ratio = f"{gpt2[int(size)] / us:.1f}" if int(size) in gpt2 else ""
    rows.append((kind[3:], size, f"{us:.0f}", f"{run['items_per_second']:.0f}", share, ratio))
  print(f"The model without gRPC (24 layers, d = 1024, {kind_of_model}, {weight_format}):\n")
  table(("benchmark", "streams or tokens", "us", "tokens/s", "% of minimal bytes at copy rate",
         "times GPT-2"), rows)


def server_part(lines, kind_of_model, weight_format, model):
  engine = {run["name"].split("/")[1]: run["items_per_second"] for run in (model or {"benchmarks": []})["benchmarks"]
            if run["name"].startswith("BM_Engine/")}
  rows = []
  for run in map(json.loads, lines):
    alone = engine.get(str(run["max_concurrency"]))
    rows.append((run["max_concurrency"], f"{run['output_throughput']:.0f}", f"{alone:.0f}" if alone else "",
                 f"{100 * run['output_throughput'] / alone:.0f}" if alone else ""))
  print(f"Over gRPC ({kind_of_model}, {weight_format}):\n")
  table(("streams", "tokens/s", "engine alone", "%"), rows)


def main():
  folder = Path(sys.argv[1])
  kernels, pytorch = (read(folder, n) for n in ("kernels.json", "pytorch.json"))
  if kernels:
    kernels_part(kernels)
  if kernels and pytorch:
    pytorch_part(kernels, pytorch)
  for path in sorted(folder.glob("model-*.json")):
    model_part(json.loads(path.read_text()), *kind_and_format(path), kernels, pytorch)
  for path in sorted(folder.glob("server-*.jsonl")):
    server_part(path.read_text().splitlines(), *kind_and_format(path),
                read(folder, path.stem.replace("server", "model", 1) + ".json"))


if __name__ == "__main__":
  main()
