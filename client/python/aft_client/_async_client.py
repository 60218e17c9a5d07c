"""The client for asyncio."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import aclosing, contextmanager
from typing import (Any, AsyncGenerator, AsyncIterator, Callable, Concatenate, Coroutine, Generator, Iterator, List,
                    Optional, ParamSpec, Sequence, Tuple, TypeVar, Union, cast)

import grpc
import grpc.aio

from . import _wire as wire
from ._client import Client, Connection
from ._errors import AftError, closed_error, from_call, request_id_of
from ._generation import GenerationState
from ._resumable import Resumable
from ._scoring import Scoring
from ._types import Delta, Event, Scores, State, Tls

_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextmanager
def _aft_errors(received: Callable[[], int] = lambda: 0) -> Iterator[None]:
  """Turns the errors of a call of grpc.aio into AftError. `received`: the number of tokens so far."""
  try:
    yield
  except grpc.RpcError as error:
    raise from_call(error, received()) from None
  except asyncio.CancelledError:
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
      raise
    raise closed_error(received()) from None  # the call has been cancelled, but not the task


class _AsyncRun(Resumable):
  """Variants for grpc.aio of Resumable._run and of the methods that it calls."""

  def __init__(self, *args: Any, **options: Any) -> None:
    super().__init__(*args, **options)
    self._woken = asyncio.Event()

  async def _run_async(self) -> AsyncIterator[Any]:
    while not self._closed.is_set():
      try:
        async with aclosing(self._run_call_async()) as events:
          async for event in events:
            yield event
        return
      except AftError as error:
        if error is self._callback_error:
          raise
        if self._is_over():
          return
        pause = self._prepare_next(error)
      try:
        await asyncio.wait_for(self._woken.wait(), pause)
      except asyncio.TimeoutError:
        pass
      if self._sequences > 1:
        async with aclosing(self._run_apart_async()) as events:
          async for event in events:
            yield event
        return

  async def _run_call_async(self) -> AsyncGenerator[Any, None]:
    self._begun = False
    self._before_call()
    call = self._open()
    try:
      with _aft_errors(self._received):
        async for response in call:
          if not self.request_id:
            self.request_id = request_id_of(await call.initial_metadata())
          event = self._receive(response)
          if event is not None:
            yield event
    finally:
      call.cancel()  # has no effect if the call has ended
    if not self._is_finished():
      raise self._broken("the stream ended without Finished")

  def _run_apart_async(self) -> AsyncGenerator[Any, None]:
    """The events after a break of several sequences."""
    raise NotImplementedError


class AsyncGeneration(_AsyncRun, GenerationState, AsyncIterator[Event]):
  """As Generation, for `async for` and `async with`. One task at a time may iterate. If the task is cancelled while it
  waits for an event, the generation ends. Any task of the same event loop may call close(), which does not wait."""

  def __init__(self, *args: Any, **options: Any) -> None:
    super().__init__(*args, **options)
    self._events = self._run_async()

  async def __aenter__(self) -> AsyncGeneration:
    return self

  async def __aexit__(self, *_: object) -> None:
    self.close()

  async def __anext__(self) -> Event:
    event: Event = await self._events.__anext__()
    return event

  async def text(self) -> str:
    """The text of all further events of the first sequence."""
    return "".join([event.text async for event in self if isinstance(event, Delta) and event.sequence == 0])

  async def _run_apart_async(self) -> AsyncGenerator[Any, None]:
    """As Generation._run_apart, with a task for each sequence."""
    events: asyncio.Queue[Any] = asyncio.Queue()
    parts = self._make_parts(events.put_nowait)

    async def follow(part: AsyncGeneration) -> None:
      try:
        async for event in part:
          events.put_nowait(event)
        events.put_nowait(part)
      except Exception as error:  # pylint: disable=broad-except  # it is raised in the iterating task
        events.put_nowait(error)

    tasks = [asyncio.create_task(follow(part)) for part in parts]
    open_parts = 0 if self._closed.is_set() else len(parts)
    try:
      while open_parts > 0:
        item = await events.get()
        open_parts -= isinstance(item, AsyncGeneration)
        event = self._take_of_part(item)
        if event is not None:
          yield event
    finally:
      for task in tasks:
        task.cancel()


class _AsyncScoring(_AsyncRun, Scoring):

  async def results_async(self) -> List[Scores]:
    async for _ in self._run_async():
      pass
    return self._all_scores()


def _awaitable(method: Callable[Concatenate[Client, _P], _R]) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]:
  """Types a method of Client for AsyncClient, whose _unary, _gathered, _scored and _ready return coroutines."""
  return cast("Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]", method)


def _streaming(method: Callable[Concatenate[Client, _P], Any]) -> Callable[Concatenate[Any, _P], AsyncGeneration]:
  """Types generate() for AsyncClient."""
  return method


def _iterating(method: Callable[Concatenate[Client, _P], Generator[_R, None, None]]
               ) -> Callable[Concatenate[Any, _P], AsyncGenerator[_R, None]]:
  """Types a method of Client for AsyncClient, whose _iterated returns an asynchronous generator."""
  return cast("Callable[Concatenate[Any, _P], AsyncGenerator[_R, None]]", method)


class AsyncClient(Connection):
  """Client for asyncio, with the same arguments and methods. Use generate(), list_states() and stream_infer() with
  `async for`; await all other methods.

  Make and use it in one event loop. Errors are AftError. If a task is cancelled, its call ends.
  """

  def __init__(self, addresses: Union[str, Sequence[str]] = "127.0.0.1:8500", *, token: str = "",
               tls: Optional[Tls] = None, timeout: Optional[float] = 600, max_attempts: int = 5,
               max_resumes: int = 10, options: Sequence[Tuple[str, Any]] = ()) -> None:
    super().__init__(grpc.aio, addresses, token, tls, timeout, max_attempts, max_resumes, options)
    # Streams that may be under way. Closing a channel of grpc.aio does not end them.
    self._streams: weakref.WeakSet[Any] = weakref.WeakSet()

  async def __aenter__(self) -> AsyncClient:
    return self

  async def __aexit__(self, *_: object) -> None:
    await self.close()

  async def close(self) -> None:
    """Ends all calls."""
    for call in list(self._streams):
      call.cancel()
    await self._channel.close()
    await self._any_channel.close()
    self._wake_streams()

  generate = _streaming(Client.generate)
  complete = _awaitable(Client.complete)
  tokenize = _awaitable(Client.tokenize)
  detokenize = _awaitable(Client.detokenize)
  score = _awaitable(Client.score)
  score_all = _awaitable(Client.score_all)
  encode = _awaitable(Client.encode)
  encode_all = _awaitable(Client.encode_all)
  get_state = _awaitable(Client.get_state)
  delete_state = _awaitable(Client.delete_state)
  export_state = _awaitable(Client.export_state)
  import_state = _awaitable(Client.import_state)
  list_models = _awaitable(Client.list_models)
  get_model = _awaitable(Client.get_model)
  health = _awaitable(Client.health)
  infer = _awaitable(Client.infer)
  stream_infer = _iterating(Client.stream_infer)
  metadata = _awaitable(Client.metadata)
  statistics = _awaitable(Client.statistics)
  list_repository = _awaitable(Client.list_repository)
  load_model = _awaitable(Client.load_model)
  unload_model = _awaitable(Client.unload_model)

  async def list_states(self, *, timeout: Optional[float] = None) -> AsyncIterator[State]:
    """The states of this client. The servers must have a file of known clients."""
    request = wire.aft.StateServiceListRequest()
    while page := await self._unary(self._states.List, request, State.all_of, timeout):
      for state in page:
        yield state
      request.after_id = page[-1].id

  async def _ready(self, value: _R) -> _R:
    return value

  def _stream(self, method: Any) -> Callable[..., Any]:
    """The method, whose calls end with this client."""

    def start(*arguments: Any, **options: Any) -> Any:
      call = method(*arguments, **options)
      self._streams.add(call)
      return call

    return start

  async def _unary(self, method: Any, request: Any, convert: Callable[[Any], _R], timeout: Optional[float],
                   request_id: str = "", traceparent: str = "") -> _R:
    with _aft_errors():
      return convert(await method(request, **self._options(timeout, request_id, traceparent)))

  async def _gathered(self, method: Any, request: Any, take: Callable[[Any], None], result: Callable[[], _R],
                      timeout: Optional[float], request_id: str = "", traceparent: str = "") -> _R:
    call = self._stream(method)(request, **self._options(timeout, request_id, traceparent))
    try:
      with _aft_errors():
        async for response in call:
          take(response)
    finally:
      call.cancel()  # has no effect if the call has ended
    return result()

  async def _iterated(self, method: Any, request: Any, convert: Callable[[Any], _R],
                      *options: Any) -> AsyncGenerator[_R, None]:
    call = self._stream(method)(iter([request]), **self._one_request_options(*options))
    try:
      with _aft_errors():
        async for response in call:
          yield convert(response)
    finally:
      call.cancel()  # has no effect if the call has ended

  def _generated(self, request: Any, *options: Any) -> AsyncGeneration:
    return self._kept(AsyncGeneration(self._stream(self._inference.Generate), request, **self._resumable(*options)))

  async def _scored(self, request: Any, convert: Callable[[List[Scores]], _R], *options: Any) -> _R:
    scoring = self._kept(_AsyncScoring(self._stream(self._inference.Score), request, **self._resumable(*options)))
    return convert(await scoring.results_async())
