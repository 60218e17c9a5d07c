#!/usr/bin/env python3
"""Tests tests/gpu/run.sh with stand-ins for the programs that need a GPU, and the tables of report.py."""

import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import report

RUN = Path(__file__).with_name("run.sh")

# A stand-in for a GoogleTest program with two suites. $FAKE says whether they pass, fail, skip or die.
PROGRAM = r'''#!/usr/bin/env python3
import json, os, sys
fake = os.environ["FAKE"]
if "--gtest_list_tests" in sys.argv:
  print("Aft.\n  One\nAll/Conv.  # TypeParam\n  Two/0  # GetParam() = 3")
  sys.exit(0)
options = dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
suite = options["--gtest_filter"].rstrip("*").rstrip(".")
if fake == "dies" and suite == "Aft": os.abort()
if fake == "no device": print("no CUDA device: the driver is too old")
test = {"classname": suite, "name": "One", "result": "SKIPPED" if fake == "skips" else "COMPLETED"}
if fake == "fails" and suite == "All/Conv": test["failures"] = [{"failure": "1 is not 2"}]
report = options["--gtest_output"].removeprefix("json:")
json.dump({"testsuites": [{"testsuite": [test]}]}, open(report, "w"))
sys.exit("failures" in test)
'''


class RunTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = Path(folder.name)
    (self.folder / "torch").mkdir()
    (self.folder / "torch/__init__.py").touch()
    for name in ("cuda_kernels_gpu_test", "gpu_model_gpu_test"):
      self.script(f"bundle/bin/{name}", PROGRAM)
    self.script("path/nvidia-smi", "#!/bin/sh\necho 'Fake GPU, 580.1'\n")

  def script(self, name, text):
    path = self.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)

  def run_stage(self, stage, fake):
    """Returns (exit code, all output, the stage's JSON or None)."""
    environment = dict(os.environ, FAKE=fake, AFT_BUNDLE=str(self.folder / "bundle"), OUT=str(self.folder / "out"),
                       AFT_WORK=str(self.folder / "work"), PYTHONPATH=str(self.folder),
                       PATH=f"{self.folder / 'path'}:{os.environ['PATH']}")
    done = subprocess.run([RUN, stage], env=environment, capture_output=True, text=True)
    result = self.folder / f"out/{stage}.json"
    return done.returncode, done.stdout + done.stderr, json.loads(result.read_text()) if result.exists() else None

  def test_all_suites_run_each_in_its_process(self):
    code, output, result = self.run_stage("parity", "passes")
    self.assertEqual(code, 0, output)
    self.assertEqual(result["device"], "Fake GPU, 580.1")
    self.assertEqual([(part["program"], part["suites"], part["tests"]) for part in result["parts"]],
                     [("kernels", 2, 2), ("model", 2, 2)])

  def test_a_suite_that_dies_costs_only_its_own_results(self):
    code, output, result = self.run_stage("parity", "dies")
    self.assertEqual(code, 1, output)
    self.assertEqual([part["tests"] for part in result["parts"]], [1, 1])
    self.assertIn("Aft. ended with code -6", result["parts"][0]["failed"][0])

  def test_a_failed_test_is_named(self):
    code, output, result = self.run_stage("parity", "fails")
    self.assertEqual(code, 1, output)
    self.assertEqual(result["parts"][1]["failed"], ["All/Conv.One: 1 is not 2"])

  def test_nothing_but_skipped_tests_is_a_failure_that_says_why(self):
    for fake, why in (("no device", "the driver is too old"), ("skips", "nothing ran")):
      code, output, result = self.run_stage("parity", fake)
      self.assertEqual(code, 1, output)
      self.assertIn(why, output)
      self.assertEqual([part["skipped"] for part in result["parts"]], [2, 2])

  def test_missing_libraries_are_named_before_anything_runs(self):
    self.script("path/ldd", "#!/bin/sh\necho '  libcudart.so.13 => not found'\n")
    code, output, result = self.run_stage("parity", "passes")
    self.assertEqual(code, 1, output)
    self.assertIn("libcudart.so.13", output)
    self.assertIsNone(result)

  def test_the_sanitizer_wraps_every_suite(self):
    self.script("path/compute-sanitizer", '#!/bin/sh\nfor program; do case $program in */bin/*) break;; esac; shift; done\n'
                'exec "$@"\n')
    code, output, result = self.run_stage("sanitize", "passes")
    self.assertEqual(code, 0, output)
    self.assertEqual([(part["program"], part["tests"]) for part in result["parts"]],
                     [("memcheck", 2), ("racecheck", 2), ("initcheck", 2)])

  def test_a_model_whose_making_was_interrupted_is_made_again(self):
    self.script("path/python3", f"""#!/bin/sh
if [ "$1 $2" != "-B -" ]; then exec {sys.executable} "$@"; fi
echo half >"$3/model.safetensors"
[ $FAKE != interrupted ] || exit 1
echo whole >"$3/model.safetensors"
""")
    self.script("bundle/bin/engine_bench", '#!/bin/sh\necho "the model is $(cat "$AFT_MODEL/model.safetensors")"\n')
    self.assertEqual(self.run_stage("model", "interrupted")[0], 1)
    code, output, _ = self.run_stage("model", "passes")
    self.assertEqual(code, 0, output)
    self.assertIn("the model is whole", output)


class ReportTest(unittest.TestCase):

  def test_the_server_is_compared_with_the_engine_and_the_model_that_it_serves(self):
    with tempfile.TemporaryDirectory() as folder:
      for name, rate in (("bf16", 1000), ("int8", 40_000), ("wkv7-bf16", 2000)):
        benchmarks = [{"name": f"{kind}/64/real_time", "real_time": 1, "time_unit": "us", "items_per_second": items}
                      for kind, items in (("BM_Engine", rate), ("BM_EngineDecode", 9 * rate))]
        (Path(folder) / f"model-{name}.json").write_text(json.dumps({"benchmarks": benchmarks}))
      for name, rate in (("int8", 36_000), ("wkv7-bf16", 1000)):
        line = json.dumps({"max_concurrency": 64, "output_throughput": rate})
        (Path(folder) / f"server-{name}.jsonl").write_text(line + "\n")
      page = io.StringIO()
      with redirect_stdout(page), mock.patch.object(sys, "argv", ["report.py", folder]):
        report.main()
    over_grpc = page.getvalue().partition("Over gRPC ")[2].splitlines()
    self.assertEqual([line for line in over_grpc if line.startswith(("(", "Over", "| 64"))], [
        "(AFT-local-32, int8):", "| 64 | 36000 | 40000 | 90 |", "Over gRPC (wkv7, bf16):", "| 64 | 1000 | 2000 | 50 |"])


if __name__ == "__main__":
  unittest.main()
