#!/usr/bin/env python3
"""Makes tests/parity/goldens/ from the reference packages. tests/parity/README.md says how to install them.

Every golden is a float64 result of references/equations.py. The script checks that the package (or a second,
independent source) gives the same. It is deterministic: a second run changes no byte.

  make_goldens.py [GROUP...]     groups: see GROUPS; all by default
"""

import importlib
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
GROUPS = ("aft_modules", "block_local", "operators", "language_models", "encoders")


def main():
  warnings.filterwarnings("ignore", category=FutureWarning)
  sys.path.insert(0, str(HERE))
  out = HERE / "goldens"
  out.mkdir(exist_ok=True)
  for group in sys.argv[1:] or GROUPS:
    importlib.import_module(f"references.{group}").make(out)
  total = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
  print(f"{total} bytes in goldens/")


if __name__ == "__main__":
  main()
