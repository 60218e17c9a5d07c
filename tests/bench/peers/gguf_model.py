#!/usr/bin/env python3
"""Writes an AFT checkpoint's matrices as a GPT-2 for llama.cpp: gguf_model.py CHECKPOINT FILE q8_0

Attention takes the place of AFT: as many heads as fit at a width of 64. So the two have the same matrix products and as
many weights, but for GPT-2's positions, of which a step reads a row. Needs gguf, safetensors.
"""

import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.numpy import load_file

POSITIONS = 2048
NAMES = {"embed": "token_embd", "norm": "output_norm", "norm1": "attn_norm", "mixer.qkv": "attn_qkv",
         "mixer.out": "attn_output", "norm2": "ffn_norm", "ffn.up": "ffn_up", "ffn.down": "ffn_down"}


def gguf_name(name):
  """layers.3.norm1.weight -> blk.3.attn_norm.weight; none for a bias of AFT."""
  module, _, kind = name.rpartition(".")
  if not module.startswith("layers."):
    return f"{NAMES[module]}.{kind}"
  _, layer, module = module.split(".", 2)
  return f"blk.{layer}.{NAMES[module]}.{kind}" if module in NAMES else None


def main():
  folder, path, number = Path(sys.argv[1]), sys.argv[2], GGMLQuantizationType[sys.argv[3].upper()]
  config = json.loads((folder / "config.json").read_text())
  writer = GGUFWriter(path, "gpt2")
  writer.add_context_length(POSITIONS)
  writer.add_embedding_length(config["d_model"])
  writer.add_block_count(config["n_layers"])
  writer.add_feed_forward_length(config["d_ff"])
  writer.add_head_count(config["d_model"] // 64)
  writer.add_layer_norm_eps(config["norm_eps"])
  writer.add_vocab_size(config["vocab_size"])
  writer.add_tokenizer_model("none")
  positions = np.random.default_rng(0).standard_normal((POSITIONS, config["d_model"]), np.float32)
  writer.add_tensor("position_embd.weight", positions / 50)
  for name, weights in load_file(folder / "model.safetensors").items():
    if (known := gguf_name(name)) is None:
      continue
    if weights.ndim == 1:
      writer.add_tensor(known, weights)
    else:
      writer.add_tensor(known, quants.quantize(weights, number), raw_dtype=number)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


if __name__ == "__main__":
  main()
