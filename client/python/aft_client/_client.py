"""The client."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional, Sequence, Set, Tuple, Union

import grpc
from aft.v1 import inference_pb2, inference_pb2_grpc, states_pb2, states_pb2_grpc, tokens_pb2

from ._channel import open_channel, target_of
from ._errors import from_call, misplaced, protocol_error
from ._generation import Generation
from ._resumable import Resumed
from ._scoring import Scoring
from ._types import (Answer, Completion, Pooling, Priority, Sampling, Scores, Started, State, Text, Tls, Tokens,
                     Vectors)

_CHUNK_BYTES = 256 << 10  # far below the limit of a message


def _set_text(request: Any, text: Text) -> None:
  if isinstance(text, str):
    request.text = text
  elif isinstance(text, bytes):
    request.raw = text
  else:
    request.tokens.ids.extend(text)


def _set_texts(request: Any, texts: Sequence[Text]) -> None:
  for text in texts:
    _set_text(request.texts.add(), text)


def _set_turn(request: Any, previous: Union[str, bytes, None], store: Union[bool, int]) -> None:
  if isinstance(previous, str):
    request.previous.state_id = previous
  elif previous is not None:
    request.previous.state = previous
  if store is True:
    request.store.SetInParent()
  elif store is not False:
    request.store.ttl_ms = store


def _generate_request(prompt: Text, model: str, model_version: str, max_tokens: Optional[int],
                      sampling: Sampling, stop: Sequence[str], stop_token_ids: Sequence[int],
                      include_stop_string: bool, ignore_eos: bool, min_tokens: int, top_logprobs: Optional[int],
                      echo: bool, priority: Priority, previous: Union[str, bytes, None], store: Union[bool, int],
                      n: int, cache_salt: str) -> Any:
  if n < 1:
    raise ValueError(f"n must be at least 1, got {n}")
  request = inference_pb2.GenerateRequest(model=model, model_version=model_version, priority=int(priority),
                                          cache_salt=cache_salt)
  if n > 1:
    request.n = n
  _set_text(request, prompt)
  sampling.fill(request.sampling)
  if max_tokens is not None:
    request.stop.max_tokens = max_tokens
  request.stop.strings.extend(stop)
  request.stop.token_ids.extend(stop_token_ids)
  request.stop.include_stop_string = include_stop_string
  request.stop.ignore_eos = ignore_eos
  request.stop.min_tokens = min_tokens
  if top_logprobs is not None:
    request.output.top_logprobs = top_logprobs
  if echo:
    request.output.echo = True
  _set_turn(request, previous, store)
  return request


def _score_request(model: str, model_version: str, top_logprobs: int, priority: Priority,
                   previous: Union[str, bytes, None], store: Union[bool, int]) -> Any:
  request = inference_pb2.ScoreRequest(model=model, model_version=model_version, priority=int(priority))
  request.output.top_logprobs = top_logprobs
  _set_turn(request, previous, store)
  return request


class Client:
  """The servers behind one address. Calls go to those in turn that are reachable and serve; a refused one is sent
  again, elsewhere if there is one, at most `max_attempts` times; a generation or scoring that breaks goes on.

  `addresses`: "host:port"; any gRPC target, such as "dns:///aft:8500"; or several numbers. `token` names this client
  to the servers: without TLS only for networks that are trusted. `timeout`: seconds, of every call that names none
  of its own; None: no limit. `max_resumes`: how often a stream is gone on with, when nothing comes in between.
  `options`: of the gRPC channel, beside those that are set.

  Errors are AftError. Any thread may call anything.
  """

  def __init__(self, addresses: Union[str, Sequence[str]] = "127.0.0.1:8500", *, token: str = "",
               tls: Optional[Tls] = None, timeout: Optional[float] = 600, max_attempts: int = 5,
               max_resumes: int = 10, options: Sequence[Tuple[str, Any]] = ()) -> None:
    self._channel = open_channel(target_of(addresses), tls, max_attempts, options)
    self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
    self._states = states_pb2_grpc.StateServiceStub(self._channel)
    self._metadata: List[Tuple[str, str]] = [("authorization", f"Bearer {token}")] if token else []
    self._timeout = timeout
    self._max_resumes = max_resumes

  def __enter__(self) -> Client:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    """Ends all calls."""
    self._channel.close()

  def generate(self, prompt: Text, *, model: str = "", model_version: str = "", max_tokens: Optional[int] = None,
               sampling: Sampling = Sampling(), stop: Sequence[str] = (), stop_token_ids: Sequence[int] = (),
               include_stop_string: bool = False, ignore_eos: bool = False, min_tokens: int = 0,
               top_logprobs: Optional[int] = None, echo: bool = False, priority: Priority = Priority.DEFAULT,
               previous: Union[str, bytes, None] = None, store: Union[bool, int] = False, n: int = 1,
               cache_salt: str = "", timeout: Optional[float] = None, request_id: str = "", traceparent: str = "",
               on_resumed: Optional[Callable[[Resumed], None]] = None) -> Generation:
    """The events of a continuation, or with .text() its text. `previous`: a state's id, or exported bytes, that the
    prompt goes on from. `store`: keep the state after the answer; a number: for so many milliseconds. `n`: answers
    to the prompt, which is read once; events say their `sequence`, and .outputs has what came of each. `echo`:
    Started repeats the prompt. `on_resumed` is called, where the events are, each time that the stream goes on after
    a break. `cache_salt`: what was read of the prompt is shared with those of the same salt alone, as of one user of
    many. `model_version`, of every call that names a model: one that serves; by default the newest.
    `traceparent`: the W3C trace that the call is part of."""
    request = _generate_request(prompt, model, model_version, max_tokens, sampling, stop, stop_token_ids,
                                include_stop_string, ignore_eos, min_tokens, top_logprobs, echo, priority, previous,
                                store, n, cache_salt)
    return Generation(self._inference.Generate, request, **self._resumable(timeout, request_id, traceparent, on_resumed))

  def complete(self, prompt: Text, *, model: str = "", model_version: str = "", max_tokens: Optional[int] = None,
               sampling: Sampling = Sampling(), stop: Sequence[str] = (), stop_token_ids: Sequence[int] = (),
               include_stop_string: bool = False, ignore_eos: bool = False, min_tokens: int = 0,
               top_logprobs: Optional[int] = None, echo: bool = False, priority: Priority = Priority.DEFAULT,
               previous: Union[str, bytes, None] = None, store: Union[bool, int] = False, n: int = 1,
               cache_salt: str = "", timeout: Optional[float] = None, request_id: str = "", traceparent: str = "") -> Completion:
    """The same as one value, at the end; `n`: so many answers. What breaks before is asked for again, from the
    beginning."""
    request = _generate_request(prompt, model, model_version, max_tokens, sampling, stop, stop_token_ids,
                                include_stop_string, ignore_eos, min_tokens, top_logprobs, echo, priority, previous,
                                store, n, cache_salt)
    response = self._unary(self._inference.Complete, request, timeout, request_id, traceparent)
    return Completion(Started.of(response.started), tuple(map(Answer.of, response.answers)))

  def tokenize(self, text: Union[str, bytes], *, model: str = "", model_version: str = "",
               timeout: Optional[float] = None) -> Tokens:
    """A text as the ids of a model."""
    request = tokens_pb2.TokenizeRequest(model=model, model_version=model_version)
    _set_text(request, text)
    response = self._unary(self._inference.Tokenize, request, timeout)
    return Tokens(tuple(response.token_ids), tuple(response.byte_ends))

  def detokenize(self, token_ids: Sequence[int], *, model: str = "", model_version: str = "",
                 timeout: Optional[float] = None) -> bytes:
    """The exact bytes that the ids stand for; `.decode(errors="replace")` is the text of a generation."""
    request = tokens_pb2.DetokenizeRequest(model=model, model_version=model_version, token_ids=token_ids)
    return bytes(self._unary(self._inference.Detokenize, request, timeout).raw)

  def score(self, text: Text, *, model: str = "", model_version: str = "", top_logprobs: int = 0,
            priority: Priority = Priority.DEFAULT, previous: Union[str, bytes, None] = None,
            store: Union[bool, int] = False, context_tokens: int = 0, cache_salt: str = "",
            timeout: Optional[float] = None, request_id: str = "", traceparent: str = "",
            on_resumed: Optional[Callable[[Resumed], None]] = None) -> Scores:
    """The log-probability of every token of a text, and of the `top_logprobs` likeliest ones in its place. The
    first `context_tokens` have none, and are not read where the prefix cache has them; `cache_salt` and
    `on_resumed` as of generate()."""
    request = _score_request(model, model_version, top_logprobs, priority, previous, store)
    request.context_tokens, request.cache_salt = context_tokens, cache_salt
    _set_text(request, text)
    return self._scored(request, timeout, request_id, traceparent, on_resumed)[0]

  def score_all(self, texts: Sequence[Text], *, model: str = "", model_version: str = "", top_logprobs: int = 0,
                priority: Priority = Priority.DEFAULT, previous: Union[str, bytes, None] = None,
                store: Union[bool, int] = False, timeout: Optional[float] = None, request_id: str = "",
                traceparent: str = "", on_resumed: Optional[Callable[[Resumed], None]] = None) -> List[Scores]:
    """The same of several texts in one call, in their order. All go on from `previous`, where there is one."""
    if not texts:
      return []
    request = _score_request(model, model_version, top_logprobs, priority, previous, store)
    _set_texts(request, texts)
    return self._scored(request, timeout, request_id, traceparent, on_resumed)

  def encode(self, text: Text, *, model: str = "", model_version: str = "", pooling: Pooling = Pooling.NONE,
             normalize: bool = False, priority: Priority = Priority.DEFAULT, timeout: Optional[float] = None,
             request_id: str = "", traceparent: str = "") -> Vectors:
    """The vectors of a text."""
    request = inference_pb2.EncodeRequest(model=model, model_version=model_version, pooling=int(pooling),
                                          normalize=normalize, priority=int(priority))
    _set_text(request, text)
    return self._encoded(request, timeout, request_id, traceparent)[0]

  def encode_all(self, texts: Sequence[Text], *, model: str = "", model_version: str = "",
                 pooling: Pooling = Pooling.NONE, normalize: bool = False, priority: Priority = Priority.DEFAULT,
                 timeout: Optional[float] = None, request_id: str = "",
                 traceparent: str = "") -> List[Vectors]:
    """The same of several texts in one call, in their order."""
    if not texts:
      return []
    request = inference_pb2.EncodeRequest(model=model, model_version=model_version, pooling=int(pooling),
                                          normalize=normalize, priority=int(priority))
    _set_texts(request, texts)
    return self._encoded(request, timeout, request_id, traceparent)

  def get_state(self, state_id: str, *, timeout: Optional[float] = None) -> State:
    request = states_pb2.StateServiceGetRequest(id=state_id)
    return State.of(self._unary(self._states.Get, request, timeout).state)

  def list_states(self, *, timeout: Optional[float] = None) -> Iterator[State]:
    """The caller's states; only where servers know their clients."""
    request = states_pb2.StateServiceListRequest()
    while page := self._unary(self._states.List, request, timeout).states:
      yield from map(State.of, page)
      request.after_id = page[-1].id

  def delete_state(self, state_id: str, *, timeout: Optional[float] = None) -> None:
    self._unary(self._states.Delete, states_pb2.StateServiceDeleteRequest(id=state_id), timeout)

  def export_state(self, state_id: str, *, timeout: Optional[float] = None) -> bytes:
    """The state as bytes, sealed."""
    request = states_pb2.StateServiceExportRequest(id=state_id)
    return b"".join(response.chunk for response in self._stream(self._states.Export, request, timeout))

  def import_state(self, model: str, state: bytes, *, timeout: Optional[float] = None) -> State:
    """A state of such bytes, on the server that exported it or on one with the same keys."""

    def requests() -> Iterator[Any]:
      first = {"model": model, "bytes": len(state)}
      for at in range(0, len(state), _CHUNK_BYTES):
        yield states_pb2.StateServiceImportRequest(chunk=state[at:at + _CHUNK_BYTES], **first)
        first = {}

    return State.of(self._unary(self._states.Import, requests(), timeout).state)

  def _scored(self, request: Any, timeout: Optional[float], request_id: str, traceparent: str,
              on_resumed: Optional[Callable[[Resumed], None]]) -> List[Scores]:
    return Scoring(self._inference.Score, request, **self._resumable(timeout, request_id, traceparent, on_resumed)).results()

  def _encoded(self, request: Any, timeout: Optional[float], request_id: str,
               traceparent: str) -> List[Vectors]:
    width, lengths = 0, [0] * max(len(request.texts), 1)
    values: List[List[float]] = [[] for _ in lengths]
    finished: Set[int] = set()
    for response in self._stream(self._inference.Encode, request, timeout, request_id, traceparent):
      kind, index = response.WhichOneof("event"), response.index
      if index >= len(values):
        raise protocol_error(f"there is no sequence {index}", 0)
      if kind == "started":
        if width > 0:
          raise protocol_error("Started came twice", 0)
        width = response.started.width
        if width == 0:
          raise protocol_error("the vectors have no width", 0)
        lengths = list(response.started.text_tokens) or [response.started.tokens]
        if len(lengths) != len(values):
          raise protocol_error("Started is of other texts", 0)
      elif kind == "vectors":
        if width == 0:
          raise protocol_error("Vectors came before Started", 0)
        if len(response.vectors.values) % width != 0:
          raise protocol_error("a vector is cut", 0)
        if index in finished:
          raise protocol_error("a vector came outside Started and Finished", 0)
        if wrong := misplaced("vector", response.vectors.first_index, len(values[index]) // width):
          raise protocol_error(wrong, 0)
        values[index].extend(response.vectors.values)
      elif kind == "finished":
        if width == 0 or index in finished:
          raise protocol_error("Finished came before Started or twice", 0)
        finished.add(index)
    if len(finished) < len(values):
      raise protocol_error("the stream ended without Finished", 0)
    return [Vectors(tuple(tuple(text[at:at + width]) for at in range(0, len(text), width)), tokens)
            for text, tokens in zip(values, lengths)]

  def _resumable(self, timeout: Optional[float], request_id: str, traceparent: str,
                 on_resumed: Optional[Callable[[Resumed], None]]) -> dict[str, Any]:
    return {"metadata": self._with_ids("", traceparent), "timeout": self._timeout if timeout is None else timeout,
            "request_id": request_id, "max_resumes": self._max_resumes, "on_resumed": on_resumed}

  def _with_ids(self, request_id: str, traceparent: str) -> List[Tuple[str, str]]:
    return self._metadata + [(key, value) for key, value in (("x-request-id", request_id), ("traceparent", traceparent))
                             if value]

  def _unary(self, method: Any, request: Any, timeout: Optional[float], request_id: str = "",
             traceparent: str = "") -> Any:
    try:
      return method(request, timeout=self._timeout if timeout is None else timeout,
                    metadata=self._with_ids(request_id, traceparent))
    except grpc.RpcError as call:
      raise from_call(call) from None

  def _stream(self, method: Any, request: Any, timeout: Optional[float], request_id: str = "",
              traceparent: str = "") -> Iterator[Any]:
    call = method(request, timeout=self._timeout if timeout is None else timeout,
                  metadata=self._with_ids(request_id, traceparent))
    try:
      yield from call
    except grpc.RpcError:
      raise from_call(call) from None
    finally:
      call.cancel()  # nothing happens where it has ended
