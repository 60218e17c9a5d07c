#!/usr/bin/env python3
"""CONTRIBUTING.md, "Adding an option": its example is named by the files that its list has, and by no others."""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().relative_to(ROOT)


class OptionFilesTest(unittest.TestCase):

  def test_the_list_of_files_is_that_of_the_example(self):
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Adding an option\n")[1].split("\n## ")[0]
    option = re.search(r"`sampling\.(\w+)`", section).group(1)
    listed = re.findall(r"^\d+\. `([\w./]+)`", section, re.MULTILINE)
    # However a language writes it: min_p, min-p, MinP, kMinP, MIN_P.
    word = rf"(^|[^a-z])k?{option.replace('_', '[-_]?')}([^a-z]|$)"
    found = subprocess.run(["git", "grep", "--untracked", "-liE", word, "--", ":!CONTRIBUTING.md", f":!{HERE}"],
                           cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    self.assertEqual(sorted(listed), sorted(found))
    self.assertLessEqual(len(listed), 12)


if __name__ == "__main__":
  unittest.main()
