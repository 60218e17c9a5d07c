"""The operators' equations in float64, as direct sums over all pairs of positions.

Every function works on one sequence: q, k, v [T, width] arrays -> y [T, width]. `see` is a [T, T]
bool array, [query, key], which says what a query sees. `mask` [T] or None is added to the scores of
its key. The equations are those of model/README.md. Nothing here is shared with the code under test.
"""

import numpy as np


def sigmoid(x):
  return np.exp(-np.logaddexp(0.0, -x))


def causal(t):
  return np.tril(np.ones((t, t), bool))


def everything(t):
  return np.ones((t, t), bool)


def softmax_over_keys(scores, see, mask):
  """Axis 1 of scores [T, T, ...] has the keys. A query that sees no key gets zeros."""
  shape = see.shape + (1,) * (scores.ndim - 2)
  scores = np.where(see.reshape(shape), scores, -np.inf)
  if mask is not None:
    scores = scores + np.asarray(mask, np.float64).reshape((1, -1) + (1,) * (scores.ndim - 2))
  highest = scores.max(axis=1, keepdims=True)
  e = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
  total = e.sum(axis=1, keepdims=True)
  return e / np.where(total > 0, total, 1)


def aft(q, k, v, w, see, mask=None):
  """Eq. 2: softmax over keys of K + w, per channel, times V, gated by sigmoid(Q). w [T, T]."""
  a = softmax_over_keys(k[None, :, :] + w[:, :, None], see, mask)
  return sigmoid(q) * (a * v[None, :, :]).sum(axis=1)


def band(w, s):
  """Eq. 4: w where |t - t'| < s, else 0 (not -inf)."""
  t = np.arange(len(w))
  return np.where(np.abs(t[:, None] - t[None, :]) < s, w, 0.0)


def normalised_taps(w, gamma, beta, unbiased=True, eps=0.0):
  """Eq. 8. Each head is normalised over all its taps."""
  taps = w.reshape(len(w), -1)
  std = taps.std(axis=1, ddof=1 if unbiased else 0, keepdims=True)
  out = gamma[:, None] * (taps - taps.mean(axis=1, keepdims=True)) / (std + eps) + beta[:, None]
  return out.reshape(w.shape)


def conv_bias(taps, t, is_causal, grid_width=0):
  """Returns Eq. 6's bias of one head as [T, T]. Causal: taps[t - t']. Otherwise the middle tap has t' = t."""
  at = np.arange(t)
  if grid_width:
    half = (taps.shape[0] - 1) // 2
    dy = at[None, :] // grid_width - at[:, None] // grid_width
    dx = at[None, :] % grid_width - at[:, None] % grid_width
    inside = (np.abs(dy) <= half) & (np.abs(dx) <= half)
    return np.where(inside, taps[np.where(inside, dy + half, 0), np.where(inside, dx + half, 0)], 0)
  column = at[:, None] - at[None, :] if is_causal else at[None, :] - at[:, None] + len(taps) // 2
  inside = (column >= 0) & (column < len(taps))
  return np.where(inside, taps[np.where(inside, column, 0)], 0.0)


def aft_conv(q, k, v, taps, see, is_causal, grid_width=0, mask=None):
  """Eq. 6 as a direct sum: k [T, h], taps [h, s] or [h, s, s]; channel c belongs to head c // (d/h)."""
  t, d = v.shape
  width = d // len(taps)
  out = np.empty((t, d))
  for head, filter_ in enumerate(taps):
    columns = slice(head * width, (head + 1) * width)
    out[:, columns] = aft(q[:, columns], k[:, head:head + 1], v[:, columns],
                          conv_bias(filter_, t, is_causal, grid_width), see, mask)
  return out


def heads_of(x, heads):
  """Reshapes [T, h * n] to [h, T, n]."""
  return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def attention(scores, v, see, mask=None):
  """scores [h, T, T], v [T, hid] -> [T, hid]."""
  values = heads_of(v, len(scores))
  out = [softmax_over_keys(scores[h], see, mask) @ values[h] for h in range(len(scores))]
  return np.concatenate(out, axis=1)


def dot_scores(q, k, heads):
  qh, kh = heads_of(q, heads), heads_of(k, heads)
  return qh @ kh.transpose(0, 2, 1) / np.sqrt(qh.shape[-1])


def cosine_scores(q, k, b, heads):
  """Strength softplus(b) [T, h] of the query; a zero vector has cosine 0 with every other."""
  qh, kh = heads_of(q, heads), heads_of(k, heads)
  norms = np.linalg.norm(qh, axis=2)[:, :, None] * np.linalg.norm(kh, axis=2)[:, None, :]
  cosine = np.divide(qh @ kh.transpose(0, 2, 1), norms, out=np.zeros_like(norms), where=norms > 0)
  return np.logaddexp(0.0, b).T[:, :, None] * cosine


def additive_scores(q, k, v):
  """v [h, a], q and k [T, h * a]."""
  qh, kh = heads_of(q, len(v)), heads_of(k, len(v))
  return (np.tanh(qh[:, :, None, :] + kh[:, None, :, :]) * v[:, None, None, :]).sum(axis=3)


def block_local_sees(t, block, is_causal, global_token):
  """Returns what LSG's rows see: their own block, the one before and, if not causal, the one after. With
  `global_token` every row sees key 0, and if not causal row 0 sees all keys."""
  of = np.arange(t) // block
  away = of[:, None] - of[None, :]
  see = ((away >= 0) & (away <= 1) & causal(t)) if is_causal else np.abs(away) <= 1
  if global_token:
    see[:, 0] = True
    if not is_causal:
      see[0, :] = True
  return see


def layer_norm(x, weight, bias, eps):
  centred = x - x.mean(axis=-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weight + bias


def gelu_tanh(x):
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def log_softmax(x):
  shifted = x - x.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
