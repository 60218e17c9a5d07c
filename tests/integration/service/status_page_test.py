#!/usr/bin/env python3
"""The page /status in headless Chromium: status_page_test.py AFT_SERVER MODEL

The exit code is 77 if Chromium is missing.
"""

import http.server
import json
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import aft_server  # noqa: E402
from chromium import CHROMIUM  # noqa: E402

EVIL = "<img src=x onerror=\"document.body.dataset.evil=1\">"
MEMORY = {"planned": 3 << 30, "limit": 4 << 30, "parts": [{"use": "states", "what": "states.max_bytes", "bytes": 3 << 30}]}


class Server(aft_server.ServerProcess):
  """aft-server with two models, one of which has no files. It runs until stop()."""

  def __init__(self, folder):
    config = folder / "server.textproto"
    config.write_text('health { readiness: "any" }\n'
                      f"models {{ name: 'austen' path: '{sys.argv[2]}' intra_op_threads: 1 }}\n"
                      f"models {{ name: 'broken' path: '{EVIL}' }}\n")
    super().__init__(folder, "server", sys.argv[1], config)


class Replay(http.server.BaseHTTPRequestHandler):
  """Serves the server's page with made-up figures: `metrics(i)` and `status(i)` for the i-th request."""

  def do_GET(self):
    server = self.server
    if self.path == "/status":
      headers, body = server.page
    else:
      headers = {}
      figures = server.status if self.path == "/status.json" else server.metrics
      body = figures(server.asked.setdefault(self.path, 0)).encode()
      server.asked[self.path] += 1
    self.send_response(200)
    for name, value in headers.items():
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *_):
    pass


def browse(address, seconds=9):
  """Returns the page after some seconds of its own time, and the messages on the console."""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # Chromium may still write to it.
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
         f"--virtual-time-budget={1000 * seconds}", "--enable-logging=stderr", "--dump-dom",
         f"http://{address}/status"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
  return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def status_of(models, **more):
  return json.dumps({"version": "1", "state": "ready", "ready": True, "alive": True, "address": "a:1",
                     "started": "2026-11-23T05:00:00Z", "config": "", "memory": MEMORY, "models": models} | more)


def model(name, **more):
  return {"name": name, "version": "2", "state": "MODEL_STATE_READY", "error": "", "architecture": "aft_local",
          "weight_format": "int8", "device": "cpu", "parameters": "6000000", "state_bytes": "300000", "slots": 4,
          "task": "TASK_GENERATE", "fingerprint": "18446744073709551615", "versions": []} | more


class StatusPageTest(unittest.TestCase):

  @classmethod
  def setUpClass(cls):
    cls.folder = tempfile.TemporaryDirectory()
    cls.server = Server(Path(cls.folder.name))

  @classmethod
  def tearDownClass(cls):
    cls.server.stop(hard=True)
    cls.folder.cleanup()

  def replay(self, status, metrics, **time):
    answer, body = self.server.page("/status")
    replay = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Replay)
    replay.page = (dict(answer.getheaders()), body)
    replay.status, replay.metrics, replay.asked = status, metrics, {}
    threading.Thread(target=replay.serve_forever, daemon=True).start()
    try:
      return browse("127.0.0.1:%d" % replay.server_port, **time)
    finally:
      replay.shutdown()
      replay.server_close()

  def figure(self, dom, name):
    found = re.search(f"<b>([^<]*)</b><span>{re.escape(name)}</span>", dom)
    self.assertIsNotNone(found, f"{name}: {dom[-3000:]}")
    return found.group(1)

  def test_a_real_server(self):
    dom, console = browse(self.server.metrics_address)
    self.assertEqual(console, [])
    self.assertIn('<span class="state good">ready</span>', dom)
    self.assertIn("<h2>austen</h2>", dom)
    self.assertIn('<span class="state bad">failed</span>', dom)
    self.assertEqual(self.figure(dom, "slots used"), "0 of 64")
    self.assertIn("&lt;img src=x onerror", dom)  # in the error and in the config
    self.assertNotIn("<img", dom)
    self.assertNotIn("data-evil", dom)
    self.assertEqual(len(re.findall("<svg", dom)), 2 * 4 + 2)
    self.assertEqual(dom.count("5 min ago"), 2 * 4 + 2)
    self.assertRegex(self.figure(dom, "resident memory"), r"^[\d.,]+ [MG]iB$")
    self.assertIn('readiness: "any"', dom)

  def test_figures(self):
    def status(_):
      models = [model("m", versions=[{"version": v, "state": "MODEL_STATE_READY", "error": EVIL, "fingerprint": v}
                                     for v in ("2", "1")]),
                model("e", task="TASK_ENCODE", state_bytes="0"), model("c", task="TASK_CLASSIFY", state_bytes="0")]
      return status_of(models, version="1.2.3", state="draining", ready=False, config=EVIL)

    def metrics(i):
      # Between two scrapes there are 40 tokens, 10 requests of which 2 fail, and first tokens after 1 to 2 ms.
      return f"""# HELP aft_slots <b>help</b>
aft_slots{{model="m"}} 4
aft_slots_used{{model="m"}} 3
aft_requests_running{{model="m"}} 3
aft_requests_waiting{{model="m"}} 7
aft_requests_total{{code="OK",method="Generate",model="m"}} {100 + 8 * i}
aft_requests_total{{code="OK",method="Generate",model="other \\"m\\""}} {1000 * i}
aft_requests_total{{code="RESOURCE_EXHAUSTED",method="Generate",model="m"}} {2 * i}
aft_generated_tokens_total{{model="m"}} {40 * i}
aft_prefix_cache_hit_tokens_total{{model="m"}} {10 * i}
aft_prefix_cache_bytes{{model="m"}} {3 << 20}
process_cpu_seconds_total {3 * i}
process_resident_memory_bytes {2 << 30}
aft_encoded_tokens_total{{model="e"}} {20000 * i}
aft_ttft_seconds_bucket{{model="m",le="0.001"}} {50}
aft_ttft_seconds_bucket{{model="m",le="0.002"}} {50 + 10 * i}
aft_ttft_seconds_bucket{{model="m",le="+Inf"}} {50 + 10 * i}
aft_e2e_seconds_bucket{{method="Encode",model="e",le="2"}} 0
aft_e2e_seconds_bucket{{method="Encode",model="e",le="+Inf"}} {i}
aft_e2e_seconds_bucket{{method="Tokenize",model="e",le="2"}} {9 * i}
aft_e2e_seconds_bucket{{method="Tokenize",model="e",le="+Inf"}} {9 * i}
"""

    dom, console = self.replay(status, metrics)
    self.assertEqual(console, [])
    self.assertIn('<span class="state busy">draining</span>', dom)
    self.assertEqual(self.figure(dom, "slots used"), "3 of 4")
    self.assertEqual(self.figure(dom, "running / waiting"), "3 / 7")
    # The page uses Chromium's clock: an interval is 2 s and the time that an answer takes.
    for name, rate in (("requests/s", 4), ("failed or refused/s", 1), ("tokens generated/s", 20)):
      self.assertAlmostEqual(float(self.figure(dom, name)), rate, delta=rate / 4, msg=name)
    self.assertEqual(self.figure(dom, "first token p50 / p99, last 30 s"), "1.50 ms / 1.99 ms")
    self.assertEqual(self.figure(dom, "between tokens p50 / p99, last 30 s"), "– / –")
    self.assertEqual(self.figure(dom, "request p50 / p99, last 30 s"), "2.00 s / 2.00 s")  # above the last finite bound
    self.assertIn("First token, over 30 s", dom)
    self.assertEqual(dom.count("fingerprint ffffffffffffffff"), 3)
    self.assertEqual(dom.count(" a sequence ·"), 1)  # Encoders and classifiers keep no states.
    self.assertIn("failed or refused since the start: RESOURCE_EXHAUSTED", dom)
    self.assertEqual(self.figure(dom, "prefix cache"), "3 MiB")
    self.assertAlmostEqual(float(self.figure(dom, "prompt tokens/s from the prefix cache")), 5, delta=1.25)
    self.assertEqual(self.figure(dom, "resident memory"), "2 GiB")
    self.assertAlmostEqual(float(self.figure(dom, "processor cores in use")), 1.5, delta=0.4)
    self.assertNotIn("<img", dom)
    points = [path.count("L") for path in re.findall(r'<path class="one" d="([^"]*)"', dom)]
    self.assertEqual(len(points), 4 + 3 + 3 + 2)
    self.assertEqual(dom.count(">rows of a batch<"), 2)
    self.assertGreaterEqual(points[0], 1)

  def test_rates_restart_with_a_new_process_and_a_missing_one_is_unreachable(self):
    def status(i):
      return status_of([model("m")], started=f"2026-11-23T05:00:0{min(i, 1)}Z")
    dom, _ = self.replay(status, lambda i: f'aft_generated_tokens_total{{model="m"}} {1000 if i == 0 else 0}\n')
    self.assertEqual(self.figure(dom, "tokens generated/s"), "0")
    dom, _ = self.replay(lambda i: status(0) if i == 0 else "no JSON", lambda i: "")
    self.assertIn('<span class="state bad">unreachable</span>', dom)
    self.assertIn('title="SyntaxError', dom)
    self.assertIn("<h2>m</h2>", dom)  # the last known models remain
    dom, _ = self.replay(lambda i: "no JSON" if i == 0 else status(1), lambda i: "")
    self.assertIn('<span class="state good">ready</span>', dom)
    self.assertNotIn("SyntaxError", dom)

  def test_quantiles_are_those_of_the_last_30_seconds(self):
    def metrics(i):  # The first tokens of the first 3 intervals come after 1 to 2 s, and later ones within 1 s.
      return "".join(f'aft_ttft_seconds_bucket{{model="m",le="{bound}"}} {count}\n'
                     for bound, count in (("1", 10 * max(i - 3, 0)), ("2", 10 * i), ("+Inf", 10 * i)))
    dom, _ = self.replay(lambda _: status_of([model("m")]), metrics, seconds=60)
    self.assertEqual(self.figure(dom, "first token p50 / p99, last 30 s"), "500 ms / 990 ms")


if __name__ == "__main__":
  if CHROMIUM is None:
    print("skipped: needs Debian's chromium-headless-shell; ./dev test --full installs it")
    sys.exit(77)
  unittest.main(argv=sys.argv[:1])
