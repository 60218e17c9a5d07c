#!/usr/bin/env python3
"""CONTRIBUTING.md, "Adding a config field": its example is named by the files that its list has, and by no others."""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What prose, tests and the comments of manifests say of a field is no part of it.
ELSEWHERE = (":!*.md", ":!tests")
COMMENT = re.compile(r"\s*(//|#(?!define))")


class ConfigFieldTest(unittest.TestCase):

  def test_the_list_of_files_is_that_of_the_example(self):
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.split("## Adding a config field\n")[1].split("\n## ")[0]
    field = re.search(r"`\w+\.(\w+)`", section).group(1)
    listed = re.findall(r"^\d\. `([\w./]+)`", section, re.MULTILINE)
    word = f"{re.sub('_(us|ms|s)$', '', field)}(_us|_ms|_s)?"
    found = subprocess.run(["git", "grep", "-wE", word, "--", *ELSEWHERE], cwd=ROOT, check=True, capture_output=True,
                           text=True).stdout.splitlines()
    lines = (line.split(":", 1) for line in found)
    self.assertEqual(sorted(listed), sorted({path for path, text in lines if not COMMENT.match(text)}))
    self.assertLessEqual(len(listed), 4)


if __name__ == "__main__":
  unittest.main()
