#!/usr/bin/env python3
"""Writes a decoder with random weights, for measurements: make_model.py DIR [KEY=VALUE...]

Keys: n_layers, d_model, d_ff, vocab_size, and of the mixer kind, window, heads, block_size, ring. Its
tokens are characters. Needs numpy.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np


def tensors(config):
  """(name, shape, scale) in the order of model/network/tensors.h."""
  d, ff, mixer = config["d_model"], config["d_ff"], config["mixer"]
  heads = mixer.get("heads", 1)
  packed = 2 * d + heads if mixer["kind"] == "aft_conv" else 3 * d
  yield "embed.weight", (config["vocab_size"], d), 0.02
  for i in range(config["n_layers"]):
    layer = f"layers.{i}."
    yield layer + "norm1.weight", (d,), None
    yield layer + "norm1.bias", (d,), 0.0
    yield layer + "mixer.qkv.weight", (packed, d), d**-0.5
    yield layer + "mixer.qkv.bias", (packed,), 0.0
    if mixer["kind"] == "aft_local":
      yield layer + "mixer.w.band", (1, mixer["window"]), 0.5
    if mixer["kind"] == "aft_conv":
      yield layer + "mixer.conv.w", (heads, mixer["window"]), 0.5
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
  given = dict(argument.split("=", 1) for argument in sys.argv[2:])
  mixer = {"kind": given.pop("kind", "aft_local")}
  for key in ("window", "heads", "block_size"):
    if key in given:
      mixer[key] = int(given.pop(key))
  if mixer["kind"] == "aft_local":
    mixer.setdefault("window", 32)
  if "ring" in given:
    mixer["ring"] = given.pop("ring")
  config = {"format_version": 1, "architecture": "decoder_lm", "vocab_size": 50304, "d_model": 1024,
            "n_layers": 24, "d_ff": 4096, "activation": "gelu_tanh", "norm": "layer_norm",
            "norm_eps": 1e-5, "tie_embeddings": True, "head_bias": False,
            "tokenizer": {"kind": "chars"}}
  config.update({key: int(value) for key, value in given.items()})
  config["mixer"] = mixer
  folder.mkdir(parents=True, exist_ok=True)
  # As many characters as the vocabulary has, so that any token can be written.
  points = [p for p in range(1, 0x11000) if not 0xD800 <= p < 0xE000][:config["vocab_size"]]
  (folder / "chars.json").write_text(json.dumps([chr(p) for p in points]))
  (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

  header, offset = {}, 0
  for name, shape, _ in tensors(config):
    size = 4 * int(np.prod(shape))
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
    offset += size
  text = json.dumps(header).encode()
  text += b" " * (-len(text) % 8)
  random = np.random.default_rng(0)
  with open(folder / "model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for _, shape, scale in tensors(config):
      if scale is None:
        values = np.ones(shape, np.float32)
      else:
        values = random.standard_normal(shape, np.float32) * np.float32(scale)
      file.write(values.tobytes())
  print(f"{folder}: {offset / 1e9:.2f} GB")


if __name__ == "__main__":
  main()
