#!/usr/bin/env python3
"""Tests tools/load_report.py: load_report_test.py [--browser]

--browser: tests only the page in headless Chromium. The exit code is 77 if Chromium or Chart.js is missing.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "load_report.py"
CHART_JS = Path("/usr/share/javascript/chart.js/chart.min.js")
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")


def run(rate, good=None, **more):
  """Returns a run as aftload prints it, in which at most 8 requests/s are completed."""
  done = min(rate, 8)
  quantiles = {"q": [0, 0.5, 0.9, 0.99, 1]}
  figures = {"loop": "open", "request_rate": rate, "max_concurrency": 10000, "duration": 3.0, "completed": 3 * done,
             "failed": 0, "cut": 0, "errors": {}, "request_throughput": done, "output_throughput": 64.0 * done}
  for i, metric in enumerate(("ttft", "tpot", "itl", "e2el"), 1):
    quantiles[metric + "_ms"] = [0, 10 * i, 20 * i, 30 * i, 40 * i * rate]
    figures |= {f"median_{metric}_ms": 10.0 * i, f"p99_{metric}_ms": 30.0 * i * rate}
  if good is not None:
    figures |= {"goodput_limits_ms": {"ttft": 200.0}, "request_goodput": done * good, "goodput_ratio": good}
  timeline = {"interval_s": 1, "output_tokens": [60 * done, 64 * done, 68 * done], "completed": [0, done, 2 * done],
              "failed": [0, 0, 1]}
  return figures | {"quantiles": quantiles, "timeline": timeline} | more


def report(*files, chart_js="/* charts */", fails=False, options=()):
  """Returns the page for these files, each of which is a list of runs or a text."""
  with tempfile.TemporaryDirectory() as folder:
    paths = []
    for i, content in enumerate(files):
      paths.append(Path(folder) / f"file{i}.json")
      paths[-1].write_text(content if isinstance(content, str) else "".join(json.dumps(one) + "\n" for one in content))
    chart = Path(folder) / "chart.js"
    if chart_js is not None:
      chart.write_text(chart_js)
    ended = subprocess.run([sys.executable, "-B", SCRIPT, *options, *paths],
                           env=os.environ | {"CHART_JS": str(chart)}, capture_output=True, text=True, check=False)
  assert ended.returncode == (1 if fails else 0), ended.stderr
  return ended.stderr if fails else ended.stdout


class ReportTest(unittest.TestCase):

  def test_the_knee_is_the_highest_rate_up_to_which_all_went_well(self):
    cases = [([1, 0.99, 0.5], "The knee: 8 requests/s"), ([1, 1, 1], "The knee: 16 requests/s"),
             ([1, 0.98, 1], "The knee: 4 requests/s"), ([0.5, 1, 1], "Already the lowest rate missed them")]
    for ratios, said in cases:
      page = report([run(rate, good) for rate, good in zip((16, 4, 8), (ratios[2], ratios[0], ratios[1]))])
      self.assertIn(said, page)
    self.assertIn("No limits were given", report([run(4), run(8)]))
    self.assertNotIn("knee:", report([run(4, 1.0)]).split("<table>")[0])

  def test_the_table_has_a_column_for_each_run(self):
    page = report([run(4, 1.0), run(8, 0.5, errors={"UNAVAILABLE": 2}, failed=2, address="127.0.0.1:8500",
                                   date="2026-11-26T05:00:00+00:00")])
    rows = [re.findall("<t[hd]>([^<]*)<", row) for row in re.findall("<tr>(.*?)</tr>", page)]
    self.assertEqual(rows[0], ["", "4 requests/s", "8 requests/s"])
    row = {title: of_second for title, _, of_second in rows}
    self.assertEqual(row["server"], "127.0.0.1:8500")
    self.assertEqual(row["date"], "2026-11-26T05:00:00+00:00")
    self.assertEqual(row["failed"], "2 UNAVAILABLE")
    self.assertEqual(row["good"], "50.0 %")
    self.assertEqual(row["tokens/s"], "512")
    self.assertEqual(row["TPOT p99, ms"], "480.00")

  def test_runs_of_several_files_have_their_names(self):
    page = report([run(4)], [run(4, loop="closed", max_concurrency=8, request_rate="inf")])
    self.assertIn("<th>file0: 4 requests/s</th>", page)
    self.assertIn("<th>file1: 8 streams</th>", page)

  def test_each_file_has_its_own_knee_and_limits(self):
    before = [run(10, 1), run(20, 1), run(40, 0.5)]
    after = [run(rate, 1, goodput_limits_ms={"ttft": 100.0}) for rate in (10, 20, 40, 80)]
    for files in ((before, after), (after, before)):
      page = report(*files)
      self.assertIn(f"file{files.index(before)}: Limits: ttft 200 ms. The knee: 20 requests/s", page)
      self.assertIn(f"file{files.index(after)}: Limits: ttft 100 ms. The knee: 80 requests/s", page)

  def test_the_content_of_a_run_is_escaped(self):
    page = report([run(4, errors={"</script><b>@@DATA@@": 1})])
    self.assertNotIn("</script><b>", page)
    self.assertEqual(page.count("</script>"), 3)
    self.assertIn(html.escape("</script><b>@@DATA@@"), page)
    self.assertIn("cannot be inlined", report([run(4)], chart_js="x = '</script>'", fails=True))

  def test_nothing_is_fetched(self):
    page = report([run(4)])
    self.assertIn("default-src 'none'", page)
    self.assertIsNone(re.search(r"(src|href)=|@import|url\(", page))

  def test_says_what_is_wrong(self):
    self.assertIn("apt-get install libjs-chart.js", report([run(4)], chart_js=None, fails=True))
    self.assertIn("file0.json:2 is not what", report(json.dumps(run(4)) + "\n{}\n", fails=True))
    self.assertIn("file0.json:1 is not what", report("open loop, 4 requests/s\n", fails=True))
    self.assertIn("no run", report("\n", fails=True))
    self.assertIn("/dev/null/page.html cannot be written (Not a directory)",
                  report([run(4)], fails=True, options=["--out", "/dev/null/page.html"]))


# This is added at the end of the page. It reports the data of every chart, and how many of its pixels have the colour
# of the first line.
PROBE = """<script>
addEventListener("load", () => {
  const charts = Object.values(Chart.instances).map(chart => {
    const pixels = chart.canvas.getContext("2d").getImageData(0, 0, chart.canvas.width, chart.canvas.height).data;
    const wanted = [1, 3, 5].map(at => parseInt(chart.data.datasets[0].borderColor.slice(at, at + 2), 16));
    let drawn = 0;
    for (let i = 0; i < pixels.length; i += 4) {
      if (pixels[i + 3] > 200 && wanted.every((value, c) => Math.abs(pixels[i + c] - value) < 16)) ++drawn;
    }
    return { title: chart.options.plugins.title.text, drawn,
             lines: Object.fromEntries(chart.data.datasets.map(line => [line.label, line.data])) };
  });
  const found = Object.assign(document.createElement("pre"), { id: "probe", textContent: JSON.stringify(charts) });
  document.body.append(found);
});
</script>
"""
ERRORS = """<script>
addEventListener("error", event => document.documentElement.dataset.error = event.message);
addEventListener("securitypolicyviolation", event => document.documentElement.dataset.error = event.blockedURI);
</script>
"""


class BrowserTest(unittest.TestCase):

  def charts(self, *files):
    page = report(*files, chart_js=CHART_JS.read_text())
    page = page.replace("<title>", ERRORS + "<title>").replace("</body>", PROBE + "</body>")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Chromium may still write to it.
      (Path(folder) / "page.html").write_text(page)
      dom = subprocess.run(
          [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
           "--virtual-time-budget=10000", "--dump-dom", f"file://{folder}/page.html"],
          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    self.assertNotIn("data-error", dom)
    found = re.search('<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    self.assertIsNotNone(found, dom[-2000:])
    return {chart["title"] + (" (sweep)" if "p50" in "".join(chart["lines"]) else ""): chart
            for chart in json.loads(html.unescape(found.group(1)))}

  def test_a_sweep_has_all_plots_and_its_knee(self):
    charts = self.charts([run(4, 1.0), run(8, 1.0), run(16, 0.3)])
    self.assertEqual(len(charts), 11)
    for title, chart in charts.items():
      self.assertGreater(chart["drawn"], 30, title)
    goodput = charts["Completed and good requests"]["lines"]
    self.assertEqual([point["y"] for point in goodput["completed"]], [4, 8, 8])
    self.assertAlmostEqual(goodput["good"][2]["y"], 2.4)
    self.assertEqual([point["x"] for point in goodput["knee: 8 requests/s"]], [8, 8])
    self.assertEqual(charts["Time to first token (sweep)"]["lines"]["p99"][0], {"x": 4, "y": 120})
    self.assertEqual(charts["Time to first token"]["lines"]["8 requests/s"][1], {"x": 10, "y": 50})
    self.assertEqual(charts["Tokens a second"]["lines"]["4 requests/s"][2], {"x": 2, "y": 272})

  def test_each_file_has_its_own_lines_and_knee(self):
    charts = self.charts([run(4, 1.0), run(8, 0.3)], [run(8, 1.0), run(16, 1.0), run(2, 1.0)], [run(32, 1.0)])
    for title, name in (("Completed and good requests", "completed"), ("Whole request (sweep)", "p99")):
      lines = {name: [point["x"] for point in points] for name, points in charts[title]["lines"].items()}
      self.assertEqual(lines[f"file0: {name}"], [4, 8])
      self.assertEqual(lines[f"file1: {name}"], [2, 8, 16])
      self.assertEqual(lines["file0: knee: 4 requests/s"], [4, 4])
      self.assertEqual(lines["file1: knee: 16 requests/s"], [16, 16])
      self.assertFalse(any(name.startswith("file2") for name in lines))
    self.assertEqual(len(charts["Tokens a second"]["lines"]), 6)

  def test_a_single_run_has_no_sweep(self):
    charts = self.charts([run(4, loop="closed", max_concurrency=8)])
    self.assertEqual(sorted(charts), sorted([
        "Time to first token", "Time per output token", "Between messages", "Whole request", "Tokens a second",
        "Completed requests a second", "Failed requests a second"]))


def main():
  browser = "--browser" in sys.argv
  if browser and (CHROMIUM is None or not CHART_JS.exists()):
    print("skipped: needs Debian's chromium-headless-shell and libjs-chart.js; ./dev test --full installs them")
    sys.exit(77)
  suite = unittest.defaultTestLoader.loadTestsFromTestCase(BrowserTest if browser else ReportTest)
  sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())


if __name__ == "__main__":
  main()
