"""Goldens of lsg_converter's BlockLocalSelfAttention."""

import numpy as np
import torch
from lsg_converter.attention_layers import BlockLocalSelfAttention

from references import equations as eq
from references.checks import agree
from references.store import write

HEADS, WIDTH, BLOCK = 2, 8, 4
HID = HEADS * WIDTH
LENGTHS = (1, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK - 1)
T_MAX = LENGTHS[-1]
MASKED = {"inf": -np.inf, "min": np.finfo(np.float32).min}


def split(packed):
  return np.split(packed.astype(np.float64), 3, axis=-1)


def expected(packed, is_causal, global_token, mask=None):
  q, k, v = split(packed)
  see = eq.block_local_sees(len(packed), BLOCK, is_causal, global_token)
  return eq.attention(eq.dot_scores(q, k, HEADS), v, see, mask)


def to_heads(x):
  """Reshapes [B, T, HID] to [B, HEADS, T, WIDTH]."""
  return torch.from_numpy(x).view(x.shape[0], -1, HEADS, WIDTH).transpose(1, 2)


def package(packed, is_causal, global_token, mask=None, queries=None):
  """Runs the package on packed [B, T, 3 HID] and mask [B, T]. `queries`: compute only the last `queries` rows."""
  module = BlockLocalSelfAttention(block_size=BLOCK, compute_global_attention=global_token,
                                   is_causal=is_causal).eval()
  assert not module.state_dict()
  q, k, v = (to_heads(np.ascontiguousarray(x)) for x in np.split(packed, 3, axis=-1))
  if queries:
    q = q[:, :, -queries:]
  # A clone: the module writes into the mask that it is given.
  m = None if mask is None else torch.from_numpy(mask[:, None, None, :]).clone()
  return module(q, k, v, m).transpose(1, 2).reshape(len(packed), -1, HID).numpy()


def mask_is_modified(packed):
  """Checks that the module writes into the caller's mask. Returns the error that this makes when it is used again."""
  mask = torch.zeros(1, 1, 1, T_MAX)
  module = BlockLocalSelfAttention(block_size=BLOCK).eval()
  q, k, v = (to_heads(np.ascontiguousarray(x)) for x in np.split(packed, 3, axis=-1))
  first, second = module(q, k, v, mask), module(q, k, v, mask)
  changed = (first - second).abs().amax(dim=(0, 1, 3))
  assert mask[0, 0, 0, 0] == np.finfo(np.float32).min and (mask[..., 1:] == 0).all()
  assert changed[0] > 1e-3 and (changed[1:] == 0).all()
  return float(changed[0])


def make(out):
  rng = np.random.default_rng(2)
  packed = rng.standard_normal((2, T_MAX, 3 * HID)).astype(np.float32)
  tensors = {"packed": packed}
  for is_causal in (False, True):
    for global_token in (False, True):
      form = ("causal" if is_causal else "bidirectional") + (".global" if global_token else ".local")
      for t in LENGTHS:
        got = package(packed[:1, :t], is_causal, global_token)[0]
        want = expected(packed[0, :t], is_causal, global_token)
        agree(f"block_local {form} T={t}", got, want)
        tensors[f"{form}.expected.{t}"] = want.astype(np.float32)
        tensors[f"{form}.package.{t}"] = got

      # Two sequences padded on the right to T_MAX tokens. Rows of padding are not compared.
      lengths = (T_MAX - 3, 2 * BLOCK + 1)
      for name, value in MASKED.items():
        mask = np.zeros((2, T_MAX), np.float32)
        for b, t in enumerate(lengths):
          mask[b, t:] = value
        got = package(packed, is_causal, global_token, mask)
        tensors[f"mask.{name}"] = mask
        tensors[f"{form}.package.mask.{name}"] = got
        for b, t in enumerate(lengths):
          # The result is the same without the padding.
          want = expected(packed[b], is_causal, global_token, mask[b])[:t]
          agree(f"block_local {form} padded {name} {b}", got[b, :t], want)
          agree(f"block_local {form} cut {name} {b}",
                expected(packed[b, :t], is_causal, global_token), want)
          tensors[f"{form}.expected.mask.{b}"] = want.astype(np.float32)

  # With padding on the left, token 0 is padding, but the package shows it to every row.
  mask = np.zeros((1, T_MAX), np.float32)
  mask[0, :3] = -np.inf
  got = package(packed[:1], True, True, mask)[0, 3:]
  want = expected(packed[0], True, True, mask[0])[3:]
  left = np.abs(got - want).max()
  assert left > 1e-2
  tensors.update({"left.mask": mask[0], "left.package": got,
                  "left.expected": want.astype(np.float32)})

  # Generation has one query and all keys so far. The package then attends to all of them.
  got = package(packed[:1], True, True, np.zeros((1, T_MAX), np.float32), queries=1)[0]
  q, k, v = split(packed[0])
  want = eq.attention(eq.dot_scores(q, k, HEADS), v, eq.causal(T_MAX))[-1:]
  agree("block_local generation", got, want)
  prefill = expected(packed[0], True, True)[-1:]
  assert np.abs(got - prefill).max() > 1e-2
  tensors.update({"generation.expected": want.astype(np.float32), "generation.package": got})

  write(out / "block_local.safetensors", tensors,
        {"package": "lsg-converter", "class": "BlockLocalSelfAttention", "block_size": BLOCK,
         "heads": HEADS, "head_dim": WIDTH, "mask_lengths": f"{lengths[0]},{lengths[1]}",
         "left_padding": 3, "left_padding_difference": f"{left:.3f}",
         "caller_mask": "modified: [..., 0] = finfo.min; row 0 differs on a second use",
         "caller_mask_row0_difference": f"{mask_is_modified(packed[:1]):.3f}"})
