"""The benchmark `survival` of serving.py: streams that continue while their servers are stopped."""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from server import Redis
from tables import figures, table

ROOT = Path(__file__).resolve().parents[3]
TOKENS = 2000


def start_edge(bench, folder, servers):
  """The shipped edge, and the client's flags for it."""
  sys.path.insert(0, str(ROOT / "tests/edge"))
  import edge  # pylint: disable=import-outside-toplevel; most need none
  front = edge.Edge(folder, [server.address for server in servers], bench.options.bin.parent / "share/aft-serve/aft.pb")
  return front, [f"--ca={front.certificates.authority}"]


def start_load(bench, address, flags, progress):
  """The client, which writes a line to `progress` when all requests were answered once and the load has begun."""
  streams = bench.options.streams
  numbers = ["--streams", streams, "--requests", 2 * streams, "--max-tokens", TOKENS]
  if bench.options.client == "python":
    package = str(bench.options.bin.parent / "tests/unit/client/python")
    begun = progress.fileno()  # Standard error has gRPC's own lines too.
    return subprocess.Popen([sys.executable, "-B", Path(__file__).parent / "python_load.py", address, *flags,
                             *map(str, numbers), f"--begun=/dev/fd/{begun}"], stdout=subprocess.PIPE, text=True,
                            pass_fds=[begun], env={**os.environ, "PYTHONPATH": package})
  return bench.start_load(address, *flags, *(["--tls"] if flags else []), *numbers, "--resume", "--verify", 2 * streams,
                          "--duration", 3600, "--progress", stderr=progress)


def run_load(bench, address, flags, cause):
  """The report of a load during which the cause happens once. Each stream is compared with a run of its own request
  that nothing disturbed."""
  with tempfile.TemporaryFile() as progress:
    process = start_load(bench, address, flags, progress)
    # The undisturbed runs come first. After them the client writes a line; a second later the cause happens.
    while process.poll() is None and os.fstat(progress.fileno()).st_size == 0:
      time.sleep(0.1)
    time.sleep(1)
    cause()
    [load] = bench.finish_load(process)
  return load


def parts_of_gaps(load, calls, attempts):
  """For each break its parts in ms, the longest first. `calls`: what the servers' logs say of (id, resumed tokens);
  `attempts`: the edge's, by id."""
  gaps = []
  for gap in load["breaks"]:
    call = calls.get((gap["request_id"], gap["tokens"]))
    if call is None:
      continue  # its server was killed too, and wrote no line
    queue = float(call["queue_ms"])
    gaps.append({"all": gap["gap_ms"], "noticing": gap["until_broken_ms"], "back-off": gap["until_sent_ms"],
                 "way": gap["until_started_ms"] - queue, "queue": queue, "reading": gap["until_token_ms"],
                 "tries": gap["tries"], "attempts of the edge": attempts.get(gap["request_id"], 0)})
  return gaps


def survival(bench):
  rows, gap_rows, longest = [], [], []

  def all_troubles(shared, states, more=(), behind_edge=False):
    if bench.options.shared and shared not in bench.options.shared:
      return
    front, flags, loads, stops = None, [], [], []
    # Three servers are restarted in turn. While the second restarts, the third has half of all streams and gets half of
    # the second one's half: 3/4 in all. With slots for these, no stream waits for one.
    servers = [bench.server(slots=3 * bench.options.streams // 4 + 10, states=states) for _ in range(3)]

    def kill():
      servers[0].kill()
      time.sleep(2)
      servers[0].start()

    def roll():
      for server in servers:
        start = time.monotonic()
        server.stop()
        stops.append(time.monotonic() - start)
        server.start()
        time.sleep(2)

    with tempfile.TemporaryDirectory() as folder:
      try:
        for server in servers:
          server.start()
        if behind_edge:
          front, flags = start_edge(bench, Path(folder), servers)
        address = front.address if front else "ipv4:" + ",".join(server.address for server in servers)
        for trouble, cause in (("none", lambda: None), ("kill -9 of one", kill), ("rolling restart", roll), *more):
          loads.append((trouble, run_load(bench, address, flags, cause), os.getloadavg()[0]))
      finally:
        for program in ([front] if front else []) + servers:
          program.stop()
      calls = {(call["id"], int(call["resumed_tokens"])): call for server in servers for call in server.calls()}
      attempts = {}
      for line in front.log.read_text().splitlines() if front else ():
        if line.startswith("{"):
          call = json.loads(line)
          attempts[call["request_id"]] = max(attempts.get(call["request_id"], 0), int(call["attempts"]))
    print(f"{shared}: a replica took {', '.join(f'{seconds:.1f}' for seconds in stops)} s to drain, 1 s of it a lame "
          "duck")
    for trouble, load, busy in loads:
      rows.append([shared, trouble, f"{busy:.1f}", *figures(
          load, "completed", "failed", "resumed_streams", "most_resumes", "inexact_streams", "lost_tokens",
          "repeated_tokens", "changed_tokens", "median_longest_gap_ms", "p99_longest_gap_ms", "max_longest_gap_ms")])
      gaps = parts_of_gaps(load, calls, attempts)
      if gaps:
        gap_rows.append([shared, trouble, len(gaps), *(
            f"{statistics.median(gap[part] for gap in gaps):.0f} / {max(gap[part] for gap in gaps):.0f}" for part in gaps[0])])
        longest.append([shared, trouble, 1, *(f"{value:.0f}" for value in gaps[0].values())])

  all_troubles("nothing", "")
  with tempfile.TemporaryDirectory() as folder:
    key = Path(folder) / "key"
    key.write_bytes(random.Random(1).randbytes(32))
    keys = f'key_files: "{key}"'
    edges = (False, True) if os.environ.get("AFT_ENVOY") else (False,)
    for behind_edge in edges:
      where = ", behind the edge" if behind_edge else ""
      if behind_edge:
        all_troubles("nothing" + where, "", behind_edge=True)
      all_troubles("keys" + where, keys, behind_edge=behind_edge)
      if shutil.which("redis-check-rdb"):
        with Redis() as redis:

          def restart():
            redis.stop()
            time.sleep(1)
            redis.start()

          all_troubles("Redis" + where, f'{keys} redis {{ address: "{redis.address}" }} checkpoint_tokens: 256',
                       [("Redis restarted", restart)], behind_edge)
  table(("shared", "trouble", "load", "completed", "failed", "continued", "most", "inexact", "lost", "repeated", "changed",
         "longest gap p50", "p99", "max, ms"), rows)
  heads = ("shared", "trouble", "breaks", "gap", "noticing", "back-off", "way", "queue", "reading", "tries", "edge's attempts")
  print("The gaps of breaks in parts, p50 / max, ms; way: connections, proxies, and places on a connection")
  table(heads, gap_rows)
  print("The longest gap of each")
  table(heads, longest)
