#!/usr/bin/env python3
"""Measures the gain of several texts in one call: scores of 64 texts, in 64 calls one after the other, in 64 calls at once,
and in one call. Through the Python client: PYTHONPATH has its stubs (./dev bench texts).

  texts.py [--bin DIR]
"""

import argparse
import concurrent.futures
import statistics
import time
from pathlib import Path

from aft_client import Client
from server import Server
from serving import SLOTS, table

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "model/zoo/austen-aft-local"
TEXTS = 64
ROUNDS = 15


def rate(way):
  """Texts a second, by the median."""
  times = []
  for _ in range(ROUNDS):
    begin = time.perf_counter()
    way()
    times.append(time.perf_counter() - begin)
  return TEXTS / statistics.median(times)


def measure(client):
  card = (MODEL / "card.md").read_text()
  with concurrent.futures.ThreadPoolExecutor(TEXTS) as threads:
    for size in (16, 64, 256):
      texts = [card[at:at + size].encode() for at in range(TEXTS)]
      ways = (lambda: [client.score(text) for text in texts], lambda: list(threads.map(client.score, texts)),
              lambda: client.score_all(texts))
      results = [[score.logprob for score in way()] for way in ways]  # warm, and the same bits
      assert results[0] == results[1] == results[2]
      yield [size, *(f"{rate(way):,.0f} texts/s" for way in ways)]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--bin", type=Path, default=ROOT / "build/default/bin")
  options = parser.parse_args()
  with Server(options.bin, MODEL, SLOTS, weight_format="int8") as server, Client(server.address) as client:
    table(["bytes a text", "one after the other", "at once", "in one call"], list(measure(client)))


if __name__ == "__main__":
  main()
