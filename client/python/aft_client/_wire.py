"""The messages and services of the protocol, made from the descriptors in wire.pb, which setup.py compiles.

There is no generated code, because such code works with only a few versions of protobuf's runtime. The package has a
descriptor pool of its own, because other packages in the process, such as tritonclient, may define the same names.
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
# Before version 4.22, protobuf has only MessageFactory.
_class_of = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(_POOL).GetPrototype


class Package:
  """The messages of a protobuf package as attributes."""

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

  def __getattr__(self, method: str) -> Any:  # for type checkers; the constructor sets all methods
    raise AttributeError(method)


aft = Package("aft.v1")
health = Package("grpc.health.v1")
oip = Package("inference")
