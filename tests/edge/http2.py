"""A small HTTP/2 client for gRPC calls that break rules on purpose, as libraries would not allow.

It sends any frame at any time. It reads all answers and keeps to flow control (otherwise a peer would end the
connection), unless the caller withholds window updates. hpack reads header blocks.
"""

import collections
import dataclasses
import selectors
import socket
import ssl
import struct
import time

import hpack

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4  # A setting.
MAX_WINDOW = 2**31 - 1
FRAME_BYTES = 16384  # The frame size that every peer must accept.
ERRORS = ["NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
          "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR",
          "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"]
CODES = ["OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
         "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
         "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"]


@dataclasses.dataclass
class Stream:
  window: int
  headers: dict = dataclasses.field(default_factory=dict)  # Initial and trailing metadata.
  data: bytearray = dataclasses.field(default_factory=bytearray)
  ended: bool = False
  reset: str = ""

  @property
  def outcome(self):
    """The gRPC status by name; "reset ERROR", "http CODE", "open", or "ended" without any of these."""
    if "grpc-status" in self.headers:
      return CODES[int(self.headers["grpc-status"])]
    if self.headers.get(":status", "200") != "200":
      return "http " + self.headers[":status"]
    if self.reset:
      return "reset " + self.reset
    return "ended" if self.ended else "open"


class Connection:
  """Not thread-safe. `window` is the number of bytes that the peer may send per stream, and `updates` whether the
  window is opened again when they have come. `acknowledge` is whether its SETTINGS are acknowledged. `token`
  identifies the client, and `source` is the address of this machine from which it connects. Sending gives up after
  `patience` seconds without an event."""

  def __init__(self, address, tls=None, window=65535, updates=True, acknowledge=True, token=None, source=None,
               patience=5):
    host, port = address.rsplit(":", 1)
    self.authority = address
    self.metadata = [("authorization", f"Bearer {token}")] if token else []
    self.updates, self.acknowledge, self._patience = updates, acknowledge, patience
    self.streams, self.sent = {}, 0
    self.deaf = False  # If true, the socket is not read any more.
    self.closed, self.goaway = "", ""  # How the connection ended, and the error of a GOAWAY.
    self.pings_answered = 0
    self._next, self._window, self._stream_window = 1, 65535, 65535
    self._in, self._out = bytearray(), bytearray()
    self._block, self._decoder, self._encoder = b"", hpack.Decoder(max_header_list_size=64 << 20), hpack.Encoder()
    self._socket = socket.create_connection((host.strip("[]"), int(port)), source_address=source and (source, 0))
    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
      self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
    self._socket.setblocking(False)
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._socket, selectors.EVENT_READ)
    self._out += b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    self.frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window))
    if updates:
      self.frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", MAX_WINDOW - 65535))

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()

  def close(self):
    self._selector.close()
    self._socket.close()

  # ---- Sending -----------------------------------------------------------------------------------
  def frame(self, kind, flags, stream, payload=b""):
    self._out += len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload

  def open(self):
    """Returns the number of a new stream, without sending anything."""
    number, self._next = self._next, self._next + 2
    self.streams[number] = Stream(self._stream_window)
    return number

  def request(self, path, headers=()):
    """Opens a stream with its headers and returns its number."""
    number, block = self.open(), self.block(path, headers)
    parts = [block[i:i + FRAME_BYTES] for i in range(0, len(block), FRAME_BYTES)]
    for i, part in enumerate(parts):
      flags = END_HEADERS if i == len(parts) - 1 else 0
      self.frame(CONTINUATION if i else HEADERS, flags, number, part)
    return number

  def block(self, path, headers=()):
    """The header block of a gRPC request. `headers` are added to the usual ones or replace them."""
    scheme = "https" if isinstance(self._socket, ssl.SSLSocket) else "http"
    own = {":method": "POST", ":scheme": scheme, ":path": path, ":authority": self.authority,
           "content-type": "application/grpc", "te": "trailers"}
    return self._encoder.encode({**own, **dict(self.metadata), **dict(headers)}, huffman=False)

  def data(self, number, body, end=True):
    """Sends as much as flow control allows, and waits to send the rest. Stops if the peer ends the stream."""
    stream, body, at = self.streams[number], memoryview(body), 0
    while at < len(body) and not stream.ended and not self.closed:
      size = min(FRAME_BYTES, len(body) - at, stream.window, self._window)
      if size <= 0:
        if not self.turn(self._patience):
          return  # The peer does not open the window any further.
        continue
      last = end and at + size == len(body)
      self.frame(DATA, END_STREAM if last else 0, number, bytes(body[at:at + size]))
      stream.window -= size
      self._window -= size
      at += size
      if len(self._out) > 1 << 18:
        self.turn(0)

  def flush(self):
    while self._out and not self.closed and self.turn(self._patience):
      pass

  # ---- Receiving ---------------------------------------------------------------------------------
  def settle(self, patience, begun=False):
    """Waits until every stream has ended (with `begun`: has an answer), or nothing happens for `patience` seconds."""
    while any(not (s.ended or begun and s.headers) for s in self.streams.values()):
      if not self.turn(patience):
        break

  def turn(self, patience):
    """Writes and reads what is possible, after at most `patience` seconds. Returns False if nothing happened."""
    end = time.monotonic() + patience
    while not self.closed:
      moved = self._write() + self._read()
      if moved:
        return True
      left = end - time.monotonic()
      if left <= 0:
        return False
      events = (0 if self.deaf else selectors.EVENT_READ) | (selectors.EVENT_WRITE if self._out else 0)
      if not events:
        return False
      self._selector.modify(self._socket, events)
      self._selector.select(left)
    return False

  def _write(self):
    sent = 0
    try:
      while self._out:
        count = self._socket.send(self._out[:1 << 16])
        del self._out[:count]
        sent += count
    except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
      pass
    except OSError:
      self._out.clear()  # The last data read, or the next read, tells the cause.
    self.sent += sent
    return sent

  def _read(self):
    try:
      received = None if self.deaf else self._socket.recv(1 << 18)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
      return 0
    except OSError as error:
      self._end(type(error).__name__)
      return 1
    if received is None:
      return 0
    if not received:
      self._end("closed")
      return 1
    self._in += received
    while len(self._in) >= 9:
      length = int.from_bytes(self._in[:3], "big")
      if len(self._in) < 9 + length:
        break
      kind, flags, number = struct.unpack(">BBI", self._in[3:9])
      payload = bytes(self._in[9:9 + length])
      del self._in[:9 + length]
      self._take(kind, flags, number & MAX_WINDOW, payload)
    return len(received)

  def _end(self, why):
    self.closed = self.closed or why
    for stream in self.streams.values():
      if not stream.ended:
        stream.ended, stream.reset = True, stream.reset or self.closed

  def _take(self, kind, flags, number, payload):
    stream = self.streams.get(number)
    if kind == DATA and stream:
      stream.data += payload
      stream.ended |= bool(flags & END_STREAM)
      if self.updates and payload:
        for target in (0, number):
          self.frame(WINDOW_UPDATE, 0, target, struct.pack(">I", len(payload)))
    elif kind in (HEADERS, CONTINUATION):
      self._block += payload
      if flags & END_HEADERS:
        fields = dict(self._decoder.decode(self._block))
        self._block = b""
        if stream:
          stream.headers.update(fields)
      if kind == HEADERS and stream:
        stream.ended |= bool(flags & END_STREAM)
    elif kind == RST_STREAM and stream:
      stream.ended, stream.reset = True, ERRORS[struct.unpack(">I", payload)[0]]
    elif kind == SETTINGS and not flags & ACK:
      for setting, value in struct.iter_unpack(">HI", payload):
        if setting == INITIAL_WINDOW_SIZE:
          for open_stream in self.streams.values():
            open_stream.window += value - self._stream_window
          self._stream_window = value
      if self.acknowledge:
        self.frame(SETTINGS, ACK, 0)
    elif kind == PING:
      if flags & ACK:
        self.pings_answered += 1
      else:
        self.frame(PING, ACK, 0, payload)
    elif kind == GOAWAY:
      last, error = struct.unpack(">II", payload[:8])
      for opened, refused in self.streams.items():
        if opened > last and not refused.ended:
          refused.ended, refused.reset = True, "REFUSED_STREAM"
      self.goaway = ERRORS[error]
    elif kind == WINDOW_UPDATE:
      more = struct.unpack(">I", payload)[0]
      if number == 0:
        self._window += more
      elif stream:
        stream.window += more


def message(payload, compressed=False):
  """A gRPC message as its bytes on the wire."""
  return struct.pack(">BI", compressed, len(payload)) + payload


def outcomes(connections):
  """The number of streams with each outcome."""
  return dict(collections.Counter(stream.outcome for connection in connections
                                  for stream in connection.streams.values()))
