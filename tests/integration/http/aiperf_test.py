#!/usr/bin/env python3
"""Tests an unmodified aiperf of NVIDIA with a real server: each request gets exactly the tokens that it asks for.

  aiperf_test.py AFT_SERVER MODEL [EMBEDDING_MODEL]

Without EMBEDDING_MODEL an encoder with random weights is used. The exit code is 77 without AFT_AIPERF, which ./dev
test --full sets."""

import csv
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench/serving"))

from run_aiperf import PROMPT, profile
from server import Server, write_encoder

STREAMS, REQUESTS, OUTPUT = 4, 12, 64
WIDTH = 32


class AiperfTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = Path(folder.name)

  def profile(self, model, endpoint, *arguments):
    """Returns aiperf's figures and the calls from the server's log, and checks what holds for every endpoint."""
    with Server(PROGRAM.parent, model, slots=STREAMS) as server:
      run = profile(self.folder / "out", server.http, model.name, endpoint, "--concurrency", STREAMS,
                    "--request-count", REQUESTS, *arguments)
      calls = list(server.calls())
    self.assertEqual([call["code"] for call in calls], REQUESTS * ["OK"])
    self.assertEqual({call["prompt_tokens"] for call in calls}, {str(PROMPT + (2 if endpoint == "chat" else 0))})
    self.assertEqual(run["error_summary"], [])
    self.assertFalse(run["was_cancelled"])
    self.assertEqual(run["request_count"]["avg"], REQUESTS)
    with (self.folder / "out/profile_export_aiperf.csv").open(encoding="utf-8") as file:
      rows = {row[0]: row[1] for row in csv.reader(file) if len(row) == 2}
    self.assertEqual(float(rows["Request Count"]), REQUESTS, rows)
    return run, calls

  def generate(self, endpoint, prompt):
    run, calls = self.profile(MODEL, endpoint, "--streaming", "--osl", OUTPUT, "--extra-inputs", "ignore_eos:true")
    self.assertEqual([call["generated_tokens"] for call in calls], REQUESTS * [str(OUTPUT)])
    for name, tokens in (("usage_prompt_tokens", prompt), ("usage_completion_tokens", OUTPUT),
                         ("input_sequence_length", prompt), ("output_sequence_length", OUTPUT)):
      self.assertEqual((run[name]["min"], run[name]["max"]), (tokens, tokens), name)
    self.assertEqual(run["total_osl"]["avg"], REQUESTS * OUTPUT)

  def test_completions(self):
    self.generate("completions", PROMPT)

  def test_chat(self):
    self.generate("chat", PROMPT + len("\n\n"))  # chat_template plain

  def test_embeddings(self):
    model = EMBEDDINGS or write_encoder(self.folder / "encoder", WIDTH)
    self.profile(model, "embeddings", "--export-level", "raw")
    # aiperf's figures do not count the tokens of embeddings.
    lines = (self.folder / "out/profile_export_raw.jsonl").read_text().splitlines()
    self.assertEqual(len(lines), REQUESTS)
    for line in lines:
      record = json.loads(line)
      [text] = record["payload"]["input"]
      answer = json.loads(record["responses"][0]["text"])
      self.assertEqual(answer["usage"], {"prompt_tokens": len(text.encode()), "total_tokens": PROMPT})
      [item] = answer["data"]
      if not EMBEDDINGS:
        self.assertEqual(len(item["embedding"]), WIDTH)


if __name__ == "__main__":
  if not os.environ.get("AFT_AIPERF"):
    print("skipped: no aiperf; ./dev test --full fetches it")
    sys.exit(77)
  PROGRAM, MODEL, *more = (Path(argument).resolve() for argument in sys.argv[1:])
  EMBEDDINGS = more[0] if more else None
  unittest.main(argv=sys.argv[:1], warnings="ignore")  # servers delete their folders at the end
