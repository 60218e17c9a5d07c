#!/usr/bin/env python3
"""compare_test.py PROGRAMS: runs compare.py's small budget for two kinds, interrupts and continues it."""

import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import compare
import kinds
import page

HERE = Path(__file__).parent
PROGRAMS = Path(sys.argv.pop(1)).resolve()
ONLY = "^(aft_local|location)$"
LANGUAGES = 20  # labels of the encoders that model/zoo/languages-aft-local/get_texts.py fetches texts for


def write_data(folder):
  """A text of this repository, and two languages that differ in their letters."""
  (folder / "texts").mkdir()
  shutil.copy(HERE.parent / "RESULTS.md", folder / "texts/results.txt")
  (folder / "languages").mkdir()
  draw = random.Random(1)
  letters = {"early": "abcdefgh ", "late": "qrstuvwx "}
  def line(letters_in_text, **more):
    label = draw.choice(list(letters))
    return json.dumps({"label": label, "text": "".join(draw.choices(letters[label], k=letters_in_text))} | more)
  (folder / "languages/train.jsonl").write_text("\n".join(line(50) for _ in range(640)))
  (folder / "languages/test.jsonl").write_text("\n".join(line(length, length=length) for length in (20, 50)
                                                       for _ in range(40)))


def write_programs(folder):
  """The programs. engine_bench prints a warning, as google-benchmark does on some machines."""
  folder.mkdir()
  for name in ("aft-train", "aft-convert"):
    (folder / name).symlink_to(PROGRAMS / name)
  (folder / "engine_bench").write_text(f"#!/bin/sh\necho 'CPU ID assignments seem messed up' >&2\n"
                                       f"exec {PROGRAMS}/engine_bench \"$@\"\n")
  (folder / "engine_bench").chmod(0o755)


def weights(checkpoint):
  """The number of weights in the file."""
  with (checkpoint / "model.safetensors").open("rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
  return sum((tensor["data_offsets"][1] - tensor["data_offsets"][0]) // 4
             for name, tensor in header.items() if name != "__metadata__")


class CompareTest(unittest.TestCase):

  @classmethod
  def setUpClass(cls):
    cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    write_data(cls.folder)
    cls.programs = cls.folder / "programs"
    write_programs(cls.programs)
    first = cls.start(cls.programs)
    cls.first_line = first.stdout.readline()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    cls.first_cell = cls.cells()["speeds/aft_local"].stat().st_mtime_ns
    cls.lines = cls.finish(cls.programs)

  @classmethod
  def start(cls, programs):
    return subprocess.Popen(
        [sys.executable, "-B", HERE / "compare.py", "--budget=small", f"--only={ONLY}", f"--bin={programs}",
         f"--texts={cls.folder / 'texts'}", f"--languages={cls.folder / 'languages'}", f"--out={cls.folder / 'out'}"],
        stdout=subprocess.PIPE, text=True, start_new_session=True)

  @classmethod
  def finish(cls, programs):
    process = cls.start(programs)
    lines = process.communicate()[0].splitlines()
    assert process.returncode == 0
    return lines

  @classmethod
  def cells(cls):
    cells = cls.folder / "out/cells"
    return {str(path.relative_to(cells).with_suffix("")): path for path in cells.glob("**/*.json")}

  def figures(self, name):
    return json.loads(self.cells()[name].read_text())

  def test_every_cell_has_its_figures(self):
    models = [f"{run}/{cell}" for run in ("aft_local-1", "aft_local-2", "location-1")
              for cell in ("train", "128", "256")]
    encoders = [f"encoder-{name}/{cell}" for name in ("aft_local", "location") for cell in ("train", "20", "50")]
    self.assertEqual(set(self.cells()), {*models, *encoders, "speeds/aft_local", "speeds/location"})
    for name in models:
      if not name.endswith("train"):
        self.assertGreater(self.figures(name)["bits"], 1)
        self.assertLess(self.figures(name)["bits"], 8)
    self.assertIsNotNone(self.figures("aft_local-1/256")["carried"])
    self.assertIsNone(self.figures("location-1/256")["carried"])
    for figure in ("train", "decode/1", "decode/64", "state", "state_per_token"):
      self.assertGreater(self.figures("speeds/location")[figure], 0, figure)
    # Two languages without a common letter, after a few steps.
    self.assertGreater(self.figures("encoder-aft_local/50")["accuracy"], 0.8)

  def test_the_table_has_a_row_for_each_kind(self):
    rows = [line for line in self.lines if re.match(r"\| `(aft_local|location)` ", line)]
    self.assertEqual(len(rows), 4)
    self.assertEqual([row.count("|") for row in rows], [9, 9, 4, 4])
    self.assertEqual([row.count("±") for row in rows if "aft_local" in row], [3, 0])  # of two seeds
    self.assertTrue(any("256 a token" in row for row in rows if "location" in row))  # fp32, d = 32, two layers

  def test_networks_have_equally_many_weights(self):
    small = compare.BUDGETS["small"]
    for run, wanted in (("aft_local-1", small.weights), ("location-1", small.weights),
                        ("encoder-aft_local", small.encoder_weights), ("encoder-location", small.encoder_weights)):
      self.assertLess(abs(weights(self.folder / "out/runs" / run) / wanted - 1), 0.05, run)

  def test_a_killed_run_continues(self):
    self.assertIn("speeds/aft_local", self.first_line)
    self.assertEqual(self.cells()["speeds/aft_local"].stat().st_mtime_ns, self.first_cell)
    self.assertFalse(any("speeds/aft_local" in line for line in self.lines))

  def test_the_hours_of_a_training_are_those_of_all_its_starts(self):
    self.cells()["aft_local-1/train"].unlink()  # The training itself has ended before.
    self.finish(self.programs)
    for name in ("aft_local-1", "encoder-aft_local"):
      last = (self.folder / "out/runs" / name / "curve.csv").read_text().splitlines()[-1]
      self.assertEqual(self.figures(f"{name}/train")["hours"], float(last.split(",")[2]) / 3600, name)

  def test_a_finished_run_starts_no_program(self):
    def undated(lines):  # The table ends with the date.
      return [re.sub(r"\d{4}-\d\d-\d\d", "", line) for line in lines if not re.match(r"\d\d:\d\d:\d\d ", line)]
    self.assertEqual(undated(self.finish(Path("/nonexistent"))), undated(self.lines))


class SizesTest(unittest.TestCase):

  def test_a_feed_forward_is_about_four_times_as_wide_as_the_model(self):
    for budget in (compare.BUDGETS["full"], compare.BUDGETS["hour"]):
      for networks, layers, weights_in_all, rows, outputs in (
          (kinds.CAUSAL, budget.layers, budget.weights, budget.rows, kinds.BYTES),
          (kinds.ENCODERS, budget.encoder_layers, budget.encoder_weights, budget.longest, LANGUAGES)):
        for name, kind in networks.items():
          d, d_ff = kinds.sizes(kind, layers, weights_in_all, rows, outputs)
          self.assertTrue(2 < d_ff / d < 6 and d % 16 == 0, (name, d, d_ff))


class PageTest(unittest.TestCase):

  def test_only_the_part_between_the_marks_is_written(self):
    with tempfile.TemporaryDirectory() as folder:
      path = Path(folder) / "page"
      path.write_text(f"before\n{page.BEGIN}old\n{page.END}after\n")
      page.write_tables(path, "new \\1")
      self.assertEqual(path.read_text(), f"before\n{page.BEGIN}\nnew \\1\n{page.END}after\n")

  def test_a_missing_figure_is_a_dash_and_sorts_last(self):
    table = page.model_table({"none": {}, "one": {}}, {"none": [{}], "one": [{256: {"bits": 2.5, "carried": None}}]},
                             (256,), 256).splitlines()
    self.assertEqual(table[2], "| `one` | 2.500 | – | – | – | – | – |")
    self.assertEqual(table[3], "| `none` | – | – | – | – | – | – |")


if __name__ == "__main__":
  unittest.main()
