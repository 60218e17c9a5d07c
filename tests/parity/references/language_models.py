"""Goldens of whole language models: labml_nn's AFT experiment, and a GPT-2 with its own attention and
with lsg_converter's."""

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from labml_nn.transformers import aft as labml_aft
from labml_nn.transformers import feed_forward, models
from labml_nn.transformers.utils import subsequent_mask
from lsg_converter.attention_layers import BlockLocalSelfAttention
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

from references import equations as eq
from references.aft_modules import labml_layer, linear, normal, randomise, save
from references.checks import agree, same
from references.store import state_dict, write

CHARACTERS = "\n !',-.:;?abcdefghijklmnopqrstuvwxyzABEé"


def randomise_network(module, rng):
  randomise(module, rng)
  with torch.no_grad():
    for name, value in module.named_parameters():
      if "norm" in name and name.endswith("weight") or "ln_" in name and name.endswith("weight"):
        value += 1
      if name.endswith("positional_encodings"):
        value.copy_(torch.from_numpy(normal(rng, *value.shape)))
  return module


def below(state, prefix):
  return {k[len(prefix):]: v for k, v in state.items() if k.startswith(prefix)}


def norm(state, name, x):
  return eq.layer_norm(x, state[name + ".weight"].astype(np.float64),
                       state[name + ".bias"].astype(np.float64), 1e-5)


# ---- labml ---------------------------------------------------------------------------------------
class AutoregressiveTransformer(torch.nn.Module):
  """The model of labml_nn/transformers/aft/experiment.py, which cannot be imported without torchvision."""

  def __init__(self, d, vocabulary, layers, seq_len, window, d_ff, embeddings, positions):
    super().__init__()
    layer = models.TransformerLayer(
        d_model=d, self_attn=labml_aft.AFTLocal(d, seq_len, window),
        feed_forward=feed_forward.FeedForward(d, d_ff), dropout_prob=0.1)
    self.src_embed = embeddings(d, vocabulary, positions)
    self.encoder = models.Encoder(layer, layers)
    self.generator = models.Generator(vocabulary, d)

  def forward(self, tokens):
    x = self.src_embed(tokens)
    return self.generator(self.encoder(x, subsequent_mask(len(tokens))))


def labml_log_probs(state, tokens, d, layers, window):
  embedded = state["src_embed.linear.weight"][tokens].astype(np.float64)
  x = embedded * math.sqrt(d) + state["src_embed.positional_encodings"][:len(tokens), 0]
  for i in range(layers):
    layer = below(state, f"encoder.layers.{i}.")
    x = x + labml_layer(below(layer, "self_attn."), norm(layer, "norm_self_attn", x), window)
    up = linear(layer, "feed_forward.layer1", norm(layer, "norm_ff", x))
    x = x + linear(layer, "feed_forward.layer2", np.maximum(up, 0))
  return eq.log_softmax(linear(state, "generator.projection", norm(state, "encoder.norm", x)))


def labml(out, rng):
  d, d_ff, seq_len, window, positions = 32, 64, 64, 8, 96
  for name, embeddings, layers in (
      ("labml_lm", models.EmbeddingsWithPositionalEncoding, 2),
      ("labml_lm_learned", models.EmbeddingsWithLearnedPositionalEncoding, 1)):
    module = AutoregressiveTransformer(d, len(CHARACTERS), layers, seq_len, window, d_ff, embeddings,
                                       positions)
    fixed = module.src_embed.positional_encodings.clone()
    randomise_network(module, rng)
    if name == "labml_lm":  # Sines and cosines: no parameter, but part of the state_dict.
      module.src_embed.positional_encodings.copy_(fixed)
    state = {k: v.copy() for k, v in state_dict(module).items()}
    tokens = rng.integers(0, len(CHARACTERS), seq_len)
    want = labml_log_probs(state, tokens, d, layers, window)
    x = torch.from_numpy(tokens[:, None])
    with torch.no_grad():
      got = torch.log_softmax(module(x), -1)[:, 0].numpy()
      agree(name, got, want, atol=1e-4)
      same(f"{name}, in float64", torch.log_softmax(module.double()(x), -1)[:, 0], want)
    save(out, name, state,
         {"tokens": tokens, "expected": want.astype(np.float32), "package": got},
         {"package": "labml-nn", "architecture": "labml_nn.transformers.aft.experiment",
          "d_model": d, "d_ff": d_ff, "n_layers": layers, "seq_len": seq_len,
          "local_window_size": window, "activation": "relu", "embedding_scale": "sqrt(d_model)",
          "positional_encodings": "sinusoidal" if name == "labml_lm" else "learned",
          "characters": CHARACTERS})


# ---- GPT-2 ---------------------------------------------------------------------------------------
BLOCK, HEADS = 8, 4
MERGES = ("Ġ t", "h e", "Ġt he")
TEXT = "the théâtre, on\nthe hill"
PROMPT = 2 * BLOCK + 1  # The tokens before generation, in which the reference has full attention.


class Gpt2BlockLocalAttention(modeling_gpt2.GPT2Attention):
  """Replaces the attention of GPT-2 as the README of LSG does."""

  def __init__(self, config, is_cross_attention=False, layer_idx=None):
    super().__init__(config, is_cross_attention, layer_idx)
    self.attn = BlockLocalSelfAttention(block_size=BLOCK, compute_global_attention=True,
                                        is_causal=True)

  def _attn(self, query, key, value, attention_mask=None, head_mask=None):
    return self.attn(query, key, value, attention_mask), None


def gpt2_model(config, block_local=False):
  plain = modeling_gpt2.GPT2Attention
  modeling_gpt2.GPT2Attention = Gpt2BlockLocalAttention if block_local else plain
  try:
    return GPT2LMHeadModel(config).eval()
  finally:
    modeling_gpt2.GPT2Attention = plain


def gpt2_log_probs(state, tokens, see):
  """Computes GPT-2 with `see` [T, T]. Conv1D stores its weights as [in, out]."""
  state = below({k: v.astype(np.float64) for k, v in state.items()}, "transformer.")
  x = state["wte.weight"][tokens] + state["wpe.weight"][:len(tokens)]

  def conv1d(name, y):
    return y @ state[name + ".weight"] + state[name + ".bias"]

  for h in ("h.0.", "h.1."):
    q, k, v = np.split(conv1d(h + "attn.c_attn", norm(state, h + "ln_1", x)), 3, axis=1)
    x = x + conv1d(h + "attn.c_proj", eq.attention(eq.dot_scores(q, k, HEADS), v, see))
    up = conv1d(h + "mlp.c_fc", norm(state, h + "ln_2", x))
    x = x + conv1d(h + "mlp.c_proj", eq.gelu_tanh(up))
  return eq.log_softmax(norm(state, "ln_f", x) @ state["wte.weight"].T)


def generate(model, tokens):
  """Returns the log-probabilities at the tokens after PROMPT, each computed with the cache of those before it."""
  past = model(tokens[None, :PROMPT], use_cache=True).past_key_values
  rows = []
  for t in range(PROMPT, len(tokens)):
    # The replaced attention fails here without a mask.
    step = model(tokens[None, t:t + 1], past_key_values=past, use_cache=True,
                 attention_mask=torch.ones(1, t + 1))
    past = step.past_key_values
    rows.append(torch.log_softmax(step.logits[0, 0], -1).numpy())
  return np.stack(rows)


def tokenizer(directory):
  """Makes a vocabulary of 256 bytes in GPT-2's own order, three merges and the end of text."""
  symbols = list(bytes_to_unicode().values())
  symbols += [merge.replace(" ", "") for merge in MERGES] + ["<|endoftext|>"]
  vocabulary = json.dumps({symbol: i for i, symbol in enumerate(symbols)}, ensure_ascii=False)
  (directory / "vocab.json").write_text(vocabulary + "\n", encoding="utf-8")
  (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n",
                                        encoding="utf-8")
  return GPT2Tokenizer(str(directory / "vocab.json"), str(directory / "merges.txt"))


def gpt2(out, rng):
  directory = out / "gpt2"
  directory.mkdir(exist_ok=True)
  words = tokenizer(directory)
  tokens = torch.tensor(words(TEXT).input_ids)
  config = GPT2Config(vocab_size=len(words), n_embd=32, n_layer=2, n_head=HEADS, n_positions=128,
                      bos_token_id=len(words) - 1, eos_token_id=len(words) - 1)
  plain, block_local = gpt2_model(config), gpt2_model(config, block_local=True)
  randomise_network(plain, rng)
  block_local.load_state_dict(plain.state_dict())
  with tempfile.TemporaryDirectory() as temporary:
    plain.save_pretrained(temporary, safe_serialization=True)
    for name in ("config.json", "model.safetensors"):
      (directory / name).write_bytes((Path(temporary) / name).read_bytes())
  state = state_dict(plain)
  t = len(tokens)
  seen = eq.block_local_sees(t, BLOCK, True, True)
  generated = seen.copy()
  generated[PROMPT:] = eq.causal(t)[PROMPT:]
  cases = {"tokens": tokens.numpy()}
  with torch.no_grad():
    for name, see, run in (
        ("dot_product", eq.causal(t), lambda: plain(tokens[None]).logits[0].log_softmax(-1)),
        ("block_local", seen, lambda: block_local(tokens[None]).logits[0].log_softmax(-1)),
        ("generated", generated, lambda: generate(block_local, tokens))):
      got = np.asarray(run())
      want = gpt2_log_probs(state, tokens, see)[-len(got):]
      agree(f"gpt2 {name}", got, want, atol=1e-4)
      cases[f"{name}.expected"], cases[f"{name}.package"] = want.astype(np.float32), got
  distance = {a: np.abs(cases["block_local.expected"] - cases["dot_product.expected"])[a:].max()
              for a in (0, PROMPT)}
  assert distance[PROMPT] > 0.1, distance
  write(out / "gpt2.cases.safetensors", cases,
        {"package": "transformers, lsg-converter", "text": TEXT, "block_size": BLOCK,
         "global_token": "true", "prompt_tokens": PROMPT, "n_head": HEADS})


def make(out):
  rng = np.random.default_rng(4)
  labml(out, rng)
  gpt2(out, rng)
