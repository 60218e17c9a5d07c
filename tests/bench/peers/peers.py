#!/usr/bin/env python3
"""Compares the engine with PyTorch and llama.cpp, without gRPC: the same machine, threads and sizes of model.

  peers.py [--threads N] [--rounds N] [--seconds S] [--only 'M ours int8|M llama.cpp q8_0']

S: 6.4 M weights (d = 256, 8 layers), M: 85 M (d = 768, 12 layers); random AFT-local models, window 32. PyTorch runs
the same function (aft_torch.py), eager and by torch.compile. llama.cpp runs a GPT-2 made of the same matrices.

rwkv7-768x12, rwkv7-1024x24, rwkv4-768x12: random models of RWKV's public shapes. The package rwkv and, for RWKV-7,
llama.cpp run the same model.

Where a peer runs the same model, its results are first compared with aft-server's. All run in turn, and each figure is
the median of the rounds. The first start fetches, builds and compiles, which takes a while.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import install

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/bench/serving"))
from server import Server
from tables import processor, table

HERE = Path(__file__).parent
# kind, width, layers
MODELS = {"S": ("aft_local", 256, 8), "M": ("aft_local", 768, 12), "rwkv7-768x12": ("wkv7", 768, 12),
          "rwkv7-1024x24": ("wkv7", 1024, 24), "rwkv4-768x12": ("wkv4", 768, 12)}
OURS = {"ours": ("fp32", "bf16", "int8")}
LLAMA_CPP = {"llama.cpp": ("q8_0", "f16")}
FORMATS = {"aft_local": OURS | {"pytorch": ("float32", "bfloat16"), "compiled": ("float32", "bfloat16")} | LLAMA_CPP,
           "wkv7": OURS | {"rwkv": ("fp32",)} | LLAMA_CPP, "wkv4": OURS | {"rwkv": ("fp32",)}}
CONTEXTS = (100, 1000)
FAR = 100_000
DECODED = 32  # tokens of a sequence in llama.cpp, around the context
STREAMS = (1, 8, 32)  # of llama.cpp
MOST_STREAMS = STREAMS[-1]
PROMPT = 512
# The largest difference of a log-probability between the server and a peer, both in fp32.
TOLERANCE = 1e-3
# Formats of RWKV that are compared, and the least ratio of ours to theirs in each figure.
RIVALS = (("ours fp32", "rwkv fp32"), ("ours bf16", "llama.cpp f16"), ("ours int8", "llama.cpp q8_0"))
# The least ratio of ours int8 to llama.cpp q8_0 for AFT models, where it is not 2. Memory limits one stream of M.
LEAST_OF_LLAMA = {(model, "prompt/512"): 1.5 for model in ("S", "M")} | {
    ("M", f"decode/1/{context}"): 1.7 for context in CONTEXTS}
LEAST = {"decode/1/100": 1, "decode/8/100": 2, "decode/32/100": 2, "prompt/512": 1}


def output_of(*command, **environment):
  done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                        env=os.environ | environment)
  if done.returncode != 0:
    sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
  return done.stdout


# ---- Figures: name -> rate. decode/STREAMS/CONTEXT, prompt/512, engine/STREAMS in tokens/s, also those of ENGINE_KINDS;
# read/1: how often the weights can be read in a second, at the fastest; state bytes: of a stream.
ENGINE_KINDS = {"BM_RunnerContext": "decode", "BM_RunnerPrefill": "prompt", "BM_Engine": "engine",
                "BM_RunnerDecode": "step", "BM_EngineDecode": "engine step", "BM_Draw": "draw"}


def engine_figures(text):
  figures = {}
  for bench in json.loads(text)["benchmarks"]:
    if "error_message" in bench:
      sys.exit(f"{bench['name']}: {bench['error_message']}")
    family, *arguments = re.sub(r"\w+:", "", bench["name"].removesuffix("/real_time")).split("/")
    if bench["run_type"] == "aggregate":
      continue
    if family == "BM_ReadWeights":
      figures["read/1"] = max(figures.get("read/1", 0), bench["bytes_per_second"] / bench["weight_bytes"])
    else:
      figures["/".join((ENGINE_KINDS[family], *arguments))] = bench["items_per_second"]
    if "state_bytes" in bench:
      figures["state bytes"] = bench["state_bytes"]
  return figures


def pytorch_figures(text):
  """Its steps cost the same at every position."""
  return {f"{name}/{CONTEXTS[0]}" if name.startswith("decode/") else name: rate
          for name, rate in json.loads(text).items()}


def llama_figures(text):
  runs = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
  return {f"decode/{run['pl']}/{run['pp'] + run['tg'] // 2}": run["speed_tg"] for run in runs}


def llama_figures_of_prompt(text):
  """Of a run with one long prompt. A step of RWKV costs the same at every position."""
  runs = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
  rates = {f"decode/{run['pl']}/{CONTEXTS[0]}": run["speed_tg"] for run in runs}
  return rates | {f"prompt/{run['pp']}": run["speed_pp"] for run in runs if run["pl"] == 1}


def is_rwkv(model):
  return MODELS[model][0] != "aft_local"


def torch_model(command, file, *options, **environment):
  """What the model does in PyTorch: a checkpoint of ours, or a .pth of RWKV."""
  script = "rwkv_model.py" if file.suffix == ".pth" else "aft_torch.py"
  return output_of(install.PYTHON, "-B", HERE / script, command, file, *options, **environment)


def make_rwkv(programs, folder, *options):
  """Makes `folder`, and the .pth beside it that it is imported from."""
  source = folder.with_suffix(".pth")
  torch_model("make", source, *options)
  output_of(programs / "aft-convert", "rwkv", source, folder)


class Peers:
  """The contenders, and their models in options.out. A model gets its name when it is whole; aft-convert does that
  itself."""

  def __init__(self, options):
    self.options = options

  def checkpoint(self, model):
    folder = self.options.out / model
    if not folder.exists():
      kind, width, layers = MODELS[model]
      size = ("--width", width, "--layers", layers)
      if is_rwkv(model):
        make_rwkv(self.options.bin, folder, "--kind", kind, *size)
      else:
        partial = folder.with_suffix(".partial")
        torch_model("make", partial, *size)
        partial.rename(folder)
    return folder

  def source(self, model):
    """What the peers read."""
    folder = self.checkpoint(model)
    return folder.with_suffix(".pth") if is_rwkv(model) else folder

  def gguf(self, model, number):
    file = self.options.out / f"{model}-{number}.gguf"
    if not file.exists():
      partial = file.with_suffix(".partial")
      output_of(install.PYTHON, "-B", HERE / "gguf_model.py", "write", self.source(model), partial, number)
      partial.rename(file)
    return file

  def ours(self, model, number):
    contexts = CONTEXTS[:1] if is_rwkv(model) else (*CONTEXTS, FAR) if number == "int8" else CONTEXTS
    names = "ReadWeights|RunnerPrefill/512" + ("" if is_rwkv(model) else "|Engine/64")
    return engine_figures(output_of(
        self.options.bin / "engine_bench", "--benchmark_format=json", f"--benchmark_min_time={self.options.seconds}",
        f"--benchmark_filter=RunnerContext/.*:({'|'.join(map(str, contexts))})/|{names}",
        AFT_MODEL=str(self.checkpoint(model)), AFT_WEIGHT_FORMAT=number, AFT_THREADS=str(self.options.threads)))

  def pytorch(self, model, number, *more):
    return pytorch_figures(torch_model(
        "time", self.source(model), "--dtype", number, "--threads", self.options.threads,
        "--seconds", self.options.seconds, *more, TORCHINDUCTOR_CACHE_DIR=str(self.options.out / "inductor")))

  def compiled(self, model, number):
    return self.pytorch(model, number, "--compile")

  def rwkv(self, model, number):
    return self.pytorch(model, number)

  def llama_cpp(self, model, number):

    def bench(prompts, streams, tokens, *more):
      for _ in range(5):  # it ends now and then before it has printed its last lines
        text = output_of(install.BATCHED_BENCH, "-m", self.gguf(model, number), "--output-format", "jsonl",
                         "-t", self.options.threads, "-tb", self.options.threads, "-npp", ",".join(map(str, prompts)),
                         "-npl", ",".join(map(str, streams)), "-ntg", tokens, *more)
        if sum(line.startswith("{") for line in text.splitlines()) == len(prompts) * len(streams):
          return text
      sys.exit(f"llama.cpp printed only:\n{text}")

    # "-pps": one prompt, copied; each sequence has keys and values, or a state, of its own.
    if is_rwkv(model):
      return llama_figures_of_prompt(bench([PROMPT], STREAMS, DECODED, "-pps", "-kvu",
                                           "-c", PROMPT + MOST_STREAMS * DECODED))
    room = -(-(CONTEXTS[-1] + DECODED) // 256) * 256
    prompts = [context - DECODED // 2 for context in CONTEXTS]
    prompt = llama_figures_of_prompt(bench([PROMPT], [1], 1, "-c", 2 * PROMPT))[f"prompt/{PROMPT}"]
    return llama_figures(bench(prompts, STREAMS, DECODED, "-pps", "-c", MOST_STREAMS * room)) | {
        f"prompt/{PROMPT}": prompt}

  def measure(self, results):
    """results[model][contender]: the figures of each round."""
    for i in range(self.options.rounds):
      for model, peer, number in self.options.only:
        print(f"round {i + 1} of {self.options.rounds}: {model} {peer} {number}", flush=True)
        run = getattr(self, peer.replace(".", "_"))
        results[model][f"{peer} {number}"].append(run(model, number))


# ---- Whether it is the same model: log-probabilities of a text's tokens but the first
TEXT = (ROOT / "model/zoo/austen-aft-local/held_out_sample.txt").read_text()[:300].replace("\n", " ")


def served_scores(programs, folder):
  with Server(programs, folder, slots=2) as server:
    lines = output_of(programs / "aftctl", f"--address={server.address}", "score", "--json", "--prompt", TEXT)
  return [entry["logprob"] for event in map(json.loads, lines.splitlines())
          for entry in event.get("chunk", {}).get("logprobs", [])]


def torch_scores(file):
  return json.loads(torch_model("score", file, "--text", TEXT))


def llama_scores(file):
  with tempfile.NamedTemporaryFile(suffix=".gguf") as results:
    output_of(install.RESULTS, "-m", file, "-p", TEXT, "-o", results.name, "-c", PROMPT)
    return json.loads(output_of(install.PYTHON, "-B", HERE / "gguf_model.py", "score", results.name))


def difference(served, scored):
  """The largest, between what aft-server says and each of the lists that a peer computed."""
  if [len(one) for one in scored] != [len(served)] * len(scored):
    sys.exit(f"aft-server scored {len(served)} tokens, the peer {[len(one) for one in scored]}")
  return max(abs(a - b) for one in scored for a, b in zip(served, one))


def check(peers, model):
  served = served_scores(peers.options.bin, peers.checkpoint(model))
  scored = {"rwkv" if is_rwkv(model) else "pytorch": torch_scores(peers.source(model))}
  if MODELS[model][0] == "wkv7":
    scored["llama.cpp"] = llama_scores(peers.gguf(model, "f32"))
  for peer, scores in scored.items():
    apart = difference(served, scores)
    if apart > TOLERANCE:
      sys.exit(f"{model}: {peer} and aft-server differ by {apart:.1e} in log-probability")
    print(f"{model}: {peer} and aft-server agree within {apart:.1e} in log-probability", flush=True)


# ---- Targets
def median(rounds, figure):
  return statistics.median(figures[figure] for figures in rounds)


def best(results, peer, figure):
  return max((median(rounds, figure) for name, rounds in results.items()
              if name.startswith(peer) and figure in rounds[0]), default=None)


def targets(results):
  """(what, ratio, least or most) of everything that was measured. Of figures of one process the ratio comes first,
  then the median."""
  for model, of_model in results.items():
    for name, rounds in of_model.items():
      if name.startswith("ours"):
        share = statistics.median(figures[f"decode/1/{CONTEXTS[0]}"] / figures["read/1"] for figures in rounds)
        yield f"{model}, {name}, 1 stream: reading its weights / a step", share, ">= 0.75"
        if all(f"decode/1/{FAR}" in figures for figures in rounds):
          slower = statistics.median(figures[f"decode/1/{CONTEXTS[0]}"] / figures[f"decode/1/{FAR}"]
                                     for figures in rounds)
          yield f"{model}, {name}: time of a token at {FAR} / at {CONTEXTS[0]}", slower, "<= 1.05"
    for mine, other, least in ((f"decode/64/{CONTEXTS[0]}", f"decode/64/{CONTEXTS[0]}", 3),
                               ("engine/64", f"decode/64/{CONTEXTS[0]}", 3), ("prompt/512", "prompt/512", 2)):
      for peer in ("pytorch", "compiled"):
        rates = best(of_model, "ours", mine), best(of_model, peer, other)
        if None not in rates:
          yield f"{model}, {mine}: best of ours / of {peer}", rates[0] / rates[1], f">= {least}"
    if is_rwkv(model):
      yield from rwkv_targets(model, of_model)
      continue
    pair = [of_model.get(name) for name in ("ours int8", "llama.cpp q8_0")]
    if None not in pair:
      for name in (*(f"decode/{streams}/{context}" for streams in STREAMS for context in CONTEXTS), "prompt/512"):
        ratio = median(pair[0], name) / median(pair[1], name)
        yield f"{model}, {name}: ours int8 / llama.cpp q8_0", ratio, f">= {LEAST_OF_LLAMA.get((model, name), 2)}"


def rwkv_targets(model, of_model):
  for mine, theirs in RIVALS:
    for figure, least in LEAST.items():
      pair = [of_model.get(name) for name in (mine, theirs)]
      if None not in pair and all(figure in rounds[0] for rounds in pair):
        yield f"{model}, {figure}: {mine} / {theirs}", median(pair[0], figure) / median(pair[1], figure), f">= {least}"


def met(ratio, wanted):
  sign, limit = wanted.split()
  return ratio >= float(limit) if sign == ">=" else ratio <= float(limit)


def show(results):
  for model, of_model in results.items():
    print()
    names = list(dict.fromkeys(name for rounds in of_model.values() for name in rounds[0]))
    table((model, *of_model),
          [[name, *(median(rounds, name) if name in rounds[0] else "" for rounds in of_model.values())]
           for name in names])
  print()
  table(("", "ratio", "wanted", ""), [[what, f"{ratio:.2f}", wanted, "met" if met(ratio, wanted) else "missed"]
                                      for what, ratio, wanted in targets(results)])


def chosen(pattern):
  """(model, peer, format) of all whose names, joined by blanks, match."""
  every = [(model, peer, number) for model, (kind, *_) in MODELS.items()
           for peer, numbers in FORMATS[kind].items() for number in numbers]
  return [one for one in every if re.search(pattern, " ".join(one))]


def machine():
  return f"{os.cpu_count()} cores, {processor()}, load {os.getloadavg()[0]:.1f}"


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--threads", type=int, default=os.cpu_count())
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--seconds", type=float, default=0.3, help="at least, of each figure")
  parser.add_argument("--only", type=chosen, default="", metavar="PATTERN",
                      help="of " + ", ".join(f"{'|'.join(model for model in MODELS if MODELS[model][0] == kind)} "
                                             f"{peer} {'|'.join(numbers)}" for kind, peers in FORMATS.items()
                                             for peer, numbers in peers.items()))
  parser.add_argument("--bin", type=Path, default=ROOT / "build/default/bin")
  parser.add_argument("--out", type=Path, default=ROOT / "build/bench/peers")
  options = parser.parse_args()
  install.install(os.cpu_count())
  options.out.mkdir(parents=True, exist_ok=True)
  peers = Peers(options)
  results = {model: defaultdict(list) for model, *_ in options.only}
  for model in results:
    check(peers, model)
  before = machine()
  peers.measure(results)
  (options.out / "rounds.json").write_text(json.dumps(results, indent=1) + "\n")
  print(f"\n{before} before, {os.getloadavg()[0]:.1f} after; {options.threads} threads, medians of {options.rounds}")
  show(results)


if __name__ == "__main__":
  main()
