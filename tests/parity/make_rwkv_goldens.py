#!/usr/bin/env python3
"""Makes tests/parity/goldens/rwkv*: random RWKV models with BlinkDL's names and with transformers', and what they
compute.

The goldens of rwkv4 and rwkv7 are float64 results of references/rwkv.py, and the script checks that the package `rwkv`
gives the same in fp32. Those of rwkv_hub are transformers' own, which the script compares with float64. It also checks
that each tensor of the weights changes the logits. It is deterministic: a second run changes no byte.

  python3.11 -m venv /tmp/rwkv
  /tmp/rwkv/bin/pip install typing_extensions sympy networkx jinja2 filelock fsspec numpy \
    pyyaml regex requests safetensors packaging tqdm 'huggingface-hub<1.0' 'tokenizers>=0.14,<0.19'
  /tmp/rwkv/bin/pip install --no-deps torch==2.11.0 nvidia-cufile==1.15.1.6 nvidia-cusparselt-cu13==0.8.0 \
    nvidia-nvshmem-cu13==3.4.5 rwkv==0.8.32 transformers==4.36.2
  /tmp/rwkv/bin/python tests/parity/make_rwkv_goldens.py
"""

import importlib
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import RwkvConfig, RwkvForCausalLM

from references.checks import agree
from references.rwkv import Rwkv
from references.store import write

GOLDENS = Path(__file__).resolve().parent / "goldens"
TEXT, GENERATED = 100, 2000
PACKAGE_ERROR = 5e-5  # of a whole model in fp32
RESCALED_ERROR = 5e-4  # where the residual stream is halved, the epsilon of its norms counts four times
SMALLEST_CHANGE = 0.05  # of a logit when a tensor is another one
# The likeliest token is ahead of the second by at least this at every step, so that fp32 finds the same one.
SMALLEST_GAP = 5e-4


class Draw(dict):
  """Random tensors by name."""

  def __init__(self, rng):
    super().__init__()
    self.rng = rng

  def normal(self, name, *shape, std=1.0, mean=0.0):
    self[name] = (mean + std * self.rng.standard_normal(shape)).astype(np.float16)

  def uniform(self, name, *shape, low=0.0, high=1.0):
    self[name] = self.rng.uniform(low, high, shape).astype(np.float16)

  def matrix(self, name, rows, columns, gain=1.0):
    self.normal(name + ".weight", rows, columns, std=gain * columns**-0.5)

  def norm(self, name, d):
    self.normal(name + ".weight", d, std=0.3, mean=1.0)
    self.normal(name + ".bias", d, std=0.3)

  def network(self, vocabulary, d, layers, draw_layer):
    self.normal("emb.weight", vocabulary, d)
    self.norm("blocks.0.ln0", d)
    for i in range(layers):
      self.norm(f"blocks.{i}.ln1", d)
      self.norm(f"blocks.{i}.ln2", d)
      draw_layer(f"blocks.{i}.att.", f"blocks.{i}.ffn.")
    self.norm("ln_out", d)
    self.matrix("head", vocabulary, d, gain=3.0)
    return self


def rwkv4(rng, vocabulary=45, d=36, wide=126):
  draw = Draw(rng)

  def layer(att, ffn):
    draw.uniform(att + "time_decay", d, low=-6.0, high=1.5)  # the decay of a token is 0.998 to 0.01
    draw.normal(att + "time_first", d)
    for part in "kvr":
      draw.uniform(f"{att}time_mix_{part}", 1, 1, d)
    for name in ("key", "value", "receptance", "output"):
      draw.matrix(att + name, d, d, gain=1.5)
    for part in "kr":
      draw.uniform(f"{ffn}time_mix_{part}", 1, 1, d)
    draw.matrix(ffn + "key", wide, d)
    draw.matrix(ffn + "receptance", d, d)
    draw.matrix(ffn + "value", d, wide)

  return draw.network(vocabulary, d, 3, layer)


def rwkv7(rng):
  d, heads, wide, draw = 128, 2, 33, Draw(rng)

  def layer(att, ffn):
    for part in "rwkvag":
      draw.uniform(f"{att}x_{part}", 1, 1, d)
    for part, rank in {"w": 12, "a": 8, "v": 4, "g": 20}.items():
      draw.normal(f"{att}{part}1", d, rank, std=d**-0.5)
      draw.normal(f"{att}{part}2", rank, d, std=(2.0 if part == "g" else 1.0) * rank**-0.5)
    draw.uniform(att + "w0", 1, 1, d, low=-8.0, high=2.0)  # the decay of a token is 0.9998 to 0.59
    draw.normal(att + "a0", 1, 1, d, std=1.5)
    draw.normal(att + "v0", 1, 1, d, std=1.5)
    draw.uniform(att + "k_k", 1, 1, d, low=0.3, high=1.7)
    draw.uniform(att + "k_a", 1, 1, d, low=-0.5, high=1.5)
    draw.normal(att + "r_k", heads, d // heads, std=0.3)
    for name in ("receptance", "key", "value", "output"):
      draw.matrix(att + name, d, d)
    draw.norm(att + "ln_x", d)
    draw.uniform(ffn + "x_k", 1, 1, d)
    draw.matrix(ffn + "key", wide, d)
    draw.matrix(ffn + "value", d, wide)

  return draw.network(40, d, 2, layer)


def run_package(version, weights, tokens):
  """Returns the package's logits [T, V] of a text that it reads half at once and half token by token, and its state."""
  os.environ.update(RWKV_JIT_ON="0", RWKV_CUDA_ON="0", RWKV_V7_ON="1" if version == 7 else "0")
  sys.modules.pop("rwkv.model", None)  # which version it has is decided when it is imported
  package = importlib.import_module("rwkv.model")
  with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/model"
    torch.save({name: torch.from_numpy(value.astype(np.float32)) for name, value in weights.items()}, path + ".pth")
    model = package.RWKV(model=path, strategy="cpu fp32")
  half = len(tokens) // 2
  state = model.generate_zero_state() if version == 7 else None
  for i in range(len(state or []) // 3):  # the package itself does not use the states of state tuning in RWKV-7
    if f"blocks.{i}.att.time_state" in weights:
      state[3 * i + 1] = torch.from_numpy(weights[f"blocks.{i}.att.time_state"].astype(np.float32))
  logits, state = model.forward(tokens[:half], state, full_output=True)
  rows = [logits]
  for token in tokens[half:]:
    row, state = model.forward([token], state)
    rows.append(row[None])
  return torch.cat(rows).numpy(), [part.numpy() for part in state]


def check_that_tensors_matter(weights, tokens, logits, rng):
  """Permutes the numbers of each tensor. The logits must change, so that a test sees a tensor in a wrong place."""
  for name, value in weights.items():
    other = rng.permutation(value.reshape(-1)).reshape(value.shape)
    change = np.abs(Rwkv({**weights, name: other}).read(tokens)[0] - logits).max()
    ignored = name in [f"blocks.0.att.v{i}" for i in range(3)]  # layer 0 has no values to mix in
    assert change == 0 if ignored else change > SMALLEST_CHANGE, (name, change)


def make(version, draw, seed):
  rng = np.random.default_rng(seed)
  weights = draw(rng)
  tokens = rng.integers(len(weights["emb.weight"]), size=TEXT).tolist()
  model = Rwkv(weights)
  logits, state = model.read(tokens)

  package_logits, package_state = run_package(version, weights, tokens)
  agree(f"rwkv{version} logits", package_logits, logits, atol=PACKAGE_ERROR)
  for i, (got, want) in enumerate(zip(package_state, state, strict=True)):
    agree(f"rwkv{version} state {i}", got, want, atol=PACKAGE_ERROR)
  check_that_tensors_matter(weights, tokens, logits, rng)

  greedy, gaps = model.generate(logits[-1], state, GENERATED)
  print(f"rwkv{version}: smallest gap {gaps.min():.1e}")
  assert gaps.min() >= SMALLEST_GAP

  metadata = {"package": "rwkv", "version": version, "smallest_gap": f"{gaps.min():.1e}"}
  write(GOLDENS / f"rwkv{version}.safetensors", weights, metadata)
  cases = {"tokens": np.array(tokens), "greedy": np.array(greedy, np.uint8), "expected": logits.astype(np.float32)}
  cases.update({f"state.{i}": part.astype(np.float32) for i, part in enumerate(state)})
  write(GOLDENS / f"rwkv{version}.cases.safetensors", cases, metadata)


# The parts of names that transformers has in place of BlinkDL's.
HUB_NAMES = {"emb.": "rwkv.embeddings.", "blocks.": "rwkv.blocks.", "ln_out": "rwkv.ln_out", "ln0": "pre_ln",
             "att.": "attention.", "ffn.": "feed_forward.", "mix_k": "mix_key", "mix_v": "mix_value",
             "mix_r": "mix_receptance"}


def hub_name(name):
  for theirs, hub in HUB_NAMES.items():
    name = name.replace(theirs, hub)
  return name


def make_hub(seed):
  """Makes rwkv_hub: a folder of transformers' RwkvForCausalLM. Its config asks transformers to halve the residual stream
  after two layers, which only makes the norms' epsilon count four times as much."""
  rng = np.random.default_rng(seed)
  vocabulary, d, wide = 256, 24, 70
  weights = rwkv4(rng, vocabulary, d, wide)
  tokens = rng.integers(vocabulary, size=TEXT)
  model = RwkvForCausalLM(RwkvConfig(vocabulary, hidden_size=d, intermediate_size=wide, num_hidden_layers=3,
                                     rescale_every=2))
  model.load_state_dict({hub_name(name): torch.from_numpy(value.astype(np.float32))
                         for name, value in weights.items()})
  model.half().save_pretrained(GOLDENS / "rwkv_hub")
  expected = Rwkv(weights).read(tokens)[0]
  for every, error in ((2, RESCALED_ERROR), (0, PACKAGE_ERROR)):
    model = RwkvForCausalLM.from_pretrained(GOLDENS / "rwkv_hub", rescale_every=every).float().eval()
    with torch.no_grad():
      logits = model(torch.from_numpy(tokens)[None]).logits[0]
    agree(f"rwkv_hub logits, rescaled every {every} layers", logits, expected, atol=error)
  check_that_tensors_matter(weights, tokens, expected, rng)
  write(GOLDENS / "rwkv_hub.cases.safetensors", {"tokens": tokens, "package": logits.log_softmax(-1).numpy()},
        {"package": "transformers"})


def make_tuned(seed):
  """The model of the golden rwkv7 with states of state tuning."""
  weights, rng = rwkv7(np.random.default_rng(25)), np.random.default_rng(seed)
  heads, n = weights["blocks.0.att.r_k"].shape
  states = {f"blocks.{i}.att.time_state": rng.standard_normal((heads, n, n)).astype(np.float16) for i in range(2)}
  tokens = rng.integers(len(weights["emb.weight"]), size=TEXT).tolist()
  logits, _ = Rwkv(weights | states).read(tokens)
  agree("tuned rwkv7", run_package(7, weights | states, tokens)[0], logits, atol=PACKAGE_ERROR)
  turned = {name: value.transpose(0, 2, 1) for name, value in states.items()}
  for others in ({}, turned):
    change = np.abs(Rwkv(weights | others).read(tokens)[0] - logits).max(axis=1)
    assert change[0] > SMALLEST_CHANGE, change
  cases = {"tokens": np.array(tokens), "expected": logits.astype(np.float32)}
  write(GOLDENS / "rwkv7_tuned.safetensors", states | cases, {"package": "rwkv", "version": 7})


if __name__ == "__main__":
  make(4, rwkv4, seed=34)
  make(7, rwkv7, seed=25)
  make_hub(seed=3)
  make_tuned(seed=26)
