#!/usr/bin/env python3
"""Makes the tables of docs/configuration.md from the fields in proto/aft/config/v1 (./dev docs).

  configuration_page.py [--check]     --check: writes nothing; exit code 1 if the page would change
"""

import difflib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/configuration.md"
PROTO = ROOT / "proto/aft/config/v1"

FIRST = "## The file"  # The part before this heading is written by hand.

FIELD = re.compile(r"  (optional |repeated |)(\w+) (\w+) = \d+(?: \[(.*)\])?;")
TEXT = r'"(?:[^"\\]|\\.)*"'
OPTION = re.compile(rf"\((\w+)\) = ((?:{TEXT} ?)+|[-\w.]+)")
TYPES = {"int32": "integer", "int64": "integer", "double": "number", "string": "text", "bool": "true, false"}


def options_of(text):
  """Parses the text in the brackets of a field into name -> its values; see field_options.proto."""
  options = {}
  for name, value in OPTION.findall(text or ""):
    parts = [json.loads(part) for part in re.findall(TEXT, value)]
    options.setdefault(name, []).append("".join(parts) if parts else value)
  return options


def read(path):
  """Returns message -> (comment, its fields as (repeated, type, name, comment, options))."""
  messages, comment, name, part = {}, [], None, ""
  for number, line in enumerate(path.read_text().splitlines(), 1):
    if found := re.fullmatch(r" *// (.*)", line):
      comment.append(found.group(1))
      continue
    part += " " + line.strip() if part else line
    if part.startswith("  ") and not part.endswith(";"):
      continue  # The field continues in the next line.
    line, part = re.sub(r"\[ | \]", lambda m: m[0].strip(), part), ""
    if field := FIELD.fullmatch(line):
      if field[2] in TYPES and not comment:
        sys.exit(f"{path.relative_to(ROOT)}:{number}: {field[3]} has no comment")
      messages[name][1].append((field[1].strip() == "repeated", field[2], field[3], " ".join(comment),
                                options_of(field[4])))
    elif found := re.fullmatch(r"message (\w+) {", line):
      name = found.group(1)
      messages[name] = (" ".join(comment), [])
    elif line not in ("", "}", 'syntax = "proto3";', "package aft.config.v1;",
                      'import "aft/config/v1/field_options.proto";'):
      sys.exit(f"{path.relative_to(ROOT)}:{number}: this program cannot parse this line: {line}")
    comment = []
  return messages


def shown(number):
  """The number as text; large powers of two as 2^N."""
  for less in (0, 1):
    value = int(number) + less if number.lstrip("-").isdigit() else 0
    if value > 2**20 and value & (value - 1) == 0:
      return f"2^{value.bit_length() - 1}" + " - 1" * less
  return number


def range_of(options):
  get = {name: values[0] for name, values in options.items()}
  if not {"min", "max", "min_field", "max_field"} & set(get) or "unit" not in get:
    return ""
  low = " + ".join(filter(None, (get.get("min_field"), get.get("min"))))
  high = get.get("max_field") or shown(get.get("max", ""))
  return f"[{low or 0}, {high}]" if high else f"from {low}"


def text_of(repeated, kind, comment, options):
  """The comment, with the sentences that the options add to it."""
  said = [comment] if comment else []
  if "value" in options:
    *others, last = (f'"{value}"' for value in options["value"])
    said.append(f"Values: {', '.join(others)} or {last}.")
  if "max" in options and kind == "string":
    said.append(f"At most {options['max'][0]} bytes.")
  if "required" in options:
    said.append("Required.")
  if "file" in options:
    said.append("Relative to the config file's folder.")
  if "zero" in options:
    said.append(f"{'Empty' if repeated or kind == 'string' else '0'}: {options['zero'][0]}.")
  return " ".join(said).replace("|", "\\|")


def default_of(repeated, kind, options):
  number = kind in ("int32", "int64") and ("zero" in options or "max" in options)  # Without them, unset is not 0.
  value = options.get("default", ["0" if number else "false" if kind == "bool" else ""])[0]
  return "" if repeated or not value else f'`"{value}"`' if kind == "string" else f"`{value}`"


def section(messages, message, title, path, at):
  """Lines for a message and the messages in it. `path`: its place in the file; `at`: message -> its first path."""
  comment, fields = messages[message]
  at[message] = path
  yield from ("", f"{'###' if path else '##'} {title}", "")
  if comment:
    yield from (comment, "")
  yield from ("| field | | default | range | |", "|---|---|---|---|---|")
  inner = []
  for repeated, kind, name, text, options in fields:
    text, default = text_of(repeated, kind, text, options), default_of(repeated, kind, options)
    below = f"{path}.{name}" if path else name
    if kind in messages:
      if kind not in at:
        inner.append((kind, below))
        at[kind] = below
      kind, default = f"[{at[kind]}](#{at[kind].replace('.', '')})", ""
    else:
      kind = TYPES[kind]
    unit = options.get("unit", ["count"])[0]
    kind += ", repeated" if repeated else f", {unit}" if unit not in ("count", "number") else ""
    yield f"| `{name}` | {kind} | {default} | {range_of(options)} | {text} |"
  for kind, below in inner:
    yield from section(messages, kind, f"`{below}`", below, at)


def page(there):
  messages = read(PROTO / "server_config.proto") | read(PROTO / "clients.proto")
  lines, at = [there[:there.index(FIRST)].rstrip()], {}
  lines += section(messages, "ServerConfig", FIRST[3:], "", at)
  lines += section(messages, "ClientsFile", "The clients' file", "", at)
  if missing := messages.keys() - at.keys():
    sys.exit(f"{PROTO.relative_to(ROOT)}: the page has no table of {', '.join(sorted(missing))}")
  return "\n".join(lines) + "\n"


def main(arguments):
  there = PAGE.read_text()
  made = page(there)
  if arguments != ["--check"]:
    PAGE.write_text(made)
    return 0
  sys.stdout.writelines(difflib.unified_diff(there.splitlines(True), made.splitlines(True), "the page", "the fields"))
  if there != made:
    print("docs/configuration.md is not current: run ./dev docs")
  return int(there != made)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
