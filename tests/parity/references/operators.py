"""Goldens of the operators without a package, in the mixers' own layout (model/config/tensors.h). Inputs
are `packed` [T, width] and the tables, the output is y. A second source checks each equation.

operators.safetensors holds NAME.packed, NAME.expected, NAME.mask (some) and NAME.<table> for every case
NAME, and as metadata NAME = "kind key=value ..." (tests/support/mixer_of.h).
"""

import numpy as np
import torch
from torch.nn import functional as F

from references import equations as eq
from references.checks import same
from references.store import write

T, HID, HEADS = 19, 16, 4


class Goldens:
  """Draws inputs and collects cases."""

  def __init__(self):
    self.rng = np.random.default_rng(3)
    self.tensors, self.about = {}, {}

  def normal(self, *shape, std=1.0):
    return (std * self.rng.standard_normal(shape)).astype(np.float32)

  def add(self, name, expected, packed, fields, mask=None, **tables):
    assert np.isfinite(expected).all() and name not in self.about
    entries = {"packed": packed, "expected": expected.astype(np.float32), **tables}
    if mask is not None:
      entries["mask"] = mask
    self.tensors.update({f"{name}.{key}": value for key, value in entries.items()})
    self.about[name] = " ".join([fields.pop("kind")] + [
        f"{key}={str(value).lower()}" for key, value in fields.items()])


def columns(packed, *widths):
  """Returns the packed columns in parts of these widths, in float64."""
  assert sum(widths) == packed.shape[1]
  return np.split(packed.astype(np.float64), np.cumsum(widths)[:-1], axis=1)


def padding(t, valid):
  return np.where(np.arange(t) < valid, 0, -np.inf).astype(np.float32)


def sees(is_causal, t=T):
  return eq.causal(t) if is_causal else eq.everything(t)


def each_form(name):
  """Returns (case name, causal, mask) of three forms: causal, bidirectional, and bidirectional with padding."""
  return ((f"{name}_causal", True, None), (f"{name}_bidirectional", False, None),
          (f"{name}_padded", False, padding(T, T - 5)))


def torch_heads(x, heads):
  return torch.from_numpy(eq.heads_of(x, heads))


# ---- AFT without convolution ---------------------------------------------------------------------
def aft(g):
  for name, is_causal, mask in each_form("aft_simple"):
    packed = g.normal(T, 3 * HID)
    q, k, v = columns(packed, HID, HID, HID)
    y = eq.aft(q, k, v, np.zeros((T, T)), sees(is_causal), mask)
    if not is_causal:  # Eq. 5: one softmax over time per channel.
      keys = k if mask is None else k + mask[:, None]
      same(name, eq.sigmoid(q) * (torch.softmax(torch.from_numpy(keys), 0).numpy() * v).sum(0), y)
    g.add(name, y, packed, {"kind": "aft_simple", "causal": is_causal}, mask)

  for name, is_causal, mask in each_form("aft_full"):
    packed, w = g.normal(T, 3 * HID), g.normal(T, T)
    y = eq.aft(*columns(packed, HID, HID, HID), w.astype(np.float64), sees(is_causal), mask)
    g.add(name, y, packed,
          {"kind": "aft_full", "causal": is_causal, "bias": "full", "band_rows": T}, mask,
          **{"w.full": w})

  for name, is_causal, mask in each_form("aft_full_factors"):
    packed, u, v = g.normal(T, 3 * HID), g.normal(T, 5), g.normal(T, 5)
    w = u.astype(np.float64) @ v.T.astype(np.float64)
    y = eq.aft(*columns(packed, HID, HID, HID), w, sees(is_causal), mask)
    g.add(name, y, packed, {"kind": "aft_full", "causal": is_causal, "bias": "factors",
                            "band_rows": T, "bias_rank": 5}, mask, **{"w.u": u, "w.v": v})

  # Biases by distance and by absolute position, with keys from -100 to 100.
  for rows in (0, T):
    for name, is_causal, mask in each_form("aft_local_rows" if rows else "aft_local_shift"):
      s = 6
      packed = g.normal(T, 3 * HID)
      packed[:, HID:2 * HID] = g.rng.uniform(-100, 100, (T, HID)).astype(np.float32)
      table = g.normal(max(rows, 1), s if is_causal else 2 * s - 1)
      w = np.zeros((T, T))
      for i in range(T):
        for j in range(T):
          column = i - j + (0 if is_causal else s - 1)
          if 0 <= column < table.shape[1]:
            w[i, j] = table[i if rows else 0, column]
      y = eq.aft(*columns(packed, HID, HID, HID), w, sees(is_causal), mask)
      g.add(name, y, packed, {"kind": "aft_local", "causal": is_causal, "window": s,
                              "band_rows": rows}, mask, **{"w.band": table})


# ---- AFT-conv ------------------------------------------------------------------------------------
def conv_by_eq6(q, k, v, taps, is_causal, grid_width):
  """Computes Eq. 6 as it is written: a convolution with exp(w) - 1 plus a sum over all (or a prefix sum)."""
  heads, t = len(taps), len(v)
  ev = np.exp(np.repeat(k, v.shape[1] // heads, axis=1))
  filters = np.repeat(np.exp(taps) - 1, v.shape[1] // heads, axis=0)[:, None]

  def corrected(x):
    if grid_width:
      image = torch.from_numpy(x.T.reshape(1, -1, t // grid_width, grid_width).copy())
      y = F.conv2d(image, torch.from_numpy(filters), padding="same", groups=x.shape[1])
    elif is_causal:  # Tap 0 is the current token. conv1d expects the oldest first.
      line = F.pad(torch.from_numpy(x.T[None].copy()), (taps.shape[1] - 1, 0))
      y = F.conv1d(line, torch.from_numpy(filters[..., ::-1].copy()), groups=x.shape[1])
    else:
      y = F.conv1d(torch.from_numpy(x.T[None].copy()), torch.from_numpy(filters), padding="same",
                   groups=x.shape[1])
    total = np.cumsum(x, axis=0) if is_causal else x.sum(axis=0)
    return y.reshape(-1, t).T.numpy() + total

  return eq.sigmoid(q) * corrected(ev * v) / corrected(ev)


def normalised_by_torch(tables, unbiased):
  w, gamma, beta = (torch.from_numpy(tables[key]).double() for key in
                    ("conv.w", "conv.gamma", "conv.beta"))
  dims, wide = list(range(1, w.dim())), (-1,) + (1,) * (w.dim() - 1)
  std = w.std(dims, unbiased=unbiased, keepdim=True)
  return (gamma.view(wide) * (w - w.mean(dims, keepdim=True)) / std + beta.view(wide)).numpy()


def aft_conv(g):
  t, s = 28, 5  # 28 tokens are also an image of 4 rows of 7.
  # (name, causal, image width, heads, reparameterised, unbiased, mask)
  forms = [("aft_conv_causal", True, 0, 4, 1, 1, None), ("aft_conv_same", False, 0, 4, 1, 1, None),
           ("aft_conv_grid", False, 7, 4, 1, 1, None), ("aft_conv_plain", True, 0, 2, 0, 1, None),
           ("aft_conv_biased_std", True, 0, 4, 1, 0, None),
           ("aft_conv_one_head", True, 0, 1, 1, 1, None),
           ("aft_conv_head_per_channel", False, 0, HID, 1, 1, None),
           ("aft_conv_padded", False, 0, 4, 1, 1, padding(t, 21)),
           ("aft_conv_grid_padded", False, 7, 4, 1, 1, padding(t, 21))]
  for name, is_causal, grid_width, heads, normalised, unbiased, mask in forms:
    packed = g.normal(t, 2 * HID + heads)
    w = g.normal(*((heads, s, s) if grid_width else (heads, s)))
    tables, taps = {"conv.w": w}, w.astype(np.float64)
    if normalised:
      tables |= {"conv.gamma": g.normal(heads), "conv.beta": g.normal(heads)}
      taps = eq.normalised_taps(taps, tables["conv.gamma"].astype(np.float64),
                                tables["conv.beta"].astype(np.float64), bool(unbiased))
      same(f"{name} taps", normalised_by_torch(tables, bool(unbiased)), taps)
    q, k, v = columns(packed, HID, heads, HID)
    y = eq.aft_conv(q, k, v, taps, sees(is_causal, t), is_causal, grid_width, mask)
    if mask is None:
      same(name, conv_by_eq6(q, k, v, taps, is_causal, grid_width), y)
    g.add(name, y, packed,
          {"kind": "aft_conv", "causal": is_causal, "window": s, "heads": heads,
           "reparameterized": bool(normalised), "unbiased_std": bool(unbiased),
           "grid": grid_width > 0}, mask, **tables)


# ---- Dot product, cosine, additive, location -----------------------------------------------------
def additive_mask(is_causal, mask):
  see = np.where(sees(is_causal), 0.0, -np.inf)
  return torch.from_numpy(see if mask is None else see + mask)


def dot_product(g):
  for name, is_causal, mask in each_form("dot_product"):
    packed = g.normal(T, 3 * HID)
    q, k, v = columns(packed, HID, HID, HID)
    y = eq.attention(eq.dot_scores(q, k, HEADS), v, sees(is_causal), mask)
    other = F.scaled_dot_product_attention(*(torch_heads(x, HEADS) for x in (q, k, v)),
                                           attn_mask=additive_mask(is_causal, mask))
    same(name, other.transpose(0, 1).reshape(T, HID).numpy(), y)
    g.add(name, y, packed, {"kind": "dot_product", "causal": is_causal, "heads": HEADS}, mask)

  # Compares with torch's own layer, which has projections.
  x = g.normal(T, HID)
  layer = torch.nn.MultiheadAttention(HID, HEADS, batch_first=True).double().eval()
  with torch.no_grad():
    for parameter in layer.parameters():
      parameter.copy_(torch.from_numpy(g.normal(*parameter.shape, std=0.3)))
    inputs = torch.from_numpy(x[None]).double()
    other = layer(inputs, inputs, inputs, attn_mask=additive_mask(True, None), need_weights=False)[0]
    packed = F.linear(inputs[0], layer.in_proj_weight, layer.in_proj_bias).numpy()
    q, k, v = columns(packed, HID, HID, HID)
    y = eq.attention(eq.dot_scores(q, k, HEADS), v, sees(True))
    same("MultiheadAttention", other[0].numpy(), layer.out_proj(torch.from_numpy(y)).numpy())


def cosine(g):
  for name, is_causal, mask in each_form("cosine"):
    packed = g.normal(T, 3 * HID + HEADS, std=2)
    q, k, v, b = columns(packed, HID, HID, HID, HEADS)
    y = eq.attention(eq.cosine_scores(q, k, b, HEADS), v, sees(is_causal), mask)
    qt, kt = torch_heads(q, HEADS), torch_heads(k, HEADS)
    strength = F.softplus(torch.from_numpy(b.T.copy()))[:, :, None]
    scores = strength * F.cosine_similarity(qt[:, :, None], kt[:, None], dim=-1)
    weights = torch.softmax(scores + additive_mask(is_causal, mask), -1)
    same(name, (weights @ torch_heads(v, HEADS)).transpose(0, 1).reshape(T, HID).numpy(), y)
    g.add(name, y, packed, {"kind": "cosine", "causal": is_causal, "heads": HEADS}, mask)

  # The cosine with a zero vector is 0, not NaN.
  packed = g.normal(T, 3 * HID + HEADS)
  packed[4, :HID] = packed[7, HID:2 * HID] = 0
  q, k, v, b = columns(packed, HID, HID, HID, HEADS)
  y = eq.attention(eq.cosine_scores(q, k, b, HEADS), v, sees(True))
  g.add("cosine_zero_vectors", y, packed, {"kind": "cosine", "causal": 1, "heads": HEADS})


def bahdanau(q, k, v, score, is_causal):
  """Computes one pair and one head at a time, as the paper writes it."""
  heads, width = score.shape
  values = eq.heads_of(v, heads)
  out = np.empty_like(v)
  for i in range(T):
    for h in range(heads):
      at = slice(h * width, (h + 1) * width)
      e = np.array([score[h] @ np.tanh(q[i, at] + k[j, at]) for j in range(i + 1 if is_causal else T)])
      a = np.exp(e) / np.exp(e).sum()
      n = values.shape[2]
      out[i, h * n:(h + 1) * n] = a @ values[h, :len(a)]
  return out


def additive(g):
  width = 6
  for name, is_causal, mask in each_form("additive"):
    packed, score = g.normal(T, 2 * HEADS * width + HID), g.normal(HEADS, width)
    q, k, v = columns(packed, HEADS * width, HEADS * width, HID)
    y = eq.attention(eq.additive_scores(q, k, score.astype(np.float64)), v, sees(is_causal), mask)
    if mask is None:
      same(name, bahdanau(q, k, v, score.astype(np.float64), is_causal), y)
    g.add(name, y, packed, {"kind": "additive", "causal": is_causal, "heads": HEADS,
                            "score_width": width}, mask, **{"score.v": score})


def location(g):
  for name, is_causal, mask in each_form("location"):
    rows = T + 7  # A text need not fill the table.
    packed, weight = g.normal(T, 2 * HID), g.normal(rows, HID, std=0.5)
    q, v = columns(packed, HID, HID)
    scores = q @ weight[:T].T.astype(np.float64)
    y = eq.attention(scores[None], v, sees(is_causal), mask)
    a = torch.softmax(torch.from_numpy(scores) + additive_mask(is_causal, mask), -1)
    same(name, a.numpy() @ v, y)
    g.add(name, y, packed, {"kind": "location", "causal": is_causal, "band_rows": rows}, mask,
          **{"location.weight": weight})


def make(out):
  g = Goldens()
  for operator in (aft, aft_conv, dot_product, cosine, additive, location):
    operator(g)
  write(out / "operators.safetensors", g.tensors, g.about)
