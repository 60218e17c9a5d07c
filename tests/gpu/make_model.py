#!/usr/bin/env python3
"""Writes the model that run.sh measures, with random weights: make_model.py DIR

Its tokens are characters. Needs numpy.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
from references import store

CONFIG = {"format_version": 1, "architecture": "decoder_lm", "vocab_size": 50304, "d_model": 1024,
          "n_layers": 24, "d_ff": 4096, "activation": "gelu_tanh", "norm": "layer_norm",
          "norm_eps": 1e-5, "tie_embeddings": True, "head_bias": False,
          "mixer": {"kind": "aft_local", "window": 32, "ring": "bf16"},
          "tokenizer": {"kind": "chars"}}


def shapes():
  """Yields (name, shape, standard deviation) of every tensor. A deviation of None stands for a tensor of ones."""
  d, ff = CONFIG["d_model"], CONFIG["d_ff"]
  yield "embed.weight", (CONFIG["vocab_size"], d), 0.02
  for i in range(CONFIG["n_layers"]):
    layer = f"layers.{i}."
    yield layer + "norm1.weight", (d,), None
    yield layer + "norm1.bias", (d,), 0.0
    yield layer + "mixer.qkv.weight", (3 * d, d), d**-0.5
    yield layer + "mixer.qkv.bias", (3 * d,), 0.0
    yield layer + "mixer.w.band", (1, CONFIG["mixer"]["window"]), 0.5
    yield layer + "mixer.out.weight", (d, d), d**-0.5
    yield layer + "mixer.out.bias", (d,), 0.0
    yield layer + "norm2.weight", (d,), None
    yield layer + "norm2.bias", (d,), 0.0
    yield layer + "ffn.up.weight", (ff, d), d**-0.5
    yield layer + "ffn.up.bias", (ff,), 0.0
    yield layer + "ffn.down.weight", (d, ff), ff**-0.5
    yield layer + "ffn.down.bias", (d,), 0.0
  yield "norm.weight", (d,), None
  yield "norm.bias", (d,), 0.0


def main():
  folder = Path(sys.argv[1])
  folder.mkdir(parents=True, exist_ok=True)
  # Every token needs a character of its own.
  points = [p for p in range(1, 0x11000) if not 0xD800 <= p < 0xE000][:CONFIG["vocab_size"]]
  (folder / "chars.json").write_text(json.dumps([chr(p) for p in points]))
  (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
  random = np.random.default_rng(0)
  tensors = {name: np.ones(shape, np.float32) if std is None else
                   random.standard_normal(shape, np.float32) * np.float32(std)
             for name, shape, std in shapes()}
  store.write(folder / "model.safetensors", tensors, {})


if __name__ == "__main__":
  main()
