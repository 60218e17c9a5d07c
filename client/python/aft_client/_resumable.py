"""A stream over all its calls."""

from __future__ import annotations

import random
import re
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple

import grpc
import grpc.aio

from ._errors import AftError, closed_error, from_call, misplaced, protocol_error, request_id_of

# gRPC's default limit of a message.
MAX_REQUEST_BYTES = 4 << 20
# How many servers in a row may begin the stream and break without a new token. This limit keeps a request that
# crashes servers from reaching all of them.
_MOST_IN_VAIN = 3


@dataclass(frozen=True)
class Resumed:
  """A generation or scoring that broke and was resumed."""

  cause: AftError
  tokens: int  # or scores, that had arrived
  # Whether the whole answer is still what one server would have given without a break. False if the new server
  # computes differently; its text is as good, but may be another one.
  exact: bool
  sequence: int = 0  # of several sequences, each is resumed by itself
  tries: int = 1  # number of calls that were sent to resume it, including this one
  # Seconds from the break until this call was sent (pauses and refused calls), and from there until its Started (the
  # network and the server's queue).
  until_sent: float = 0.0
  until_started: float = 0.0


def is_printable(text: str) -> bool:
  """Whether the text can be sent as metadata. With other metadata, streams of grpc.aio never begin."""
  return all("!" <= one <= "~" for one in text)


def _sendable(request_id: str) -> str:
  """The id of a request, or "" if the next server would not accept it (client/lib/call.cc has the same rule)."""
  return request_id if len(request_id) <= 128 and is_printable(request_id) else ""


def check_ids(request_id: str, traceparent: str) -> None:
  """Raises ValueError if one is wrong (client/lib/call.cc has the same rules)."""
  if request_id and not _sendable(request_id):
    raise ValueError("the request id must be at most 128 printable ASCII characters without spaces")
  if traceparent and not re.fullmatch("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", traceparent):
    raise ValueError(
        "the traceparent must be 00-<32>-<16>-<2 lower-case hexadecimal digits> (W3C Trace Context)")


def back_off(tries: int, chance: float) -> float:
  """Seconds before the next attempt, after `tries` in vain: none at first, then from 0.1, doubling up to 5. The pause
  is shortened by up to a half, by `chance` in [0, 1)."""
  if tries == 0:
    return 0.0
  return min(5.0, 0.1 * 2.0**min(tries - 1, 10)) * (1 - chance / 2)


class Resumable:
  """What generations and scorings have in common: they make calls one after another, and decide when to resume.

  A derived class tells what has arrived (_received, _is_finished) and converts events (_take). The request's `resume`
  is what the next call asks for.
  """

  def __init__(self, start: Callable[..., Any], request: Any, *, metadata: Sequence[Tuple[str, str]],
               timeout: Optional[float], request_id: str, max_resumes: int,
               on_resumed: Optional[Callable[[Resumed], None]]) -> None:
    self.resumes = 0  # how often it was resumed
    self.exact = True  # Resumed.exact of the last resume
    self.request_id = request_id  # the server's once it is known

    self._start = start
    self._metadata = tuple(metadata)
    self._timeout = timeout
    self._deadline: Optional[float] = None  # `timeout` after the first call was sent
    self._max_resumes = max_resumes
    self._on_resumed = on_resumed
    self._request = request
    self._request.resumable = max_resumes > 0
    self._closed = threading.Event()
    self._woken: Any = threading.Event()  # ends the pauses before calls
    # Guards _call, which close() cancels. A signal handler may call close() while this thread holds the lock.
    self._lock = threading.RLock()
    self._call: Any = None

    self._has_started = False  # the application has seen Started
    self._fingerprint = 0  # of the model
    self._tries = 0  # calls to resume since something new arrived
    self._in_vain = 0  # calls that began since something new arrived
    self._cause: Optional[AftError] = None  # why the first of these calls was needed
    self._broke = 0.0  # when that break occurred
    self._sent = 0.0  # when the call under way was sent
    self._begun = False  # the call under way has begun
    self._is_broken = False  # an answer broke the protocol
    self._callback_error: Optional[AftError] = None  # on_resumed raised it, so it is no break of the stream
    self._sequences = 1  # number of sequences in the next call

  def close(self) -> None:
    """Ends the stream. The server is told."""
    self._closed.set()
    self._woken.set()
    with self._lock:
      if self._call is not None:
        self._call.cancel()

  def _wake(self) -> None:
    """Ends the pause before the next call, which fails if the client has been closed."""
    self._woken.set()

  def _received(self) -> int:
    raise NotImplementedError

  def _is_finished(self) -> bool:
    raise NotImplementedError

  def _take(self, response: Any) -> Any:
    """What the application sees of a response of a call that has begun; None if nothing."""
    raise NotImplementedError

  def _take_started(self, message: Any) -> Any:
    """What the application sees of the first Started."""
    raise NotImplementedError

  def _remember(self, message: Any) -> None:
    """Keeps what the next call has to repeat from a Started."""
    self._fingerprint = message.fingerprint
    self._request.resume.fingerprint = message.fingerprint
    self._request.resume.numerics = message.numerics

  def _is_exact(self, message: Any) -> bool:
    """Whether the call with this Started continues exactly as the former one would have."""
    return bool(message.exact)

  def _before_call(self) -> None:
    pass

  def _run(self) -> Iterator[Any]:
    while not self._closed.is_set():
      try:
        yield from self._run_call()
        return
      except AftError as error:
        if error is self._callback_error:
          raise
        if self._is_over():
          return
        pause = self._prepare_next(error)
      self._woken.wait(pause)
      if self._sequences > 1:
        yield from self._run_apart()
        return

  def _is_over(self) -> bool:
    """Whether the application has closed the stream, or only its trailers are missing."""
    return self._closed.is_set() or (self._is_finished() and not self._is_broken)

  def _run_apart(self) -> Iterator[Any]:
    """The events after a break of several sequences."""
    raise NotImplementedError

  def _run_call(self) -> Iterator[Any]:
    """The events of one call that the application sees."""
    self._begun = False
    self._before_call()
    call = self._open()
    try:
      for response in call:
        if not self.request_id:
          self.request_id = request_id_of(call.initial_metadata())
        event = self._receive(response)
        if event is not None:
          yield event
    except grpc.RpcError:
      raise from_call(call, self._received()) from None
    finally:
      call.cancel()  # has no effect if the call has ended
    if not self._is_finished():
      raise self._broken("the stream ended without Finished")

  def _receive(self, response: Any) -> Any:
    return self._begin(response) if response.HasField("started") else self._continue(response)

  def _open(self) -> Any:
    metadata = list(self._metadata)
    if self.request_id:
      metadata.append(("x-request-id", self.request_id))
    self._sent = time.monotonic()
    if self._deadline is None and self._timeout is not None:
      self._deadline = self._sent + self._timeout
    timeout = None if self._deadline is None else max(0.0, self._deadline - self._sent)
    with self._lock:
      try:
        self._call = self._start(self._request, timeout=timeout, metadata=tuple(metadata))
      except (ValueError, grpc.aio.UsageError):
        if self._cause is None:
          raise  # the application has called a closed client
        raise closed_error(self._received()) from None
      if self._closed.is_set():
        self._call.cancel()
      return self._call

  def _broken(self, message: str) -> AftError:
    self._is_broken = True
    return protocol_error(message, self._received())

  def _continue(self, response: Any) -> Any:
    if not self._begun and self._has_started:
      raise self._broken("the stream was resumed without Started")
    return self._take(response)

  def _begin(self, response: Any) -> Any:
    message = response.started
    if self._begun:
      raise self._broken("Started came twice")
    if self._has_started and message.fingerprint != self._fingerprint:
      raise self._broken("the stream was resumed with another model")
    self._begun = True
    self._in_vain += 1  # until it brings something new
    self._remember(message)
    if not self._has_started:
      self._has_started = True
      return self._take_started(message)
    self.resumes += 1
    self.exact = self.exact and self._is_exact(message)
    if self._on_resumed is not None and self._cause is not None:
      resumed = Resumed(self._cause, self._received(), self.exact, tries=self._tries,
                        until_sent=self._sent - self._broke, until_started=time.monotonic() - self._sent)
      try:
        self._on_resumed(resumed)
      except AftError as error:
        self._callback_error = error
        raise
    return None

  def _check_open(self, response: Any, unit: str, is_finished: bool) -> None:
    """Checks that a part of a sequence or text comes after Started and before its Finished."""
    if self._begun and not is_finished:
      return
    if response.HasField("finished"):
      raise self._broken("Finished came before Started or twice")
    if response.WhichOneof("event") in ("delta", "chunk"):
      raise self._broken(f"a {unit} came outside Started and Finished")

  def _check_first(self, unit: str, first: int, received: int) -> None:
    """Checks that a part begins where the last one ended."""
    if wrong := misplaced(unit, first, received):
      raise self._broken(wrong)

  def _has_brought(self) -> None:
    self._tries = self._in_vain = 0

  def _prepare_next(self, error: AftError) -> float:
    """Returns the seconds before the next call; raises the error if there is no next call."""
    if self._tries == 0:
      self._cause, self._broke = error, time.monotonic()
    pause = max(back_off(self._tries, random.random()), (error.retry_after_ms or 0) / 1000)
    in_time = self._deadline is None or time.monotonic() + pause < self._deadline
    if not in_time or not self._may_go_on(error):
      raise self._final(error) from None
    self._tries += 1
    self.request_id = _sendable(self.request_id) or _sendable(error.request_id)
    return pause

  def _may_go_on(self, error: AftError) -> bool:
    """Whether a call with this error may be resumed: the table in client/README.md."""
    if (not self._has_started or self._fingerprint == 0 or self._tries >= self._max_resumes or
        self._in_vain >= _MOST_IN_VAIN or (error.retry_after_ms or 0) < 0):
      return False
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
      return True
    if error.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
      return not error.of_server
    return error.code == grpc.StatusCode.RESOURCE_EXHAUSTED and not self._begun

  def _final(self, error: AftError) -> AftError:
    if self._tries == 0 or self._cause is None:
      return error
    return AftError(error.code, f"{error.message}; the stream had to be resumed because {self._cause.message}",
                    request_id=error.request_id, received_tokens=error.received_tokens,
                    retry_after_ms=error.retry_after_ms, of_server=error.of_server)
