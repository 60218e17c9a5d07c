#!/usr/bin/env python3
"""Turns a PyTorch state_dict (.pt, .pth) into a .safetensors file. Needs only Python, no torch.

  pt_to_safetensors.py IN.pt OUT.safetensors             a state_dict
  pt_to_safetensors.py IN.pt OUT.safetensors --key model      {"model": state_dict, ...}; may be repeated

A pickle can run any code when it is read. This program reads only tensors, numbers, strings and containers
of them. It refuses a file that names anything else before any code of the file runs. Exit code 1 on errors.
"""

import argparse
import collections
import json
import os
import pickle
import struct
import sys
import zipfile

# Storage class -> (safetensors' name, bytes, memoryview's code for that many bytes).
STORAGES = {
    "DoubleStorage": ("F64", 8, "Q"), "FloatStorage": ("F32", 4, "I"), "HalfStorage": ("F16", 2, "H"),
    "BFloat16Storage": ("BF16", 2, "H"), "LongStorage": ("I64", 8, "Q"), "IntStorage": ("I32", 4, "I"),
    "ShortStorage": ("I16", 2, "H"), "CharStorage": ("I8", 1, "B"), "ByteStorage": ("U8", 1, "B"),
    "BoolStorage": ("BOOL", 1, "B"),
}
MAX_PICKLE_BYTES = 64 << 20
MAX_RANK = 16


class Refused(Exception):
  """Its text tells the user what is wrong with the file."""


# The unpickler makes these from the names in the pickle: plain data, which is checked when a tensor is written.
StorageType = collections.namedtuple("StorageType", "dtype itemsize code")
Storage = collections.namedtuple("Storage", "type key numel")
Tensor = collections.namedtuple("Tensor", "storage offset shape strides")


def rebuild_tensor(storage, offset, shape, strides, requires_grad=False, hooks=None, metadata=None):
  return Tensor(storage, offset, shape, strides)


def rebuild_parameter(data, requires_grad=False, hooks=None):
  return data


ALLOWED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
    **{("torch", name): StorageType(*about) for name, about in STORAGES.items()},
}


class StateDictUnpickler(pickle.Unpickler):

  def find_class(self, module, name):
    try:
      return ALLOWED[module, name]
    except KeyError:
      raise Refused(f"it names {module}.{name}, which is no part of a state_dict: "
                    "save model.state_dict(), not the model") from None

  def persistent_load(self, pid):
    if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and
            isinstance(pid[1], StorageType) and isinstance(pid[2], str) and is_size(pid[4])):
      raise Refused("it refers to a storage in an unknown form")
    return Storage(pid[1], pid[2], pid[4])


def is_size(value):
  return type(value) is int and value >= 0


class Archive:
  """The zip file that torch.save writes: <name>/data.pkl and <name>/data/<key>."""

  def __init__(self, path):
    if not zipfile.is_zipfile(path):
      raise Refused("it is not a zip file: torch before 1.6 wrote another format; "
                    "load it there and save it again with a newer torch")
    self.zip = zipfile.ZipFile(path)
    pickles = [name for name in self.zip.namelist() if name.rsplit("/", 1)[-1] == "data.pkl"]
    if any(name.rsplit("/", 1)[-1] == "constants.pkl" for name in self.zip.namelist()):
      raise Refused("it is a TorchScript program: save its state_dict() with torch.save")
    if len(pickles) != 1:
      raise Refused(f"it has {len(pickles)} data.pkl, expected one")
    self.root = pickles[0][:-len("data.pkl")]
    if self.root + "byteorder" in self.zip.namelist() and self.read("byteorder", 16) != b"little":
      raise Refused("it was saved on a big-endian machine")

  def info(self, name):
    try:
      info = self.zip.getinfo(self.root + name)
    except KeyError:
      raise Refused(f"{self.root}{name} is missing from it") from None
    if info.compress_type != zipfile.ZIP_STORED:  # torch.save never compresses
      raise Refused(f"{self.root}{name} is compressed")
    return info

  def read(self, name, most):
    info = self.info(name)
    if info.file_size > most:
      raise Refused(f"{self.root}{name} has {info.file_size} bytes; at most {most}")
    return self.zip.read(info)

  def content(self):
    with self.zip.open(self.info("data.pkl")) as file:
      if self.info("data.pkl").file_size > MAX_PICKLE_BYTES:
        raise Refused("its data.pkl is too large")
      try:
        return StateDictUnpickler(file).load()
      except Refused:
        raise
      except Exception as error:  # a broken pickle may raise any exception
        raise Refused(f"its data.pkl cannot be read: {error}") from None


def state_dict(content, keys):
  """The tensors by name, from the dict that is reached through `keys`, outermost first."""
  for key in keys:
    if not isinstance(content, dict) or key not in content:
      raise Refused(f"there is no key '{key}' in it")
    content = content[key]
  if not isinstance(content, dict):
    raise Refused(f"it holds a {type(content).__name__}, not a dict of tensors")
  within = [str(key) for key, value in content.items() if isinstance(value, dict)]
  for name, value in content.items():
    if not isinstance(name, str) or name == "__metadata__":
      raise Refused(f"{name!r} cannot be the name of a tensor")
    if not isinstance(value, Tensor):
      hint = f"; give --key with one of: {', '.join(within)}" if within else ""
      raise Refused(f"'{name}' is a {type(value).__name__}, not a tensor{hint}")
  if not content:
    raise Refused("it holds no tensors")
  return content


def check(name, tensor):
  """Refuses a tensor that is not within its storage; returns its number of elements."""
  storage, offset, shape, strides = tensor
  sizes = [shape, strides]
  if not (isinstance(storage, Storage) and is_size(offset) and
          all(isinstance(s, tuple) and len(s) <= MAX_RANK and all(map(is_size, s)) for s in sizes) and
          len(shape) == len(strides)):
    raise Refused(f"tensor '{name}' is not well-formed")
  numel = 1
  for size in shape:
    numel *= size
  last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
  if numel > 0 and last >= storage.numel:
    raise Refused(f"tensor '{name}' reaches element {last} of a storage of {storage.numel}")
  if numel > storage.numel:  # otherwise a small file could ask for any amount of memory
    raise Refused(f"tensor '{name}' repeats its {storage.numel} elements (expand): save it contiguous")
  return numel


def gather(view, offset, shape, strides):
  """The elements in row-major order, as bytes."""
  if not shape:
    return view[offset:offset + 1].tobytes()
  size, stride = shape[0], strides[0]
  if len(shape) > 1:
    return b"".join(gather(view, offset + i * stride, shape[1:], strides[1:]) for i in range(size))
  if stride == 0:
    return view[offset:offset + 1].tobytes() * size
  return view[offset:offset + (size - 1) * stride + 1:stride].tobytes()


def is_contiguous(shape, strides):
  expected = 1
  for size, stride in zip(reversed(shape), reversed(strides)):
    if size != 1 and stride != expected:
      return False
    expected *= size
  return True


def tensor_bytes(archive, name, tensor, numel):
  storage, offset, shape, strides = tensor
  itemsize = storage.type.itemsize
  data = archive.read(f"data/{storage.key}", storage.numel * itemsize)
  if len(data) != storage.numel * itemsize:
    raise Refused(f"tensor '{name}': its storage has {len(data)} bytes, "
                  f"expected {storage.numel * itemsize}")
  if numel == 0:
    return b""
  if is_contiguous(shape, strides):
    return data[offset * itemsize:(offset + numel) * itemsize]
  return gather(memoryview(data).cast(storage.type.code), offset, shape, strides)


def convert(source, target, keys):
  archive = Archive(source)
  tensors = sorted(state_dict(archive.content(), keys).items())
  header, end = {"__metadata__": {"format": "pt"}}, 0
  for name, tensor in tensors:
    begin, end = end, end + check(name, tensor) * tensor.storage.type.itemsize
    header[name] = {"dtype": tensor.storage.type.dtype, "shape": tensor.shape,
                    "data_offsets": [begin, end]}
  text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
  text += b" " * (-len(text) % 8)
  partial = f"{target}.partial-{os.getpid()}"
  try:
    with open(partial, "xb") as file:
      file.write(struct.pack("<Q", len(text)) + text)
      for name, tensor in tensors:
        begin, end = header[name]["data_offsets"]
        file.write(tensor_bytes(archive, name, tensor,
                                (end - begin) // tensor.storage.type.itemsize))
    os.link(partial, target)  # unlike a rename, fails if the target exists
  finally:
    if os.path.exists(partial):
      os.unlink(partial)
  return len(tensors)


def main(argv):
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("source", metavar="IN.pt")
  parser.add_argument("target", metavar="OUT.safetensors", help="the new file, which must not exist")
  parser.add_argument("--key", action="append", default=[],
                      help="the state_dict is under this key of a dict; repeat it for nested dicts")
  args = parser.parse_args(argv)
  try:
    count = convert(args.source, args.target, args.key)
  except (Refused, zipfile.BadZipFile) as error:
    print(f"pt_to_safetensors: {args.source}: {error}", file=sys.stderr)
    return 1
  except OSError as error:
    print(f"pt_to_safetensors: {error}", file=sys.stderr)
    return 1
  print(f"{count} tensors in {args.target}")
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
