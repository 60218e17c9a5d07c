#!/usr/bin/env python3
"""Tests an unmodified tritonclient with a server whose models are imported modules and 2-D operators.

  mixers.py HOST:PORT

oip/mixers_test.cc starts it in the repository's root, with the goldens of tests/parity as models.
Inputs are random with a fixed seed. The expected values are computed from the equations in float64 with NumPy.
"""

import json
import struct
import sys
import unittest

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton

sys.path.insert(0, "tests/parity/references")
import equations  # noqa: E402

ADDRESS = sys.argv.pop(1)
GOLDENS = "tests/parity/goldens/"
HIDDEN = -np.inf
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def read(name):
  """The tensors of a safetensors file, as float64, and its metadata."""
  with open(GOLDENS + name + ".safetensors", "rb") as file:
    data = file.read()
  size, = struct.unpack("<Q", data[:8])
  header = json.loads(data[8:8 + size])
  metadata = header.pop("__metadata__", {})
  kinds = {"F32": np.float32, "BOOL": np.bool_, "I64": np.int64}
  tensors = {}
  for key, entry in header.items():
    begin, end = entry["data_offsets"]
    values = np.frombuffer(data[8 + size + begin:8 + size + end], kinds[entry["dtype"]])
    tensors[key] = values.reshape(entry["shape"]).astype(np.float64)
  return tensors, metadata


def linear(x, tensors, name):
  return x @ tensors[name + ".weight"].T + tensors.get(name + ".bias", 0)


class MixerTest(unittest.TestCase):

  def setUp(self):
    self.client = triton.InferenceServerClient(ADDRESS)
    self.addCleanup(self.client.close)
    self.random = np.random.default_rng(20210514)

  def tensors(self, x, mask):
    made = [triton.InferInput("inputs_embeds", list(x.shape), "FP32")]
    made[0].set_data_from_numpy(x)
    if mask is not None:
      kind = {"b": "BOOL", "f": "FP32", "i": "INT64"}[mask.dtype.kind]
      made.append(triton.InferInput("attention_mask", list(mask.shape), kind))
      made[1].set_data_from_numpy(mask)
    return made

  def infer(self, model, x, mask=None):
    return self.client.infer(model, self.tensors(x, mask)).as_numpy("last_hidden_state")

  def holes(self, shape):
    """A random mask that is true where a key is visible. The first key always is, so that every mean exists."""
    mask = self.random.random(shape) < 0.6
    mask.reshape(shape[0], -1)[:, 0] = True
    return mask

  def check(self, model, width, one, tokens):
    """Compares answers with `one(x [T, width], mask [T])`, which returns the expected vectors of a row."""
    for count in tokens:
      x = self.random.standard_normal((3, count, width)).astype(np.float32)
      mask = self.holes((3, count))
      for given in (None, mask, mask.astype(np.int64), np.where(mask, 0, HIDDEN).astype(np.float32)):
        additive = np.zeros((3, count)) if given is None else np.where(mask, 0, HIDDEN)
        want = np.stack([one(x[i].astype(np.float64), additive[i]) for i in range(3)])
        np.testing.assert_allclose(self.infer(model, x, given), want, **TOLERANCE, err_msg=model)

  def test_aft_pytorch(self):
    for kind in ("full", "simple", "local"):
      for hidden in ("16", "32"):
        name = f"aft_pytorch_{kind}_{hidden}"
        tensors, _ = read(name)

        def one(x, mask, kind=kind, tensors=tensors):
          t = len(x)
          w = np.zeros((t, t)) if kind == "simple" else tensors["wbias"][:t, :t]
          w = equations.band(w, 8) if kind == "local" else w
          q, k, v = (linear(x, tensors, "to_" + part) for part in "qkv")
          return linear(equations.aft(q, k, v, w, equations.everything(t), mask), tensors, "project")

        self.check(name, 32, one, (1, 5, 17, 63))

  def test_labml(self):
    for name in ("labml_aft_local", "labml_aft_local_nobias"):
      tensors, _ = read(name)

      def one(x, mask, tensors=tensors):
        t = len(x)
        w = tensors["pos_bias"][:t, :t] * tensors["local_mask"][:t, :t]
        q, k, v = (linear(x, tensors, part) for part in ("query", "key", "value"))
        return linear(equations.aft(q, k, v, w, equations.causal(t), mask), tensors, "output")

      self.check(name, 32, one, (1, 5, 17, 63))

  def infer_apart(self, model, query, key, value, mask):
    made = [triton.InferInput(name, list(x.shape), "FP32")
            for name, x in (("query", query), ("key", key), ("value", value))]
    for tensor, x in zip(made, (query, key, value)):
      tensor.set_data_from_numpy(x)
    made.append(triton.InferInput("attention_mask", list(mask.shape), "BOOL" if mask.dtype == bool else "FP32"))
    made[-1].set_data_from_numpy(mask)
    return self.client.infer(model, made).as_numpy("last_hidden_state")

  def check_apart(self, model, tensors, names, got, inputs, w, sees):
    """Checks `got` [B, T, d] for the inputs (query, key, value) [B, T, d] with `w` and `sees` [B, T, T] of pairs."""
    for i, row in enumerate(got):
      q, k, v = (linear(x[i].astype(np.float64), tensors, name) for x, name in zip(inputs, names))
      want = linear(equations.aft(q, k, v, w[i], sees[i]), tensors, names[3])
      np.testing.assert_allclose(row, want, **TOLERANCE, err_msg=model)

  def test_labmls_forward(self):
    """AFTLocal.forward(query=, key=, value=, mask=) with rows first, and a separate mask for each row, [T, T, B]."""
    for name in ("labml_aft_local", "labml_aft_local_nobias"):
      tensors, _ = read(name)
      for t in (1, 5, 17, 63):
        inputs = self.random.standard_normal((3, 3, t, 32)).astype(np.float32)
        mask = (self.random.random((t, t, 3)) < 0.6) & equations.causal(t)[:, :, None]
        mask[np.arange(t), np.arange(t)] = True  # without a visible key labml's result is NaN
        w = tensors["pos_bias"][:t, :t] * tensors["local_mask"][:t, :t]
        self.check_apart(name, tensors, ("query", "key", "value", "output"), self.infer_apart(name, *inputs, mask),
                         inputs, [w] * 3, np.moveaxis(mask, 2, 0))

  def test_additive_masks_of_pairs(self):
    """Masks of numbers [B, 1, T, T], which Hugging Face's models accept."""
    for kind in ("full", "simple", "local"):
      name = f"aft_pytorch_{kind}_16"
      tensors, _ = read(name)
      for t in (1, 17, 63):
        inputs = self.random.standard_normal((3, 2, t, 32)).astype(np.float32)
        mask = self.random.standard_normal((2, 1, t, t)).astype(np.float32)
        mask[self.random.random(mask.shape) < 0.3] = HIDDEN
        w = np.zeros((t, t)) if kind == "simple" else tensors["wbias"][:t, :t]
        w = equations.band(w, 8) if kind == "local" else w
        sees = ~np.isneginf(mask[:, 0])
        self.check_apart(name, tensors, ("to_q", "to_k", "to_v", "project"), self.infer_apart(name, *inputs, mask),
                         inputs, w + np.where(sees, mask[:, 0], 0), sees)

  def test_images(self):
    """2-D AFT-conv between identity projections, with images of several shapes."""
    tensors, metadata = read("operators")
    names = [name for name, mixer in metadata.items() if "grid=true" in mixer]
    self.assertTrue(names)
    for name in names:
      taps = equations.normalised_taps(tensors[name + ".conv.w"], tensors[name + ".conv.gamma"],
                                       tensors[name + ".conv.beta"])
      hid = tensors[name + ".expected"].shape[1]
      width = tensors[name + ".packed"].shape[1]
      heads = len(taps)
      for height, columns in ((1, 1), (8, 8), (3, 7), (7, 3), (1, 11), (11, 1)):
        t = height * columns
        x = self.random.standard_normal((2, height, columns, width)).astype(np.float32)
        mask = self.holes((2, height, columns))
        got = self.infer(name, x, mask)
        self.assertEqual(got.shape, x.shape)
        for i in range(2):
          packed = x[i].reshape(t, width).astype(np.float64)
          q, k, v = packed[:, :hid], packed[:, hid:hid + heads], packed[:, hid + heads:]
          want = equations.aft_conv(q, k, v, taps, equations.everything(t), False, columns,
                                    np.where(mask[i].reshape(t), 0, HIDDEN))
          np.testing.assert_allclose(got[i].reshape(t, width)[:, :hid], want, **TOLERANCE, err_msg=name)

  def test_bfloat16(self):
    """Numbers that bfloat16 represents exactly give the same result in both formats."""
    x = self.random.standard_normal((2, 9, 32)).astype(np.float32)
    short = x.astype(ml_dtypes.bfloat16)
    tensor = triton.InferInput("inputs_embeds", [2, 9, 32], "BF16")
    tensor.set_data_from_numpy(short)
    got = self.client.infer("aft_pytorch_full_16", [tensor]).as_numpy("last_hidden_state")
    np.testing.assert_array_equal(got, self.infer("aft_pytorch_full_16", short.astype(np.float32)))

  def test_statistics(self):
    self.infer("aft_pytorch_full_32", np.zeros((3, 4, 32), np.float32))
    stats = self.client.get_inference_statistics("aft_pytorch_full_32").model_stats[0]
    batches = [(batch.batch_size, batch.compute_infer.count) for batch in stats.batch_stats]
    self.assertEqual(stats.execution_count, sum(count for _, count in batches))
    self.assertEqual(stats.inference_count, sum(size * count for size, count in batches))


if __name__ == "__main__":
  unittest.main()
