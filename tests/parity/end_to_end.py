"""Compares served models of full size with PyTorch.

It trains a labml_nn AFT language model in PyTorch for a few steps, imports it, serves it, and compares the
log-probabilities that come over gRPC with PyTorch's. It does the same for a random GPT-2 with LSG's block-local
attention, and for the vectors of random RoBERTas with and without it. The sizes are those of the papers' code, so the
files are too large for goldens/. convert_test does the same with small models on every run, without a server.

  PYTHON tests/parity/end_to_end.py [--bin build/default/bin] [--steps 20]     (PYTHON: see README.md)
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
import aft_server
from labml_nn.transformers import models
from references import encoders
from references import language_models as lm
from transformers import GPT2Config, RobertaConfig, RobertaModel
from transformers.models.roberta import modeling_roberta

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "model/zoo/austen-aft-local/held_out_sample.txt"
TOLERANCE = 1e-4


def run(*command):
  done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
  if done.returncode != 0:
    sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
  return done.stdout


def ask(binaries, checkpoint, command, text):
  """Returns the events that `aftctl COMMAND` prints for a text, which it sends over gRPC."""
  server = aft_server.Server(checkpoint.parent, binaries / "aft-server", checkpoint, checkpoint.name)
  try:
    lines = run(binaries / "aftctl", "--address", server.address, command, "--json", "--prompt", text)
  finally:
    server.stop()
  return [json.loads(line) for line in lines.splitlines()]


def score(binaries, checkpoint, text):
  """Returns the log-probabilities of the text's tokens from the second on."""
  events = ask(binaries, checkpoint, "score", text)
  return torch.tensor([token["logprob"] for event in events
                       for token in event.get("chunk", {}).get("logprobs", [])], dtype=torch.float64)


def compare(name, served, logits, tokens):
  """Compares `served` with PyTorch's fp32 logits [T, V] of `tokens`."""
  rows = torch.log_softmax(logits.double(), -1)[:-1]
  want = rows.gather(1, tokens[1:, None])[:, 0]
  assert len(served) == len(want), (len(served), len(want))
  error = (served - want).abs().max().item()
  print(f"{name}: {len(want)} log-probabilities over gRPC, largest difference to PyTorch "
        f"{error:.1e}, perplexity {(-want.mean()).exp():.2f}")
  return error <= TOLERANCE


def labml(binaries, work, steps):
  text = SAMPLE.read_text(encoding="utf-8")
  characters = sorted(set(text))
  ids = torch.tensor([characters.index(c) for c in text])
  seq_len = 256
  torch.manual_seed(1)
  module = lm.AutoregressiveTransformer(128, len(characters), 6, seq_len, 32, 256,
                                        models.EmbeddingsWithPositionalEncoding, 5000)
  optimizer = torch.optim.Adam(module.parameters(), 1e-3)
  for step in range(steps):
    starts = torch.randint(0, len(ids) - seq_len, (8,))
    batch = torch.stack([ids[s:s + seq_len + 1] for s in starts], 1)
    loss = torch.nn.functional.cross_entropy(module(batch[:-1]).flatten(0, 1),
                                             batch[1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (0, steps - 1):
      print(f"labml: step {step + 1}, loss {loss.item():.3f}")
  module.eval()
  torch.save(module.state_dict(), work / "labml.pt")
  (work / "chars.json").write_text(json.dumps(characters), encoding="utf-8")
  run(binaries / "aft-convert", "labml", work / "labml.pt", work / "labml",
      "--chars", work / "chars.json")
  tokens = ids[:seq_len]
  with torch.no_grad():
    logits = module(tokens[:, None])[:, 0]
  return compare("labml", score(binaries, work / "labml", text[:seq_len]), logits, tokens)


def gpt2(binaries, work):
  directory = work / "gpt2_hf"
  directory.mkdir()
  words = lm.tokenizer(directory)
  torch.manual_seed(2)
  config = GPT2Config(vocab_size=len(words), n_embd=128, n_layer=4, n_head=4, n_positions=512,
                      initializer_range=0.2)
  module = lm.gpt2_model(config, block_local=True)
  module.save_pretrained(directory, safe_serialization=True)
  run(binaries / "aft-convert", "gpt2", directory, work / "gpt2", "--attention", "block_local",
      "--block-size", lm.BLOCK)
  text = SAMPLE.read_text(encoding="utf-8")[:500]
  tokens = torch.tensor(words(text).input_ids)
  with torch.no_grad():
    logits = module(tokens[None]).logits[0]
  return compare("gpt2, block-local", score(binaries, work / "gpt2", text), logits, tokens)


def roberta(binaries, work, block_local):
  """Compares a model that has the size of roberta-base except for the vocabulary."""
  name = "roberta-block-local" if block_local else "roberta"
  directory = work / name
  directory.mkdir()
  words = encoders.tokenizer(directory)
  torch.manual_seed(3)
  config = RobertaConfig(vocab_size=len(words), max_position_embeddings=514, type_vocab_size=1,
                         initializer_range=0.05)
  if block_local:
    module = encoders.with_block_local(modeling_roberta, "RobertaSelfAttention", lambda: RobertaModel(config).eval())
  else:
    module = RobertaModel(config).eval()
  module.save_pretrained(directory, safe_serialization=True)
  options = ["--attention", "block_local", "--block-size", encoders.BLOCK] if block_local else []
  run(binaries / "aft-convert", "bert", directory, work / f"{name}-imported", *options)
  text = SAMPLE.read_text(encoding="utf-8")[:301]
  tokens = torch.tensor(words(text).input_ids)
  with torch.no_grad():
    want = module(tokens[None]).last_hidden_state[0]
  events = ask(binaries, work / f"{name}-imported", "encode", text)
  values = [value for event in events for value in event.get("vectors", {}).get("values", [])]
  got = torch.tensor(values).reshape(want.shape)
  error = (got - want).abs().max().item()
  print(f"{name}: {len(want)} vectors of {want.shape[1]} over gRPC, largest difference to PyTorch {error:.1e}")
  return error <= TOLERANCE


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--bin", type=Path, default=ROOT / "build/default/bin")
  parser.add_argument("--steps", type=int, default=20)
  arguments = parser.parse_args()
  torch.set_num_threads(1)
  with tempfile.TemporaryDirectory() as temporary:
    work = Path(temporary)
    results = [labml(arguments.bin, work, arguments.steps), gpt2(arguments.bin, work),
               roberta(arguments.bin, work, block_local=False), roberta(arguments.bin, work, block_local=True)]
  sys.exit(0 if all(results) else f"a difference is above {TOLERANCE}")


if __name__ == "__main__":
  main()
