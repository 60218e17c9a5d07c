"""Writes .safetensors files with the standard library: 8 bytes of header length, a JSON header, then
the tensors' bytes in name order. The same tensors always give the same bytes."""

import json
import struct

import numpy as np

_NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


def write(path, tensors, metadata):
  """Writes `tensors` (name -> array) and `metadata` (name -> a value, which is written as str(value))."""
  header = {"__metadata__": {k: str(v) for k, v in sorted(metadata.items())}}
  blobs = []
  offset = 0
  for name in sorted(tensors):
    array = np.ascontiguousarray(tensors[name])
    blob = array.astype(array.dtype.newbyteorder("<")).tobytes()
    header[name] = {"dtype": _NAMES[array.dtype.name], "shape": list(tensors[name].shape),
                    "data_offsets": [offset, offset + len(blob)]}
    offset += len(blob)
    blobs.append(blob)
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)
  with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    for blob in blobs:
      file.write(blob)


def state_dict(module):
  """Returns the state_dict of a torch module as arrays, under its own names."""
  return {name: value.detach().numpy() for name, value in module.state_dict().items()}
