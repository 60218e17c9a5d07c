#!/usr/bin/env python3
"""Tests what rows.py makes of the figures of engine_bench."""

import io
import unittest
from contextlib import redirect_stdout

import rows


def figures(step_ms=lambda r: 2 + r, read_ms=2, prompt_ms=1):
  """Rates as engine_bench gives them; `step_ms` is the time of a step with r rows."""
  return ({f"step/{r}": 1000 * r / step_ms(r) for r in rows.ROWS}
          | {f"engine step/{r}": 1000 * r / (step_ms(r) + 0.5) for r in rows.ENGINE_ROWS}
          | {"read/1": 1000 / read_ms, f"prompt/{rows.PROMPT}": 1000 / prompt_ms, "draw": 4000})


class RowsTest(unittest.TestCase):

  def column(self, lines, r):
    return {name: values[rows.ROWS.index(r)] for name, values in lines.items()}

  def expect(self, lines, r, **wanted):
    column = self.column(lines, r)
    self.assertEqual(set(column), set(wanted))
    for name, value in wanted.items():
      self.assertAlmostEqual(column[name], value, msg=name) if value else self.assertIsNone(column[name])

  def test_few_rows_are_compared_with_reading_and_many_with_a_prompt(self):
    lines = rows.milliseconds(figures())
    self.expect(lines, 1, step=3, reading=2, prompt=1, ratio=1.5, sampling=0.25, engine=0.5)
    self.expect(lines, 5, step=7, reading=2, prompt=5, ratio=1.4, sampling=1.25, engine=None)
    self.expect(lines, 64, step=66, reading=2, prompt=64, ratio=66 / 64, sampling=16, engine=0.5)

  def test_a_ratio_is_of_one_process(self):
    lines = rows.medians([figures(), figures(lambda r: 10 * (2 + r), 40, 10), figures(lambda r: 6, 6, 0.01)])
    self.expect(lines, 1, step=6, reading=6, prompt=1, ratio=1, sampling=0.25, engine=0.5)

  def test_the_worst_cells_come_last_in_their_order(self):
    page = io.StringIO()
    with redirect_stdout(page):
      rows.show({("M", "int8", 2): [figures(lambda r: {2: 8.0, 3: 9.0}.get(r, 0.1))]})
    self.assertEqual([line.strip() for line in page.getvalue().splitlines()[-3:]],
                     ["2 of 11 cells are above 1.25:", "4.00  M int8, threads: 2, rows: 2",
                      "3.00  M int8, threads: 2, rows: 3"])


if __name__ == "__main__":
  unittest.main()
