"""Compiles the protos into the package, as data (aft_client/_wire.py says why), and copies the licence next to it."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROTO = ROOT / "proto"
FILES = ["aft/v1/inference.proto", "aft/v1/models.proto", "aft/v1/scores.proto", "aft/v1/states.proto",
         "aft/v1/tokens.proto", "grpc/health/v1/health.proto", "inference/grpc_service.proto"]

if not (HERE / "PKG-INFO").exists():  # A source distribution has this file, and contains the results.
  shutil.copy(ROOT / "LICENSE", HERE)
  # The build requirement has a compiler. Without it (pip --no-build-isolation), the system's compiler is used.
  compiler = [sys.executable, "-m", "grpc_tools.protoc"] if importlib.util.find_spec("grpc_tools") else ["protoc"]
  subprocess.run([*compiler, f"-I{PROTO}", "--include_imports",
                  f"--descriptor_set_out={HERE / 'aft_client/wire.pb'}", *FILES], check=True)
setup()
