#!/usr/bin/env python3
"""Tests how peers.py reads the programs' output. peers_test.py --server DIR: tests that the peers' models are the
served ones, where ./dev bench peers has put PyTorch (else exit code 77)."""

import fcntl
import io
import json
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import install
import peers

ENGINE = json.dumps({"benchmarks": [{"run_type": "iteration"} | bench for bench in (
    {"name": "BM_RunnerContext/streams:32/context:1000/real_time", "items_per_second": 7.5, "real_time": 1,
     "state_bytes": 64.0},
    {"name": "BM_RunnerPrefill/512/real_time", "items_per_second": 8.5},
    {"name": "BM_Engine/64/real_time", "items_per_second": 9.5},
    *({"name": "BM_ReadWeights/repeats:5/real_time/threads:2", "bytes_per_second": rate, "weight_bytes": 200.0}
      for rate in (400.0, 600.0, 500.0)),
    {"name": "BM_ReadWeights/repeats:5/real_time/threads:2_max", "run_type": "aggregate", "bytes_per_second": 9e9,
     "weight_bytes": 200.0})]})
LLAMA = """
warning: this is not JSON
{"n_kv_max": 40960, "pp": 84, "tg": 32, "pl": 8, "speed_pp": 1.0, "speed_tg": 300.5, "speed": 2.0}
{"n_kv_max": 40960, "pp": 984, "tg": 32, "pl": 32, "speed_pp": 1.0, "speed_tg": 400.5, "speed": 2.0}
"""


def rounds(*figures):
  """Three rounds whose median is `figures`: a better one, a worse one, and `figures` themselves."""
  return [{name: factor * rate for name, rate in figures} for factor in (10, 1, 0.1)]


class FiguresTest(unittest.TestCase):

  def test_of_the_engine(self):
    self.assertEqual(peers.engine_figures(ENGINE),
                     {"decode/32/1000": 7.5, "state bytes": 64.0, "prompt/512": 8.5, "engine/64": 9.5, "read/1": 3.0})

  def test_a_benchmark_that_failed_is_no_figure(self):
    with self.assertRaisesRegex(SystemExit, "BM_Engine/64: no model"):
      peers.engine_figures(json.dumps({"benchmarks": [{"name": "BM_Engine/64", "error_message": "no model"}]}))

  def test_of_pytorch(self):
    self.assertEqual(peers.pytorch_figures('{"decode/8": 1.5, "prompt/512": 2.5}'),
                     {"decode/8/100": 1.5, "prompt/512": 2.5})

  def test_of_llama_cpp(self):
    self.assertEqual(peers.llama_figures(LLAMA), {"decode/8/100": 300.5, "decode/32/1000": 400.5})

  def test_of_llama_cpp_with_rwkv(self):
    lines = [json.dumps({"pp": 512, "tg": 32, "pl": pl, "speed_pp": 10.0 * pl, "speed_tg": pl}) for pl in (1, 8)]
    self.assertEqual(peers.llama_figures_of_prompt("\n".join(lines)),
                     {"decode/1/100": 1, "decode/8/100": 8, "prompt/512": 10})


class MachineTest(unittest.TestCase):

  def test_a_processor_may_have_no_name(self):
    for text, name in (("processor\t: 0\nmodel name\t: A CPU\n", "A CPU"), ("processor\t: 0\n", "unknown CPU")):
      with mock.patch.object(Path, "read_text", return_value=text):
        self.assertIn(f" cores, {name}, load ", peers.machine())


class InstallTest(unittest.TestCase):

  def test_only_one_clone_installs_at_a_time(self):
    with tempfile.TemporaryDirectory() as folder:
      cache = Path(folder)
      other = open(cache / "lock", "w")
      fcntl.flock(other, fcntl.LOCK_EX)

      def create(*_, **__):
        with open(cache / "lock") as lock, self.assertRaises(BlockingIOError):
          fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sys.exit("made")

      said = []
      def says(text, **_):
        said.append(text)
        other.close()  # The other clone is done.

      with mock.patch.multiple(install, CACHE=cache, FOLDER=cache / "peers"), \
          mock.patch.object(install, "print", says, create=True), mock.patch.object(install.venv, "create", create), \
          self.assertRaisesRegex(SystemExit, "made"):
        install.install(1)
      self.assertEqual(said, ["Waiting for another ./dev"])


class ChosenTest(unittest.TestCase):

  def test_by_pattern(self):
    self.assertEqual(peers.chosen("M (ours int8|llama)"),
                     [("M", "ours", "int8"), ("M", "llama.cpp", "q8_0"), ("M", "llama.cpp", "f16")])
    self.assertEqual(peers.chosen("rwkv4.* (ours fp32|rwkv|llama)"),
                     [("rwkv4-768x12", "ours", "fp32"), ("rwkv4-768x12", "rwkv", "fp32")])
    self.assertEqual(len(peers.chosen("")), 34)


class ModelsTest(unittest.TestCase):

  def test_a_model_whose_making_was_interrupted_is_made_again(self):
    def writes(text, ends=None):
      """Stands in for the programs: writes a checkpoint's weights or a GGUF file, and may end the program after it."""
      def program(_python, _option, _script, what, *arguments, **_):
        path = arguments[1] if what == "write" else arguments[0] / "model.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if ends:
          raise ends
      return mock.patch.object(peers, "output_of", program)

    with tempfile.TemporaryDirectory() as folder:
      contenders = peers.Peers(SimpleNamespace(out=Path(folder)))
      for make in (lambda: contenders.checkpoint("S") / "model.safetensors", lambda: contenders.gguf("S", "f16")):
        with writes("half", SystemExit()), self.assertRaises(SystemExit):
          make()
        with writes("whole"):
          self.assertEqual(make().read_text(), "whole")


class TargetsTest(unittest.TestCase):
  RESULTS = {"M": {
      "ours fp32": rounds(("decode/1/100", 60), ("decode/64/100", 900), ("prompt/512", 100), ("engine/64", 700),
                          ("read/1", 100)),
      "ours int8": rounds(("decode/1/100", 90), ("decode/1/1000", 80), ("decode/8/100", 300), ("decode/8/1000", 300),
                          ("decode/32/100", 500), ("decode/32/1000", 400), ("decode/64/100", 800), ("prompt/512", 300),
                          ("engine/64", 600), ("read/1", 100), ("decode/1/100000", 80)),
      "pytorch float32": rounds(("decode/64/100", 200), ("prompt/512", 150)),
      "pytorch bfloat16": rounds(("decode/64/100", 300), ("prompt/512", 120)),
      "compiled bfloat16": rounds(("decode/64/100", 400)),
      "llama.cpp q8_0": rounds(("decode/1/100", 45), ("decode/1/1000", 100), ("decode/8/100", 200),
                               ("decode/8/1000", 100), ("decode/32/100", 250), ("decode/32/1000", 50),
                               ("prompt/512", 240)),
      "llama.cpp f16": rounds(("decode/1/100", 1000))}}

  def test_each_ratio_and_what_was_wanted(self):
    self.assertEqual([(what, round(ratio, 6), wanted) for what, ratio, wanted in peers.targets(self.RESULTS)], [
        ("M, ours fp32, 1 stream: reading its weights / a step", 0.6, ">= 0.75"),
        ("M, ours int8, 1 stream: reading its weights / a step", 0.9, ">= 0.75"),
        ("M, ours int8: time of a token at 100000 / at 100", 1.125, "<= 1.05"),
        ("M, decode/64/100: best of ours / of pytorch", 3.0, ">= 3"),
        ("M, decode/64/100: best of ours / of compiled", 2.25, ">= 3"),
        ("M, engine/64: best of ours / of pytorch", 2.333333, ">= 3"),
        ("M, engine/64: best of ours / of compiled", 1.75, ">= 3"),
        ("M, prompt/512: best of ours / of pytorch", 2.0, ">= 2"),
        ("M, decode/1/100: ours int8 / llama.cpp q8_0", 2.0, ">= 1.7"),
        ("M, decode/1/1000: ours int8 / llama.cpp q8_0", 0.8, ">= 1.7"),
        ("M, decode/8/100: ours int8 / llama.cpp q8_0", 1.5, ">= 2"),
        ("M, decode/8/1000: ours int8 / llama.cpp q8_0", 3.0, ">= 2"),
        ("M, decode/32/100: ours int8 / llama.cpp q8_0", 2.0, ">= 2"),
        ("M, decode/32/1000: ours int8 / llama.cpp q8_0", 8.0, ">= 2"),
        ("M, prompt/512: ours int8 / llama.cpp q8_0", 1.25, ">= 1.5")])

  def test_ratios_of_rwkv(self):
    name = "rwkv7-768x12"
    figures = lambda rate: rounds(("decode/1/100", rate), ("decode/8/100", 4 * rate), ("prompt/512", 100))
    of_model = {"ours int8": figures(60), "ours bf16": figures(1), "llama.cpp q8_0": figures(40)}
    for contender in of_model.values():
      for one in contender:
        one["read/1"] = 100
    ratios = [target for target in peers.targets({name: of_model}) if "llama.cpp" in target[0]]
    self.assertEqual(ratios, [(f"{name}, {figure}: ours int8 / llama.cpp q8_0", ratio, wanted)
                              for figure, ratio, wanted in (
                                  ("decode/1/100", 1.5, ">= 1"), ("decode/8/100", 1.5, ">= 2"),
                                  ("prompt/512", 1.0, ">= 1"))])

  def test_ratios_of_one_process_come_before_their_median(self):
    lone = [{"decode/1/100": rate, "read/1": reads} for rate, reads in ((10, 100), (90, 90), (40, 50))]
    self.assertEqual([ratio for _, ratio, _ in peers.targets({"S": {"ours bf16": lone}})], [0.8])

  def test_what_was_not_measured_is_no_target(self):
    of_model = {name: self.RESULTS["M"][name] for name in ("pytorch float32", "llama.cpp q8_0")}
    self.assertEqual(list(peers.targets({"S": of_model})), [])

  def test_met(self):
    self.assertEqual([peers.met(ratio, ">= 0.75") for ratio in (0.74, 0.75)], [False, True])
    self.assertEqual([peers.met(ratio, "<= 1.05") for ratio in (1.05, 1.06)], [True, False])

  def test_the_table_shows_medians(self):
    page = io.StringIO()
    with redirect_stdout(page):
      peers.show(self.RESULTS)
    lines = page.getvalue().splitlines()
    self.assertEqual(next(line for line in lines if " decode/64/100 " in f" {line} ").split(),
                     ["decode/64/100", "900", "800", "200", "300", "400"])
    self.assertIn(["2.33", ">=", "3", "missed"], [line.split()[-4:] for line in lines])


class ServedModelTest(unittest.TestCase):
  PROGRAMS = None

  def test_pytorch_computes_what_is_served(self):
    with tempfile.TemporaryDirectory() as folder:
      folder = Path(folder)
      peers.torch_model("make", folder, "--width", 64, "--layers", 2)
      served = peers.served_scores(self.PROGRAMS, folder)
      self.assertLess(peers.difference(served, peers.torch_scores(folder)), 2e-5)

  def test_peers_compute_the_rwkv_that_is_served(self):
    for kind in ("wkv4", "wkv7"):
      with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder) / "model"
        source = folder.with_suffix(".pth")
        peers.make_rwkv(self.PROGRAMS, folder, "--kind", kind, "--width", 128, "--layers", 2)
        served = peers.served_scores(self.PROGRAMS, folder)
        self.assertLess(peers.difference(served, peers.torch_scores(source)), 2e-5)
        if kind == "wkv7" and install.RESULTS.exists():
          file = folder / "f32.gguf"
          peers.output_of(install.PYTHON, "-B", peers.HERE / "gguf_model.py", "write", source, file, "f32")
          self.assertLess(peers.difference(served, peers.llama_scores(file)), 1e-4)


if __name__ == "__main__":
  if sys.argv[1:2] == ["--server"]:
    if not (install.FOLDER / "venv.complete").exists():
      sys.exit(77)
    ServedModelTest.PROGRAMS = Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], "ServedModelTest"])
  del ServedModelTest
  unittest.main()
