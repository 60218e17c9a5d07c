#!/usr/bin/env python3
"""Goldens of the byte-pair encoding, by Hugging Face's `tokenizers` (0.23.3 made the stored ones).

  make_goldens.py              encodes SAMPLES with the stored vocab.json and merges.txt
  make_goldens.py --train TXT  first trains those two on a text (the stored ones: Jane Austen, and SAMPLES)

Needs `pip install tokenizers`; the tests need only the files.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

HERE = Path(__file__).parent

SAMPLES = [
    "", " ", "\n", "a", "  ", "the", " the", "It was the best of times.",
    "I'm sure you're right, she'd said; we've all they'll need, isn't it? 'sdf 'S 'RE ''ll",
    "tabs\tand\t\tmore,  two spaces   three    four \n\n lines \r\n end   ",
    "   leading", "trailing   ", " \t x", "x \t\t y", "\u00a0no-break\u00a0\u00a0space",
    "\u2003em\u2003\u2003space\u3000ideographic\u3000\u3000x", "\x85next\x85\x85line \x0b\x0c\x1c\x1d\x1e\x1f.",
    "1234567890 12 3,456.78 \u0663\u0664\u0665 \u00bd\u00b2\u2167 \u0967\u0968\u0969",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m e\u0301 (combining) \u00df\u1e9e",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0395\u03bb\u03bb\u03ac\u03b4\u03b1",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\u4e2d\u6587\u5b57\u7b26 \ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \u2764\ufe0f\U0001f44d\U0001f3fd",
    "zero\u200bwidth\ufeffbom\u00adsoft\u2060joiner", "\x00\x01\x7f control", "\U0010fffd\ue000\ufdd0 private",
    "x = {'a': [1, 2.5e-3], \"b\": f(y)}; // ### !!! ...---===", "a_b__c-d--e @user #tag $9.99 50% \u20ac5 \u00a37",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "the<|endofte", "\u2019s don\u2019t \u201cquoted\u201d",
    "Mr. Bennet was so odd a mixture of quick parts, sarcastic humour, reserve, and caprice, that the\n"
    "experience of three-and-twenty years had been insufficient to make his wife understand his character.",
]


def random_samples(count):
  """Runs of everything that the pre-tokeniser distinguishes, in random order."""
  random.seed(7)
  alphabet = ["a", "b", "the", "E", "\u00e9", "\u4e2d", "\u0940", "1", "\u00b2", "\u0663", " ", "  ", "\n", "\t", "\u00a0",
              "\u3000", "\x85", "'", "'s", "'ll", "'r", ".", "!", "\u0301", "\U0001f600", "\x00", "\u200d"]
  return ["".join(random.choice(alphabet) for _ in range(random.randint(1, 40))) for _ in range(count)]


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--train", metavar="TXT")
  args = parser.parse_args()
  if args.train:
    tokenizer = ByteLevelBPETokenizer(add_prefix_space=False)
    # Each sample more than once, so that merges across characters outside ASCII exist too.
    lines = Path(args.train).read_text(encoding="utf-8").splitlines(keepends=True) + SAMPLES * 40
    tokenizer.train_from_iterator(lines, vocab_size=256 + 400 + 1, min_frequency=2, special_tokens=[])
    tokenizer.save_model(str(HERE))
    vocab = json.loads((HERE / "vocab.json").read_text(encoding="utf-8"))
    vocab["<|endoftext|>"] = len(vocab)  # as GPT-2 does: the last id
    (HERE / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")

  tokenizer = ByteLevelBPETokenizer(str(HERE / "vocab.json"), str(HERE / "merges.txt"), add_prefix_space=False)
  samples = [{"text": text, "ids": tokenizer.encode(text).ids} for text in SAMPLES + random_samples(200)]
  for sample in samples:
    assert tokenizer.decode(sample["ids"]) == sample["text"], sample
  lines = ",\n".join(json.dumps(sample, separators=(",", ":")) for sample in samples)
  (HERE / "samples.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
  main()
