#!/usr/bin/env python3
"""Makes a self-contained HTML page, with plots, from the output of `aftload --json`.

  aftload --json --rate=10,20,40,80 --goodput ttft:200 tpot:15 ... | load_report.py --out report.html
  load_report.py --out report.html before.json after.json      several files, a line for each run

Chart.js draws the plots, and the page contains it. It comes from Debian's package libjs-chart.js, or from the
file that the environment variable CHART_JS names. For a sweep of rates the page shows the knee: the highest rate
up to which at least 99 % of the requests met the limits of --goodput. Each file is a sweep of its own. Exit code 1,
without a page, if the input is not such JSON, if Chart.js is missing, or if the page cannot be written.
"""

import argparse
import html
import json
import os
import pathlib
import sys

CHART_JS = "/usr/share/javascript/chart.js/chart.min.js"
PAGE = pathlib.Path(__file__).with_name("load_report.html")
GOOD = 0.99


class Refused(Exception):
  """Its text tells the user what is wrong."""


def read_files(files):
  """Returns [(name, runs)] of the files that have runs; the name is empty if there is only one file."""
  groups = []
  for file in files:
    runs = []
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      try:
        run = json.loads(line)
        complete = isinstance(run, dict) and {"duration", "quantiles", "timeline"} <= run.keys()
      except ValueError:
        complete = False
      if not complete:
        raise Refused(f"{file.name}:{number} is not what aftload --json prints")
      runs.append(run)
    if runs:
      groups.append((pathlib.Path(file.name).stem if len(files) > 1 else "", runs))
  if not groups:
    raise Refused("there is no run to show")
  return groups


def label(name, run):
  load = (f"{run['request_rate']:g} requests/s" if run["loop"] == "open" else f"{run['max_concurrency']} streams")
  return f"{name}: {load}" if name else load


def knee(runs):
  """The highest rate up to which the requests met the limits; None if the lowest rate missed them or there are none."""
  best = None
  for run in sorted((run for run in runs if run["loop"] == "open"), key=lambda run: run["request_rate"]):
    if run.get("goodput_ratio", 0) < GOOD:
      break
    best = run["request_rate"]
  return best


# The heading of each row, and a function for the cell of a run.
ROWS = [
    ("server", lambda run: run.get("address", "")),
    ("date", lambda run: run.get("date", "")),
    ("model", lambda run: run.get("model_id", "")),
    ("completed", lambda run: run["completed"]),
    ("failed", lambda run: ", ".join(f"{count} {code}" for code, count in run["errors"].items()) or 0),
    ("cut", lambda run: run["cut"]),
    ("requests/s", lambda run: f"{run['request_throughput']:.2f}"),
    ("tokens/s", lambda run: f"{run['output_throughput']:.0f}"),
    ("goodput/s", lambda run: f"{run['request_goodput']:.2f}" if "request_goodput" in run else ""),
    ("good", lambda run: f"{100 * run['goodput_ratio']:.1f} %" if "goodput_ratio" in run else ""),
    *((f"{title} {what}, ms", lambda run, key=f"{key}_{metric}_ms": f"{run[key]:.2f}")
      for metric, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E"))
      for key, what in (("median", "p50"), ("p99", "p99"))),
]


def table(labels, runs):
  rows = ["".join(f"<th>{html.escape(title)}</th>" for title in ("", *labels))]
  for title, value in ROWS:
    cells = "".join(f"<td>{html.escape(str(value(run)))}</td>" for run in runs)
    rows.append(f"<th>{html.escape(title)}</th>{cells}")
  return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def verdict(runs):
  limits = next((run["goodput_limits_ms"] for run in runs if "goodput_limits_ms" in run), None)
  if limits is None:
    return "No limits were given (--goodput), so there is no goodput and no knee."
  named = ", ".join(f"{metric} {ms:g} ms" for metric, ms in limits.items())
  rate = knee(runs)
  if sum(run["loop"] == "open" for run in runs) < 2:
    return f"Limits: {named}."
  if rate is None:
    return f"Limits: {named}. Already the lowest rate missed them: fewer than 99 % of the requests were good."
  return f"Limits: {named}. The knee: {rate:g} requests/s, the highest rate up to which 99 % of the requests were good."


def in_script(value):
  return json.dumps(value).replace("<", "\\u003c")


def page(groups, chart_js):
  if "</script" in chart_js:
    raise Refused("Chart.js cannot be inlined: it contains the end of a script")
  data = [{"name": name, "labels": [label(name, run) for run in runs], "runs": runs, "knee": knee(runs)}
          for name, runs in groups]
  labels, runs = ([one for file in data for one in file[key]] for key in ("labels", "runs"))
  verdicts = ((f"{name}: " if name else "") + verdict(runs) for name, runs in groups)
  # All places are filled in one pass, because a value may contain the name of another place.
  parts = {"CHART_JS": chart_js, "DATA": in_script(data), "TABLE": table(labels, runs),
           "VERDICTS": "".join(f"<p>{html.escape(said)}</p>" for said in verdicts)}
  pieces = PAGE.read_text(encoding="utf-8").split("@@")
  return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def read_chart_js():
  path = pathlib.Path(os.environ.get("CHART_JS", CHART_JS))
  try:
    return path.read_text(encoding="utf-8")
  except OSError as error:
    raise Refused(f"Chart.js is not at {path} ({error.strerror}): apt-get install libjs-chart.js, or name the file "
                  "by CHART_JS") from None


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("files", nargs="*", type=argparse.FileType(encoding="utf-8"), default=[sys.stdin],
                      metavar="FILE")
  parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="where the page goes; default: standard output")
  options = parser.parse_args()
  try:
    text = page(read_files(options.files), read_chart_js())
    if options.out is None:
      print(text)
    else:
      try:
        options.out.write_text(text, encoding="utf-8")
      except OSError as error:
        raise Refused(f"{options.out} cannot be written ({error.strerror})") from None
  except Refused as refused:
    sys.exit(f"load_report.py: {refused}")


if __name__ == "__main__":
  main()
