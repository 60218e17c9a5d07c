#!/usr/bin/env python3
"""Measures how one client slows down another: TTFT and inter-token times of one stream, alone and next to the load of
another client, which has another address.

  fairness.py BIN (--rows|--prompts) [--seconds N] [--rounds N]    BIN: the folder of aft-server and aftload

--rows: next to 1, 10 and 100 endless generations.
--prompts: next to prompts of 64 KiB that the other client sends back to back, one and four at a time.

The server has its defaults except for 128 slots. Servers whose clients share steps (itl_target_ms: 0) and servers whose
clients do not (60000, printed as "before") are measured in turn; medians of all rounds. CPU is the time of the engine's
thread, and of the whole server, for each step; the one stream has a row in every step. While builds run on the machine,
use: chrt -f 1 fairness.py BIN --rows.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import aft_server  # noqa: E402

# The options of the other client's load, by its number of streams.
ROWS = {streams: ("--max-tokens", 1_000_000) for streams in (1, 10, 100)}
PROMPTS = {streams: ("--max-tokens", 1, "--prompt-bytes", 1 << 16) for streams in (1, 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    beside = parser.add_mutually_exclusive_group(required=True)
    beside.add_argument("--rows", dest="beside", action="store_const", const=ROWS)
    beside.add_argument("--prompts", dest="beside", action="store_const", const=PROMPTS)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(options, pathlib.Path(name))


class Server(aft_server.ServerProcess):
    """`with Server(...) as server`; its files are in `folder`."""

    def __init__(self, options, folder, config, listen):
        self.bin = options.bin
        path = folder / "config"
        path.write_text(f'log {{ level: "info" }}\n{config}')
        super().__init__(folder, "server", options.bin / "aft-server", path, listen)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def load(self, *arguments, address):
        return subprocess.Popen([self.bin / "aftload", "--address", address, "--json", *map(str, arguments)],
                                stdout=subprocess.PIPE, text=True)

    def cpu_seconds(self, thread=""):
        """The CPU time of the threads whose names begin with `thread`."""
        ticks = 0
        for stat in pathlib.Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # a thread that has ended
                name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
                if name.startswith(thread):
                    ticks += sum(map(int, fields.split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def counters(self):
        return [time.monotonic(), self.cpu_seconds("aft-engine"), self.cpu_seconds(),
                *map(self.metric, ("aft_generated_tokens_total", "aft_prompt_tokens_total", "aft_step_rows_count"))]


def report_of(load):
    return json.loads(load.communicate()[0])


def run_beside(server, streams, other_load, seconds, seeds):
    """`seeds`: each load takes the next one, so that no prompt is in the prefix cache already."""
    port = server.address.rsplit(":", 1)[1]
    one, two = f"127.0.0.1:{port}", f"[::1]:{port}"
    other = None
    if streams > 0:
        other = server.load("--streams", streams, *other_load, "--seed", next(seeds), "--duration", seconds + 60,
                            address=two)
        while server.metric("aft_requests_running") < streams:
            assert other.poll() is None
            time.sleep(0.05)
    load = ("--max-tokens", 1000, "--seed")
    # After this, the server knows the cost of a step.
    server.load(*load, next(seeds), "--duration", 1, address=one).wait()
    start = server.counters()
    report = report_of(server.load(*load, next(seeds), "--duration", seconds, address=one))
    wall, engine, cpu, generated, prompts, steps = (b - a for a, b in zip(start, server.counters()))
    if other is not None:
        other.terminate()
        other.communicate()
        while server.metric("aft_requests_running") > 0:
            time.sleep(0.05)
    tokens = generated + prompts
    return {
        "ITL p50": report["median_itl_ms"],
        "ITL p99": report["p99_itl_ms"],
        "TTFT p50": report["median_ttft_ms"],
        "TTFT p99": report["p99_ttft_ms"],
        "engine": 1000 * engine / steps,
        "server": 1000 * cpu / steps,
        "tokens a step": tokens / steps,
        "generated/s": generated / wall,
        "tokens/s": tokens / wall,
        "tokens/engine s": tokens / engine,
        "tokens/CPU s": tokens / cpu,
    }


def measure(options, folder):
    config = f'models {{ path: "{ROOT}/model/zoo/austen-aft-local" slots: 128 weight_format: "int8" }}\n'
    loads = {0: (), **options.beside}
    runs = {}
    with contextlib.ExitStack() as stack:
        servers = {}
        for what, target in (("shared", 0), ("before", 60000)):
            (folder / what).mkdir()
            servers[what] = stack.enter_context(Server(
                options, folder / what, f"{config}scheduling {{ itl_target_ms: {target} }}\n", "[::]"))
        seeds = itertools.count(1)
        for _ in range(options.rounds):
            for streams, load in loads.items():
                for what, server in servers.items():
                    run = run_beside(server, streams, load, options.seconds, seeds)
                    runs.setdefault((streams, what), []).append(run)
    rates = ("tokens/s", "tokens/engine s", "tokens/CPU s")
    print(f"load {os.getloadavg()[0]:.1f}; ms; engine, server: CPU for each step; in brackets: times that alone")
    medians = {key: {name: statistics.median(run[name] for run in runs[key]) for name in runs[key][0]} for key in runs}
    for streams in loads:
        for what in servers:
            row, alone = medians[streams, what], medians[0, what]
            cells = [f"{name} {row[name]:.3g} ({row[name] / alone[name]:.3g})"
                     for name in ("engine", "server", "ITL p50", "ITL p99", "TTFT p50", "TTFT p99")]
            print(f"next to {streams:3} {what:6}  {'  '.join(cells)}  "
                  + "  ".join(f"{name} {row[name]:.3g}" for name in ("tokens a step", "generated/s", *rates)))
        after, before = ({name: [run[name] for run in runs[streams, what]] for name in rates}
                         for what in ("shared", "before"))
        print(f"next to {streams:3} shared / before: " + ", ".join(
            f"{name} {statistics.median(a / b for a, b in zip(after[name], before[name])):.2f}" for name in after))


if __name__ == "__main__":
    main()
