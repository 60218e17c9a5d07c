#!/usr/bin/env python3
"""Tests what mutants.py does with git and with the output of builds, in a clone of its own."""

import io
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import mutants


class CheckoutTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self._clone = Path(folder.name).resolve() / "clone"
    self._clone.mkdir()
    self._git("init", "--initial-branch=main")
    (self._clone / ".gitignore").write_text("build/\n")
    (self._clone / "a.cc").write_text("int a = 1;\n")
    self._git("add", ".")
    self._git("commit", "-m", "first")

  def _git(self, *arguments):
    return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=self._clone, check=True,
                          capture_output=True, text=True).stdout

  def _in_clone(self):
    return mock.patch.multiple(mutants, ROOT=self._clone, TREE=self._clone / "build/mutants", TESTS={"": ["a_test"]})

  def _check_out(self):
    with self._in_clone():
      self.assertEqual(mutants.checkout(), self._git("rev-parse", "HEAD")[:10])
    self.assertEqual((self._clone / "build/mutants/a.cc").read_text(), "int a = 1;\n")

  def test_the_clone_keeps_its_changes_if_the_folder_is_no_worktree(self):
    (self._clone / "a.cc").write_text("int a = 2;\n")
    remnant = self._clone / "build/mutants/remnant"
    remnant.parent.mkdir(parents=True)
    remnant.touch()
    self._check_out()
    self.assertEqual((self._clone / "a.cc").read_text(), "int a = 2;\n")
    self.assertEqual(self._git("symbolic-ref", "HEAD"), "refs/heads/main\n")
    self.assertFalse(remnant.exists())

  def test_a_clone_may_be_moved(self):
    self._check_out()
    self._clone = self._clone.rename(self._clone.parent / "moved")
    self._check_out()

  def test_a_worktree_is_kept_with_its_builds(self):
    self._check_out()
    kept = self._clone / "build/mutants/build/kept"
    kept.parent.mkdir()
    kept.touch()
    (self._clone / "build/mutants/a.cc").write_text("int a = 3;\n")
    self._check_out()
    self.assertTrue(kept.exists())

  def test_a_file_that_is_only_in_the_index_is_not_mutated(self):
    (self._clone / "new.cc").write_text("int b = 1;\n")
    self._git("add", "new.cc")
    with self._in_clone(), mock.patch.object(sys, "argv", ["mutants", "0", "--seed=1"]), \
        redirect_stdout(io.StringIO()) as output:
      mutants.main()
    self.assertIn("mutants: seed 1, 1 files of ", output.getvalue())


class VerdictTest(unittest.TestCase):

  def _verdict(self, *built):
    with mock.patch.object(mutants, "build", return_value=built):
      return mutants.verdict("base/utf8.cc", {}, {})

  def test_an_error_in_the_code_is_of_the_mutant(self):
    for output in ("../../base/utf8.cc:12:3: error: 'a' was not declared in this scope\n",
                   "mold: error: undefined symbol: aft::F(int)\ncollect2: error: ld returned 1 exit status\n"):
      self.assertEqual(self._verdict(1, output), "did not compile")

  def test_a_build_that_fails_for_another_reason_ends_the_run(self):
    for code, output in ((1, "base/utf8.cc:12:3: fatal error: error writing to /tmp/a.s: No space left on device\n"),
                         (1, "g++: fatal error: Killed signal terminated program cc1plus\n"), (None, "")):
      with self.assertRaisesRegex(SystemExit, "^mutants: the build of base_test failed without an error in the code:\n"):
        self._verdict(code, output)


if __name__ == "__main__":
  unittest.main()
