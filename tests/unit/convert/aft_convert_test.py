#!/usr/bin/env python3
"""Tests the program aft-convert: its command line, its output and the files that it writes.

  aft_convert_test.py PATH_OF_AFT_CONVERT
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GOLDENS = ROOT / "tests" / "parity" / "goldens"
PROGRAM = None


class AftConvertTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = Path(folder.name)
    self.out = self.folder / "out"

  def call(self, *args, code=0):
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, check=False)
    self.assertEqual(done.returncode, code, done.stderr)
    errors = re.sub(r"aft-convert: (reading|writing) [^\n]*\n", "", done.stderr)
    self.assertEqual(bool(errors), code != 0, errors)
    return errors if code else done.stdout

  def inspect(self):
    return json.loads(self.call("inspect", self.out, "--json"))

  def test_inspects_the_shipped_model(self):
    model = ROOT / "model" / "zoo" / "austen-aft-local"
    text = self.call("inspect", model)
    about = json.loads(self.call("inspect", model, "--json"))
    self.assertEqual(about["architecture"], "decoder_lm")
    self.assertEqual(about["mixer"]["kind"], "aft_local")
    self.assertEqual((about["weight_format"], about["weight_bytes"]), ("fp32", 4 * about["parameters"]))
    self.assertEqual(about["state_bytes_per_token"], 0)
    self.assertIsNone(about["max_seq_len"])
    self.assertEqual(about["tokenizer"], {"kind": "bytes", "vocab_size": 256, "eos_id": None})
    self.assertRegex(text, r"architecture +decoder_lm\n")
    self.assertRegex(text, r"length +unlimited\n")
    self.assertIn(f"state         {about['state_bytes_per_sequence']:,} bytes", text)
    self.assertIn(f"parameters    {about['parameters']:,}\n", text)

  def test_prints_the_resources_for_serving(self):
    model = ROOT / "model" / "zoo" / "austen-aft-local"
    about = json.loads(self.call("inspect", model, "--json", "--slots", 8, "--bandwidth", 40))
    sizes = about["sizing"]["formats"]
    self.assertEqual(list(sizes), ["fp32", "bf16", "int8"])
    counts = 8 * about["tokenizer"]["vocab_size"]  # for penalties
    states = 8 * (about["state_bytes_per_sequence"] + about["scratch_bytes_per_sequence"] + counts)
    for size in sizes.values():
      self.assertEqual(size["memory_bytes"], size["weight_bytes"] + size["workspace_bytes"] + states)
      self.assertEqual(list(size["tokens_per_second"]), ["1", "8"])
    text = self.call("inspect", model, "--slots", 8, "--bandwidth", 40)
    self.assertRegex(text, r"served as +fp32 +bf16 +int8\n")
    self.assertRegex(text, r"  memory .*MiB  of all, with 8 slots\n")
    self.assertRegex(text, r"  8 streams +[0-9,]+ +[0-9,]+ +[0-9,]+  tokens/s at most\n")
    self.assertNotIn("tokens/s", self.call("inspect", model))

  def test_the_resources_follow_the_flags(self):
    model = ROOT / "model" / "zoo" / "austen-aft-local"

    def sizing(*flags):
      about = json.loads(self.call("inspect", model, "--json", *flags))["sizing"]
      return about, about["formats"]["int8"]

    about, size = sizing("--bandwidth", 40)
    moved = size["step_bytes"] + about["state_traffic_per_token"]
    self.assertAlmostEqual(size["tokens_per_second"]["1"], 40e9 / moved, 1)
    about, size = sizing("--gflops", 1, "--context", 7, "--threads", 3, "--max-step-tokens", 100)
    self.assertAlmostEqual(size["tokens_per_second"]["1"], 1e9 / about["flops_per_token"], 1)
    self.assertEqual((about["context"], about["threads"], about["tokens_at_once"]), (7, 3, 100))
    self.assertEqual(sizing("--slots", 300)[0]["tokens_at_once"], 301)
    about, size = sizing("--slots", 8, "--bandwidth", 40)
    moved = size["step_bytes"] + 8 * about["state_traffic_per_token"]
    self.assertAlmostEqual(size["tokens_per_second"]["8"], 8 * 40e9 / moved, 1)
    about, size = sizing("--slots", 8, "--bandwidth", 40, "--gflops", 1)  # the smaller of both
    self.assertAlmostEqual(size["tokens_per_second"]["8"], 1e9 / about["flops_per_token"], 1)

  def test_makes_a_bare_mixer_of_a_config(self):
    config = self.folder / "mixer.json"
    mixer = {"kind": "block_local", "block_size": 16, "heads": 4, "causal": False}
    config.write_text(json.dumps({"format_version": 1, "architecture": "mixer", "d_model": 64, "n_layers": 1,
                                  "mixer": mixer}))
    self.call("mixer", config, self.out)
    about = self.inspect()
    self.assertEqual((about["architecture"], about["mixer"]["kind"]), ("mixer", "block_local"))
    given = GOLDENS / "labml_aft_local.safetensors"
    error = self.call("mixer", config, self.folder / "other", "--tensors", given, code=1)
    self.assertRegex(error, r"'key.bias'.*: have no place")

  def test_imports_a_module_both_ways(self):
    module = GOLDENS / "labml_aft_local.safetensors"
    self.call("labml", module, self.out, "--bidirectional")
    self.assertFalse(self.inspect()["mixer"]["causal"])
    self.assertFalse(json.loads((self.out / "config.json").read_text())["mixer"]["causal"])

  def test_quantizes(self):
    model = ROOT / "model" / "zoo" / "austen-aft-local"
    self.call("quantize", model, self.out, "--format", "int8")
    self.assertLess((self.out / "model.safetensors").stat().st_size,
                    0.27 * (model / "model.safetensors").stat().st_size)
    before, after = json.loads(self.call("inspect", model, "--json")), self.inspect()
    self.assertEqual(after.pop("weight_format"), "int8")
    self.assertLess(after.pop("weight_bytes"), 0.27 * before.pop("weight_bytes"))
    self.assertEqual(before.pop("weight_format"), "fp32")
    self.assertEqual(after, before)
    self.assertRegex(self.call("inspect", self.out), r"weights +int8, [0-9,]+ bytes")
    gpt2 = self.folder / "gpt2"
    self.call("gpt2", GOLDENS / "gpt2", gpt2)
    self.call("quantize", gpt2, self.folder / "bf16", "--format", "bf16")
    self.assertEqual((self.folder / "bf16" / "vocab.json").read_bytes(), (gpt2 / "vocab.json").read_bytes())
    self.assertEqual((self.folder / "bf16" / "merges.txt").read_bytes(), (gpt2 / "merges.txt").read_bytes())

  def test_imports_a_labml_model(self):
    data = (GOLDENS / "labml_lm.safetensors").read_bytes()
    characters = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"]["characters"]
    chars = self.folder / "vocabulary.json"
    chars.write_text(json.dumps(list(characters)), encoding="utf-8")
    text = self.call("labml", GOLDENS / "labml_lm.safetensors", self.out, "--chars", chars)
    self.assertRegex(text, r"mixer +aft_local, window 8, band_rows 64\n")
    self.assertRegex(text, r"length +at most 64 tokens; longer texts are refused, generation ends there\n")
    self.assertRegex(text, r"tokenizer +chars, 40 tokens, no end of text\n")
    about = self.inspect()
    self.assertEqual((about["vocab_size"], about["max_seq_len"]), (40, 64))
    config = json.loads((self.out / "config.json").read_text())
    self.assertEqual(config["activation"], "relu")
    for policy, beyond in (("clamp", "the last position's biases hold"), ("zero", "there is no bias")):
      shutil.copytree(self.out, self.folder / policy)
      (self.folder / policy / "config.json").write_text(
          json.dumps({**config, "mixer": {**config["mixer"], "length_policy": policy}}))
      self.assertRegex(self.call("inspect", self.folder / policy), f"length .*; beyond position 64 {beyond}\n")
    for activation in ("gelu", "gelu_tanh"):
      other = self.folder / activation
      self.call("labml", GOLDENS / "labml_lm.safetensors", other, "--chars", chars, "--activation", activation)
      self.assertEqual(json.loads((other / "config.json").read_text())["activation"], activation)
    self.assertEqual(sorted(p.name for p in self.out.iterdir()),
                     ["chars.json", "config.json", "model.safetensors"])

  def test_imports_modules(self):
    self.call("labml", GOLDENS / "labml_aft_local.safetensors", self.out)
    self.assertEqual(self.inspect()["architecture"], "mixer")
    self.out = self.folder / "second"
    text = self.call("aft-pytorch", GOLDENS / "aft_pytorch_local_16.safetensors", self.out, "--window",
                     8)
    self.assertRegex(text, r"state +none: whole texts at once\n")
    self.assertRegex(text, r"longer texts are refused\n")
    self.assertEqual(self.inspect()["mixer"], {"kind": "aft_local", "window": 8, "band_rows": 64,
                                               "causal": False, "hidden": 16})
    self.assertIsNone(self.inspect()["tokenizer"])

  def test_imports_gpt2_with_block_local_attention(self):
    self.call("gpt2", GOLDENS / "gpt2", self.out, "--attention", "block_local", "--block-size", 8,
              "--no-global-token", "--full-decode")
    self.assertEqual(self.inspect()["mixer"], {"kind": "block_local", "heads": 4, "block_size": 8,
                                               "global_token": False, "full_decode": True})
    self.assertRegex(self.call("gpt2", "--help"), r"\n +--no-global-token +block_local: ")
    about = self.inspect()
    self.assertIn(f": {about['state_bytes_per_token']} per token of context, for {about['max_seq_len']} tokens\n",
                  self.call("inspect", self.out))

  def test_adds_a_state_under_a_name(self):
    def copy(golden, change):
      """Copies a file of safetensors; `change` returns the new shape and bytes of a tensor, or None to leave it out."""
      data = (GOLDENS / golden).read_bytes()
      begin = 8 + int.from_bytes(data[:8], "little")
      header, body = {}, b""
      for name, tensor in json.loads(data[8:begin]).items():
        first, last = tensor.get("data_offsets", (0, 0))
        if changed := change(name, tensor.get("shape"), data[begin + first:begin + last]):
          header[name] = {**tensor, "shape": changed[0], "data_offsets": [len(body), len(body) + len(changed[1])]}
          body += changed[1]
      text = json.dumps(header).encode()
      (self.folder / golden).write_bytes(len(text).to_bytes(8, "little") + text + body)
      return self.folder / golden

    def widen(name, shape, data):  # a vocabulary of 256 needs no file of a tokenizer
      if name == "__metadata__":
        return None
      if name in ("emb.weight", "head.weight"):
        return [256, shape[1]], data.ljust(512 * shape[1], b"\0")
      return shape, data

    self.call("rwkv", copy("rwkv7.safetensors", widen), self.out)
    states = copy("rwkv7_tuned.safetensors", lambda name, *rest: rest if "time_state" in name else None)
    self.assertIn('the initial state "formal"', self.call("rwkv-state", states, self.out, "--name", "formal"))
    self.assertIn('the initial state "rwkv7_tuned"', self.call("rwkv-state", states, self.out))
    self.assertEqual(sorted(path.name for path in self.out.glob("state-*")),
                     ["state-formal.safetensors", "state-rwkv7_tuned.safetensors"])

  def test_imports_roberta(self):
    self.call("bert", GOLDENS / "roberta", self.out, "--attention", "block_local", "--block-size", 8)
    about = self.inspect()
    self.assertEqual((about["architecture"], about["mixer"]["block_size"]), ("encoder", 8))

  def test_reports_what_it_read_mapped_and_left_out(self):
    text = self.call("gpt2", GOLDENS / "gpt2_hub", self.out)
    for file in ("config.json", "model.safetensors.index.json", "model-00002-of-00003.safetensors",
                 "model-00003-of-00003.safetensors", "tokenizer.json", "tokenizer_config.json"):
      self.assertIn(f"read          {GOLDENS / 'gpt2_hub' / file}\n", text)
    self.assertRegex(text, r"transformer\.h\.1\.attn\.c_attn\.weight +BF16 \[32, 96\] +->  "
                           r"layers\.1\.mixer\.qkv\.weight  BF16 \[96, 32\]\n")
    self.assertIn("tensors       28 read, 75776 bytes; 28 made, 75776 bytes; 0 left\n", text)
    self.assertRegex(text, r"weights +bf16, 75,776 bytes")
    self.assertRegex(text, r"tokenizer +bpe, 260 tokens, end of text 259\n")
    self.assertEqual(sorted(p.name for p in self.out.iterdir()),
                     ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
    again = self.folder / "int8"
    self.call("quantize", self.out, again, "--format", "int8")
    for file in ("tokenizer.json", "tokenizer_config.json"):
      self.assertEqual((again / file).read_bytes(), (self.out / file).read_bytes())

  def test_reads_files_of_torch_save(self):
    for form in ("safetensors", "pt"):
      self.call("labml", GOLDENS / f"labml_pickled.{form}", self.folder / form)
    weights = [(self.folder / form / "model.safetensors").read_bytes() for form in ("safetensors", "pt")]
    self.assertEqual(*weights)
    self.assertIn("there is no key 'model' in it",
                  self.call("labml", GOLDENS / "labml_pickled.pt", self.out, "--key", "model", code=1))
    self.assertIn("only a file of torch.save has keys",
                  self.call("gpt2", GOLDENS / "gpt2_hub", self.out, "--key", "model", code=1))

  def test_a_shard_that_is_missing_or_cut_is_named(self):
    shards = self.folder / "in"
    shutil.copytree(GOLDENS / "gpt2_hub", shards)
    second = shards / "model-00002-of-00003.safetensors"
    second.write_bytes(second.read_bytes()[:-1])
    self.assertIn(f"{second}: tensor ", self.call("gpt2", shards, self.out, code=1))
    second.unlink()
    self.assertIn(f"cannot open {second}", self.call("gpt2", shards, self.out, code=1))
    self.assertFalse(self.out.exists())

  def test_errors_name_the_file_and_leave_nothing(self):
    source = GOLDENS / "labml_lm.safetensors"
    self.assertIn(f"aft-convert: {source}: the vocabulary has 40 tokens",
                  self.call("labml", source, self.out, code=1))
    self.assertIn("tensor 'to_q.weight': is missing", self.call("aft-pytorch", source, self.out, code=1))
    self.assertIn("has a window of 8, but --window is 3",
                  self.call("labml", GOLDENS / "labml_aft_local.safetensors", self.out, "--window", 3, code=1))
    self.assertIn("the vocabulary has 40 tokens: bytes are 256",
                  self.call("rwkv", GOLDENS / "rwkv7.safetensors", self.out, "--tokenizer", "bytes", code=1))
    self.assertIn("cannot open", self.call("labml", self.folder / "none", self.out, code=1))
    self.assertEqual(list(self.folder.iterdir()), [])

  def test_overwrites_nothing(self):
    self.out.mkdir()
    (self.out / "mine").write_text("x")
    self.assertIn("exists", self.call("gpt2", GOLDENS / "gpt2", self.out, code=1))
    self.assertEqual([p.name for p in self.out.iterdir()], ["mine"])

  def test_wrong_usage(self):
    for args in ([], ["labml"], ["inspect"], ["gpt2", "a", "b", "--attention", "x"], ["fly", "a"],
                 ["aft-pytorch", "a", "b", "--window", "-1"], ["gpt2", "a", "b", "--full-decode"],
                 ["bert", "a", "b", "--block-size", "64"],
                 ["gpt2", "a", "b", "--attention", "block_local", "--block-size", "0"],
                 ["inspect", "a", "--slots", "0"], ["inspect", "a", "--bandwidth", "-1"],
                 ["inspect", "a", "--slots", "300", "--max-step-tokens", "300"],
                 ["labml", "a", "b", "--activation", "swish"], ["quantize", "a", "b"],
                 ["quantize", "a", "b", "--format", "fp16"]):
      self.assertRegex(self.call(*args, code=2), r"\(see aft-convert( \w\S*)? --help\)")


if __name__ == "__main__":
  PROGRAM = sys.argv.pop(1)
  unittest.main()
