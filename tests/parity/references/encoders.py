"""Goldens of transformers' RoBERTa and BERT, with their own attention and with lsg_converter's."""

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from lsg_converter.attention_layers import BlockLocalSelfAttention
from transformers import BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM, RobertaTokenizer
from transformers.models.bert import modeling_bert
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode
from transformers.models.roberta import modeling_roberta

from references import equations as eq
from references.aft_modules import linear
from references.checks import agree
from references.language_models import MERGES, TEXT, below, randomise_network
from references.store import state_dict, write

BLOCK, HEADS, WIDTH = 8, 4, 32
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # RoBERTa's special tokens
LENGTHS = (1, 2 * BLOCK + 3, 5 * BLOCK - 1)
MASKED = {"padded": slice(3 * BLOCK + 2, None), "holes": [0, 3, BLOCK, 2 * BLOCK + 1, 5 * BLOCK - 2]}


def with_block_local(module, name, make):
  """Calls `make` while lsg_converter's attention replaces the class `name` of the module. Returns its model."""
  plain = getattr(module, name)

  class BlockLocal(plain):

    def __init__(self, config, position_embedding_type=None):
      super().__init__(config, position_embedding_type)
      self.attn = BlockLocalSelfAttention(block_size=BLOCK, compute_global_attention=True, is_causal=False)

    def forward(self, hidden_states, attention_mask=None, *_, **__):
      q, k, v = (self.transpose_for_scores(part(hidden_states)) for part in (self.query, self.key, self.value))
      # A clone: the module writes into the mask that it is given.
      mask = None if attention_mask is None else attention_mask.clone()
      return (self.attn(q, k, v, mask).transpose(1, 2).flatten(2),)

  setattr(module, name, BlockLocal)
  try:
    return make()
  finally:
    setattr(module, name, plain)


def vectors(state, tokens, first_position, see, mask, eps):
  """Returns last_hidden_state [T, WIDTH] in float64."""
  state = {k: v.astype(np.float64) for k, v in state.items() if v.dtype == np.float32}

  def norm(name, x):
    return eq.layer_norm(x, state[name + ".weight"], state[name + ".bias"], eps)

  rows = slice(first_position, first_position + len(tokens))
  x = norm("embeddings.LayerNorm", state["embeddings.word_embeddings.weight"][tokens]
           + state["embeddings.position_embeddings.weight"][rows]
           + state["embeddings.token_type_embeddings.weight"][0])
  gelu = np.vectorize(lambda y: 0.5 * y * (1 + math.erf(y / math.sqrt(2))))
  for i in range(2):
    layer = below(state, f"encoder.layer.{i}.")
    q, k, v = (linear(layer, f"attention.self.{part}", x) for part in ("query", "key", "value"))
    mixed = eq.attention(eq.dot_scores(q, k, HEADS), v, see, mask)
    x = norm(f"encoder.layer.{i}.attention.output.LayerNorm", x + linear(layer, "attention.output.dense", mixed))
    up = gelu(linear(layer, "intermediate.dense", x))
    x = norm(f"encoder.layer.{i}.output.LayerNorm", x + linear(layer, "output.dense", up))
  return x


def cases_of(name, plain, block_local, first_position, vocabulary, rng):
  """Returns the vectors of texts of several lengths, and of a text with hidden keys."""
  state = below(state_dict(plain), name + ".")
  tokens = rng.integers(5, vocabulary, LENGTHS[-1])
  cases = {"tokens": tokens}
  for form, model in (("dot_product", plain), ("block_local", block_local)):
    model = getattr(model, name).double()
    for case in (*LENGTHS, *MASKED):
      t = case if case in LENGTHS else LENGTHS[-1]
      see = eq.everything(t) if form == "dot_product" else eq.block_local_sees(t, BLOCK, False, True)
      visible = np.ones(t, np.int64)
      if case in MASKED:
        visible[MASKED[case]] = 0
      ids = torch.from_numpy(tokens[None, :t])
      # transformers' RoBERTa numbers only tokens that are not padding. Here every token counts.
      places = torch.arange(first_position, first_position + t)[None]
      mask = np.where(visible == 1, 0, -np.inf)
      want = vectors(state, tokens[:t], first_position, see, mask, plain.config.layer_norm_eps)
      with torch.no_grad():
        got = model(ids, torch.from_numpy(visible[None]), position_ids=places).last_hidden_state[0].numpy()
      live = visible == 1
      # The package shows the first token to all rows even when it is hidden (README.md).
      if not (case == "holes" and form == "block_local"):
        agree(f"{name} {form} {case}", got[live], want[live], atol=1e-9)
      cases[f"{form}.{case}"] = want.astype(np.float32)
      if case in MASKED:
        cases[f"mask.{case}"] = visible
  return cases


def tokenizer(directory):
  symbols = list(SPECIAL[:4]) + list(bytes_to_unicode().values())
  symbols += [merge.replace(" ", "") for merge in MERGES] + [SPECIAL[4]]
  vocabulary = json.dumps({symbol: i for i, symbol in enumerate(symbols)}, ensure_ascii=False)
  (directory / "vocab.json").write_text(vocabulary + "\n", encoding="utf-8")
  (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", encoding="utf-8")
  return RobertaTokenizer(str(directory / "vocab.json"), str(directory / "merges.txt"))


def save(directory, model):
  with tempfile.TemporaryDirectory() as temporary:
    model.save_pretrained(temporary, safe_serialization=True)
    for name in ("config.json", "model.safetensors"):
      (directory / name).write_bytes((Path(temporary) / name).read_bytes())


def make(out):
  rng = np.random.default_rng(5)
  sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 48}
  directory = out / "roberta"
  directory.mkdir(exist_ok=True)
  words = tokenizer(directory)
  config = RobertaConfig(vocab_size=len(words), max_position_embeddings=66, type_vocab_size=1, layer_norm_eps=1e-5,
                         **sizes)
  plain = randomise_network(RobertaForMaskedLM(config).eval(), rng)
  block_local = with_block_local(modeling_roberta, "RobertaSelfAttention", lambda: RobertaForMaskedLM(config).eval())
  block_local.load_state_dict(plain.state_dict())
  save(directory, plain)
  cases = cases_of("roberta", plain, block_local, 2, len(words), rng)
  cases["text.tokens"] = np.array(words(TEXT).input_ids)
  write(out / "roberta.cases.safetensors", cases,
        {"package": "transformers, lsg-converter", "text": TEXT, "block_size": BLOCK})

  directory = out / "bert"
  directory.mkdir(exist_ok=True)
  config = BertConfig(vocab_size=100, max_position_embeddings=64, layer_norm_eps=1e-12, **sizes)
  plain = randomise_network(BertForMaskedLM(config).eval(), rng)
  block_local = with_block_local(modeling_bert, "BertSelfAttention", lambda: BertForMaskedLM(config).eval())
  block_local.load_state_dict(plain.state_dict())
  save(directory, plain)
  write(out / "bert.cases.safetensors", cases_of("bert", plain, block_local, 0, 100, rng),
        {"package": "transformers, lsg-converter", "block_size": BLOCK})
