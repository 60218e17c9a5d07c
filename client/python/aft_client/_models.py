"""Models, tensors and health as plain values."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

from . import _wire as wire
from ._errors import protocol_error
from ._types import _OpenEnum, check_several

# A parameter of the Open Inference Protocol.
Parameter = Union[bool, int, float, str]


class Health(_OpenEnum):
  """The status of a service in grpc.health.v1."""

  UNKNOWN = 0
  SERVING = 1
  NOT_SERVING = 2
  SERVICE_UNKNOWN = 3


class ModelState(_OpenEnum):
  """The state of a model."""

  UNSPECIFIED = 0
  LOADING = 1
  READY = 2
  DRAINING = 3
  FAILED = 4
  UNLOADED = 5


class Task(_OpenEnum):
  """What a model serves. GENERATE: all requests; ENCODE and CLASSIFY: encode() or, without a tokenizer, infer()."""

  UNSPECIFIED = 0
  GENERATE = 1
  ENCODE = 2
  CLASSIFY = 3


def _plain(cls: Any, message: Any, **converted: Any) -> dict[str, Any]:
  """The fields of the message that the class has, by name. Values in `converted` replace those of the message."""
  return {**{one.name: getattr(message, one.name) for one in fields(cls) if one.name not in converted}, **converted}


@dataclass(frozen=True)
class ModelVersion:
  """One of a model's versions."""

  version: str
  state: ModelState
  error: str  # why it could not be loaded, or failed; empty otherwise
  fingerprint: int

  @classmethod
  def of(cls, message: Any) -> ModelVersion:
    return cls(**_plain(cls, message, state=ModelState(message.state)))


@dataclass(frozen=True)
class ModelLoad:
  """How busy a model is."""

  requests_running: int
  requests_waiting: int
  utilization: float  # 0 to 1

  @classmethod
  def of(cls, message: Any) -> ModelLoad:
    return cls(**_plain(cls, message))


@dataclass(frozen=True)
class ChatFormat:
  """How a conversation becomes a prompt: each message between the prefix and the suffix of its role, then `answer`."""

  system_prefix: str
  system_suffix: str
  user_prefix: str
  user_suffix: str
  assistant_prefix: str  # before an earlier answer of the model
  assistant_suffix: str
  answer: str  # after all messages, where the model's answer begins
  stop: Tuple[str, ...]  # strings that end the answer

  @classmethod
  def of(cls, message: Any) -> ChatFormat:
    return cls(**_plain(cls, message, stop=tuple(message.stop)))


@dataclass(frozen=True)
class Model:
  """A model: the version that serves requests without a version."""

  name: str
  version: str
  state: ModelState
  error: str  # why the model failed; empty otherwise
  architecture: str
  parameters: int
  vocab_size: int  # 0: its inputs are vectors, only through infer()
  max_seq_len: int  # in tokens; 0: unlimited
  state_bytes: int  # memory of one sequence
  weight_bytes: int
  weight_format: str
  device: str
  slots: int  # number of requests that run at once
  state_bytes_per_token: int  # the part of state_bytes for each token; 0: the size is constant
  task: Task
  vector_width: int
  versions: Tuple[ModelVersion, ...]  # the newest first
  load: Optional[ModelLoad]  # None until it is loaded
  fingerprint: int  # 0 until it is loaded
  labels: Tuple[str, ...]  # labels of a classifier, in the order of its logits
  chat_format: Optional[ChatFormat]  # None: the model was not trained on conversations
  initial_states: Tuple[str, ...]  # names of tuned states, from which texts can begin

  @classmethod
  def of(cls, message: Any) -> Model:
    return cls(**_plain(
        cls, message, state=ModelState(message.state), task=Task(message.task), labels=tuple(message.labels),
        initial_states=tuple(message.initial_states),
        versions=tuple(map(ModelVersion.of, message.versions)),
        load=ModelLoad.of(message.load) if message.HasField("load") else None,
        chat_format=ChatFormat.of(message.chat_format) if message.HasField("chat_format") else None))


@dataclass(frozen=True)
class RepositoryModel:
  """A version of a model in the server's repository."""

  name: str
  version: str
  state: str  # "READY", "UNAVAILABLE", ...
  reason: str

  @classmethod
  def of(cls, message: Any) -> RepositoryModel:
    return cls(**_plain(cls, message))


_FORMATS = {"BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H",
            "UINT32": "I", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d"}  # for the module struct


@dataclass(frozen=True)
class Tensor:
  """A tensor of the Open Inference Protocol. `datatype`: its name there, such as "INT64", "FP32" or "BYTES".

  `values`: the elements in row-major order. Texts in a BYTES tensor are sent as UTF-8 and received as bytes. If
  `values` itself is bytes, it is sent unchanged: the elements, little-endian (NumPy's `tobytes()`)."""

  name: str
  datatype: str
  shape: Sequence[int]
  values: Union[Sequence[Any], bytes]

  def raw(self) -> bytes:
    """The elements as they are sent. ValueError if this datatype can only be given as bytes, or does not have these
    values; TypeError for a value of a BYTES tensor that is neither a text nor bytes."""
    if isinstance(self.values, bytes):
      return self.values
    if self.datatype == "BYTES":
      # bytes(5) would be five zeros; memoryview(5) is a TypeError.
      values: Sequence[Any] = self.values
      texts = [value.encode() if isinstance(value, str) else bytes(memoryview(value)) for value in values]
      return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    if self.datatype not in _FORMATS:
      raise ValueError(f"{self.name}: values of the datatype {self.datatype} must be given as bytes")
    try:
      return struct.pack(f"<{len(self.values)}{_FORMATS[self.datatype]}", *self.values)
    except (struct.error, OverflowError) as error:
      raise ValueError(f"{self.name}: {error}") from None

  @classmethod
  def of(cls, message: Any, raw: bytes) -> Tensor:
    values: Union[Sequence[Any], bytes] = raw
    if message.datatype == "BYTES":
      values, at = [], 0
      while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at:at + 4], "little")
        values.append(raw[at + 4:end])
        at = end
      if at > len(raw):
        raise protocol_error(f"{message.name}: a value is incomplete", 0)
    elif message.datatype in _FORMATS:
      try:
        values = [one for one, in struct.iter_unpack("<" + _FORMATS[message.datatype], raw)]
      except struct.error as error:
        raise protocol_error(f"{message.name}: {error}", 0) from None
    return cls(message.name, message.datatype, tuple(message.shape), values if values is raw else tuple(values))


@dataclass(frozen=True)
class Inference:
  """The answer of infer()."""

  model: str
  model_version: str
  id: str
  parameters: Mapping[str, Parameter]
  outputs: Tuple[Tensor, ...]

  @classmethod
  def of(cls, message: Any) -> Inference:
    parameters = {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in message.parameters.items()
                  if one.WhichOneof("parameter_choice")}
    if len(message.raw_output_contents) != len(message.outputs):
      raise protocol_error("the tensors have no raw contents", 0)
    return cls(message.model_name, message.model_version, message.id, parameters,
               tuple(map(Tensor.of, message.outputs, message.raw_output_contents)))


@dataclass(frozen=True)
class TensorMetadata:
  """An input or output that a model has. In `shape`, -1 stands for any size."""

  name: str
  datatype: str
  shape: Tuple[int, ...]

  @classmethod
  def of(cls, message: Any) -> TensorMetadata:
    return cls(**_plain(cls, message, shape=tuple(message.shape)))


@dataclass(frozen=True)
class ModelMetadata:
  """The answer of metadata()."""

  name: str
  versions: Tuple[str, ...]  # those that are ready
  platform: str
  inputs: Tuple[TensorMetadata, ...]
  outputs: Tuple[TensorMetadata, ...]

  @classmethod
  def of(cls, message: Any) -> ModelMetadata:
    return cls(**_plain(cls, message, versions=tuple(message.versions),
                        inputs=tuple(map(TensorMetadata.of, message.inputs)),
                        outputs=tuple(map(TensorMetadata.of, message.outputs))))


@dataclass(frozen=True)
class Timing:
  """How often something happened, and how long it took in all."""

  count: int
  ns: int


def _timings(cls: Any, message: Any) -> dict[str, Timing]:
  values = {one.name: getattr(message, one.name, None) for one in fields(cls)}
  return {name: Timing(value.count, value.ns) for name, value in values.items()
          if isinstance(value, wire.oip.StatisticDuration)}


@dataclass(frozen=True)
class BatchStatistics:
  """The batches of one size that ran without an error."""

  batch_size: int
  compute_input: Timing
  compute_infer: Timing
  compute_output: Timing

  @classmethod
  def of(cls, message: Any) -> BatchStatistics:
    return cls(**_plain(cls, message, **_timings(cls, message)))


@dataclass(frozen=True)
class ModelStatistics:
  """The requests of the Open Inference Protocol that one version of a model has had."""

  name: str
  version: str
  last_inference: int  # milliseconds since 1970
  inference_count: int
  execution_count: int  # of the requests of all services
  success: Timing
  fail: Timing
  queue: Timing
  compute_input: Timing
  compute_infer: Timing
  compute_output: Timing
  batch_stats: Tuple[BatchStatistics, ...]

  @classmethod
  def of(cls, message: Any) -> ModelStatistics:
    return cls(**_plain(cls, message, **_timings(cls, message.inference_stats),
                        batch_stats=tuple(map(BatchStatistics.of, message.batch_stats))))


def infer_request(model: str, model_version: str, inputs: Sequence[Tensor], outputs: Sequence[str],
                  parameters: Mapping[str, Parameter], id: str) -> Any:
  request = wire.oip.ModelInferRequest(model_name=model, model_version=model_version, id=id)
  for tensor in inputs:
    request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    request.raw_input_contents.append(tensor.raw())
  check_several(outputs, "outputs")
  for name in outputs:
    request.outputs.add(name=name)
  for name, value in parameters.items():
    if isinstance(value, bool):
      field = "bool_param"
    elif isinstance(value, int):
      field = "int64_param" if value < 2**63 else "uint64_param"
    else:
      field = "double_param" if isinstance(value, float) else "string_param"
    setattr(request.parameters[name], field, value)
  return request
