#!/usr/bin/env python3
"""Makes tests/parity/goldens/world.json with the tokenizer of the Python package `rwkv`, and asserts that its vocabulary is
the one in model/tokenizer/world/. The goldens are checksums (FNV-1a) of numbers.

  python3 -m venv /tmp/world
  /tmp/world/bin/pip install --no-deps rwkv==0.8.32
  /tmp/world/bin/python tests/parity/make_world_goldens.py
"""

import json
from pathlib import Path

import rwkv
from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

TESTS = Path(__file__).resolve().parents[1]
VOCABULARY = "rwkv_vocab_v20230424.txt"


def checksum(numbers):
  value = 0xCBF29CE484222325
  for number in numbers:
    value = (value ^ number) * 0x100000001B3 % 2**64
  return f"{value:016x}"


def main():
  path = Path(rwkv.__file__).parent / VOCABULARY
  assert path.read_bytes() == (TESTS.parent / "model/tokenizer/world" / VOCABULARY).read_bytes()
  tokenizer = TRIE_TOKENIZER(str(path))
  tokens = [tokenizer.idx2token[i + 1] for i in range(len(tokenizer.idx2token))]
  texts = [sample["text"].encode() for name in ("samples", "hostile")
           for sample in json.loads((TESTS / f"unit/model/data/bpe/{name}.json").read_text(encoding="utf-8"))]
  pairs = [token + tokens[i * 7919 % len(tokens)] for i, token in enumerate(tokens)]
  # The first byte is cut off, and one in the middle changes.
  damaged = [pair[1:len(pair) // 2] + bytes([i % 256]) + pair[len(pair) // 2 + 1:] for i, pair in enumerate(pairs)]
  goldens = {"tokens": checksum(number for i, token in enumerate(tokens) for number in (i + 1, *token))}
  for name, strings in (("texts", texts), ("pairs", pairs), ("damaged", damaged)):
    goldens[name] = checksum(token for string in strings for token in tokenizer.encodeBytes(string))
  (TESTS / "parity/goldens/world.json").write_text(json.dumps(goldens) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
