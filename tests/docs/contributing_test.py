#!/usr/bin/env python3
"""Checks CONTRIBUTING.md: the example of each section "Adding ..." occurs in the files of its list and in no others, and all
places in the table of places exist. Checks the table of docs/models.md that has the fields of a training config."""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = (":!*.md",)
PRODUCT = (*CODE, ":!tests")
HTTP = (":!server/api/openai", ":!tests/integration/http", ":!tests/fuzz/http_requests.cc")
COMMENT = re.compile(r"\s*(//|#(?!define))")
PAGES = [  # heading, how its example is written, where, most files; comments name it without being a part of it
    ("a config field", r"\bliveness_grace(_ms)?\b", PRODUCT, 4),
    ("a method", r"detokenize", (*CODE, *HTTP), 20),
    ("an option", r"(^|[^a-z])k?min[-_]?p([^a-z]|$)", (":!CONTRIBUTING.md",), 12),
    ("a weight format", r"\bkInt8\b|\bLinearInt8\b|linear_int8", CODE, 14),
]


def files_that_name(pattern, where, comments):
  found = subprocess.run(["git", "grep", "--untracked", "-iP", pattern, "--", *where, ":!tests/docs/contributing_test.py"],
                         cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
  lines = (line.split(":", 1) for line in found)
  return sorted({path for path, text in lines if comments or not COMMENT.match(text)})


class AddingTest(unittest.TestCase):

  def test_the_list_of_files_is_that_of_the_example(self):
    page = (ROOT / "CONTRIBUTING.md").read_text()
    for what, pattern, where, most in PAGES:
      with self.subTest(what):
        section = page.split(f"## Adding {what}\n")[1].split("\n## ")[0]
        listed = re.findall(r"^\d+\. `([\w./]+)`", section, re.MULTILINE)
        self.assertEqual(sorted(listed), files_that_name(pattern, where, comments=where == (":!CONTRIBUTING.md",)))
        self.assertLessEqual(len(listed), most)


  def test_the_table_of_places_names_what_is_there(self):
    """Each file of the table defines the name that follows it, a header declares it."""
    page = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things happen\n")[1].split("\n## ")[0]
    named = re.findall(r"`([\w/]+\.\w+)`:? (?:the comment of )?`(\w+)`", page)
    self.assertGreater(len(named), 20)
    for path, name in named:
      # A definition begins its line, or is a member of a class there, and does not end it with a semicolon.
      defined = rf"\b{name}\b" if path.endswith(".h") or name.isupper() else rf"^ {{0,2}}([\w<].*)?\b{name}\((?!.*;$)"
      self.assertTrue(re.search(defined, (ROOT / path).read_text(), re.MULTILINE), f"{path} defines no {name}")


class TrainingTest(unittest.TestCase):

  def test_the_table_of_the_training_config_has_the_fields_that_the_parser_takes(self):
    parser = (ROOT / "model/train/train_config.cc").read_text()
    page = (ROOT / "docs/models.md").read_text()
    table = page.split("\n| field | type | default | meaning |\n")[1].split("\n\n")[0]
    fields = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    self.assertEqual(sorted(fields), sorted({"network", *re.findall(r'\bTake\w*\(object, "(\w+)"', parser)}))
    example = json.loads(page.split("```json\n")[1].split("```")[0])
    self.assertLessEqual(set(example), set(fields))


if __name__ == "__main__":
  if not (ROOT / ".git").exists():
    print("skipped: git lists the files, and this folder is not a clone")
    sys.exit(77)
  unittest.main()
