#!/usr/bin/env python3
"""Makes the tables of docs/configuration.md of the comments in proto/aft/config/v1 (./dev docs).

  configuration_page.py [--check]     --check: writes nothing; exit code 1 where the page would change
"""

import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/configuration.md"
PROTO = ROOT / "proto/aft/config/v1"

FIRST = "## The file"  # What stands before is written by hand.

FIELD = re.compile(r"  (optional |repeated |)(\w+) (\w+) = \d+;(?:  // (.*))?")
DEFAULT = re.compile(r'[Dd]efault ("[^"]*"|-?\d+|true|false)(?![\w-])')
TYPES = {"int32": "integer", "int64": "integer", "double": "number", "string": "text", "bool": "true, false"}


def read(path):
  """(comment of the file, message -> (comment, its fields as (repeated, type, name, comment)))."""
  head, messages, comment, name = "", {}, [], None
  for number, line in enumerate(path.read_text().splitlines(), 1):
    field = FIELD.fullmatch(line)
    if found := re.fullmatch(r" *// (.*)", line):
      comment.append(found.group(1))
      continue
    if field:
      messages[name][1].append((field[1].strip() == "repeated", field[2], field[3], " ".join(comment)))
    elif found := re.fullmatch(r"message (\w+) {", line):
      name = found.group(1)
      messages[name] = (" ".join(comment), [])
    elif line.startswith("syntax "):
      head = " ".join(comment)
    elif line not in ("", "}", "package aft.config.v1;"):
      sys.exit(f"{path.relative_to(ROOT)}:{number}: this program does not know what this is: {line}")
    comment = []
  return head, messages


def section(messages, message, title, path, at, level=2):
  """Lines for a message and those in it. `path`: where it stands in the file; `at`: message -> its first path."""
  comment, fields = messages[message]
  at[message] = path
  yield from ("", f"{'#' * level} {title}", "")
  if comment:
    yield from (comment, "")
  yield from ("| field | | default | |", "|---|---|---|---|")
  inner = []
  for repeated, kind, name, text in fields:
    default = DEFAULT.search(text)
    # It stands in its column; what is said of it stays.
    text = re.sub(rf"(; |\. |^)[Dd]efault {re.escape(default[1])}\.( |$)",
                  lambda m: m[1].replace(";", ".").rstrip() + m[2], text) if default else text
    below = f"{path}.{name}" if path else name
    if kind in messages:
      if kind not in at:
        inner.append((kind, below))
        at[kind] = below
      kind = f"[{at[kind]}](#{at[kind].replace('.', '')})"
    else:
      kind = TYPES[kind]
    shown = f"`{default[1]}`" if default else ""
    text = text.strip().replace("|", "\\|")
    yield f"| `{name}` | {kind}{', repeated' if repeated else ''} | {shown} | {text} |"
  for kind, below in inner:
    yield from section(messages, kind, f"`{below}`", below, at)


def page(there):
  _, server = read(PROTO / "server_config.proto")
  head, clients = read(PROTO / "clients.proto")
  lines = [there[:there.index(FIRST)].rstrip()]
  lines += section(server, "ServerConfig", FIRST[3:], "", {})
  lines += ["", "## The clients' file", "", head]
  lines += section(clients, "ClientConfig", "`clients`", "clients", {}, 3)
  return "\n".join(lines) + "\n"


def main(arguments):
  there = PAGE.read_text()
  made = page(there)
  if arguments != ["--check"]:
    PAGE.write_text(made)
    return 0
  sys.stdout.writelines(difflib.unified_diff(there.splitlines(True), made.splitlines(True), "the page", "the comments"))
  if there != made:
    print("docs/configuration.md is not current: run ./dev docs")
  return int(there != made)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
