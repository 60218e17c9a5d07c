"""A stream over all the calls that it takes."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple

import grpc

from ._errors import AftError, from_call, misplaced, protocol_error, request_id_of

# gRPC's limit of a message.
MAX_REQUEST_BYTES = 4 << 20
# Servers on which a stream begins and breaks without bringing anything, in a row: a request that brings servers
# down is not carried to all of them.
_MOST_IN_VAIN = 3


@dataclass(frozen=True)
class Resumed:
  """A generation or scoring that broke, and goes on."""

  cause: AftError
  tokens: int  # or scores, that had come
  # Whether all that comes is still what one server would have given, undisturbed. False where the server
  # that goes on computes otherwise: the text is as good, and another one.
  exact: bool
  sequence: int = 0  # of a generation with several: each goes on by itself
  tries: int = 1  # calls that were sent to go on, this one included
  # Seconds from the break until this one was sent, which is pauses and refused calls; and from there to its Started,
  # which is the way there and the server's queue.
  until_sent: float = 0.0
  until_started: float = 0.0


def back_off(tries: int, chance: float) -> float:
  """Seconds before the next try, when `tries` have brought nothing: none, then twice as long each time, from
  0.1 to 5, less up to a half by `chance`, in [0, 1)."""
  if tries == 0:
    return 0.0
  return min(5.0, 0.1 * 2.0**min(tries - 1, 10)) * (1 - chance / 2)


class Resumable:
  """What generations and scorings have in common: their calls, one after the other, and when there is another.

  A class that derives from it says what has come (_received, _is_finished) and what becomes of an event (_take);
  the request's `resume` is what it asks for next.
  """

  def __init__(self, start: Callable[..., Any], request: Any, *, metadata: Sequence[Tuple[str, str]],
               timeout: Optional[float], request_id: str, max_resumes: int,
               on_resumed: Optional[Callable[[Resumed], None]]) -> None:
    self.resumes = 0  # how often it broke and went on
    self.exact = True  # Resumed.exact, of the last time
    self.request_id = request_id  # the server's, once there is one

    self._start = start
    self._metadata = tuple(metadata)
    self._deadline = None if timeout is None else time.monotonic() + timeout
    self._max_resumes = max_resumes
    self._on_resumed = on_resumed
    self._request = request
    self._request.resumable = max_resumes > 0
    self._closed = threading.Event()
    self._lock = threading.Lock()  # of the call under way, for close()
    self._call: Any = None

    self._has_started = False  # the application has had it
    self._fingerprint = 0  # of the model
    self._tries = 0  # calls that were to go on, since something came
    self._in_vain = 0  # of those, the ones that began
    self._cause: Optional[AftError] = None  # of the first of them
    self._broke = 0.0  # when that was
    self._sent = 0.0  # the call under way
    self._begun = False  # the call under way
    self._is_broken = False  # an answer breaks the protocol
    self._sequences = 1  # of the next call

  def close(self) -> None:
    """Ends it; the server is told."""
    self._closed.set()
    with self._lock:
      if self._call is not None:
        self._call.cancel()

  def _received(self) -> int:
    raise NotImplementedError

  def _is_finished(self) -> bool:
    raise NotImplementedError

  def _take(self, response: Any) -> Any:
    """What the application is to see of a response of a call that has begun; None: nothing."""
    raise NotImplementedError

  def _take_started(self, message: Any) -> Any:
    """The same of the first Started."""
    raise NotImplementedError

  def _remember(self, message: Any) -> None:
    """What the next call has to tell of a Started."""
    self._fingerprint = message.fingerprint
    self._request.resume.fingerprint = message.fingerprint
    self._request.resume.numerics = message.numerics

  def _is_exact(self, message: Any) -> bool:
    """Whether what goes on with that Started is what would have come."""
    return bool(message.exact)

  def _before_call(self) -> None:
    pass

  def _run(self) -> Iterator[Any]:
    while not self._closed.is_set():
      try:
        yield from self._run_call()
        return
      except AftError as error:
        if self._is_over():
          return
        pause = self._prepare_next(error)
      self._closed.wait(pause)
      if self._sequences > 1:
        yield from self._run_apart()
        return

  def _is_over(self) -> bool:
    """The application wants no more, or nothing is missing, whatever became of the trailers."""
    return self._closed.is_set() or (self._is_finished() and not self._is_broken)

  def _run_apart(self) -> Iterator[Any]:
    """The events behind a break of several sequences."""
    raise NotImplementedError

  def _run_call(self) -> Iterator[Any]:
    """The events of one call that are for the application."""
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
      call.cancel()  # nothing happens where it has ended
    if not self._is_finished():
      raise self._broken("the stream ended without Finished")

  def _receive(self, response: Any) -> Any:
    return self._begin(response) if response.HasField("started") else self._continue(response)

  def _open(self) -> Any:
    metadata = list(self._metadata)
    if self.request_id:
      metadata.append(("x-request-id", self.request_id))
    self._sent = time.monotonic()
    timeout = None if self._deadline is None else max(0.0, self._deadline - self._sent)
    with self._lock:
      self._call = self._start(self._request, timeout=timeout, metadata=tuple(metadata))
      if self._closed.is_set():
        self._call.cancel()
      return self._call

  def _broken(self, message: str) -> AftError:
    self._is_broken = True
    return protocol_error(message, self._received())

  def _continue(self, response: Any) -> Any:
    if not self._begun and self._has_started:
      raise self._broken("the stream went on without Started")
    return self._take(response)

  def _begin(self, response: Any) -> Any:
    message = response.started
    if self._begun:
      raise self._broken("Started came twice")
    if self._has_started and message.fingerprint != self._fingerprint:
      raise self._broken("the stream went on with another model")
    self._begun = True
    self._remember(message)
    if not self._has_started:
      self._has_started = True
      return self._take_started(message)
    self.resumes += 1
    self.exact = self.exact and self._is_exact(message)
    if self._on_resumed is not None and self._cause is not None:
      self._on_resumed(Resumed(self._cause, self._received(), self.exact, tries=self._tries,
                               until_sent=self._sent - self._broke, until_started=time.monotonic() - self._sent))
    return None

  def _check_open(self, response: Any, unit: str, is_finished: bool) -> None:
    """What belongs to a sequence or text comes behind Started, and before its Finished."""
    if self._begun and not is_finished:
      return
    if response.HasField("finished"):
      raise self._broken("Finished came before Started or twice")
    if response.WhichOneof("event") in ("delta", "chunk"):
      raise self._broken(f"a {unit} came outside Started and Finished")

  def _check_first(self, unit: str, first: int, received: int) -> None:
    """A part begins where the last one ended."""
    if wrong := misplaced(unit, first, received):
      raise self._broken(wrong)

  def _has_brought(self) -> None:
    self._tries = self._in_vain = 0

  def _prepare_next(self, error: AftError) -> float:
    """Seconds before the next call; raises the error where there is none."""
    if self._tries == 0:
      self._cause, self._broke = error, time.monotonic()
    elif self._begun:
      self._in_vain += 1
    pause = max(back_off(self._tries, random.random()), (error.retry_after_ms or 0) / 1000)
    in_time = self._deadline is None or time.monotonic() + pause < self._deadline
    if not in_time or not self._may_go_on(error):
      raise self._final(error) from None
    self._tries += 1
    self.request_id = self.request_id or error.request_id
    return pause

  def _may_go_on(self, error: AftError) -> bool:
    """The table of client/README.md."""
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
    return AftError(error.code, f"{error.message}; the stream had to go on because {self._cause.message}",
                    request_id=error.request_id, received_tokens=error.received_tokens,
                    retry_after_ms=error.retry_after_ms, of_server=error.of_server)
