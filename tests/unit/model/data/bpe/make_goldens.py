#!/usr/bin/env python3
"""Makes goldens of the byte-pair encoding with Hugging Face's `tokenizers` (0.23.3 made the stored ones).

  make_goldens.py              encodes SAMPLES with the stored vocab.json and merges.txt
  make_goldens.py --train TXT  first trains those two on a text (the stored ones: Jane Austen, and SAMPLES)

added/tokenizer.json is the same vocabulary with the tokens ADDED. hostile.json has its encodings of texts, in which
special tokens are not looked for. nfc.json has those of texts with equivalent spellings, with the normaliser NFC, for
which all of ADDED that are not special are "normalized". trained.json has the tokens and merges that the trainer of
`tokenizers` makes of the texts of samples.json and hostile.json. classes.json has the class that the pre-tokeniser gives
every code point, as runs [first, class]: letter (L), digit (N), other sign (O), white space (S) or surrogate (-).

Needs `pip install tokenizers`; the tests need only the files.
"""

import argparse
import json
import random
import unicodedata
from pathlib import Path

from tokenizers import (AddedToken, ByteLevelBPETokenizer, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

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


# Tokens that overlap, are within words, are white space, are outside ASCII, or are also made by merges.
ADDED = [
    AddedToken("<|user|>", special=True, normalized=False), AddedToken("<mask>", special=True, lstrip=True),
    AddedToken("<tool>", normalized=False), AddedToken("tool>s", normalized=True), AddedToken("<tool>\n", normalized=False),
    AddedToken("the", normalized=True), AddedToken("the\u00e9", normalized=True), AddedToken(" \t", normalized=True),
    AddedToken("\u4e2d.*", normalized=True), AddedToken("\U0001f600", normalized=False),
]


def with_added_tokens(nfc=False):
  tokenizer = Tokenizer(models.BPE.from_file(str(HERE / "vocab.json"), str(HERE / "merges.txt")))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(["<|endoftext|>"])
  for token in ADDED:
    if nfc and not token.special:
      token = AddedToken(token.content, normalized=True)
    (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
  if nfc:
    tokenizer.normalizer = normalizers.NFC()
  tokenizer.encode_special_tokens = True
  return tokenizer


def hostile_texts():
  random.seed(11)
  texts = [token.content for token in ADDED] + ["<|endoftext|>", "<|endoftext|><|user|> <mask>the", "other\n<tool>\n<tool>s <tool"]
  texts += ["".join(map(chr, range(first, first + 64))) for first in range(0, 0x300, 64)]
  categories = {}
  for point in range(0x110000):
    categories.setdefault(unicodedata.category(chr(point)), []).append(chr(point))
  del categories["Cs"]
  alphabet = [token.content for token in ADDED] + ["<|endoftext|>", " ", "  ", "\n", "'s", "'", "a", "the", "1"]
  for _ in range(300):
    text = ""
    for _ in range(random.randint(1, 40)):
      text += random.choice(alphabet if random.random() < 0.4 else categories[random.choice(list(categories))])
    texts.append(text)
  return texts


def checksum(ids):
  """FNV-1a over the numbers."""
  value = 0xCBF29CE484222325
  for token in ids:
    value = (value ^ token) * 0x100000001B3 % 2**64
  return f"{value:016x}"


def classes():
  splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)

  def one_piece(text):
    return len(splitter.pre_tokenize_str(text)) == 1

  runs = []
  for point in range(0x110000):
    if 0xD800 <= point < 0xE000:
      kind = "-"
    else:
      kind = next((k for k, a in (("L", "a"), ("N", "1"), ("O", "!")) if one_piece(a + chr(point))), "S")
    if not runs or runs[-1][1] != kind:
      runs.append([point, kind])
  return runs


def store(name, values):
  lines = ",\n".join(json.dumps(value, separators=(",", ":")) for value in values)
  (HERE / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def hostile():
  tokenizer = with_added_tokens()
  (HERE / "added").mkdir(exist_ok=True)
  tokenizer.save(str(HERE / "added" / "tokenizer.json"), pretty=False)
  samples = [{"text": text, "repeat": 1} for text in hostile_texts()]
  samples += [{"text": unit, "repeat": 20000} for unit in ("a", " ", "\n", "1", "!", "\u00e9", "the", " \t ", "'", "<tool>", "\u3000 ")]
  for sample in samples:
    ids = tokenizer.encode(sample["text"] * sample["repeat"]).ids
    sample.update({"ids": ids} if sample["repeat"] == 1 else {"count": len(ids), "checksum": checksum(ids)})
  store("hostile.json", samples)
  store("classes.json", classes())


def nfc():
  tokenizer = with_added_tokens(nfc=True)
  random.seed(13)
  # Marks in any order, singletons, characters that are not composed again, Hangul in parts, and marks that open a text.
  alphabet = ["a", "e", "the", " ", "\u00e9", "\u1ec7", "\u0301", "\u0323", "\u0302", "\u0327", "\u0344", "\u0345", "\u212b",
              "\u2126", "\u0958", "\u0915\u093c", "\u1112", "\u1161", "\u11ab", "\ud55c", "\ud558", "\u09c7", "\u09be",
              "\ufb1f", "\u2adc", "\U0001d15f", "\U0001109a", "\U000110ba", "\u3099", "\u304b", "<tool>", "<|user|>"]
  texts = ["".join(random.choice(alphabet) for _ in range(random.randint(1, 24))) for _ in range(150)]
  store("nfc.json", [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts])


def trained():
  texts = [sample["text"] for name in ("samples.json", "hostile.json")
           for sample in json.loads((HERE / name).read_text(encoding="utf-8"))]
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
      vocab_size=2000, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
  vocab = json.loads(tokenizer.to_str())["model"]
  store("trained.json", [sorted(vocab["vocab"], key=vocab["vocab"].get), [" ".join(merge) for merge in vocab["merges"]]])


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
    vocab["<|endoftext|>"] = len(vocab)  # the last id, as in GPT-2
    (HERE / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")

  tokenizer = ByteLevelBPETokenizer(str(HERE / "vocab.json"), str(HERE / "merges.txt"), add_prefix_space=False)
  samples = [{"text": text, "ids": tokenizer.encode(text).ids} for text in SAMPLES + random_samples(200)]
  for sample in samples:
    assert tokenizer.decode(sample["ids"]) == sample["text"], sample
  store("samples.json", samples)
  hostile()
  nfc()
  trained()


if __name__ == "__main__":
  main()
