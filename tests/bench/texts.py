#!/usr/bin/env python3
"""What several texts in one call are worth: scores of 64 texts, in 64 calls one after the other, in 64 calls at once,
and in one call. PYTHONPATH has the stubs of the proto and client/python (client/python/README.md).

  texts.py BIN    BIN: the folder of aft-server
"""

import concurrent.futures
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from aft_client import Client

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXTS = 64
ROUNDS = 15


def main():
  with tempfile.TemporaryDirectory() as name:
    log = pathlib.Path(name) / "log"
    with log.open("w") as stderr:
      server = subprocess.Popen([pathlib.Path(sys.argv[1]) / "aft-server", f"--model={ROOT}/model/zoo/austen-aft-local",
                                 "--weight_format=int8", "--listen_address=127.0.0.1:0", "--metrics_address=none"],
                                stderr=stderr)
    try:
      while "event=server.ready" not in log.read_text():
        assert server.poll() is None, log.read_text()
      measure(re.search(r'event=server.listening .*address="?([^" ]+)', log.read_text()).group(1))
    finally:
      server.terminate()
      server.wait()


def measure(address):
  card = (ROOT / "model/zoo/austen-aft-local/card.md").read_text()
  print("| bytes a text | one after the other | at once | in one call |\n|---|---|---|---|")
  with Client(address) as client, concurrent.futures.ThreadPoolExecutor(TEXTS) as threads:
    for size in (16, 64, 256):
      texts = [card[at:at + size].encode() for at in range(TEXTS)]
      one_call = lambda: client.score_all(texts)
      ways = (lambda: [client.score(text) for text in texts], lambda: list(threads.map(client.score, texts)), one_call)
      results = [[score.logprob for score in way()] for way in ways]  # warm, and the same bits
      assert results[0] == results[1] == results[2]
      rates = []
      for way in ways:
        times = []
        for _ in range(ROUNDS):
          begin = time.perf_counter()
          way()
          times.append(time.perf_counter() - begin)
        rates.append(TEXTS / statistics.median(times))
      print(f"| {size} | " + " | ".join(f"{rate:,.0f} texts/s, {rate * size:,.0f} tokens/s" for rate in rates) + " |")


if __name__ == "__main__":
  main()
