#!/usr/bin/env python3
"""A random RWKV model with the names of BlinkDL's files, and the package `rwkv` that runs it on the CPU in fp32.

  rwkv_model.py make FILE.pth --kind wkv7 --width 768 --layers 12
  rwkv_model.py score FILE.pth --text TEXT   log-probabilities of a text's tokens, as JSON
  rwkv_model.py time FILE.pth --threads 2    tokens/s of one stream and of a prompt, as JSON

Vocabulary and low ranks are those of the public World models of up to 0.4 B weights. Needs torch and rwkv.
"""

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch

from aft_torch import PROMPT, flags, rate, text_scores

VOCABULARY = Path(__file__).resolve().parents[3] / "model/tokenizer/world/rwkv_vocab_v20230424.txt"
TOKENS = 65_536
HEAD = 64  # channels of a head
RANKS = {"w": 64, "a": 64, "v": 32, "g": 128}
PARTS = "rwkvag"  # of RWKV-7's time mix, in the order of GGUF


def matrix(rows, columns):
  return torch.randn(rows, columns) / columns**0.5


def near(mean, deviation, *shape):
  return mean + deviation * torch.randn(shape)


def norm(name, width):
  return {f"{name}.weight": near(1, 0.1, width), f"{name}.bias": near(0, 0.1, width)}


def time_mix(kind, width):
  weights = {f"{name}.weight": matrix(width, width) for name in ("receptance", "key", "value", "output")}
  if kind == "wkv4":
    weights |= {f"time_mix_{part}": near(0.5, 0.2, 1, 1, width) for part in "rkv"}
    return weights | {"time_decay": near(-1, 1, width), "time_first": near(0, 0.5, width)}
  weights |= {f"x_{part}": near(0.5, 0.2, 1, 1, width) for part in PARTS}
  for part, rank in RANKS.items():
    weights |= {part + "1": matrix(rank, width).T.contiguous(), part + "2": matrix(width, rank).T.contiguous()}
    if part != "g":
      weights[part + "0"] = near(0, 1, 1, 1, width)
  weights |= {name: near(0.8, 0.2, 1, 1, width) for name in ("k_k", "k_a")}
  return weights | {"r_k": near(0, 0.2, width // HEAD, HEAD)} | norm("ln_x", width)


def channel_mix(kind, width):
  weights = {"key.weight": matrix(4 * width, width), "value.weight": matrix(width, 4 * width)}
  if kind == "wkv7":
    return weights | {"x_k": near(0.5, 0.2, 1, 1, width)}
  shares = {f"time_mix_{part}": near(0.5, 0.2, 1, 1, width) for part in "kr"}
  return weights | shares | {"receptance.weight": matrix(width, width)}


def make(path, kind, width, layers):
  torch.manual_seed(0)
  weights = {"emb.weight": torch.randn(TOKENS, width), "head.weight": matrix(TOKENS, width)}
  weights |= norm("blocks.0.ln0", width) | norm("ln_out", width)
  for i in range(layers):
    layer = norm("ln1", width) | norm("ln2", width)
    layer |= {f"att.{name}": value for name, value in time_mix(kind, width).items()}
    layer |= {f"ffn.{name}": value for name, value in channel_mix(kind, width).items()}
    weights |= {f"blocks.{i}.{name}": value for name, value in layer.items()}
  torch.save(weights, path)


def load(path):
  names = torch.load(path, mmap=True)
  os.environ["RWKV_V7_ON"] = str(int("blocks.0.att.r_k" in names))  # read when the package is imported
  with redirect_stdout(sys.stderr):
    from rwkv.model import RWKV
    return RWKV(model=str(path.with_suffix("")), strategy="cpu fp32")


def score(model, text):
  """Log-probabilities of every token but the first, computed twice: from one prompt, and with half of it in steps."""
  from rwkv.rwkv_tokenizer import TRIE_TOKENIZER
  tokens = TRIE_TOKENIZER(VOCABULARY).encode(text)
  half = len(tokens) // 2
  at_once, _ = model.forward(tokens, None, full_output=True)
  logits, state = model.forward(tokens[:half], None, full_output=True)
  rows = [*logits]
  for token in tokens[half:]:
    row, state = model.forward([token], state)
    rows.append(row)
  return text_scores(torch.tensor(tokens), at_once, torch.stack(rows))


def measure(model, seconds):
  prompt = list(range(PROMPT))
  logits, state = model.forward(prompt[:40], None)

  def step():
    nonlocal logits, state
    logits, state = model.forward([int(logits.argmax())], state)

  return {"decode/1": rate(step, 1, seconds), "state bytes": sum(part.nbytes for part in state),
          f"prompt/{PROMPT}": rate(lambda: model.forward(prompt, None), PROMPT, seconds)}


def main():
  parser = flags(__doc__, "file", 768, 12, ("fp32",))
  parser.add_argument("--kind", default="wkv7", choices=("wkv4", "wkv7"))
  options = parser.parse_args()
  torch.set_num_threads(options.threads)
  with torch.inference_mode():
    if options.what == "make":
      make(options.file, options.kind, options.width, options.layers)
    elif options.what == "score":
      print(json.dumps(score(load(options.file), options.text)))
    else:
      print(json.dumps(measure(load(options.file), options.seconds)))


if __name__ == "__main__":
  main()
