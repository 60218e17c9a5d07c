"""A generation over all its calls."""

from __future__ import annotations

import io
import queue
import threading
from dataclasses import replace
from typing import Any, Callable, Iterator, List, Optional, Self

import grpc

from ._errors import AftError
from ._resumable import MAX_REQUEST_BYTES, Resumable, Resumed
from ._types import CacheMiss, Delta, Event, Finished, PromptScores, Started


class Output:
  """What has arrived of one sequence."""

  def __init__(self) -> None:
    self.token_ids: List[int] = []
    self.finished: Optional[Finished] = None
    self._text = io.StringIO()  # does not copy the whole text for each token, as += would

  def __repr__(self) -> str:
    return f"Output(token_ids={self.token_ids}, text={self.text!r}, finished={self.finished})"

  @property
  def text(self) -> str:
    return self._text.getvalue()

  def _append(self, text: str) -> None:
    self._text.write(text)


class GenerationState(Resumable):
  """What a generation has received, and the requests that continue it. Derived classes decide how to wait for
  events."""

  def __init__(self, start: Any, request: Any, **options: Any) -> None:
    super().__init__(start, request, **options)
    self.started: Optional[Started] = None
    self._sequences = max(request.n, 1)
    self.outputs = [Output() for _ in range(self._sequences)]

    self._sequence = 0  # number in the application's request
    self._tails = [""] * self._sequences  # text that arrived after the last token
    self._scored = 0  # the position in the prompt after its last score
    self._parts: List[GenerationState] = []  # one for each of several sequences, after a break
    # These belong to the call under way.
    self._repeat = ""  # text that may arrive again
    self._hand_over = b""

  @property
  def token_ids(self) -> List[int]:
    """The token ids of the first sequence."""
    return self.outputs[0].token_ids

  @property
  def finished(self) -> Optional[Finished]:
    """The end of the first sequence; None until it has finished."""
    return self.outputs[0].finished

  def close(self) -> None:
    """Ends the generation and the iteration; `finished` stays None. The server is told."""
    super().close()
    for part in self._made_parts():
      part.close()

  def _wake(self) -> None:
    super()._wake()
    for part in self._made_parts():
      part._wake()

  def _made_parts(self) -> List[GenerationState]:
    with self._lock:
      return list(self._parts)

  def _received(self) -> int:
    return sum(len(output.token_ids) for output in self.outputs)

  def _is_finished(self) -> bool:
    return all(output.finished is not None for output in self.outputs)

  def _before_call(self) -> None:
    self._repeat, self._hand_over = self._tails[0] if self._has_started else "", b""

  def _remember(self, message: Any) -> None:
    super()._remember(message)
    self._request.sampling.seed = message.seed
    self._request.resume.resume_id = message.resume_id

  def _take_started(self, message: Any) -> Started:
    self.started = Started.of(message)
    return self.started

  def _take(self, response: Any) -> Optional[Event]:
    """The event as the application sees it; None if it does not."""
    sequence = response.sequence
    if sequence >= len(self.outputs):
      raise self._broken(f"there is no sequence {sequence}")
    kind = response.WhichOneof("event")
    self._check_open(response, "token", self.outputs[sequence].finished is not None)
    if kind == "prompt_scores":
      return self._take_scores(response.prompt_scores)
    if kind == "delta":
      return self._take_delta(response.delta, sequence)
    if kind == "finished":
      finished = Finished.of(response.finished, self._sequence + sequence)
      if finished.sequence > 0:  # the prompt is counted once, with the first sequence
        usage = replace(finished.usage, prompt_tokens=0, cached_tokens=0, cache_miss=CacheMiss.UNSPECIFIED,
                        diverged_at=0)
        finished = replace(finished, usage=usage)
      self.outputs[sequence].finished = finished
      return finished
    if kind == "hand_over" and len(self._hand_over) <= MAX_REQUEST_BYTES:
      self._hand_over += response.hand_over.chunk
    return None

  def _take_scores(self, message: Any) -> Optional[Event]:
    # A stream that breaks before its first token gets them again.
    skip = min(max(self._scored - message.first_index, 0), len(message.token_ids))
    if skip == len(message.token_ids):
      return None
    if message.first_index + skip > max(self._scored, 1):
      raise self._broken(f"scores of the prompt are lost before {message.first_index}")
    self._scored = message.first_index + len(message.token_ids)
    self._has_brought()
    return PromptScores.of(message, skip)

  def _take_delta(self, message: Any, sequence: int) -> Optional[Event]:
    output = self.outputs[sequence]
    if message.token_ids:
      self._check_first("token", message.first_index, len(output.token_ids))
    if message.text and self._repeat:
      if message.text.startswith(self._repeat):
        message.text = message.text[len(self._repeat):]
      self._repeat = ""
      if not message.text and not message.token_ids:
        return None
    output._append(message.text)
    if message.token_ids:
      output.token_ids.extend(message.token_ids)
      if self._sequences == 1:
        self._request.resume.token_ids.extend(message.token_ids)
      self._tails[sequence] = ""
      self._has_brought()
    else:
      self._tails[sequence] += message.text
    return Delta.of(message, self._sequence + sequence)

  def _prepare_next(self, error: AftError) -> float:
    pause = super()._prepare_next(error)
    if self._sequences > 1:
      return pause  # the handed-over state is of all sequences, but each is resumed by itself
    if self._hand_over:
      self._request.resume.state = self._hand_over
    # Without the state, the server reads the tokens, which are far smaller.
    if self._request.ByteSize() > MAX_REQUEST_BYTES or error.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
      self._request.resume.ClearField("state")
    return pause

  def _make_parts(self, put: Callable[[Any], None]) -> List[Self]:
    """After the call of several sequences has broken: makes a generation for each unfinished sequence."""
    parts = [self._part(i, put) for i, output in enumerate(self.outputs) if output.finished is None]
    with self._lock:
      self._parts = list(parts)
    return parts

  def _take_of_part(self, item: Any) -> Optional[Event]:
    """Returns the event for the application, if any. A part puts events, errors, Resumed and, at its end, itself."""
    if isinstance(item, BaseException):
      raise item
    if isinstance(item, Resumed):
      self.resumes += 1
      self.exact = self.exact and item.exact
      if self._on_resumed is not None:
        self._on_resumed(item)
    elif not isinstance(item, GenerationState) and not self._closed.is_set():
      self._add(item)
      event: Event = item
      return event
    return None

  def _add(self, event: Any) -> None:
    if isinstance(event, PromptScores):
      return
    output = self.outputs[event.sequence]
    if isinstance(event, Delta):
      output.token_ids.extend(event.token_ids)
      output._append(event.text)
    else:
      output.finished = event

  def _part(self, sequence: int, put: Callable[[Any], None]) -> Self:
    """A stream of this sequence alone, of which the application already has the beginning."""
    request = type(self._request)()
    request.CopyFrom(self._request)
    request.ClearField("n")
    request.prompt_logprobs = request.prompt_logprobs and sequence == 0
    request.sampling.seed = (request.sampling.seed + sequence) % 2**64
    request.resume.token_ids.extend(self.outputs[sequence].token_ids)
    part = type(self)(self._start, request, metadata=self._metadata, timeout=None, request_id=self.request_id,
                      max_resumes=self._max_resumes,
                      on_resumed=lambda resumed: put(replace(resumed, sequence=sequence)))
    part._deadline, part._cause, part._broke = self._deadline, self._cause, self._broke
    part._tries, part._in_vain = self._tries, self._in_vain
    part._has_started, part._fingerprint, part._sequence = True, self._fingerprint, sequence
    part._tails, part._scored = [self._tails[sequence]], self._scored
    part.outputs[0].token_ids.extend(self.outputs[sequence].token_ids)
    return part


class Generation(GenerationState, Iterator[Event]):
  """The events of a generation: one Started, any number of PromptScores and then of Delta, and one Finished for each
  of its `n` sequences. Then the iteration ends.

  Errors are AftError. A stream that breaks is resumed automatically, at any of the servers; client/README.md says
  after which errors, and how often. The events are still those of one stream. To end it early, call close() or leave
  its `with` block. One thread at a time may iterate; any thread may close.
  """

  def __init__(self, start: Any, request: Any, **options: Any) -> None:
    super().__init__(start, request, **options)
    self._events: Iterator[Event] = self._run()

  def __enter__(self) -> Generation:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def __next__(self) -> Event:
    return next(self._events)

  def text(self) -> str:
    """The text of all further events of the first sequence. Blocks until the end."""
    return "".join(event.text for event in self if isinstance(event, Delta) and event.sequence == 0)

  def _run_apart(self) -> Iterator[Event]:
    """The call of several sequences has broken: resumes each unfinished sequence by itself, on a thread of its own,
    and yields the events of all. Events wait until they are taken, which is at most the answers."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    parts = self._make_parts(events.put)
    if self._closed.is_set():
      return

    def follow(part: Generation) -> None:
      try:
        for event in part:
          events.put(event)
        events.put(part)
      except BaseException as error:  # pylint: disable=broad-except  # it is raised on the iterating thread
        events.put(error)

    for part in parts:
      threading.Thread(target=follow, args=(part,), daemon=True).start()
    open_parts = len(parts)
    try:
      while open_parts > 0:
        item = events.get()
        open_parts -= isinstance(item, Generation)
        event = self._take_of_part(item)
        if event is not None:
          yield event
    finally:
      for part in parts:
        part.close()
