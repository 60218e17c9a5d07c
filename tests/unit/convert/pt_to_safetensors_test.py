#!/usr/bin/env python3
"""Tests that tools/pt_to_safetensors.py reads exactly what torch.save writes, and refuses anything else.

The tests need no torch: they write .pt files in torch's format. One file was written by torch itself
(tests/parity/goldens/labml_pickled.pt).
"""

import collections
import contextlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "pt_to_safetensors.py"
GOLDENS = ROOT / "tests" / "parity" / "goldens"

# ---- A fake torch with names to pickle -----------------------------------------------------------
TORCH, UTILS = types.ModuleType("torch"), types.ModuleType("torch._utils")
sys.modules.update({"torch": TORCH, "torch._utils": UTILS})
DTYPES = {"Double": ("F64", 8), "Float": ("F32", 4), "Half": ("F16", 2), "BFloat16": ("BF16", 2),
          "Long": ("I64", 8), "Int": ("I32", 4), "Short": ("I16", 2), "Char": ("I8", 1),
          "Byte": ("U8", 1), "Bool": ("BOOL", 1), "ComplexFloat": ("", 8)}
for _name in DTYPES:
  setattr(TORCH, _name + "Storage", type(_name + "Storage", (), {"__module__": "torch"}))
for _name in ("_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_other"):
  _function = (lambda name: lambda *args: None)(_name)
  _function.__module__, _function.__qualname__ = "torch._utils", _name
  setattr(UTILS, _name, _function)


class Storage:
  count = 0

  def __init__(self, dtype, data, numel=None):
    Storage.count += 1
    self.key, self.dtype, self.data = str(Storage.count), dtype, data
    self.numel = len(data) // DTYPES[dtype][1] if numel is None else numel


class Tensor:

  def __init__(self, storage, shape, strides, offset=0):
    self.storage, self.args = storage, (storage, offset, shape, strides, False,
                                        collections.OrderedDict())

  def __reduce__(self):
    return UTILS._rebuild_tensor_v2, self.args


class Reduced:
  """Pickles as the call of `function`."""

  def __init__(self, function, *args):
    self.reduced = (function, args)

  def __reduce__(self):
    return self.reduced


def floats(*values):
  return Storage("Float", struct.pack(f"<{len(values)}f", *values))


def vector(*values):
  return Tensor(floats(*values), (len(values),), (1,))


class Pickler(pickle.Pickler):

  def __init__(self, file):
    super().__init__(file, protocol=2)
    self.storages = {}

  def persistent_id(self, value):
    if not isinstance(value, Storage):
      return None
    self.storages[value.key] = value
    return ("storage", getattr(TORCH, value.dtype + "Storage"), value.key, "cpu", value.numel)


def save(path, content, compression=zipfile.ZIP_STORED, byteorder=b"little", extra=(), drop=None):
  buffer = io.BytesIO()
  pickler = Pickler(buffer)
  pickler.dump(content)
  with zipfile.ZipFile(path, "w", compression) as archive:
    archive.writestr("archive/data.pkl", buffer.getvalue())
    archive.writestr("archive/byteorder", byteorder)
    for key, storage in pickler.storages.items():
      if key != drop:
        archive.writestr(f"archive/data/{key}", storage.data)
    for name in extra:
      archive.writestr(name, b"")


def read(path):
  data = Path(path).read_bytes()
  length = struct.unpack("<Q", data[:8])[0]
  header = json.loads(data[8:8 + length])
  header.pop("__metadata__", None)
  ends = sorted(about["data_offsets"] for about in header.values())
  assert length % 8 == 0 and [begin for begin, _ in ends] == [0] + [end for _, end in ends[:-1]]
  return {name: (about["dtype"], about["shape"],
                 data[8 + length + about["data_offsets"][0]:8 + length + about["data_offsets"][1]])
          for name, about in header.items()}


class PtToSafetensorsTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = Path(folder.name)
    self.source, self.target = self.folder / "in.pt", self.folder / "out.safetensors"

  def run_script(self, *args):
    return subprocess.run([sys.executable, "-B", SCRIPT, self.source, self.target, *args],
                          capture_output=True, text=True, check=False, cwd=self.folder)

  def convert(self, content, *args, **options):
    save(self.source, content, **options)
    done = self.run_script(*args)
    self.assertEqual(done.returncode, 0, done.stderr)
    tensors = read(self.target)
    self.target.unlink()
    return tensors

  def refuse(self, content, *args, **options):
    save(self.source, content, **options)
    return self.refused(*args)

  def refused(self, *args):
    done = self.run_script(*args)
    self.assertEqual(done.returncode, 1, done.stdout)
    self.assertNotIn("Traceback", done.stderr)
    self.assertTrue(done.stderr.startswith(f"pt_to_safetensors: {self.source}: "), done.stderr)
    self.assertEqual([p.name for p in self.folder.iterdir()], ["in.pt"])
    return done.stderr

  def test_reads_what_torch_saved(self):
    self.source = GOLDENS / "labml_pickled.pt"
    done = self.run_script()
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(read(self.target), read(GOLDENS / "labml_pickled.safetensors"))

  def test_keeps_every_type_bit_for_bit(self):
    data = bytes(range(240))
    content = {name: Tensor(Storage(name, data), (240 // size,), (1,))
               for name, (dtype, size) in DTYPES.items() if dtype}
    got = self.convert(content)
    self.assertEqual(got, {name: (dtype, [240 // size], data)
                           for name, (dtype, size) in DTYPES.items() if dtype})

  def test_lays_out_views_row_by_row(self):
    base = Storage("Short", struct.pack("<12h", *range(12)))

    def values(*numbers):
      return struct.pack(f"<{len(numbers)}h", *numbers)

    got = self.convert({
        "whole": Tensor(base, (3, 4), (4, 1)),
        "transposed": Tensor(base, (4, 3), (1, 4)),
        "column": Tensor(base, (3,), (4,), 2),
        "tail": Tensor(base, (2, 4), (4, 1), 4),
        "middle": Tensor(base, (3, 2), (4, 1), 1),
        "scalar": Tensor(base, (), (), 7),
        "expanded row": Tensor(base, (2, 3), (0, 1), 1),
        "expanded column": Tensor(base, (2, 3), (1, 0), 1),
        "empty": Tensor(base, (0, 5), (5, 1)),
        "three": Tensor(base, (2, 2, 3), (1, 6, 2)),
    })
    self.assertEqual(got["whole"], ("I16", [3, 4], values(*range(12))))
    self.assertEqual(got["transposed"][2], values(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11))
    self.assertEqual(got["column"][2], values(2, 6, 10))
    self.assertEqual(got["tail"][2], values(*range(4, 12)))
    self.assertEqual(got["middle"][2], values(1, 2, 5, 6, 9, 10))
    self.assertEqual(got["scalar"], ("I16", [], values(7)))
    self.assertEqual(got["expanded row"][2], values(1, 2, 3, 1, 2, 3))
    self.assertEqual(got["expanded column"][2], values(1, 1, 1, 2, 2, 2))
    self.assertEqual(got["empty"], ("I16", [0, 5], b""))
    self.assertEqual(got["three"][2], values(0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11))

  def test_reads_parameters_and_ordered_dicts_with_attributes(self):
    content = collections.OrderedDict(
        w=Reduced(UTILS._rebuild_parameter, vector(1, 2), True, collections.OrderedDict()))
    content._metadata = collections.OrderedDict(version=1)  # state_dict() has this
    self.assertEqual(self.convert(content)["w"], ("F32", [2], struct.pack("<2f", 1, 2)))

  def test_follows_the_given_keys(self):
    content = {"epoch": 3, "net": {"model": {"w": vector(5)}, "ema": {"w": vector(6)}}}
    self.assertEqual(self.convert(content, "--key", "net", "--key", "ema")["w"][2],
                     struct.pack("<f", 6))
    self.assertIn("'epoch' is a int, not a tensor; give --key with one of: net",
                  self.refuse(content))
    self.assertIn("there is no key 'model' in it", self.refuse(content, "--key", "model"))
    self.assertIn("holds a int, not a dict", self.refuse(content, "--key", "epoch"))

  def test_runs_nothing_that_a_file_names(self):
    marker = self.folder / "ran"
    for function, args in ((os.system, (f"touch {marker}",)), (eval, ("1",)),
                           (UTILS._rebuild_other, ()), (getattr, (1, "real"))):
      message = self.refuse({"w": Reduced(function, *args)})
      self.assertIn("which is no part of a state_dict", message)
    self.assertIn("torch.ComplexFloatStorage",
                  self.refuse({"w": Tensor(Storage("ComplexFloat", bytes(8)), (1,), (1,))}))

  def test_refuses_other_formats(self):
    self.source.write_bytes(pickle.dumps({"w": 1}))
    self.assertIn("not a zip file: torch before 1.6", self.refused())
    self.assertIn("TorchScript", self.refuse({"w": vector(1)}, extra=["archive/constants.pkl"]))
    self.assertIn("has 2 data.pkl", self.refuse({"w": vector(1)}, extra=["other/data.pkl"]))
    self.assertIn("big-endian", self.refuse({"w": vector(1)}, byteorder=b"big"))
    self.assertIn("is compressed",
                  self.refuse({"w": vector(*[1] * 99)}, compression=zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(self.source, "w") as archive:
      archive.writestr("archive/data.pkl", b"\x80\x02}q\x00(X")
    self.assertIn("its data.pkl cannot be read", self.refused())

  def test_refuses_objects_that_are_not_state_dicts(self):
    for content, message in (([vector(1)], "holds a list, not a dict"), ({}, "holds no tensors"),
                             (vector(1), "holds a Tensor, not a dict"),
                             ({"w": 1.5}, "'w' is a float, not a tensor"),
                             ({7: vector(1)}, "7 cannot be the name"),
                             ({"__metadata__": vector(1)}, "cannot be the name")):
      self.assertIn(message, self.refuse(content))

  def test_refuses_tensors_that_leave_their_storage(self):
    four = floats(1, 2, 3, 4)
    for tensor, message in (
        (Tensor(four, (5,), (1,)), "'w' reaches element 4 of a storage of 4"),
        (Tensor(four, (2,), (1,), 3), "reaches element 4"),
        (Tensor(four, (2, 2), (3, 1)), "reaches element 4"),
        (Tensor(four, (1000000, 1000000), (0, 0)), "repeats its 4 elements"),
        (Tensor(four, (2,), (-1,), 1), "not well-formed"),
        (Tensor(four, (-1,), (1,)), "not well-formed"),
        (Tensor(four, (2,), (1,), -1), "not well-formed"),
        (Tensor(four, (2.0,), (1,)), "not well-formed"),
        (Tensor(four, (2,), (1, 1)), "not well-formed"),
        (Tensor("storage", (2,), (1,)), "not well-formed"),
        (Tensor(Storage("Float", bytes(8), numel=4), (4,), (1,)), "storage has 8 bytes, expected 16"),
        (Tensor(Storage("Float", bytes(24), numel=4), (4,), (1,)), "has 24 bytes; at most 16")):
      self.assertIn(message, self.refuse({"w": tensor}))
    self.assertIn("is missing from it", self.refuse({"w": Tensor(four, (4,), (1,))}, drop=four.key))

  def test_overwrites_nothing(self):
    save(self.source, {"w": vector(1)})
    self.target.write_bytes(b"mine")
    done = self.run_script()
    self.assertEqual(done.returncode, 1)
    self.assertIn("exists", done.stderr)
    self.assertEqual(self.target.read_bytes(), b"mine")
    self.assertEqual(len(list(self.folder.iterdir())), 2)

  def test_says_when_there_is_no_file(self):
    with contextlib.suppress(FileNotFoundError):
      self.source.unlink()
    done = self.run_script()
    self.assertEqual(done.returncode, 1)
    self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
  unittest.main()
