#!/usr/bin/env python3
"""What one client feels of another: TTFT and inter-token times of one stream, alone, beside prompts of
1 MiB and beside 64 endless generations of another client.

  fairness.py BIN [--anonymous] [--step-tokens N]    BIN: the folder of aft-server and aftload
  fairness.py BIN --rows [--seconds N] [--rounds N]

--anonymous: no tokens, so that both are one client; for servers that know none.
--rows: one stream alone and beside 1, 10 and 100 endless generations of another client, which is another
address, by a server with its defaults but for 128 slots. It is measured where streams take turns (itl_target_ms: 0)
and, as "before", where every stream is in every step (60000), in turn; medians of all rounds. CPU is that of the
engine's thread, and of the whole server, for each step: the one stream has a row in all of them. Beside builds:
chrt -f 1 fairness.py BIN --rows.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 12
BESIDE = (0, 1, 10, 100)  # streams of the other client


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--anonymous", action="store_true")
    parser.add_argument("--step-tokens", type=int, default=256)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (measure_rows if options.rows else measure)(options, pathlib.Path(name))


class Server:
    """`with Server(...) as server`; its files are in `folder`."""

    def __init__(self, options, folder, config):
        self.folder, self.bin = folder, options.bin
        (folder / "config").write_text('listen_address: "127.0.0.1:0" metrics_address: "127.0.0.1:0" '
                                       f'log {{ level: "info" }}\n{config}')

    def __enter__(self):
        ready = self.folder / "ready"
        with (self.folder / "log").open("w") as stderr:
            self.process = subprocess.Popen(
                [self.bin / "aft-server", f"--config={self.folder / 'config'}", f"--ready_file={ready}"],
                stderr=stderr)
        while not ready.exists():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.01)
        self.address, self.metrics_address = ready.read_text().split()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def load(self, *arguments, address=None, client=None):
        token = [] if client is None else ["--token-file", self.folder / client]
        return subprocess.Popen(
            [self.bin / "aftload", "--address", address or self.address, "--json", *token, *map(str, arguments)],
            stdout=subprocess.PIPE, text=True)

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics") as page:
            return sum(float(value) for value in re.findall(rf"^{name}{{.*}} (.*)$", page.read().decode(), re.M))

    def cpu_seconds(self, thread=""):
        """Of its threads whose names begin so."""
        ticks = 0
        for stat in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # a thread that has ended
                name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
                if name.startswith(thread):
                    ticks += sum(map(int, fields.split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def counters(self):
        return [time.monotonic(), self.cpu_seconds("aft-engine"), self.cpu_seconds(),
                *map(self.metric, ("aft_generated_tokens_total", "aft_step_rows_count"))]


def report_of(load):
    return json.loads(load.communicate()[0])


# ---- Prompts and streams --------------------------------------------------------------------------
def clients_config(options, folder):
    config = f'models {{ path: "{ROOT}/model/zoo/austen-aft-local" max_step_tokens: {options.step_tokens} }}\n'
    if options.anonymous:
        return config
    clients = ""
    for client in ("light", "heavy"):
        token = client * 8
        (folder / client).write_text(token)
        clients += f'clients {{ name: "{client}" token_sha256: "{hashlib.sha256(token.encode()).hexdigest()}" }}\n'
    (folder / "clients").write_text(clients)
    return config + 'security { clients_file: "clients" }\n'


def measure(options, folder):
    others = {
        "alone": None,
        "beside prompts of 1 MiB": ("--prompt-bytes", 1 << 20, "--max-tokens", 1),
        "beside 64 endless generations": ("--streams", 64, "--max-tokens", 1_000_000),
    }
    light, heavy = (None, None) if options.anonymous else ("light", "heavy")
    with Server(options, folder, clients_config(options, folder)) as server:
        for what, arguments in others.items():
            other = server.load(*arguments, "--duration", SECONDS + 3, client=heavy) if arguments else None
            if other is not None:  # it is under way
                server.load("--requests", 1, "--max-tokens", 1, "--duration", 1, client=heavy).wait()
            report = report_of(server.load("--max-tokens", 200, "--duration", SECONDS, client=light))
            for name in ("ttft", "itl"):
                p50, p99 = report[f"median_{name}_ms"], report[f"p99_{name}_ms"]
                print(f"{what:30} {name:4} {report['count_' + name]:6} p50 {p50:9.2f} p99 {p99:9.2f} ms")
            if other is not None:
                other.communicate()


# ---- Rows -----------------------------------------------------------------------------------------
def relay(address, source):
    """Passes connections on to `address`, from another address of this machine. Returns its own one."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = address.rsplit(":", 1)

    def copy(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def accept():
        while True:
            one = listener.accept()[0]
            other = socket.create_connection((host, int(port)), source_address=(source, 0))
            for end in (one, other):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=copy, args=(one, other), daemon=True).start()
            threading.Thread(target=copy, args=(other, one), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def run_rows(server, other_address, streams, seconds):
    other = None
    if streams > 0:
        other = server.load("--streams", streams, "--max-tokens", 1_000_000, "--duration", seconds + 60,
                            address=other_address)
        while server.metric("aft_requests_running") < streams:
            time.sleep(0.05)
    load = ("--max-tokens", 1000, "--duration")
    server.load(*load, 1).wait()  # what a step costs is known
    start = server.counters()
    report = report_of(server.load(*load, seconds))
    wall, engine, cpu, tokens, steps = (b - a for a, b in zip(start, server.counters()))
    if other is not None:
        other.terminate()
        other.communicate()
        while server.metric("aft_requests_running") > 0:
            time.sleep(0.05)
    return {
        "ITL p50": report["median_itl_ms"],
        "ITL p99": report["p99_itl_ms"],
        "TTFT p50": report["median_ttft_ms"],
        "TTFT p99": report["p99_ttft_ms"],
        "engine": 1000 * engine / steps,
        "server": 1000 * cpu / steps,
        "rows": tokens / steps,
        "tokens/s": tokens / wall,
        "tokens/engine s": tokens / engine,
        "tokens/CPU s": tokens / cpu,
    }


def measure_rows(options, folder):
    config = f'models {{ path: "{ROOT}/model/zoo/austen-aft-local" slots: 128 weight_format: "int8" }}\n'
    runs = {}
    with contextlib.ExitStack() as stack:
        servers = {}
        for what, target in (("turns", 0), ("before", 60000)):
            (folder / what).mkdir()
            server = stack.enter_context(
                Server(options, folder / what, f"{config}scheduling {{ itl_target_ms: {target} }}\n"))
            servers[what] = server, relay(server.address, "127.0.0.2")
        for _ in range(options.rounds):
            for streams in BESIDE:
                for what, (server, other_address) in servers.items():
                    run = run_rows(server, other_address, streams, options.seconds)
                    runs.setdefault((streams, what), []).append(run)
    rates = ("tokens/s", "tokens/engine s", "tokens/CPU s")
    print(f"load {os.getloadavg()[0]:.1f}; ms; engine, server: CPU for each step; in brackets: times that alone")
    medians = {key: {name: statistics.median(run[name] for run in runs[key]) for name in runs[key][0]} for key in runs}
    for streams in BESIDE:
        for what in servers:
            row, alone = medians[streams, what], medians[0, what]
            cells = [f"{name} {row[name]:.3g} ({row[name] / alone[name]:.3g})"
                     for name in ("engine", "server", "ITL p50", "ITL p99", "TTFT p50", "TTFT p99")]
            print(f"beside {streams:3} {what:6}  {'  '.join(cells)}  "
                  + "  ".join(f"{name} {row[name]:.3g}" for name in ("rows", *rates)))
        after, before = ({name: [run[name] for run in runs[streams, what]] for name in rates}
                         for what in ("turns", "before"))
        print(f"beside {streams:3} turns / before: " + ", ".join(
            f"{name} {statistics.median(a / b for a, b in zip(after[name], before[name])):.2f}" for name in after))


if __name__ == "__main__":
    main()
