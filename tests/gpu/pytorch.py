#!/usr/bin/env python3
"""Measures PyTorch on the same GPU, for the ratios of report.py: pytorch.py OUT.json

  fused      torch's scaled_dot_product_attention, causal, bf16, 16 heads of 64
  eager      AFT-local as labml_nn writes it (all T x T biases), fp32
  compiled   the same under torch.compile
  gpt2       transformers' GPT-2 with 24 layers of 1024 (if installed), bf16, decoding with its cache
"""

import json
import statistics
import sys
import time

import torch

D, HEADS, WINDOW = 1024, 16, 32
LENGTHS = (1024, 4096, 16384)


def median_us(work, repeats=15):
  """Returns the median time of one call on the device, in microseconds."""
  for _ in range(3):
    work()
  torch.cuda.synchronize()
  times = []
  for _ in range(repeats):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    times.append(begin.elapsed_time(end) * 1000)
  return statistics.median(times)


def labml_core(query, key, value, pos_bias, mask):
  """Computes labml_nn.transformers.aft.AFTLocal.forward without its projections. Arrays are [T, B, d]."""
  max_key = key.max(dim=0, keepdims=True)[0]
  max_pos_bias = pos_bias.max(dim=1, keepdims=True)[0]
  exp_key = torch.exp(key - max_key)
  exp_pos_bias = torch.exp(pos_bias - max_pos_bias).masked_fill(~mask, 0.0)
  num = torch.einsum("ij,jbd->ibd", exp_pos_bias, exp_key * value)
  den = torch.einsum("ij,jbd->ibd", exp_pos_bias, exp_key)
  return torch.sigmoid(query) * num / den


def attempt(cases, name, tokens, work, **more):
  """Adds a case, or the reason why it did not run: a length may not fit, or a package may be missing."""
  try:
    cases.append({"name": name, "tokens": tokens, "us": work(), **more})
  except Exception as error:  # any error of PyTorch is the result of this case
    cases.append({"name": name, "tokens": tokens, "skipped": f"{type(error).__name__}: {error}"[:200]})
  torch.cuda.empty_cache()
  print(cases[-1], flush=True)


def fused(tokens):
  q, k, v = (torch.randn(1, HEADS, tokens, D // HEADS, device="cuda", dtype=torch.bfloat16)
             for _ in range(3))
  return median_us(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def aft_local(tokens, compiled):
  q, k, v = (torch.randn(tokens, 1, D, device="cuda") for _ in range(3))
  distance = torch.arange(tokens, device="cuda")[:, None] - torch.arange(tokens, device="cuda")
  bias = torch.randn(tokens, tokens, device="cuda") * ((distance < WINDOW) & (distance >= 0))
  mask = distance >= 0
  core = torch.compile(labml_core) if compiled else labml_core
  with torch.inference_mode():
    return median_us(lambda: core(q, k, v, bias, mask))


def gpt2(streams, context=512, steps=32):
  from transformers import GPT2Config, GPT2LMHeadModel
  config = GPT2Config(n_layer=24, n_embd=D, n_head=HEADS, vocab_size=50304, n_positions=1024)
  model = GPT2LMHeadModel(config).to("cuda", torch.bfloat16).eval()
  with torch.inference_mode():
    tokens = torch.randint(0, 50000, (streams, context), device="cuda")
    out = model(tokens, use_cache=True)
    cache, last = out.past_key_values, out.logits[:, -1:].argmax(-1)
    times = []
    for _ in range(steps):
      torch.cuda.synchronize()
      begin = time.perf_counter()
      out = model(last, past_key_values=cache, use_cache=True)
      cache, last = out.past_key_values, out.logits[:, -1:].argmax(-1)
      torch.cuda.synchronize()
      times.append((time.perf_counter() - begin) * 1e6)
  return statistics.median(times[4:])


def main():
  if not torch.cuda.is_available():
    print("skipped: PyTorch finds no GPU")
    return
  cases = []
  for tokens in LENGTHS:
    attempt(cases, "fused", tokens, lambda: fused(tokens))
    attempt(cases, "eager", tokens, lambda: aft_local(tokens, compiled=False))
    attempt(cases, "compiled", tokens, lambda: aft_local(tokens, compiled=True))
  for streams in (1, 8, 64, 256):
    attempt(cases, "gpt2", 512, lambda: gpt2(streams), streams=streams)
  result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": cases}
  with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(result, file, indent=1)


if __name__ == "__main__":
  main()
