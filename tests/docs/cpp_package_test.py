#!/usr/bin/env python3
"""Tests the C++ client in another project: installs the component `client`, builds the example of docs/api.md against it with
the CMakeLists.txt of that page, and compares what it prints with the page.

  cpp_package_test.py BUILD   BUILD: the folder of a CMake build that has aft_client and aft-server
"""

import subprocess
import sys
import unittest
from pathlib import Path

import examples_test
from examples_test import ROOT, aft_server

BUILD = ""
PAGE = list(examples_test.blocks(ROOT / "docs/api.md"))
MODEL = ROOT / "model/zoo/austen-aft-local"


def block(language):
  return next(text for _, of, text in PAGE if of == language)


def run(*command):
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
  return done.stdout


class CppPackageTest(unittest.TestCase):

  def setUp(self):
    self.folder = aft_server.new_folder(self)
    self.package = self.folder / "moved"
    run("cmake", "--install", BUILD, "--component", "client", "--prefix", str(self.folder / "package"))
    (self.folder / "package").rename(self.package)  # The package must work in any folder.

  def test_it_has_what_other_projects_include_and_no_more(self):
    files = {str(path.relative_to(self.package)) for path in self.package.rglob("*") if path.is_file()}
    self.assertEqual({name.split("/")[0] for name in files}, {"include", "lib", "share"})
    self.assertEqual([name for name in files if name.startswith("share/")], ["share/doc/aft-client/LICENSE"])
    headers = {name.removeprefix("include/aft-client/") for name in files if name.startswith("include/")}
    self.assertIn("client/lib/aft_client.h", headers)
    self.assertEqual([name for name in headers if name.endswith(".grpc.pb.h") or "config/" in name], [])
    for name in ("AftClientConfig", "AftClientConfigVersion", "AftClientTargets"):
      text = (self.package / f"lib/cmake/AftClient/{name}.cmake").read_text()
      self.assertNotIn(str(ROOT), text)
      self.assertNotIn(BUILD, text)

  def test_another_minor_version_is_refused(self):
    script = self.folder / "asked.cmake"
    script.write_text(f'include("{self.package}/lib/cmake/AftClient/AftClientConfigVersion.cmake")\n'
                      'file(WRITE "${ANSWER}" "${PACKAGE_VERSION_COMPATIBLE}")\n')
    for minor, answer in ((1, "TRUE"), (0, "FALSE"), (2, "FALSE")):
      run("cmake", f"-DPACKAGE_FIND_VERSION=0.{minor}", "-DPACKAGE_FIND_VERSION_MAJOR=0",
          f"-DPACKAGE_FIND_VERSION_MINOR={minor}", f"-DANSWER={self.folder}/answer", "-P", str(script))
      self.assertEqual((self.folder / "answer").read_text(), answer, minor)

  def test_the_example_of_the_page_streams_with_it(self):
    project, build = self.folder / "project", self.folder / "build"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(block("cmake"))
    (project / "main.cc").write_text(block("cpp"))
    run("cmake", "-G", "Ninja", "-S", str(project), "-B", str(build), f"-DCMAKE_PREFIX_PATH={self.package}")
    run("cmake", "--build", str(build))
    server = aft_server.Server(self.folder, f"{BUILD}/bin/aft-server", MODEL)
    self.addCleanup(server.stop, hard=True)
    shown = next(text for _, language, text in PAGE if language == "console" and text.startswith("$ api_example "))
    printed = run(str(build / "api_example"), server.address)
    self.assertTrue(examples_test.matches(shown.split("\n", 1)[1], printed), printed)


if __name__ == "__main__":
  BUILD = str(Path(sys.argv.pop()).resolve())
  unittest.main()
