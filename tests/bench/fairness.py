#!/usr/bin/env python3
"""What one client feels of another: TTFT and inter-token times of one stream, alone, beside prompts of
1 MiB and beside 64 endless generations of another client.

  fairness.py BIN [--anonymous] [--step-tokens N]    BIN: the folder of aft-server and aftload

--anonymous: no tokens, so that both are one client; for servers that know none.
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 12


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--anonymous", action="store_true")
    parser.add_argument("--step-tokens", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(options, pathlib.Path(name))


def write_config(options, folder):
    config = (f'listen_address: "127.0.0.1:0" metrics_address: "" log {{ level: "info" }}\n'
              f'models {{ path: "{ROOT}/model/zoo/austen-aft-local" max_step_tokens: {options.step_tokens} }}\n')
    if not options.anonymous:
        clients = ""
        for client in ("light", "heavy"):
            token = client * 8
            (folder / client).write_text(token)
            clients += f'clients {{ name: "{client}" token_sha256: "{hashlib.sha256(token.encode()).hexdigest()}" }}\n'
        (folder / "clients").write_text(clients)
        config += 'security { clients_file: "clients" }\n'
    (folder / "config").write_text(config)


def measure(options, folder):
    write_config(options, folder)
    log = folder / "log"
    with log.open("w") as stderr:
        server = subprocess.Popen([options.bin / "aft-server", f"--config={folder / 'config'}"], stderr=stderr)
    try:
        address = None
        while address is None or "event=server.ready" not in log.read_text():
            assert server.poll() is None, log.read_text()
            address = re.search(r'event=server.listening .*address="?([^" ]+)', log.read_text())

        def load(client, *arguments):
            token = [] if options.anonymous else ["--token-file", folder / client]
            return subprocess.Popen(
                [options.bin / "aftload", "--address", address.group(1), "--json", *token, *map(str, arguments)],
                stdout=subprocess.PIPE, text=True)

        others = {
            "alone": None,
            "beside prompts of 1 MiB": ("--prompt-bytes", 1 << 20, "--max-tokens", 1),
            "beside 64 endless generations": ("--streams", 64, "--max-tokens", 1_000_000),
        }
        for what, arguments in others.items():
            other = load("heavy", *arguments, "--duration", SECONDS + 3) if arguments else None
            if other is not None:  # it is under way
                load("heavy", "--requests", 1, "--max-tokens", 1, "--duration", 1).wait()
            light = load("light", "--max-tokens", 200, "--duration", SECONDS)
            report = json.loads(light.communicate()[0])
            for name in ("ttft", "itl"):
                p50, p99 = report[f"median_{name}_ms"], report[f"p99_{name}_ms"]
                print(f"{what:30} {name:4} {report['count_' + name]:6} p50 {p50:9.2f} p99 {p99:9.2f} ms")
            if other is not None:
                other.communicate()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
