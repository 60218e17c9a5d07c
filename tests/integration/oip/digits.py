#!/usr/bin/env python3
"""Runs the Python example of the shipped classifier's card unchanged, with a server.

  digits.py HOST:PORT

digits_test.cc starts it in the repository's root.
"""

import contextlib
import io
import re
import sys

FOLDER = "model/zoo/digits-aft-conv/"


def main():
  with open(FOLDER + "card.md") as card:
    example, = re.findall(r"```python\n(.*?)```", card.read(), re.DOTALL)
  assert "localhost:8500" in example
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    exec(example.replace("localhost:8500", sys.argv[1]), {})
  with open(FOLDER + "held_out.csv") as images:
    labels = [line.strip().split(",")[-1] for line in images][:4]
  # The format is "logit:index:label". The index is the label's position, and the label is the digit.
  found = re.findall(r"b'(-?\d+\.\d+):(\d+):(\d)'", printed.getvalue())
  assert [(index, label) for _, index, label in found] == [(l, l) for l in labels], printed.getvalue()


if __name__ == "__main__":
  main()
