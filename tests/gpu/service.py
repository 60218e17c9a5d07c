#!/usr/bin/env python3
"""Compares what a client sees of a GPU and of the CPU: service.py BIN MODEL DEVICE OUT.json

One server has the checkpoint twice, as `cpu` and as `gpu` on DEVICE, both with the weights as stored. aftctl sends the
requests. Tokens must be equal where the server promises it, scores up to the rounding of fp32. The exit code is 1 when
a check failed.
"""

import concurrent.futures
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import aft_server

PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of "
PROMPTS = [PROMPT[i:] + PROMPT[:i] for i in range(64)]


class Server(aft_server.ServerProcess):

  def __init__(self, bin_folder, model, device, folder):
    self.aftctl, self.folder, self.model = bin_folder / "aftctl", folder, model
    (folder / "models").mkdir()
    config = folder / "server.textproto"
    config.write_text(f"""
http_address: "127.0.0.1:0"
models {{ name: "cpu" path: "{model}" device: "cpu" }}
models {{ name: "gpu" path: "{model}" device: "{device}" }}
repository {{ folder: "models" control: "anyone" settings {{ device: "{device}" }} }}
""")
    super().__init__(folder, "server", bin_folder / "aft-server", config)

  def ask(self, *arguments, text=""):
    done = subprocess.run([self.aftctl, arguments[0], f"--address={self.address}", *arguments[1:]],
                          input=text.encode(), capture_output=True)
    if done.returncode:
      raise AssertionError(f"{arguments}: {done.stderr.decode()[-500:]}")
    return done.stdout

  def events(self, command, model, prompt, *flags):
    lines = self.ask(command, f"--model={model}", "--json", *flags, text=prompt).splitlines()
    return [json.loads(line) for line in lines]

  def generate(self, model, prompt, *flags, tokens=64):
    """Returns (the token ids of each sequence, the Finished of each)."""
    ids, finished = {}, {}
    for event in self.events("generate", model, prompt, f"--max-tokens={tokens}", "--ignore-eos", *flags):
      sequence = event.get("sequence", 0)
      ids.setdefault(sequence, []).extend(event.get("delta", {}).get("token_ids", []))
      if "finished" in event:
        finished[sequence] = event["finished"]
    return [ids[i] for i in sorted(ids)], [finished[i] for i in sorted(finished)]

  def tokens(self, model, prompt, *flags, tokens=64):
    return self.generate(model, prompt, *flags, tokens=tokens)[0][0]

  def running(self):
    lines = self.ask("models", "--json").splitlines()
    loads = [json.loads(line).get("load", {}) for line in lines]
    return [(load.get("requests_running", 0), load.get("requests_waiting", 0)) for load in loads]


GREEDY = ["--temperature=0"]


def greedy_as_on_the_cpu(server):
  for prompt in PROMPTS[::8]:
    assert server.tokens("gpu", prompt, *GREEDY, tokens=512) == server.tokens("cpu", prompt, *GREEDY, tokens=512), prompt


def batched_as_alone(server):
  alone = [server.tokens("gpu", prompt, *GREEDY) for prompt in PROMPTS]
  with concurrent.futures.ThreadPoolExecutor(32) as pool:
    assert list(pool.map(lambda prompt: server.tokens("gpu", prompt, *GREEDY), PROMPTS)) == alone


def a_seed_repeats(server):
  for seed in range(8):
    flags = ["--temperature=0.8", "--top-p=0.9", f"--seed={seed}"]
    first = server.tokens("gpu", PROMPT, *flags, tokens=256)
    assert first == server.tokens("gpu", PROMPT, *flags, tokens=256), seed
    same = sum(a == b for a, b in zip(first, server.tokens("cpu", PROMPT, *flags, tokens=256)))
    print(f"  seed {seed}: {same} of 256 sampled tokens as on the CPU")


def sequences_are_their_seeds(server):
  ids, finished = server.generate("gpu", PROMPT, "--temperature=0.8", "--seed=5", "--n=8")
  assert len(ids) == len(finished) == 8
  for i in range(8):
    assert ids[i] == server.tokens("gpu", PROMPT, "--temperature=0.8", f"--seed={5 + i}"), i


def the_prefix_cache_changes_nothing(server):
  prompt = "Chapter 61. " + PROMPT * 4
  runs = [server.generate("gpu", prompt, *GREEDY) for _ in range(3)]  # the second one caches all but the last token
  assert [run[0] for run in runs] == [runs[0][0]] * 3
  assert [run[1][0]["usage"]["cached_tokens"] for run in runs] == [0, 0, len(prompt) - 1]


def turns_are_one_text(server):
  whole = server.tokens("gpu", PROMPT, *GREEDY, tokens=96)
  ids, finished = server.generate("gpu", PROMPT, *GREEDY, "--store", tokens=32)
  state = finished[0]["state"]["id"]
  assert ids[0] == whole[:32]
  rest = [server.tokens("gpu", "", *GREEDY, f"--previous={state}", tokens=64) for _ in range(2)]  # a fork
  assert rest == [whole[32:]] * 2
  exported = server.folder / "state"
  exported.write_bytes(server.ask("state", "export", state))
  server.ask("state", "delete", state)
  imported = json.loads(server.ask("state", "import", str(exported), "--model=gpu"))["id"]
  assert server.tokens("gpu", "", *GREEDY, f"--previous={imported}", tokens=64) == whole[32:]


def rules_hold(server):
  free = server.tokens("gpu", PROMPT, *GREEDY)
  banned = sorted(set(free))[:8]
  kept = server.tokens("gpu", PROMPT, *GREEDY, *[f"--ban-token={id}" for id in banned])
  assert not set(kept) & set(banned)
  allowed = [ord(letter) for letter in "abc "]
  flags = [*GREEDY, *[f"--allow-token={id}" for id in allowed]]
  for model in ("cpu", "gpu"):
    assert set(server.tokens(model, PROMPT, *flags)) <= set(allowed)
  assert server.tokens("gpu", PROMPT, *flags) == server.tokens("cpu", PROMPT, *flags)
  forced = server.tokens("gpu", PROMPT, "--temperature=1", "--seed=1", f"--logit-bias={ord('x')}:100")
  assert set(forced) == {ord("x")}, forced


def scores_as_on_the_cpu(server):
  text = PROMPT * 20
  cpu, gpu = (server.events("score", model, text)[-1]["finished"] for model in ("cpu", "gpu"))
  off = abs(cpu["logprob"] - gpu["logprob"]) / len(text)
  print(f"  log-probability of {len(text)} tokens: off by {off:.2e} a token")
  assert off < 1e-5


def embeddings_as_on_the_cpu(server):

  def vectors(model, pooling):
    events = server.events("encode", model, PROMPT, f"--pooling={pooling}")
    return [value for event in events for value in event.get("vectors", {}).get("values", [])]

  for pooling in ("none", "mean", "last"):
    cpu, gpu = vectors("cpu", pooling), vectors("gpu", pooling)
    off = max(abs(a - b) for a, b in zip(cpu, gpu, strict=True))
    print(f"  {pooling}: {len(cpu)} numbers, off by {off:.2e} at most")
    assert off < 1e-4


def http_as_grpc(server):
  body = {"model": "gpu", "prompt": PROMPT, "max_tokens": 256, "temperature": 0, "ignore_eos": True,
          "return_token_ids": True}
  request = urllib.request.Request(f"http://{server.http_address}/v1/completions", json.dumps(body).encode(),
                                   {"Content-Type": "application/json"})
  with urllib.request.urlopen(request, timeout=aft_server.PATIENCE) as answer:
    ids = json.load(answer)["choices"][0]["token_ids"]
  assert ids == server.tokens("gpu", PROMPT, *GREEDY, tokens=256)


def the_metrics_page_counts(server):
  counts = {model: server.metric(rf'aft_generated_tokens_total\{{.*model="{model}".*\}}') for model in ("cpu", "gpu")}
  print(f"  tokens by model: {counts}")
  assert counts["gpu"] > 1000 and counts["cpu"] > 1000


def swaps_fail_nothing(server):

  def load(version):
    shutil.copytree(server.model, server.folder / f"models/swapped/{version}")
    server.ask("repository", "load", "swapped")

  def stream(_):
    for _ in range(8):
      assert server.tokens("swapped", PROMPT, *GREEDY, tokens=512) == expected

  expected = server.tokens("gpu", PROMPT, *GREEDY, tokens=512)
  load(1)
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    streams = [pool.submit(stream, i) for i in range(8)]
    for version in range(2, 12):
      load(version)
    for future in streams:
      future.result()
  server.ask("repository", "unload", "swapped")


def nothing_is_left(server):
  assert set(server.running()) == {(0, 0)}, server.running()


CHECKS = [greedy_as_on_the_cpu, batched_as_alone, a_seed_repeats, sequences_are_their_seeds,
          the_prefix_cache_changes_nothing, turns_are_one_text, rules_hold, scores_as_on_the_cpu, embeddings_as_on_the_cpu,
          http_as_grpc, the_metrics_page_counts, swaps_fail_nothing, nothing_is_left]


def main(bin_folder, model, device, out):
  results = {}
  with tempfile.TemporaryDirectory() as folder:
    server = Server(Path(bin_folder), Path(model).resolve(), device, Path(folder))
    for check in CHECKS:
      start = time.monotonic()
      try:
        check(server)
        results[check.__name__] = "passed"
      except Exception as error:  # the other checks run after any error
        results[check.__name__] = f"{type(error).__name__}: {error}"[:600]
      print(f"gpu: {check.__name__}: {results[check.__name__]} ({time.monotonic() - start:.1f} s)", flush=True)
    code = server.stop()
    results["the server stops"] = "passed" if code == 0 else f"exit code {code}"
    if set(results.values()) != {"passed"}:
      print(server.log.read_text()[-3000:])
  Path(out).write_text(json.dumps(results, indent=1))
  return 0 if set(results.values()) == {"passed"} else 1


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
