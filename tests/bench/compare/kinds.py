"""The networks that compare.py trains: one for each kind, all with about as many weights."""

from collections.abc import Callable
from dataclasses import dataclass, field

BYTES = 256
HEADS = 4
FILTERS = 8  # heads of aft_conv
RANK = 16
SCORE_WIDTH = 8
WINDOW = 32
NEIGHBOURS = 8  # window of an encoder's aft_local on each side, as in languages-aft-local

RWKV = {"qkv_bias": False, "head_bias": False, "embedding_norm": True, "activation": "squared_relu"}


@dataclass(frozen=True)
class Kind:
  """One row of the comparison. `rows` is the number of positions that a table by position covers."""
  mixer: dict
  columns: Callable[[int], int] = lambda d: 3 * d  # outputs of the projections for a width d
  tables: Callable[[int, int], int] = lambda d, rows: 0  # weights of a layer's tables, from d and rows
  by_position: bool = False  # the tables end after `rows` tokens
  state_grows: bool = False
  positions: bool = False  # the operator cannot tell places apart, so the network adds sinusoids to its input
  longest: int = 4096  # tokens of a text that can be scored
  slow: bool = False  # training takes several times as long as for the others
  network: dict = field(default_factory=dict)


CAUSAL = {
    "aft_full": Kind({"bias": "factors", "bias_rank": RANK}, tables=lambda d, rows: 2 * RANK * rows, by_position=True),
    "aft_simple": Kind({}, positions=True),
    "aft_local": Kind({"window": WINDOW}),
    "aft_local, restart": Kind({"window": WINDOW, "prefix_block": 128}),
    "aft_conv": Kind({"window": WINDOW, "heads": FILTERS}, columns=lambda d: 2 * d),
    "block_local": Kind({"block_size": 64, "heads": HEADS, "global_token": True}, positions=True),
    "dot_product": Kind({"heads": HEADS}, positions=True, state_grows=True),
    "cosine": Kind({"heads": HEADS}, positions=True, state_grows=True),
    # The differentiable form holds T x T x SCORE_WIDTH numbers, 8 GB for 16 texts of 4,096.
    "additive": Kind({"score_width": SCORE_WIDTH}, columns=lambda d: d + 2 * SCORE_WIDTH, positions=True,
                     state_grows=True, longest=1024, slow=True),
    "location": Kind({}, columns=lambda d: 2 * d, tables=lambda d, rows: d * rows, by_position=True, state_grows=True),
    # The gate of its feed-forward counts as d columns.
    "wkv4": Kind({}, columns=lambda d: 4 * d, slow=True, network=RWKV | {"feed_forward": "gated_channel_mix"}),
    "wkv7": Kind({"heads": HEADS} | {f"{part}_rank": RANK for part in ("decay", "rate", "value", "gate")},
                 columns=lambda d: 3 * d + 8 * RANK, slow=True, network=RWKV | {"feed_forward": "channel_mix"}),
}

AFT = ("aft_full", "aft_simple", "aft_local", "aft_conv")

ENCODERS = {name: kind for name, kind in CAUSAL.items() if "wkv" not in name and "restart" not in name} | {
    "aft_local": Kind({"window": NEIGHBOURS}),
    "aft_conv": Kind({"window": 2 * NEIGHBOURS - 1, "heads": FILTERS}, columns=lambda d: 2 * d),
    "block_local": Kind({"block_size": 16, "heads": HEADS, "global_token": True}, positions=True),
}


def sizes(kind, layers, weights, rows, head):
  """(d_model, d_ff) with about `weights` weights, and a feed-forward that is nearly four times as wide as the model.
  `head` is the number of outputs. Norms and biases, a hundredth of the weights, are not counted."""
  def feed_forward(d):
    mixer = d * (kind.columns(d) + d) + kind.tables(d, rows)
    return round((weights - (BYTES + head) * d - layers * mixer) / (2 * layers * d * 8)) * 8
  found = [(d, feed_forward(d)) for d in range(16, 1024, 16)]
  return min((size for size in found if size[1] >= 8), key=lambda size: abs(size[1] / size[0] - 4))


def network(name, kind, layers, weights, rows, labels=None):
  """The config.json of a language model, or of an encoder with these labels."""
  d, d_ff = sizes(kind, layers, weights, rows, len(labels or range(BYTES)))
  config = {"format_version": 1, "architecture": "encoder" if labels else "decoder_lm", "vocab_size": BYTES,
            "d_model": d, "n_layers": layers, "d_ff": d_ff, "activation": "gelu_tanh", "norm": "layer_norm",
            "norm_eps": 1e-5, "mixer": {"kind": name.split(",")[0]} | kind.mixer, "tokenizer": {"kind": "bytes"}}
  if labels:
    config["labels"] = labels
    config["mixer"]["causal"] = False
  else:
    config["tie_embeddings"] = False
  if kind.positions:
    config["position"] = {"kind": "sinusoidal"}
    config["embedding_scale"] = round(d ** 0.5, 4)  # so that the sinusoids do not drown the tokens
  if kind.by_position:
    config["mixer"]["band_rows"] = rows
  if kind.by_position or (kind.state_grows and not labels):
    config["max_seq_len"] = rows if kind.by_position else kind.longest
  return config | kind.network
