"""The messages and services of the wire, made of the descriptors in wire.pb, which setup.py compiles.

There is no generated code, which works with few versions of protobuf's runtime. The pool is this package's own, because
other packages in the process may define messages of the same names, as tritonclient does.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _load() -> Any:
  pool = descriptor_pool.DescriptorPool()
  bytes_ = resources.files(__package__).joinpath("wire.pb").read_bytes()
  for file in descriptor_pb2.FileDescriptorSet.FromString(bytes_).file:
    pool.AddSerializedFile(file.SerializeToString())
  return pool


_POOL = _load()
# protobuf before 4.22 has only the factory.
_class_of = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(_POOL).GetPrototype


class Package:
  """The messages of a package of the wire, as attributes."""

  def __init__(self, name: str) -> None:
    self._name = name

  def __getattr__(self, message: str) -> Any:
    setattr(self, message, _class_of(_POOL.FindMessageTypeByName(f"{self._name}.{message}")))
    return self.__dict__[message]


class Service:
  """The methods of a service as attributes, for a channel of grpc or of grpc.aio."""

  def __init__(self, channel: Any, name: str) -> None:
    for method in _POOL.FindServiceByName(name).methods:
      kind = ("stream" if method.client_streaming else "unary") + ("_stream" if method.server_streaming else "_unary")
      setattr(self, method.name, getattr(channel, kind)(
          f"/{name}/{method.name}", request_serializer=_class_of(method.input_type).SerializeToString,
          response_deserializer=_class_of(method.output_type).FromString))

  def __getattr__(self, method: str) -> Any:  # for a type checker: the constructor has set all there are
    raise AttributeError(method)


aft = Package("aft.v1")
health = Package("grpc.health.v1")
oip = Package("inference")
