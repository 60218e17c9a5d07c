"""A generation over all the calls that it takes."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import grpc

from ._errors import AftError, from_call, protocol_error, request_id_of
from ._types import Delta, Event, Finished, Started

# gRPC's limit of a message.
_MAX_REQUEST_BYTES = 4 << 20
# Servers on which a stream begins and breaks without a token, in a row: a request that brings servers down is
# not carried to all of them.
_MOST_IN_VAIN = 3


@dataclass(frozen=True)
class Resumed:
  """A generation that broke, and goes on."""

  cause: AftError
  tokens: int  # that had come
  # Whether all that comes is still what one server would have given, undisturbed. False where the server
  # that goes on computes otherwise: the text is as good, and another one.
  exact: bool


def back_off(tries: int, chance: float) -> float:
  """Seconds before the next try, when `tries` have brought no token: none, then twice as long each time, from
  0.1 to 5, less up to a half by `chance`, in [0, 1)."""
  if tries == 0:
    return 0.0
  return min(5.0, 0.1 * 2.0**min(tries - 1, 10)) * (1 - chance / 2)


class Generation(Iterator[Event]):
  """The events of a generation: one Started, any number of Delta, one Finished; then the iteration ends.

  Errors are AftError. What breaks goes on by itself, at any of the servers (client/README.md says after which
  errors, and how often); the events are those of one stream all the same. To leave it early, close() it, or
  leave its `with` block. One thread at a time may iterate; any may close.
  """

  def __init__(self, start: Callable[..., Any], request: Any, *, metadata: Sequence[Tuple[str, str]],
               timeout: Optional[float], request_id: str, max_resumes: int,
               on_resumed: Optional[Callable[[Resumed], None]]) -> None:
    self.started: Optional[Started] = None
    self.finished: Optional[Finished] = None
    self.resumes = 0  # how often it broke and went on
    self.exact = True  # Resumed.exact, of the last time
    self.request_id = request_id  # the server's, once there is one
    self.token_ids: List[int] = []

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

    self._tries = 0  # calls that were to go on, since the last token
    self._in_vain = 0  # of those, the ones that began
    self._cause: Optional[AftError] = None  # of the first of them
    self._tail = ""  # text that came behind the last token
    # Of the call under way.
    self._begun = False
    self._repeat = ""  # text that may come again
    self._hand_over = b""
    self._events = self._run()

  def __enter__(self) -> Generation:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def __next__(self) -> Event:
    return next(self._events)

  def close(self) -> None:
    """Ends it, and the iteration, with `finished` None; the server is told."""
    self._closed.set()
    with self._lock:
      if self._call is not None:
        self._call.cancel()

  def text(self) -> str:
    """The text of all events that are still to come."""
    return "".join(event.text for event in self if isinstance(event, Delta))

  def _run(self) -> Iterator[Event]:
    while not self._closed.is_set():
      try:
        yield from self._run_call()
        return
      except AftError as error:
        if self.finished is not None or self._closed.is_set():
          return  # nothing is missing, whatever became of the trailers; or nobody wants more
        pause = self._prepare_next(error)
      self._closed.wait(pause)

  def _run_call(self) -> Iterator[Event]:
    """The events of one call that are for the application."""
    self._begun = False
    self._repeat, self._hand_over = self._tail, b""
    call = self._open()
    try:
      for response in call:
        if not self.request_id:
          self.request_id = request_id_of(call)
        event = self._take(response)
        if event is not None:
          yield event
    except grpc.RpcError:
      raise from_call(call, len(self.token_ids)) from None
    finally:
      call.cancel()  # nothing happens where it has ended
    if self.finished is None:
      raise self._broken("it ended without Finished")

  def _open(self) -> Any:
    metadata = list(self._metadata)
    if self.request_id:
      metadata.append(("x-request-id", self.request_id))
    timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
    with self._lock:
      self._call = self._start(self._request, timeout=timeout, metadata=metadata)
      if self._closed.is_set():
        self._call.cancel()
      return self._call

  def _broken(self, message: str) -> AftError:
    return protocol_error(message, len(self.token_ids))

  def _take(self, response: Any) -> Optional[Event]:
    """The event as the application is to see it, if it is."""
    kind = response.WhichOneof("event")
    if kind == "started":
      return self._take_started(response.started)
    if not self._begun or self.finished is not None:
      raise self._broken(f"{kind} came outside Started and Finished")
    if kind == "delta":
      return self._take_delta(response.delta)
    if kind == "finished":
      self.finished = Finished.of(response.finished)
      return self.finished
    if kind == "hand_over" and len(self._hand_over) <= _MAX_REQUEST_BYTES:
      self._hand_over += response.hand_over.chunk
    return None

  def _take_started(self, message: Any) -> Optional[Event]:
    if self._begun:
      raise self._broken("Started came twice")
    resume = self._request.resume
    goes_on = self.started is not None
    if goes_on and message.fingerprint != resume.fingerprint:
      raise self._broken("the stream went on with another model")
    self._begun = True
    self._request.sampling.seed = message.seed
    resume.fingerprint = message.fingerprint
    resume.numerics = message.numerics
    resume.resume_id = message.resume_id
    if not goes_on:
      self.started = Started.of(message)
      return self.started
    self.resumes += 1
    self.exact = self.exact and message.exact
    if self._on_resumed is not None and self._cause is not None:
      self._on_resumed(Resumed(self._cause, len(self.token_ids), self.exact))
    return None

  def _take_delta(self, message: Any) -> Optional[Event]:
    received = len(self.token_ids)
    if message.token_ids and message.first_index > received:
      raise self._broken(f"tokens {received} to {message.first_index - 1} are lost")
    if message.token_ids and message.first_index < received:
      raise self._broken(f"token {message.first_index} came twice")
    if message.text and self._repeat:
      if message.text.startswith(self._repeat):
        message.text = message.text[len(self._repeat):]
      self._repeat = ""
      if not message.text and not message.token_ids:
        return None
    if message.token_ids:
      self.token_ids.extend(message.token_ids)
      self._request.resume.token_ids.extend(message.token_ids)
      self._tail = ""
      self._tries = self._in_vain = 0
    else:
      self._tail += message.text
    return Delta.of(message)

  def _prepare_next(self, error: AftError) -> float:
    """Seconds before the next call; raises the error where there is none."""
    if self._tries == 0:
      self._cause = error
    elif self._begun:
      self._in_vain += 1
    pause = max(back_off(self._tries, random.random()), (error.retry_after_ms or 0) / 1000)
    in_time = self._deadline is None or time.monotonic() + pause < self._deadline
    if not in_time or not self._may_go_on(error):
      raise self._final(error) from None
    self._tries += 1
    self.request_id = self.request_id or error.request_id
    if self._hand_over:
      self._request.resume.state = self._hand_over
    # Without the state the server reads the tokens, which are far smaller.
    if self._request.ByteSize() > _MAX_REQUEST_BYTES or error.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
      self._request.resume.ClearField("state")
    return pause

  def _may_go_on(self, error: AftError) -> bool:
    """The table of client/README.md."""
    if (self.started is None or self._request.resume.fingerprint == 0 or self._tries >= self._max_resumes or
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
