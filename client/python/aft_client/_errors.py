"""Why a call failed."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import grpc


# A server's hint to wait longer than this counts as this, in ms, so that it can be added to any time.
_LONGEST_RETRY_AFTER = 24 * 3_600_000

# gRPC's message if it cannot make a connection object from the certificates and keys.
_NO_SUBCHANNEL = "empty address list"


class AftError(Exception):
  """A call that failed. The codes are those of inference.proto; DATA_LOSS means that the answer broke the protocol."""

  def __init__(self, code: grpc.StatusCode, message: str, *, request_id: str = "", received_tokens: int = 0,
               retry_after_ms: Optional[int] = None, of_server: bool = True) -> None:
    super().__init__(f"{code.name}: {message}")
    self.code = code
    self.message = message
    self.request_id = request_id  # empty if the server never replied
    self.received_tokens = received_tokens
    # After this time the server accepts the call again; negative: never.
    self.retry_after_ms = retry_after_ms
    # Whether a server itself made the error. False: gRPC or a proxy made it.
    self.of_server = of_server

  def __reduce__(self) -> Tuple[Any, ...]:
    # Copies and pickles of an exception call its class with `args`, which do not have the code.
    return type(self), (self.code, self.message), vars(self)


def protocol_error(message: str, received_tokens: int) -> AftError:
  return AftError(grpc.StatusCode.DATA_LOSS, f"the answer is broken: {message}", received_tokens=received_tokens)


def closed_error(received_tokens: int = 0) -> AftError:
  """The error of a call that the client's close() has ended."""
  return AftError(grpc.StatusCode.CANCELLED, "the client has been closed", received_tokens=received_tokens,
                  retry_after_ms=-1, of_server=False)


def misplaced(unit: str, first: int, received: int) -> str:
  """What is wrong with a part that begins at `first` after `received` items; "" if nothing is."""
  if first > received:
    return f"{unit}s {received} to {first - 1} are lost"
  return f"{unit} {first} came twice" if first < received else ""


def find_metadata(metadata: Any, key: str) -> Optional[str]:
  for name, value in metadata or ():
    if name == key:
      return value if isinstance(value, str) else value.decode("utf-8", "replace")
  return None


def request_id_of(metadata: Any) -> str:
  """The request id in these metadata: the initial ones of a call, or the trailers of a refusal."""
  return find_metadata(metadata, "x-request-id") or ""


def explained(message: str) -> str:
  """gRPC's error of a connection in the words of aftctl (client/lib/rpc_error.cc), or `message` if it is another error."""
  if not any(part in message for part in ("ailed to connect", "connections to all backends", "DNS", "C-ares",
                                          _NO_SUBCHANNEL)):
    return message
  for parts, why in (  # in the words of gRPC 1.51, and of later releases where they differ
      (("http1.x server", "no application protocol", "NO_APPLICATION_PROTOCOL"),
       "it is an HTTP port; use the address of gRPC, by default 127.0.0.1:8500"),
      (("Connection refused",), "connection refused; is the server running?"),
      (("DNS resolution", "C-ares", "resolver"), "the host name does not resolve; check the address"),
      ((_NO_SUBCHANNEL,), "gRPC cannot use the certificates or the key; are they PEM, and does the key belong to the "
       "certificate?"),
      (("wrong version number", "WRONG_VERSION_NUMBER"), "the server does not speak TLS; leave out tls"),
      (("certificate verify failed", "CERTIFICATE_VERIFY_FAILED"),
       "no authority that the client knows has signed the server's certificate, or it has expired; "
       "give the authority's certificate (tls=Tls(authorities=...))"),
      (("not in peer certificate", "Hostname Verification"),
       "the server's certificate is for another host name; use a name that it has"),
      (("Socket closed", "Connection reset"), "the server closed the connection; does it expect TLS (tls=Tls(...))?"),
      (("SETTINGS", "http2", "HTTP2", "handshaker", "imed out", "imeout", "Deadline"),
       "no answer in gRPC's protocol; check host, port and whether the server expects TLS")):
    if any(part in message for part in parts):
      return f"cannot reach the server: {why}"
  return message


def from_call(call: Any, received_tokens: int = 0) -> AftError:
  """The error of a call that has failed: a call of grpc, or the error that grpc.aio raises."""
  trailers = call.trailing_metadata()
  pushback = find_metadata(trailers, "grpc-retry-pushback-ms")
  try:
    retry_after_ms = min(int(pushback), _LONGEST_RETRY_AFTER) if pushback is not None else None
  except ValueError:
    retry_after_ms = None
  refused_id = find_metadata(trailers, "x-request-id")
  # Trailers have usage once a stream has begun, and the request's id if it is refused.
  of_server = refused_id is not None or find_metadata(trailers, "aft-usage-bin") is not None
  details = call.details() or ""
  if call.code() is grpc.StatusCode.UNAVAILABLE and not of_server:
    details = explained(details)
  return AftError(call.code(), details, request_id=refused_id or request_id_of(call.initial_metadata()),
                  received_tokens=received_tokens, retry_after_ms=retry_after_ms, of_server=of_server)
