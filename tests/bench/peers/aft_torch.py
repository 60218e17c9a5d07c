#!/usr/bin/env python3
"""The AFT-local language model in PyTorch, as a user of it would write it, and how fast it is on the CPU.

  aft_torch.py make DIR --width 256 --layers 8         writes a random checkpoint
  aft_torch.py score DIR --text TEXT                   log-probabilities of a text's bytes, as JSON
  aft_torch.py time DIR --dtype bfloat16 --threads 2   tokens/s of every case, as JSON

exp(k) is taken as it is, which overflows at k = 88: a running maximum would cost it more. Sums are fp32 in any
format. Needs torch and safetensors.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

STREAMS = (1, 8, 64)
PROMPT = 512


class AftLocal(nn.Module):
  """Causal AFT-local, one bias for each offset. State of B sequences: `past` [B, 2d], numerator and denominator of
  the tokens that have left the window, and `ring` [window, B, 2d], the terms of those in it."""

  def __init__(self, width, window):
    super().__init__()
    self.window = window
    self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.w = nn.ParameterDict({"band": torch.randn(1, window) / 2})

  def prepare(self):
    """Tables of exp(w), once the weights are loaded."""
    def table(offsets):
      return torch.where((offsets >= 0) & (offsets < self.window),
                         self.w["band"][0].float().exp()[offsets % self.window], 0)
    rows = torch.arange(self.window)
    self.by_place = table((rows[:, None] - rows) % self.window)  # [newest token's row, row of the ring]
    self.by_tile = table(rows[:, None] + self.window - torch.arange(2 * self.window))  # [row, two tiles]

  def empty(self, streams):
    width = self.out.in_features
    return {"past": torch.zeros(streams, 2 * width), "ring": torch.zeros(self.window, streams, 2 * width)}

  def terms(self, x):
    q, k, v = self.qkv(x).float().chunk(3, -1)
    e = k.exp()
    return q, torch.cat((e * v, e), -1)

  def gated(self, q, sums, x):
    numerator, denominator = sums.chunk(2, -1)
    return self.out((q.sigmoid() * numerator / denominator).to(x.dtype))

  def step(self, x, state, position):  # x [B, d]
    place = position % self.window
    past, ring = state["past"], state["ring"]
    q, ring[place] = self.terms(x)
    y = self.gated(q, past + (self.by_place[place] @ ring.flatten(1)).view_as(past), x)
    past += ring[(place + 1) % self.window]  # leaves the window
    return y

  def prompt(self, x, state):  # x [B, T, d], from an empty state
    tokens, window = x.shape[1], self.window
    q, terms = self.terms(x)
    past = F.pad(terms.cumsum(1), (0, 0, window, 0))
    # Tiles of `window` tokens, each with the tile before it.
    tiles = F.pad(terms, (0, 0, window, -tokens % window)).unfold(1, 2 * window, window)  # [B, tiles, 2d, 2 window]
    near = (tiles @ self.by_tile.T).transpose(2, 3).flatten(1, 2)
    y = self.gated(q, past[:, :tokens] + near[:, :tokens], x)
    state["past"] = past[:, tokens]
    last = F.pad(terms, (0, 0, window, 0))[:, -window:]
    state["ring"] = last.roll(tokens % window, 1).transpose(0, 1).contiguous()
    return y


class Block(nn.Module):

  def __init__(self, config):
    super().__init__()
    width = config["d_model"]
    self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
    self.mixer = AftLocal(width, config["mixer"]["window"])
    self.ffn = nn.ModuleDict({"up": nn.Linear(width, config["d_ff"]), "down": nn.Linear(config["d_ff"], width)})

  def forward(self, x, mix, *state):
    x = x + mix(self.norm1(x), *state)
    return x + self.ffn["down"](F.gelu(self.ffn["up"](self.norm2(x)), approximate="tanh"))


class LanguageModel(nn.Module):

  def __init__(self, config):
    super().__init__()
    self.embed = nn.Embedding(config["vocab_size"], config["d_model"])
    self.layers = nn.ModuleList(Block(config) for _ in range(config["n_layers"]))
    self.norm = nn.LayerNorm(config["d_model"])

  def empty(self, streams):
    return [layer.mixer.empty(streams) for layer in self.layers]

  def step(self, tokens, states, position):
    """Logits [B, vocabulary] after a token [B] more, whose position is the same in all sequences."""
    x = self.embed(tokens)
    for layer, state in zip(self.layers, states):
      x = layer(x, layer.mixer.step, state, position)
    return F.linear(self.norm(x), self.embed.weight)

  def prompt(self, tokens, states, last=True):
    """Logits after the last token of each text [B, T], or after every one."""
    x = self.embed(tokens)
    for layer, state in zip(self.layers, states):
      x = layer(x, layer.mixer.prompt, state)
    return F.linear(self.norm(x[:, -1:] if last else x), self.embed.weight)


def load(folder, dtype=torch.float32):
  model = LanguageModel(json.loads((folder / "config.json").read_text()))
  model.load_state_dict(load_file(folder / "model.safetensors"))
  model = model.to(dtype).eval()
  for layer in model.layers:
    layer.mixer.prepare()
  return model


def make(folder, width, layers):
  config = {"format_version": 1, "architecture": "decoder_lm", "vocab_size": 256, "d_model": width,
            "n_layers": layers, "d_ff": 4 * width, "activation": "gelu_tanh", "norm": "layer_norm",
            "norm_eps": 1e-5, "tie_embeddings": True, "head_bias": False,
            "mixer": {"kind": "aft_local", "window": 32}, "tokenizer": {"kind": "bytes"}}
  torch.manual_seed(0)
  model = LanguageModel(config)
  for parameter in model.parameters():
    parameter.add_(torch.randn_like(parameter) / 50)  # no bias is 0, no gain 1
  model.embed.weight.mul_(0.1)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
  save_file(model.state_dict(), folder / "model.safetensors")


def text_scores(tokens, *logits):
  """The log-probability of every token [T] but the first, from each of the logits [T, vocabulary]."""
  return [torch.log_softmax(rows.double(), -1)[:-1].gather(1, tokens[1:, None])[:, 0].tolist() for rows in logits]


def score(model, text):
  """Log-probabilities of every byte but the first, computed twice: from one prompt, and with half of it in steps."""
  tokens = torch.tensor([list(text.encode())])
  half = tokens.shape[1] // 2
  at_once = model.prompt(tokens, model.empty(1), last=False)[0]
  states = model.empty(1)
  logits = [*model.prompt(tokens[:, :half], states, last=False)[0]]
  logits += [model.step(tokens[:, at], states, at)[0] for at in range(half, tokens.shape[1])]
  return text_scores(tokens[0], at_once, torch.stack(logits))


def rate(work, tokens, seconds):
  """Returns the tokens/s of work(), which makes `tokens` tokens."""
  for _ in range(3):
    work()
  start, calls = time.perf_counter(), 0
  while (now := time.perf_counter()) < start + seconds:
    work()
    calls += 1
  return tokens * calls / (now - start)


def decoder(model, step, streams):
  """Work that gives each stream its next token, the likeliest."""
  states, tokens, position = model.empty(streams), torch.zeros(streams, dtype=torch.long), 0

  def work():
    nonlocal tokens, position
    tokens = step(tokens, states, position).argmax(-1)
    position += 1

  return work


def measure(model, seconds, compiled):
  def kernels(call):
    """Returns what computes the calls of one shape. After a call of another shape torch.compile would make slower
    kernels, which are for all shapes. So it starts anew."""
    if not compiled:
      return call
    torch.compiler.reset()
    return torch.compile(call)

  rates = {}
  for streams in STREAMS:
    work = decoder(model, kernels(model.step), streams)
    for _ in range(40):  # fills the ring
      work()
    rates[f"decode/{streams}"] = rate(work, streams, seconds)
  prompt, tokens = kernels(model.prompt), torch.arange(PROMPT)[None] % 256
  rates[f"prompt/{PROMPT}"] = rate(lambda: prompt(tokens, model.empty(1)), PROMPT, seconds)
  return rates


def flags(description, model, width, layers, dtypes):
  """A parser of the flags that peers.py gives to a contender in PyTorch; `model` is the name of the model's path."""
  parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("what", choices=("make", "score", "time"))
  parser.add_argument(model, type=Path)
  parser.add_argument("--width", type=int, default=width)
  parser.add_argument("--layers", type=int, default=layers)
  parser.add_argument("--text")
  parser.add_argument("--dtype", default=dtypes[0], choices=dtypes)
  parser.add_argument("--threads", type=int, default=1)
  parser.add_argument("--seconds", type=float, default=1, help="duration of each case")
  return parser


def main():
  parser = flags(__doc__, "folder", 256, 8, ("float32", "bfloat16"))
  parser.add_argument("--compile", action="store_true", help="torch.compile; takes minutes")
  options = parser.parse_args()
  torch.set_num_threads(options.threads)
  with torch.inference_mode():
    if options.what == "make":
      make(options.folder, options.width, options.layers)
    elif options.what == "score":
      print(json.dumps(score(load(options.folder), options.text)))
    else:
      print(json.dumps(measure(load(options.folder, getattr(torch, options.dtype)), options.seconds, options.compile)))


if __name__ == "__main__":
  main()
