#!/usr/bin/env python3
"""Tests functions of ./dev and tests/commands.sh in a copy of both files, with another cache and a stub of pip."""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCH = "fetch tool-1 'a tool' tool==1"


class DevTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self._folder = Path(folder.name)
    for name in ("aft-serve", "tests", "venv/bin"):
      (self._folder / name).mkdir(parents=True)
    for name in ("dev", "tests/commands.sh"):
      shutil.copy(ROOT / name, self._folder / name)
    self._cache = self._folder / "aft-serve"

  def _start(self, script, pip_exit_code=0):
    """Starts a shell that has the functions of both files. Its pip makes one file in the folder after --target."""
    python = self._folder / "venv/bin/python"
    python.write_text('#!/bin/sh\nwhile [ "$1" != --target ]; do shift; done\n'
                      f'mkdir "$2" && : >"$2/part"\nexit {pip_exit_code}\n')
    python.chmod(0o755)
    return subprocess.Popen(
        ["bash", "-c", f"source ./dev help >help.txt; source tests/commands.sh; VENV=venv; {script}"],
        cwd=self._folder, env={**os.environ, "XDG_CACHE_HOME": str(self._folder)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

  def _run(self, script, pip_exit_code=0):
    """Returns (exit code, output)."""
    with self._start(script, pip_exit_code) as process:
      output = process.stdout.read()
    return process.returncode, output

  def test_a_failed_download_leaves_no_folder(self):
    code, output = self._run(FETCH, pip_exit_code=1)
    self.assertEqual(code, 1, output)
    self.assertIn("dev: Fetching a tool failed", output)
    self.assertFalse((self._cache / "tool-1").exists())
    code, output = self._run(f'{FETCH}; ls "$FETCHED"')
    lines = output.splitlines()  # on a slow machine a line with the time is between the two
    self.assertEqual((code, lines[0], lines[-1]), (0, "dev: Fetching a tool", "part"))

  def test_a_download_waits_for_the_same_one_of_another_clone(self):
    lock = open(self._cache / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with self._start(FETCH) as process:
      with lock:
        self.assertEqual(process.stdout.readline(), "dev: Waiting for another ./dev\n")
        (self._cache / "tool-1").mkdir()
      self.assertEqual(process.stdout.read(), "")
    self.assertEqual(process.returncode, 0)
    self.assertEqual(list((self._cache / "tool-1").iterdir()), [])

  def test_the_update_of_the_package_lists_waits_for_another_one(self):
    (self._folder / "bin").mkdir()
    apt_get = self._folder / "bin/apt-get"
    # It installs only what an update has listed.
    apt_get.write_text('#!/bin/sh\ncase "$*" in\n*update) read -r error <errors && sed -i 1d errors && '
                       'echo "E: $error" && exit 100; : >lists;;\n*) [ -e lists ];;\nesac\n')
    apt_get.chmod(0o755)
    for errors, rc, pauses in ((["Could not get lock"] * 2, 0, 2), (["Could not get lock", "No space"], 1, 1)):
      (self._folder / "lists").unlink(missing_ok=True)
      (self._folder / "errors").write_text("".join(error + "\n" for error in errors))
      code, output = self._run('PATH="$PWD/bin:$PATH"; sleep() { echo pause; }; apt_get_install 0 tool')
      self.assertEqual((code, output.count("pause\n"), "E: No space\n" in output), (rc, pauses, rc == 1), output)

  def test_run_also_builds_the_client_for_a_second_terminal(self):
    _, output = self._run('build() { echo "build $*"; }; BIN=none; run_server --config=a')
    self.assertIn("build default aft-server aftctl\n", output)

  def test_a_build_for_gpus_fetches_nvcc_if_there_is_none(self):
    (self._folder / "bin").mkdir()
    build = 'PATH="$PWD/bin"; unset CUDACXX; for name in configure compile sed; do eval "$name() { :; }"; done; ' \
            'setup() { echo "setup $*"; }; build '
    for preset, option in (("bundle", "--cuda"), ("cuda", "--cuda"), ("default", "")):
      self.assertEqual(self._run(build + preset), (0, f"setup {option}\n"), preset)
    self.assertEqual(self._run(build.replace("unset CUDACXX", "export CUDACXX=nvcc") + "cuda"), (0, "setup \n"))
    (self._folder / "bin/nvcc").touch(0o755)
    self.assertEqual(self._run(build + "bundle"), (0, "setup \n"))

  def test_protos_are_compared_with_an_earlier_commit_in_clones_of_every_kind(self):
    buf = self._folder / "venv/bin/buf"
    buf.write_text("#!/bin/sh\nif [ $1 = breaking ]; then tar -xO proto/a.proto; fi\n")
    buf.chmod(0o755)
    origin = self._folder / "origin"
    (origin / "proto").mkdir(parents=True)

    def git(*arguments):
      subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=origin, check=True,
                     capture_output=True)
    git("init", "--initial-branch=main")
    for content, branch in (("first", "main"), ("main", "main"), ("feature", "feature")):
      git("checkout", "-B", branch)
      (origin / "proto/a.proto").write_text(content)
      git("add", "proto")
      git("commit", "-m", content)
    for number, (options, compared) in enumerate((
        (["--branch=feature"], "main"), (["--branch=main"], "first"),
        (["--branch=main", "--depth=1"], "dev: buf breaking: skipped, because this clone has no earlier commit\n"))):
      git("clone", *options, f"file://{origin}", f"../clone-{number}")
      self.assertEqual(self._run(f"VENV=$PWD/venv; cd clone-{number}; lint_protos"),
                       (0, f"dev: buf lint, buf breaking\n{compared}"), options)

  def test_the_page_names_the_rules_for_changes_of_protos(self):
    settings = (ROOT / "proto/buf.yaml").read_text()
    rules, = re.findall(r"^breaking:\n  use:\n    - (\w+)\n  except:", settings, re.MULTILINE)
    self.assertIn(f"(rule set `{rules}`)", (ROOT / "proto/README.md").read_text())

  def test_the_quota_of_a_container_limits_the_jobs(self):
    for quota, count in (("max 100000", 8), ("50000 100000", 1), ("150000 100000", 2), ("900000 100000", 8)):
      (self._folder / "cpu.max").write_text(quota + "\n")
      self.assertEqual(self._run("nproc() { echo 8; }; count_jobs cpu.max"), (0, f"{count}\n"), quota)
    self.assertEqual(self._run("nproc() { echo 8; }; count_jobs none"), (0, "8\n"))


if __name__ == "__main__":
  unittest.main()
