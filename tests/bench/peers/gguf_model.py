#!/usr/bin/env python3
"""Writes a checkpoint of the benchmarks for llama.cpp, and reads what llama.cpp computed.

  gguf_model.py write CHECKPOINT FILE q8_0   AFT's matrices as a GPT-2
  gguf_model.py write RWKV.pth FILE q8_0     RWKV-7 as it is
  gguf_model.py score RESULTS                the file of llama-results: log-probabilities of the text's tokens, as JSON

In the GPT-2 attention takes the place of AFT: as many heads as fit at a width of 64. So the two have the same matrix
products and as many weights, but for GPT-2's positions, of which a step reads a row. RWKV-7 has the number formats that
llama.cpp's own converter gives it. Needs gguf, safetensors, torch.
"""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType, quants
from safetensors.numpy import load_file

from aft_torch import text_scores
from rwkv_model import HEAD, PARTS, RANKS, TOKENS, VOCABULARY

POSITIONS = 2048
NAMES = {"embed": "token_embd", "norm": "output_norm", "norm1": "attn_norm", "mixer.qkv": "attn_qkv",
         "mixer.out": "attn_output", "norm2": "ffn_norm", "ffn.up": "ffn_up", "ffn.down": "ffn_down"}
RWKV_NAMES = {"emb": "token_embd", "blocks.0.ln0": "token_embd_norm", "ln_out": "output_norm", "head": "output",
              "ln1": "attn_norm", "ln2": "attn_norm_2"}


# ---- GPT-2
def gguf_name(name):
  """layers.3.norm1.weight -> blk.3.attn_norm.weight; none for a bias of AFT."""
  module, _, kind = name.rpartition(".")
  if not module.startswith("layers."):
    return f"{NAMES[module]}.{kind}"
  _, layer, module = module.split(".", 2)
  return f"blk.{layer}.{NAMES[module]}.{kind}" if module in NAMES else None


def gpt2(writer, folder):
  """Adds the fields, and returns the tensors."""
  config = json.loads((folder / "config.json").read_text())
  writer.add_context_length(POSITIONS)
  writer.add_embedding_length(config["d_model"])
  writer.add_block_count(config["n_layers"])
  writer.add_feed_forward_length(config["d_ff"])
  writer.add_head_count(config["d_model"] // 64)
  writer.add_vocab_size(config["vocab_size"])
  writer.add_tokenizer_model("none")
  tensors = {gguf_name(name): value for name, value in load_file(folder / "model.safetensors").items()}
  tensors.pop(None, None)
  positions = np.random.default_rng(0).standard_normal((POSITIONS, config["d_model"]), np.float32)
  return tensors | {"position_embd.weight": positions / 50}


# ---- RWKV-7
def rwkv_name(name):
  """blocks.3.att.w1 -> blk.3.time_mix_w1.weight."""
  module, _, kind = name.rpartition(".")
  if module in RWKV_NAMES:
    return f"{RWKV_NAMES[module]}.{kind}"
  _, layer, rest = name.split(".", 2)
  module, _, kind = rest.partition(".")
  if module in RWKV_NAMES:
    return f"blk.{layer}.{RWKV_NAMES[module]}.{kind}"
  rest = rest.replace("att.", "time_mix_").replace("ffn.x_", "channel_mix_lerp_").replace("ffn.", "channel_mix_")
  rest = rest.replace("ln_x", "ln")
  return f"blk.{layer}.{rest}" + ("" if "." in rest else ".weight")


def rwkv_tensors(weights, layers):
  tensors = {}
  for name, value in weights.items():
    if ".att.x_" not in name:
      low_rank = name.rpartition(".")[2] in [part + place for part in RANKS for place in "12"]
      tensors[rwkv_name(name)] = value.T if low_rank else value.flatten() if ".weight" not in name else value
  for i in range(layers):
    blends = [weights[f"blocks.{i}.att.x_{part}"].flatten() for part in PARTS]
    tensors[f"blk.{i}.time_mix_lerp_fused.weight"] = torch.stack(blends)[:, None, None]
  # llama.cpp does not use the first layer's gate of values, and wants it to have the rank of `a`.
  tensors |= {f"blk.0.time_mix_v{place}.weight": tensors[f"blk.0.time_mix_a{place}.weight"] for place in "012"}
  return {name: np.ascontiguousarray(value.numpy()) for name, value in tensors.items()}


def add_world(writer):
  """Adds the tokenizer."""
  entries = [ast.literal_eval(line.split(" ", 1)[1].rsplit(" ", 1)[0]) for line in VOCABULARY.read_text().splitlines()]
  texts = ["<s>"] + [repr(entry.encode() if isinstance(entry, str) else entry)[2:-1] for entry in entries]
  texts += [f"[PAD{i}]" for i in range(len(texts), TOKENS)]
  writer.add_tokenizer_model("rwkv")
  writer.add_token_list(texts)
  writer.add_token_types([TokenType.NORMAL if 0 < i <= len(entries) else TokenType.UNUSED for i in range(TOKENS)])


def rwkv7(writer, path):
  """Adds the fields, and returns the tensors."""
  weights = torch.load(path, mmap=True)
  layers = sum(name.endswith("r_k") for name in weights)
  d_ff, width = weights["blocks.0.ffn.key.weight"].shape
  writer.add_context_length(1 << 20)
  writer.add_embedding_length(width)
  writer.add_block_count(layers)
  writer.add_feed_forward_length(d_ff)
  writer.add_head_count(0)
  writer.add_wkv_head_size(HEAD)
  writer.add_decay_lora_rank(RANKS["w"])
  writer.add_iclr_lora_rank(RANKS["a"])
  writer.add_value_residual_mix_lora_rank(RANKS["v"])
  writer.add_gate_lora_rank(RANKS["g"])
  add_world(writer)
  return rwkv_tensors(weights, layers)


# ---- The files
def write(source, path, number):
  make = rwkv7 if source.suffix == ".pth" else gpt2
  writer = GGUFWriter(path, make.__name__)
  writer.add_layer_norm_eps(1e-5)
  for name, weights in make(writer, source).items():
    if weights.ndim == 1 or name.endswith(("mix_w1.weight", "mix_w2.weight", "fused.weight", "position_embd.weight")):
      writer.add_tensor(name, weights)
    else:
      writer.add_tensor(name, quants.quantize(weights, number), raw_dtype=number)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def score(path):
  results = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in GGUFReader(path).tensors}
  tokens = results["tokens"].long()
  return text_scores(tokens, results["logits"].reshape(len(tokens), -1))


if __name__ == "__main__":
  if sys.argv[1] == "score":
    print(json.dumps(score(sys.argv[2])))
  else:
    write(Path(sys.argv[2]), sys.argv[3], GGMLQuantizationType[sys.argv[4].upper()])
