"""NVIDIA's aiperf, unmodified, against the HTTP API. AFT_AIPERF names the folder that ./dev fetches it into."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tables import table

PROMPT, OUTPUT = 100, 512  # tokens, which are bytes
# Seconds and attempts until aiperf gives up because its own processes are slow to start and to answer.
PATIENCE = {
    **{f"SERVICE_{name}": "1000" for name in ("REGISTRATION_TIMEOUT", "REGISTRATION_MAX_ATTEMPTS", "START_TIMEOUT",
                                              "PROFILE_START_TIMEOUT", "COMMAND_RESPONSE_TIMEOUT")},
    "SERVICE_HEARTBEAT_MISSED_THRESHOLD": "100", "TOKENIZER_PRELOAD_TIMEOUT": "1000"}


def write_tokenizer(folder):
  """A folder for --tokenizer: Hugging Face's files of a tokenizer whose tokens are bytes, as the shipped model's are."""
  # Byte-level tokenizers write a byte that is no printable character of Latin-1 as one of those after U+00FF.
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [byte for byte in range(256) if byte not in printable]
  letters = {chr(byte if byte in printable else 256 + others.index(byte)): byte for byte in range(256)}
  level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "tokenizer.json").write_text(json.dumps({
      "version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
      "model": {"type": "BPE", "vocab": letters, "merges": []}}))
  zero = next(letter for letter, byte in letters.items() if byte == 0)
  (folder / "tokenizer_config.json").write_text(json.dumps({
      "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": zero, "eos_token": zero}))


def profile(folder, address, model, endpoint, *arguments):
  """Runs `aiperf profile` with that endpoint type, which writes its files to `folder`. Returns the figures."""
  with tempfile.TemporaryDirectory() as scratch:
    write_tokenizer(Path(scratch) / "tokenizer")
    command = ["/usr/bin/python3", "-m", "aiperf", "profile", "--model", model, "--url", f"http://{address}",
               "--endpoint-type", endpoint, "--tokenizer", f"{scratch}/tokenizer", "--use-server-token-count", "--isl",
               PROMPT, "--artifact-dir", folder, "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", *arguments]
    # aiperf must not contact Hugging Face. HF_HUB_OFFLINE does not help, because it then accepts only names in a cache
    # and no folder. So HF_ENDPOINT is an address where no program listens. aiperf leaves its prompts in TMPDIR.
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["AFT_AIPERF"], "PYTHONNOUSERSITE": "1",
                   "HOME": scratch, "TMPDIR": scratch, "HF_ENDPOINT": "http://127.0.0.1:9", "no_proxy": "127.0.0.1",
                   **{f"AIPERF_{name}": value for name, value in PATIENCE.items()}}
    run = subprocess.run([str(part) for part in command], env=environment, stdin=subprocess.DEVNULL, check=False,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
  if run.returncode != 0:
    sys.exit(f"aiperf ended with exit code {run.returncode}:\n{run.stdout[-4000:]}")
  return json.loads((folder / "profile_export_aiperf.json").read_text())


def aiperf(bench):
  """The benchmark `aiperf` of serving.py."""
  rows = []
  model = Path(bench.options.model).resolve()
  with bench.server(weight_format="int8") as server:

    def measure(client, load, count, *more):
      before, cpu = server.sum("aft_generated_tokens_total"), server.cpu_seconds()
      run = load(count, *more)
      cpu = (server.cpu_seconds() - cpu) / (server.sum("aft_generated_tokens_total") - before)
      rows.append([count, client, *run, 1e6 * cpu])

    def grpc(count):
      [run] = bench.load(server.address, "--streams", count, "--prompt-bytes", PROMPT, "--max-tokens", OUTPUT,
                         "--duration", bench.options.seconds, "--warmup", count)
      # What aiperf calls the inter-token latency of a request is aftload's time per output token.
      return [run[name] for name in ("output_throughput", "median_ttft_ms", "median_tpot_ms")]

    def http(count, endpoint):
      folder = bench.options.out.resolve() / f"aiperf-{endpoint}-{count}"
      run = profile(folder, server.http, model.name, endpoint, "--streaming", "--osl", OUTPUT, "--extra-inputs",
                    "ignore_eos:true", "--concurrency", count, "--num-dataset-entries", 1000, "--benchmark-duration",
                    bench.options.seconds, "--warmup-request-count", count)
      if run["error_summary"]:
        sys.exit(f"aiperf had errors: {run['error_summary']}")
      return [run["output_token_throughput"]["avg"], run["time_to_first_token"]["p50"],
              run["inter_token_latency"]["p50"]]

    bench.warm(server)
    for count in (1, 8, 64):
      measure("gRPC, aftload", grpc, count)
      for endpoint in ("completions", "chat"):
        measure(f"HTTP {endpoint}, aiperf", http, count, endpoint)
  table(("streams", "client", "tokens/s", "TTFT p50, ms", "ITL p50, ms", "server's CPU, us/token"), rows)
