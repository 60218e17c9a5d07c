#!/usr/bin/env python3
"""Benchmarks over gRPC: aft-server and aftload on this machine, which should be quiet.

  serving.py NAME... [--bin DIR] [--seconds N] [--model DIR] [--out DIR] [--streams N] [--shared NAME]

Names:
  streams       tokens/s and latencies of 1, 8 and 64 streams
  rpc           what gRPC costs: a model that computes next to nothing, 1 to 512 streams, compared with a
                bare server that writes the same messages
  http          HTTP compared with gRPC, in turn, by aftload: 1 to 512 streams of that model, and of --model in int8
  batching      the same log-normal lengths one by one, in static batches, in continuous ones
  capacity      Poisson arrivals at rising rates: goodput and its knee
  interference  half of the capacity and a long prompt every 5 s, with three chunk sizes
  overload      2, 5 and 10 times the capacity: refusals, who is admitted, recovery
  context       one stream of 100,000 tokens: time per token and memory, early and late
  clients       a tenth stops reading, a tenth cancels: what do the others feel, what leaks?
  rollout       three replicas under load are drained and restarted in turn
  survival      200 streams of 2,000 tokens that continue while their three replicas are killed, drained and
                started again: what is lost, and the longest pause and its parts; where they share nothing, keys,
                Redis, and the same through the shipped edge if AFT_ENVOY names an Envoy (./dev bench survival
                fetches it). --streams N: the number of streams; --shared NAME: only that case ("keys, behind the
                edge"); --client python: client/python instead of aftload
  checkpoints   1 and 64 resumable streams, with states.checkpoint_tokens 0, 256 and 64 in turn: what a step
                takes, and what it takes more
  aiperf        1, 8 and 64 streams of 512 tokens by aftload over gRPC, and by NVIDIA's aiperf over HTTP, in the folder
                that AFT_AIPERF names (./dev bench aiperf fetches it)
  soak          a mixed load for an hour (--seconds 3600): slopes of memory, files, threads

Every run of aftload is kept as a line of OUT/NAME.jsonl, and where Chart.js is installed (libjs-chart.js) they
are drawn in OUT/NAME.html. Client and server share the machine.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run_aiperf import aiperf
from server import BareServer, Server, write_null_model
from survival import survival
from tables import figures, table

ROOT = Path(__file__).resolve().parents[3]
SLOTS = 64
MEDIAN, SIGMA, LONGEST = 64, 0.8, 512  # log-normal lengths of outputs
LENGTHS = f"lognormal:{MEDIAN}:{SIGMA}:{LONGEST}"
LIMITS = ("--goodput", "ttft:200", "tpot:15")
SHARES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)  # relative to the closed loop's requests a second


def draw_lengths(count, chance=random.Random(1)):
  return [min(LONGEST, max(1, round(chance.lognormvariate(math.log(MEDIAN), SIGMA)))) for _ in range(count)]


class Bench:
  """Runs servers and loads for one benchmark and keeps what was measured."""

  def __init__(self, name, options):
    self.name, self.options = name, options
    self.runs = []
    self.seeds = itertools.count(1)

  def server(self, **settings):
    return Server(self.options.bin, **{"model": self.options.model, "slots": SLOTS} | settings)

  def start_load(self, address, *arguments, stderr=None):
    """No other load has the same prompts, so none is in the prefix cache."""
    command = [self.options.bin / "aftload", "--json", f"--address={address}", f"--seed={next(self.seeds)}",
               *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)

  def finish_load(self, process):
    """Its runs. A run whose requests failed says so itself; what printed nothing is an error here."""
    runs = [json.loads(line) for line in process.communicate()[0].splitlines()]
    if not runs:
      sys.exit(f"serving.py: aftload ended with exit code {process.returncode}")
    self.runs += runs
    return runs

  def load(self, address, *arguments):
    return self.finish_load(self.start_load(address, *arguments))

  def warm(self, server, streams=8):
    warmed = len(self.runs)
    self.load(server.address, "--streams", streams, "--requests", 4 * streams)
    del self.runs[warmed:]

  def open_loop(self, server, *rates, tokens=LENGTHS, more=()):
    return self.load(server.address, "--rate", ",".join(f"{rate:.4g}" for rate in rates), "--duration",
                     self.options.seconds, "--connections", 4, "--max-tokens", tokens, *LIMITS, *more)

  def peak(self, server, tokens=None):
    """Requests a second that keep all slots busy, the most there can be: LENGTHS, or `tokens` each."""
    self.warm(server, SLOTS)
    [run] = self.load(server.address, "--streams", SLOTS, "--connections", 4, "--max-tokens", tokens or LENGTHS,
                      "--duration", self.options.seconds, "--warmup", SLOTS)
    # Computed from tokens, because requests that are cut off at the end have used the slots too.
    rate = run["output_throughput"] / (tokens or statistics.mean(draw_lengths(100_000)))
    print(f"closed loop, {SLOTS} streams: {run['output_throughput']:.0f} tokens/s, {rate:.3g} requests/s")
    return rate

  def keep(self):
    out = self.options.out
    out.mkdir(parents=True, exist_ok=True)
    lines = out / f"{self.name}.jsonl"
    lines.write_text("".join(json.dumps(run) + "\n" for run in self.runs))
    if self.options.client != "aftload":
      return
    page = subprocess.run([sys.executable, "-B", ROOT / "tools/load_report.py", lines],
                          capture_output=True, text=True, check=False)
    if page.returncode == 0:
      (out / f"{self.name}.html").write_text(page.stdout)
      print(f"drawn in {out / self.name}.html")
    else:
      print(page.stderr.strip())


def streams(bench):
  rows = []
  with bench.server() as server:
    print(f"start to ready: {1000 * server.start_seconds:.0f} ms, resident {server.resident_mb():.0f} MB")
    bench.warm(server)
    for count in (1, 8, 64):
      runs = [run for _ in range(5) for run in bench.load(
          server.address, "--streams", count, "--requests", 4 * count, "--max-tokens", 512, "--warmup", count)]
      rows.append([count] + [statistics.median(run[name] for run in runs)
                             for name in ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms",
                                          "p99_itl_ms")])
    print(f"resident after: {server.resident_mb():.0f} MB")
  table(("streams", "tokens/s", "TTFT p50", "p99, ms", "ITL p50", "p99, ms"), rows)


def rpc(bench):
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    write_null_model(Path(folder))
    with bench.server(model=folder, slots=512) as server, BareServer(bench.options.bin) as bare:
      bench.warm(server)
      bench.warm(bare)
      for count in (1, 8, 64, 512):
        load = ("--streams", count, "--connections", -(-count // 64), "--max-tokens", 512, "--prompt-bytes", 8,
                "--duration", bench.options.seconds)
        [beside] = bench.load(bare.address, *load)
        before = server.cpu_seconds()
        [run] = bench.load(server.address, *load)
        tokens = run["total_output_tokens"]
        rows.append([count, run["output_throughput"], run["output_throughput"] / beside["output_throughput"],
                     run["output_throughput"] / run["tokens_per_message"],
                     1e6 * (server.cpu_seconds() - before) / tokens, 1e6 * run["client_cpu_seconds"] / tokens,
                     run["p99_itl_ms"]])
  table(("streams", "tokens/s", "of bare", "messages/s", "server us/token", "client us/token", "ITL p99, ms"), rows)


def http(bench):
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    write_null_model(Path(folder))
    for name, settings in (("null", {"model": folder}), (bench.options.model.name, {"weight_format": "int8"})):
      with bench.server(slots=512, **settings) as server:
        bench.warm(server)
        for count in (1, 8, 64, 512):
          load = ("--streams", count, "--max-tokens", 256, "--prompt-bytes", 8)
          sides = {"gRPC": (server.address, "--connections", -(-count // 64)), "HTTP": (server.http, "--http")}
          [run] = bench.load(*sides["gRPC"], *load, "--requests", 4 * count)
          # Only whole requests, because HTTP does not say how many tokens of a cut request arrived.
          requests = max(2 * count, round(bench.options.seconds / 5 * run["request_throughput"]))
          runs = {side: [] for side in sides}
          for turn in range(5):
            for side in sorted(sides, reverse=turn % 2 == 1):
              before = server.cpu_seconds(), server.sum("aft_generated_tokens_total")
              [run] = bench.load(*sides[side], *load, "--requests", requests, "--warmup", count)
              run["server_us"] = (1e6 * (server.cpu_seconds() - before[0]) /
                                  (server.sum("aft_generated_tokens_total") - before[1]))
              run["client_us"] = 1e6 * run["client_cpu_seconds"] / run["total_output_tokens"]
              runs[side].append(run)
          rows.append([name, count])
          for figure in ("output_throughput", "server_us", "client_us", "median_ttft_ms"):
            values = {side: [run[figure] for run in runs[side]] for side in sides}
            rows[-1] += [*(statistics.median(values[side]) for side in ("gRPC", "HTTP")),
                         statistics.median(over / under for over, under in zip(values["HTTP"], values["gRPC"]))]
  table(("model", "streams", "tokens/s gRPC", "HTTP", "ratio", "server us/token gRPC", "HTTP", "ratio",
         "client us/token gRPC", "HTTP", "ratio", "TTFT p50 gRPC", "HTTP, ms", "ratio"), rows)


def batching(bench):
  batch, rounds = 16, 8
  rows = []

  def add(name, runs, tokens_per_second):
    rows.append([name, tokens_per_second, max(run["p99_tpot_ms"] for run in runs)])

  lengths = ("--max-tokens", LENGTHS)
  with bench.server(slots=1) as server:
    bench.warm(server, 1)
    [run] = bench.load(server.address, "--streams", 1, "--requests", 2 * batch, *lengths)
    add("one by one", [run], run["output_throughput"])
  with bench.server(slots=batch) as server:
    bench.warm(server, batch)
    # A batch is over when its longest request is.
    runs = [bench.load(server.address, "--streams", batch, "--requests", batch, *lengths)[0] for _ in range(rounds)]
    add("static batches", runs, sum(run["total_output_tokens"] for run in runs) / sum(run["duration"] for run in runs))
    [run] = bench.load(server.address, "--streams", batch, "--requests", rounds * batch, *lengths)
    add("continuous", [run], run["output_throughput"])
  table((f"{batch} at once", "tokens/s", "TPOT p99, ms", "of static"),
        [[*row, row[1] / rows[1][1]] for row in rows])
  draws = [draw_lengths(batch) for _ in range(2000)]
  ideal = statistics.mean(map(max, draws)) / statistics.mean(map(statistics.mean, draws))
  print(f"longest over mean length of a batch, where steps cost the same however full: {ideal:.2f}")


def capacity(bench):
  with bench.server() as server:
    peak = bench.peak(server)
    bench.runs.clear()  # a sweep has only open loops
    runs = bench.open_loop(server, *(share * peak for share in SHARES))
  table(("offered/s", "done/s", "good/s", "good", "TTFT p99", "TPOT p99", "ITL p99, ms"),
        [figures(run, "request_rate", "request_throughput", "request_goodput", "goodput_ratio", "p99_ttft_ms",
                 "p99_tpot_ms", "p99_itl_ms") for run in runs])


def interference(bench):
  rows = []
  for chunk in (SLOTS + 1, 256, 1024):
    with bench.server(max_step_tokens=chunk) as server:
      rate = bench.peak(server) / 2
      [alone] = bench.open_loop(server, rate)
      # Burstiness 1000: arrivals are practically regular.
      long = bench.start_load(server.address, "--rate", 0.2, "--burstiness", 1000, "--duration",
                              bench.options.seconds, "--prompt-bytes", 32_768, "--max-tokens", 1)
      [beside] = bench.open_loop(server, rate)
      [prompts] = bench.finish_load(long)
    rows.append([chunk, alone["p99_itl_ms"], beside["p99_itl_ms"], alone["p99_ttft_ms"], beside["p99_ttft_ms"],
                 prompts["median_ttft_ms"]])
  table(("max_step_tokens", "ITL p99 alone", "with prompts, ms", "TTFT p99 alone", "with prompts, ms", "prompt's TTFT p50, ms"),
        rows)


def overload(bench):
  rows = []
  with bench.server(limits="max_queued_requests: 128") as server:
    peak = bench.peak(server)
    for share in (0.5, 2, 0.5, 5, 0.5, 10, 0.5):
      [run] = bench.open_loop(server, share * peak, more=("--attempts", 1))
      rows.append([f"{share:g} x", *figures(run, "completed", "refused"),
                   ", ".join(f"{count} {code}" for code, count in run["errors"].items()) or "none",
                   *figures(run, "median_refusal_ms", "p99_refusal_ms", "p99_ttft_ms", "p99_tpot_ms")])
  table(("offered", "completed", "refused", "errors", "refusal p50", "p99, ms", "TTFT p99, ms", "TPOT p99, ms"), rows)
  print("0.5 x after each: whether it recovers at once")


def context(bench):
  with bench.server() as server:
    bench.warm(server)
    before = server.resident_mb()
    [run] = bench.load(server.address, "--requests", 1, "--max-tokens", 100_000)
    print(f"{run['output_throughput']:.0f} tokens/s; a token takes {run['early_ms_per_token']:.4f} ms in the first "
          f"tenth, {run['late_ms_per_token']:.4f} ms in the last: "
          f"{run['late_ms_per_token'] / run['early_ms_per_token']:.3f} times")
    print(f"resident: {before:.1f} MB before, {server.resident_mb():.1f} MB after")


def clients(bench):
  rows = []
  tokens = 4096  # more than fits between a server and a client that does not read
  with bench.server() as server:
    rate = bench.peak(server, tokens) / 2
    for name, more in (("alone", ()), ("with them", ("--slow-share", 0.1, "--slow-ms", 3_600_000,
                                                     "--cancel-share", 0.1))):
      [run] = bench.open_loop(server, rate, tokens=tokens, more=more)
      stalled = run["others"]["slow"]
      rows.append([name, *figures(run, "completed", "failed", "p99_ttft_ms", "p99_itl_ms", "p99_tpot_ms"),
                   stalled["failed"] + stalled["cut"], server.resident_mb()])
    server.wait_until("aft_slots_used", 0)
    table(("", "completed", "failed", "TTFT p99", "ITL p99", "TPOT p99, ms", "stalled", "resident, MB"), rows)
    print("slots in use when all have left: 0")


def rollout(bench):
  servers = [bench.server() for _ in range(3)]
  try:
    for server in servers:
      server.start()
    address = "ipv4:" + ",".join(server.address for server in servers)
    process = bench.start_load(address, "--streams", 24, "--max-tokens", LENGTHS, "--duration",
                               bench.options.seconds + 60, "--requests", 1_000_000)
    for server in servers:
      time.sleep(bench.options.seconds / 4)
      server.stop()
      server.start()  # on the same port
    time.sleep(bench.options.seconds / 4)
    process.terminate()  # it reports the results so far
    [run] = bench.finish_load(process)
  finally:
    for server in servers:
      server.stop()
  table(("completed", "failed", "refused", "sent again", "TTFT p99", "E2E p99, ms"),
        [figures(run, "completed", "failed", "refused", "retried", "p99_ttft_ms", "p99_e2el_ms")])


def checkpoints(bench):
  rounds, outputs, rows = 7, 2048, []
  servers = {tokens: bench.server(states=f"checkpoint_tokens: {tokens}") for tokens in (0, 256, 64)}
  try:
    for server in servers.values():
      server.start()
      bench.warm(server)
    for streams in (1, SLOTS):
      steps = {tokens: [] for tokens in servers}
      kept, spent = dict.fromkeys(servers, 0), dict.fromkeys(servers, 0)
      for _ in range(rounds):  # in turn, so that other work on the machine affects all of them equally
        for tokens, server in servers.items():
          before = [server.sum(f"aft_step_seconds_{part}") for part in ("sum", "count")] + [
              server.sum("aft_checkpoints_total")]
          cpu = server.cpu_seconds()
          bench.load(server.address, "--resume", "--streams", streams, "--requests", streams, "--max-tokens", outputs,
                     "--connections", 4)
          spent[tokens] += server.cpu_seconds() - cpu
          seconds, count, taken = (server.sum(name) - value for name, value in zip(
              ("aft_step_seconds_sum", "aft_step_seconds_count", "aft_checkpoints_total"), before))
          steps[tokens].append(1000 * seconds / count)
          kept[tokens] += taken
      for tokens, times in steps.items():
        more = statistics.median(time / off - 1 for time, off in zip(times, steps[0]))
        rows.append([streams, tokens, statistics.median(times), 100 * more,
                     1e6 * spent[tokens] / (rounds * streams * outputs), kept[tokens] / rounds / streams])
  finally:
    for server in servers.values():
      server.stop()
  table(("streams", "checkpoint_tokens", "step, ms", "more than without, %", "CPU, us a token",
         "taken or skipped, a stream"), rows)


def soak(bench):
  samples = []
  with bench.server() as server:
    rate = bench.peak(server) / 2
    process = bench.start_load(server.address, "--rate", f"{rate:.4g}", "--duration", bench.options.seconds,
                               "--connections", 4, "--max-tokens", LENGTHS, "--prompt-bytes", "lognormal:200:1",
                               "--slow-share", 0.05, "--slow-ms", 1000, "--cancel-share", 0.05,
                               "--deadline-share", 0.05, "--deadline-ms", 2000, *LIMITS)
    start = time.monotonic()
    while process.poll() is None:
      samples.append((time.monotonic() - start, server.resident_mb(), server.files(), server.threads()))
      time.sleep(1)
    [run] = bench.finish_load(process)
  late = samples[len(samples) // 2:]  # without the growth that follows every start
  hours = [sample[0] / 3600 for sample in late]
  table(("", "last", "a hour"),
        [[name, late[-1][i], statistics.linear_regression(hours, [sample[i] for sample in late]).slope]
         for i, name in ((1, "resident, MB"), (2, "open files"), (3, "threads"))])
  table(("completed", "failed", "good", "TTFT p99", "TPOT p99, ms"),
        [figures(run, "completed", "failed", "goodput_ratio", "p99_ttft_ms", "p99_tpot_ms")])


BENCHES = {function.__name__: function for function in (
    streams, rpc, http, batching, capacity, interference, overload, context, clients, rollout, survival,
    checkpoints, soak, aiperf)}


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="+", choices=BENCHES, metavar="NAME")
  parser.add_argument("--bin", type=Path, default=ROOT / "build/default/bin")
  parser.add_argument("--seconds", type=int, default=20, help="duration of each run; 600 for figures to publish")
  parser.add_argument("--model", type=Path, default=ROOT / "model/zoo/austen-aft-local")
  parser.add_argument("--out", type=Path, default=ROOT / "build/bench")
  parser.add_argument("--streams", type=int, default=200, help="only for survival")
  parser.add_argument("--client", choices=["aftload", "python"], default="aftload", help="only for survival")
  parser.add_argument("--shared", action="append", help="only for survival: the case to run; repeatable")
  options = parser.parse_args()
  for name in options.names:
    print(f"--- {name}")
    bench = Bench(name, options)
    BENCHES[name](bench)
    bench.keep()


if __name__ == "__main__":
  main()
