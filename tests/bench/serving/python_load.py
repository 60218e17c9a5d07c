#!/usr/bin/env python3
"""The load of the benchmark `survival` by the Python client: python_load.py ADDRESS --streams N --requests N --max-tokens N --begun FILE

Prints the fields of `aftload --json` that survival.py reads. Each stream has a thread of its own, as in most programs that
use this client. Every request is answered once before the load, and the load's tokens are compared with that answer.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["no_grpc_proxy"] = "127.0.0.1"
os.environ["GRPC_VERBOSITY"] = "NONE"  # hides the log lines about a proxy that does not report health

from aft_client import AftError, Client, Delta, Sampling, Tls


class Stream:
  """One generation: its tokens, and the time between each two events."""

  def __init__(self, client, seed, tokens):
    self.breaks, self._last = [], 0.0
    self.longest = 0.0
    self._resumed = None
    self._generation = client.generate("It is a truth", max_tokens=tokens, ignore_eos=True, timeout=600,
                                       sampling=Sampling(seed=seed), on_resumed=self._on_resumed)
    self.error = None
    try:
      for event in self._generation:
        if isinstance(event, Delta):
          self._take(time.monotonic())
    except AftError as error:
      self.error = error
      print(f"{error.code}: {error.message}", file=sys.stderr, flush=True)
    self.ids, self.exact = list(self._generation.token_ids), self._generation.exact

  def _on_resumed(self, resumed):
    self._resumed = (resumed, time.monotonic())

  def _take(self, now):
    gap = now - self._last if self._last else 0.0
    self.longest = max(self.longest, gap)
    self._last = now
    if self._resumed is not None:
      resumed, begun = self._resumed
      self._resumed = None
      parts = {"until_sent_ms": resumed.until_sent, "until_started_ms": resumed.until_started, "until_token_ms": now - begun}
      parts = {"gap_ms": gap, "until_broken_ms": gap - sum(parts.values()), **parts}
      self.breaks.append({"request_id": self._generation.request_id, "tokens": resumed.tokens, "tries": resumed.tries,
                          **{name: seconds * 1000 for name, seconds in parts.items()}})


def quantile(values, share):
  return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def compare(stream, reference):
  """The numbers of tokens that are missing, superfluous and different."""
  others = sum(a != b for a, b in zip(stream.ids, reference.ids))
  return max(0, len(reference.ids) - len(stream.ids)), max(0, len(stream.ids) - len(reference.ids)), others


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("address")
  parser.add_argument("--streams", type=int, required=True)
  parser.add_argument("--requests", type=int, required=True)
  parser.add_argument("--max-tokens", type=int, required=True)
  parser.add_argument("--ca", type=Path)
  parser.add_argument("--begun", type=Path, required=True, help="gets a line when the load begins")
  options = parser.parse_args()
  tls = Tls(options.ca.read_bytes()) if options.ca else None
  with Client(options.address, tls=tls) as client, ThreadPoolExecutor(options.streams) as threads:
    run = lambda seed: Stream(client, seed, options.max_tokens)
    references = list(threads.map(run, range(1, options.requests + 1)))
    options.begun.write_text("begun\n")
    streams = list(threads.map(run, range(1, options.requests + 1)))
  lost, repeated, changed = (sum(column) for column in zip(*map(compare, streams, references)))
  gaps = [stream.longest * 1000 for stream in streams]
  print(json.dumps({
      "completed": sum(stream.error is None for stream in streams),
      "failed": sum(stream.error is not None for stream in streams),
      "resumed_streams": sum(bool(stream.breaks) for stream in streams),
      "most_resumes": max(len(stream.breaks) for stream in streams),
      "inexact_streams": sum(not stream.exact for stream in streams),
      "lost_tokens": lost, "repeated_tokens": repeated, "changed_tokens": changed,
      "median_longest_gap_ms": quantile(gaps, 0.5), "p99_longest_gap_ms": quantile(gaps, 0.99),
      "max_longest_gap_ms": max(gaps),
      "breaks": sorted((one for stream in streams for one in stream.breaks), key=lambda one: -one["gap_ms"]),
  }))


if __name__ == "__main__":
  main()
