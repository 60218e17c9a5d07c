"""A small HTTP/1.1 client whose requests are bytes, so that it can send requests that libraries would not."""

import json
import socket

from edge import PATIENCE


def head(line, *headers, host="localhost"):
  return "\r\n".join([f"{line} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


def post(path, body, *headers, **options):
  """A complete request. `body` is bytes, or an object that is sent as JSON."""
  body = body if isinstance(body, bytes) else json.dumps(body).encode()
  types = [] if any(header.lower().startswith("content-type:") for header in headers) else ["Content-Type: application/json"]
  return head(f"POST {path}", *types, f"Content-Length: {len(body)}", *headers, **options) + body


class Answer:
  """The head of an answer, and the part of its body that has been read."""

  def __init__(self, stream):
    self._stream, self.body = stream, b""
    line = stream.readline()
    if not line:
      raise ConnectionError("no answer")
    self.status, self.headers = int(line.split()[1]), {}
    while line := stream.readline().strip():
      name, _, value = line.decode().partition(":")
      self.headers[name.lower()] = value.strip()

  def parts(self):
    """Yields the parts of the body as they arrive, until the answer ends. Raises ConnectionError if it is cut off."""
    if "content-length" in self.headers:
      self.body = self._stream.read(int(self.headers["content-length"]))
      yield self.body
      return
    while "transfer-encoding" in self.headers:
      line = self._stream.readline()
      if not line.strip():
        raise ConnectionError("the answer has no end")
      part = self._stream.read(int(line, 16))
      self._stream.readline()
      if not part:
        return
      self.body += part
      yield part

  def read(self):
    for _ in self.parts():
      pass
    return self

  def json(self):
    return json.loads(self.body)


class Talk:
  """One connection, over TLS."""

  def __init__(self, address, tls, source=None):
    host, port = address.rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), PATIENCE, (source, 0) if source else None)
    tls.set_alpn_protocols(["http/1.1"])
    try:
      self._socket = tls.wrap_socket(plain, server_hostname="localhost")
    except OSError:
      plain.close()
      raise
    self._stream = self._socket.makefile("rb")

  def send(self, request, patience=PATIENCE):
    """Returns False if the peer reads no more for `patience` seconds or has closed. It may have sent a reason."""
    self._socket.settimeout(patience)
    try:
      self._socket.sendall(request)
      return True
    except OSError:
      return False
    finally:
      self._socket.settimeout(PATIENCE)

  def answer(self):
    """Reads the head of the next answer."""
    return Answer(self._stream)

  def ask(self, request):
    self.send(request)
    return self.answer().read()

  def close(self):
    self._stream.close()
    self._socket.close()
