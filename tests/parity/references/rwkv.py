"""RWKV-4 (arXiv 2305.13048) and RWKV-7 (arXiv 2503.14456) in float64, token by token, from their formulas.

Weights have the names and shapes of BlinkDL's checkpoints. States have the order and the layout of the package
`rwkv`. For each layer this is, with d channels:

  RWKV-4   input of the time mix [d], numerator [d], denominator [d], running maximum [d], input of the channel mix [d]
  RWKV-7   input of the time mix [d], S [heads, values, keys], input of the channel mix [d]

A text of RWKV-7 begins from S = att.time_state where the weights have it.
"""

import numpy as np

from references.equations import layer_norm, sigmoid

EPSILON = 1e-5
GROUP_EPSILON = 64e-5  # the package has this number whatever the head's width is


def below(weights, prefix):
  return {name[len(prefix):]: value for name, value in weights.items() if name.startswith(prefix)}


def norm(w, name, x):
  return layer_norm(x, w[name + ".weight"], w[name + ".bias"], EPSILON)


class Rwkv:
  """A model of either version. It keeps no state between calls."""

  def __init__(self, weights):
    self.w = {name: value.astype(np.float64).squeeze() for name, value in weights.items()}
    self.seven = "blocks.0.att.r_k" in self.w
    layers = 1 + max(int(name.split(".")[1]) for name in self.w if name.startswith("blocks."))
    self.blocks = [below(self.w, f"blocks.{i}.") for i in range(layers)]
    self.time_mixes = [below(block, "att.") for block in self.blocks]
    self.channel_mixes = [below(block, "ffn.") for block in self.blocks]

  def first_state(self):
    zeros = np.zeros(self.w["emb.weight"].shape[1])
    if self.seven:
      heads, n = self.time_mixes[0]["r_k"].shape
      begins = [mix.get("time_state", np.zeros((heads, n, n))) for mix in self.time_mixes]
      return [part for begin in begins for part in (zeros, begin, zeros)]
    return [zeros, zeros, zeros, zeros - 1e30, zeros] * len(self.blocks)

  def step(self, token, state):
    """Returns the logits after `token`, and the next state."""
    parts = len(state) // len(self.blocks)
    time_mix, channel_mix = (time_mix_7, channel_mix_7) if self.seven else (time_mix_4, channel_mix_4)
    x = norm(self.blocks[0], "ln0", self.w["emb.weight"][token])
    after, first_values = [], None
    for i, block in enumerate(self.blocks):
      before = state[i * parts:(i + 1) * parts]
      normed = norm(block, "ln1", x)
      out, memory, values = time_mix(self.time_mixes[i], normed, *before[:-1], first_values)
      first_values = values if i == 0 else first_values
      x = x + out
      after += [normed, *memory]
      normed = norm(block, "ln2", x)
      x = x + channel_mix(self.channel_mixes[i], normed, before[-1])
      after.append(normed)
    return self.w["head.weight"] @ norm(self.w, "ln_out", x), after

  def read(self, tokens):
    """Returns the logits [T, V] of a text, and the state after it."""
    state, logits = self.first_state(), []
    for token in tokens:
      row, state = self.step(token, state)
      logits.append(row)
    return np.array(logits), state

  def generate(self, logits, state, count):
    """Returns the likeliest token `count` times, and how far each was ahead of the second."""
    tokens, gaps = [], []
    for _ in range(count):
      second, first = np.sort(logits)[-2:]
      tokens.append(int(logits.argmax()))
      gaps.append(first - second)
      logits, state = self.step(tokens[-1], state)
    return tokens, np.array(gaps)


# ---- RWKV-4
def time_mix_4(w, x, last, numerator, denominator, maximum, _):
  mixed = {part: x * w[f"time_mix_{part}"] + last * (1 - w[f"time_mix_{part}"]) for part in "rkv"}
  r, k, v = w["receptance.weight"] @ mixed["r"], w["key.weight"] @ mixed["k"], w["value.weight"] @ mixed["v"]

  def add(key, maximum):
    """Adds the token's value, weighted by exp(key), to sums that are relative to exp(maximum)."""
    highest = np.maximum(maximum, key)
    past, now = np.exp(maximum - highest), np.exp(key - highest)
    return past * numerator + now * v, past * denominator + now, highest

  memory = add(k, maximum - np.exp(w["time_decay"]))
  over, under, _ = add(w["time_first"] + k, maximum)
  return w["output.weight"] @ (sigmoid(r) * over / under), memory, v


def channel_mix_4(w, x, last):
  k, r = (x * w[f"time_mix_{part}"] + last * (1 - w[f"time_mix_{part}"]) for part in "kr")
  return sigmoid(w["receptance.weight"] @ r) * (w["value.weight"] @ np.maximum(w["key.weight"] @ k, 0)**2)


# ---- RWKV-7
def time_mix_7(w, x, last, s, first_values):
  mixed = {part: x + (last - x) * w[f"x_{part}"] for part in "rwkvag"}
  r, k, v = w["receptance.weight"] @ mixed["r"], w["key.weight"] @ mixed["k"], w["value.weight"] @ mixed["v"]
  decay = np.exp(-np.exp(-0.5) * sigmoid(w["w0"] + np.tanh(mixed["w"] @ w["w1"]) @ w["w2"]))
  rate = sigmoid(w["a0"] + mixed["a"] @ w["a1"] @ w["a2"])
  gate = sigmoid(mixed["g"] @ w["g1"]) @ w["g2"]
  if first_values is not None:
    v = v + (first_values - v) * sigmoid(w["v0"] + mixed["v"] @ w["v1"] @ w["v2"])
  out, memory = [], []
  heads, n = w["r_k"].shape
  removed = k * w["k_k"]
  k = k * (1 + (rate - 1) * w["k_a"])
  for head in range(heads):
    of = slice(head * n, (head + 1) * n)
    unit = removed[of] / np.linalg.norm(removed[of])
    transition = np.diag(decay[of]) - np.outer(unit, unit * rate[of])
    memory.append(s[head] @ transition + np.outer(v[of], k[of]))
    y = layer_norm(memory[-1] @ r[of], w["ln_x.weight"][of], w["ln_x.bias"][of], GROUP_EPSILON)
    out.append(y + (r[of] * k[of] * w["r_k"][head]).sum() * v[of])
  return w["output.weight"] @ (np.concatenate(out) * gate), [np.array(memory)], v


def channel_mix_7(w, x, last):
  k = x + (last - x) * w["x_k"]
  return w["value.weight"] @ np.maximum(w["key.weight"] @ k, 0)**2
