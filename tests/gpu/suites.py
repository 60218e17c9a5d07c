#!/usr/bin/env python3
"""Runs GoogleTest programs on a GPU, each suite in a process of its own:

  suites.py STAGE DEVICE SECONDS OUT.json NAME=COMMAND...

After a fault every later call of the process fails, and a process that dies writes no report. So a fault loses only the
results of one suite. The last word of COMMAND is the program. The words before it (compute-sanitizer) wrap each run.
OUT.json gets {stage, device, parts: [{program, exit_code, seconds, suites, tests, skipped, failed: [text]}]}. SECONDS
limits the time of all programs together. The exit code is 1 when a suite failed, died or exceeded this limit, or when
all tests were skipped.
"""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMED_OUT = 124
NO_DEVICE = "no CUDA device"  # from tests/cuda/device.cc; GoogleTest's report does not call those tests skipped


def suites_of(program):
  listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
  return [line.split()[0] for line in listed.splitlines() if line.split("#")[0].rstrip().endswith(".")]


def run_suite(command, suite, seconds):
  """Returns (exit code, output, tests of the report)."""
  with tempfile.TemporaryDirectory() as folder:
    report = Path(folder) / "report.json"
    arguments = [*command, f"--gtest_filter={suite}*", f"--gtest_output=json:{report}", "--gtest_brief=1"]
    try:
      done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
      code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
      code, output = TIMED_OUT, (late.stdout or b"").decode(errors="replace")
    found = json.loads(report.read_text())["testsuites"] if report.exists() else []
  return code, output, [test for entry in found for test in entry["testsuite"]]


def run_program(name, command, end):
  part = {"program": name, "exit_code": 0, "suites": 0, "tests": 0, "skipped": 0, "failed": []}
  start = time.monotonic()
  for suite in suites_of(command[-1]):
    code, output, tests = run_suite(command, suite, max(end - time.monotonic(), 1))
    skipped = len(tests) if NO_DEVICE in output else sum(test["result"] == "SKIPPED" for test in tests)
    failed = [f"{test['classname']}.{test['name']}: {test['failures'][0]['failure'][:300]}"
              for test in tests if "failures" in test]
    if code and not failed:
      failed = [f"{suite} ended with code {code}: {output[-600:]}"]
    if failed or skipped == len(tests):
      print(output[-3000:], flush=True)
    part["exit_code"] = part["exit_code"] or code
    part["suites"] += 1
    part["tests"] += len(tests)
    part["skipped"] += skipped
    part["failed"] += failed
  part["seconds"] = round(time.monotonic() - start)
  return part


def main(stage, device, seconds, out, *programs):
  end = time.monotonic() + float(seconds)
  parts = []
  for program in programs:
    name, command = program.split("=", 1)
    parts.append(run_program(name, shlex.split(command), end))
    Path(out).write_text(json.dumps({"stage": stage, "device": device, "parts": parts}, indent=1))
  tests, skipped = (sum(part[key] for part in parts) for key in ("tests", "skipped"))
  failed = sum(len(part["failed"]) for part in parts)
  print(f"gpu: {stage}: {tests} tests, {skipped} skipped, {failed} failed; {out}")
  if tests == skipped:
    print(f"gpu: {stage}: nothing ran", file=sys.stderr)
  return 1 if failed or tests == skipped else 0


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
