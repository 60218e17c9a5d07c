#!/usr/bin/env python3
"""Makes tests/parity/goldens/rwkv_sampling.safetensors: the distributions from which the package `rwkv` draws.

PIPELINE.generate of the package draws a text of random tokens for each case. Its model is replaced by one that gives the
same random logits at every step, so all that changes are the penalties. A case has 24 tokens with logits, some of which
are digits and spaces; all other tokens have none. The script needs the environment of make_rwkv_goldens.py, and is
deterministic: a second run changes no byte. With another seed it makes other cases, which rwkv_test accepts as well:

  /tmp/rwkv/bin/python tests/parity/make_rwkv_sampling_goldens.py [SEED]
"""

import sys
import types
from pathlib import Path

import numpy as np
import torch

from references.store import write

GOLDENS = Path(__file__).resolve().parent / "goldens"
TOKENS, STEPS, VOCABULARY = 24, 60, 65536
# A cut depends on rounding where the probabilities up to a token sum to nearly top_p.
SMALLEST_MARGIN = 1e-5


def is_clear(logits, top_p):
  sums = np.cumsum(np.sort(np.exp(logits) / np.exp(logits).sum())[::-1])
  return np.abs(sums - top_p).min() > SMALLEST_MARGIN


def draw_case(pipeline, spared, rng):
  """The options, tokens, logits [TOKENS], drawn tokens [STEPS] and probabilities [STEPS, TOKENS]; None: rounding matters."""
  from rwkv.utils import PIPELINE_ARGS
  options = {"temperature": rng.choice([1.0, rng.uniform(0.3, 2.0)]), "top_p": rng.uniform(0.3, 0.98),
             "top_k": int(rng.choice([0, rng.integers(2, 12)])), "alpha_frequency": rng.uniform(0.0, 1.0),
             "alpha_presence": rng.uniform(0.0, 1.0), "alpha_decay": rng.choice([0.996, rng.uniform(0.5, 1.0)])}
  options = {name: int(value) if name == "top_k" else float(np.float32(value)) for name, value in options.items()}
  others = rng.choice(np.arange(1000, VOCABULARY - 7), TOKENS - 8, replace=False)
  ids = np.sort(np.concatenate([rng.choice(spared, 8, replace=False), others]))
  logits = rng.normal(0.0, 2.0, TOKENS).astype(np.float32)
  everything = torch.full((VOCABULARY,), -torch.inf)
  everything[ids] = torch.from_numpy(logits)
  pipeline.model = types.SimpleNamespace(forward=lambda tokens, state: (everything.clone(), None))
  drawn, rows, clear = [], [], []

  def choice(a, p):
    rows.append(p[ids])
    drawn.append(rng.choice(a, p=p.astype(np.float64) / p.astype(np.float64).sum()))
    return drawn[-1]

  def sample(out, **arguments):
    clear.append(is_clear(out[ids].double().numpy(), options["top_p"]))
    return type(pipeline).sample_logits(pipeline, out, **arguments)

  pipeline.sample_logits = sample
  numpy_choice, np.random.choice = np.random.choice, choice
  try:
    pipeline.generate("x", token_count=STEPS, args=PIPELINE_ARGS(**options))
  finally:
    np.random.choice = numpy_choice
  return (options, ids, logits, np.array(drawn), np.array(rows)) if all(clear) else None


def main(seed):
  from rwkv.utils import PIPELINE
  pipeline = PIPELINE(None, "rwkv_vocab_v20230424")
  spared = np.array([i for i in range(VOCABULARY) if pipeline.decode([i]) in " \t0123456789"])
  rng = np.random.default_rng(seed)
  cases = []
  while len(cases) < 16:
    case = draw_case(pipeline, spared, rng)
    if case is not None:
      cases.append(case)
  options = {name: np.array([case[0][name] for case in cases], np.float32) for name in cases[0][0]}
  write(GOLDENS / "rwkv_sampling.safetensors",
        {**options, "spared": spared, "ids": np.array([case[1] for case in cases]),
         "logits": np.array([case[2] for case in cases]), "drawn": np.array([case[3] for case in cases]),
         "probabilities": np.array([case[4] for case in cases], np.float32)}, {"package": "rwkv"})


if __name__ == "__main__":
  main(int(sys.argv[1]) if len(sys.argv) > 1 else 33)
