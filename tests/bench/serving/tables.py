"""What benchmarks print."""

import re
from pathlib import Path


def table(heads, rows):
  cells = [list(heads), *([value if isinstance(value, str) else f"{value:.4g}" for value in row] for row in rows)]
  widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
  for row in cells:
    print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def figures(run, *names):
  return [run[name] for name in names]


def processor():
  """The name of the CPU. Linux gives none on ARM."""
  found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
  return found.group(1) if found else "unknown CPU"
