#!/usr/bin/env python3
"""Tests the Python client as other projects install it: builds its source distribution and its wheel, and uses the wheel in new
environments, with the oldest versions of gRPC and protobuf that it asks for (Debian 12's) and with new ones.

  python_package_test.py AFT_SERVER MODEL

AFT_PYTHON_CLIENT and AFT_TRITONCLIENT are folders of packages, which ./dev test fetches. Without them the test is skipped.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import aft_server  # noqa: E402

PACKAGES = {"new": os.environ.get("AFT_PYTHON_CLIENT"), "triton": os.environ.get("AFT_TRITONCLIENT")}
MADE = shutil.ignore_patterns("build", "dist", "*.egg-info", "wire.pb", "LICENSE")  # by pip, in a developer's checkout
PROGRAM = MODEL = ""


def run(*command, **options):
  environment = {"PATH": os.environ["PATH"], "no_grpc_proxy": "127.0.0.1", "PYTHONDONTWRITEBYTECODE": "1",
                 **options.pop("env", {})}
  done = subprocess.run(command, capture_output=True, text=True, env=environment, **options)
  assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
  return done.stdout


class PythonPackageTest(unittest.TestCase):

  @classmethod
  def setUpClass(cls):
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = Path(folder.name)
    # As `python -m build` does: builds the source distribution from a checkout, and the wheel only from that.
    checkout = cls.folder / "checkout"
    for part in ("client/python", "proto"):
      shutil.copytree(ROOT / part, checkout / part, ignore=MADE)
    shutil.copy(ROOT / "LICENSE", checkout)
    cls.build(checkout / "client/python", "sdist")
    sdist, = cls.folder.glob("*.tar.gz")
    # It is not a checkout, even below a folder of another project that has a `proto`.
    (cls.folder / "proto").mkdir()
    shutil.unpack_archive(sdist, cls.folder / "unpacked")
    cls.build(cls.folder / "unpacked" / sdist.name.removesuffix(".tar.gz"), "wheel")
    cls.wheel, = cls.folder.glob("*.whl")
    cls.server = aft_server.Server(cls.folder, PROGRAM, MODEL)
    cls.addClassCleanup(cls.server.stop, hard=True)

  @classmethod
  def build(cls, project, what):
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_{what}({str(cls.folder)!r})",
        cwd=project, env={"PYTHONPATH": PACKAGES["new"]})

  def use(self, name, *options):
    """Returns what the program prints in a new environment, which has only the wheel and `packages`."""
    environment = self.folder / name
    run(sys.executable, "-m", "venv", *options, environment)
    if name in PACKAGES:
      next(environment.glob("lib/*/site-packages")).joinpath("packages.pth").write_text(PACKAGES[name])
    run(environment / "bin/pip", "install", "--no-index", self.wheel)  # It checks what the wheel asks for.
    return run(environment / "bin/python", ROOT / "tests/docs/python_package_use.py", self.server.address,
               cwd=self.folder)

  def test_the_wheel_has_the_package_alone(self):
    with zipfile.ZipFile(self.wheel) as archive:
      names = archive.namelist()
      licence = archive.read("aft_client-0.1.0.dist-info/licenses/LICENSE").decode()
    self.assertEqual({name.split("/")[0] for name in names}, {"aft_client", "aft_client-0.1.0.dist-info"})
    self.assertLessEqual({"aft_client/py.typed", "aft_client/wire.pb", "aft_client/_client.py"}, set(names))
    self.assertEqual(licence, (ROOT / "LICENSE").read_text())

  def test_it_works_with_the_oldest_versions_it_asks_for(self):
    self.assertIn("grpcio 1.51.1 protobuf 4.21.12", self.use("debian", "--system-site-packages"))

  def test_it_works_with_new_versions(self):
    self.assertIn("protobuf 7.", self.use("new"))

  def test_it_works_next_to_the_messages_of_tritonclient(self):
    self.assertIn("with tritonclient", self.use("triton"))


if __name__ == "__main__":
  MODEL, PROGRAM = sys.argv.pop(), sys.argv.pop()
  if None in PACKAGES.values():
    print("no AFT_PYTHON_CLIENT or AFT_TRITONCLIENT: ./dev test fetches them")
    sys.exit(77)
  unittest.main()
