"""The client."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Generator, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar, Union

import grpc

from . import _wire as wire
from ._channel import open_channel, target_of
from ._errors import from_call, misplaced, protocol_error
from ._generation import Generation
from ._models import (Health, Inference, Model, ModelMetadata, ModelStatistics, Parameter, RepositoryModel, Tensor,
                      infer_request)
from ._resumable import Resumable, Resumed, check_ids, is_printable
from ._scoring import Scoring
from ._types import (Completion, Pooling, Priority, Sampling, Scores, State, Text, Tls, Tokens, Vectors,
                     check_several)

_CHUNK_BYTES = 256 << 10  # far below the limit of a message
_LONGEST_TIMEOUT = 365 * 86_400.0  # gRPC's clock has no room for every longer time, nor for infinity

_R = TypeVar("_R")
_S = TypeVar("_S", bound=Resumable)


def _set_text(request: Any, text: Text) -> None:
  if isinstance(text, str):
    request.text = text
  elif isinstance(text, (bytes, bytearray, memoryview)):
    request.raw = bytes(text)
  else:
    request.tokens.ids.extend(text)


def _set_texts(request: Any, texts: Sequence[Text]) -> None:
  check_several(texts, "texts")
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
                      n: int, cache_salt: str, prompt_logprobs: bool, initial_state: str) -> Any:
  if n < 1:
    raise ValueError(f"n must be at least 1, got {n}")
  request = wire.aft.GenerateRequest(model=model, model_version=model_version, priority=int(priority),
                                     cache_salt=cache_salt, prompt_logprobs=prompt_logprobs, initial_state=initial_state)
  if n > 1:
    request.n = n
  _set_text(request, prompt)
  if not isinstance(sampling, Sampling):
    raise TypeError("sampling must be a Sampling")
  sampling.fill(request.sampling)
  if max_tokens is not None:
    request.stop.max_tokens = max_tokens
  check_several(stop, "stop")
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
                   previous: Union[str, bytes, None], store: Union[bool, int], initial_state: str) -> Any:
  request = wire.aft.ScoreRequest(model=model, model_version=model_version, priority=int(priority),
                                  initial_state=initial_state)
  request.output.top_logprobs = top_logprobs
  _set_turn(request, previous, store)
  return request


def _nothing(_: Any) -> None:
  """Converts a response without content."""


class _Encoding:
  """Collects the vectors of one or several texts."""

  def __init__(self, texts: int) -> None:
    self._width, self._lengths = 0, [0] * texts
    self._values: List[List[float]] = [[] for _ in range(texts)]
    self._finished: Set[int] = set()

  def take(self, response: Any) -> None:
    kind, index = response.WhichOneof("event"), response.index
    if index >= len(self._values):
      raise protocol_error(f"there is no sequence {index}", 0)
    if kind == "started":
      self._start(response.started)
    elif kind == "vectors":
      self._add(index, response.vectors)
    elif kind == "finished":
      if self._width == 0 or index in self._finished:
        raise protocol_error("Finished came before Started or twice", 0)
      self._finished.add(index)

  def _start(self, started: Any) -> None:
    if self._width > 0:
      raise protocol_error("Started came twice", 0)
    self._width = started.width
    if self._width == 0:
      raise protocol_error("the vectors have no width", 0)
    self._lengths = list(started.text_tokens) or [started.tokens]
    if len(self._lengths) != len(self._values):
      raise protocol_error("Started is of other texts", 0)

  def _add(self, index: int, vectors: Any) -> None:
    if self._width == 0:
      raise protocol_error("Vectors came before Started", 0)
    if len(vectors.values) % self._width != 0:
      raise protocol_error("a vector is incomplete", 0)
    if index in self._finished:
      raise protocol_error("a vector came outside Started and Finished", 0)
    if wrong := misplaced("vector", vectors.first_index, len(self._values[index]) // self._width):
      raise protocol_error(wrong, 0)
    self._values[index].extend(vectors.values)

  def results(self) -> List[Vectors]:
    if len(self._finished) < len(self._values):
      raise protocol_error("the stream ended without Finished", 0)
    return [Vectors(tuple(tuple(text[at:at + self._width]) for at in range(0, len(text), self._width)), tokens)
            for text, tokens in zip(self._values, self._lengths)]


class Connection:
  """What Client and AsyncClient have in common: channels of `module`, which is grpc or grpc.aio, and options."""

  def __init__(self, module: Any, addresses: Union[str, Sequence[str]], token: str, tls: Optional[Tls],
               timeout: Optional[float], max_attempts: int, max_resumes: int,
               options: Sequence[Tuple[str, Any]]) -> None:
    if not is_printable(token or ""):
      raise ValueError("the token must be printable ASCII without spaces")
    target = target_of(addresses)
    self._channel = open_channel(module, target, tls, max_attempts, options)  # only to servers that are SERVING
    self._any_channel = open_channel(module, target, tls, max_attempts, options, watch_health=False)
    self._inference = wire.Service(self._channel, "aft.v1.InferenceService")
    self._states = wire.Service(self._channel, "aft.v1.StateService")
    self._oip = wire.Service(self._channel, "inference.GRPCInferenceService")
    self._models = wire.Service(self._any_channel, "aft.v1.ModelService")
    self._repository = wire.Service(self._any_channel, "inference.GRPCInferenceService")
    self._health = wire.Service(self._any_channel, "grpc.health.v1.Health")
    self._metadata: Tuple[Tuple[str, str], ...] = (("authorization", f"Bearer {token}"),) if token else ()
    self._timeout = timeout
    self._max_resumes = max_resumes
    self._lock = threading.RLock()  # guards _resumables, also from close() in a signal handler
    self._resumables: weakref.WeakSet[Resumable] = weakref.WeakSet()  # streams that may be under way

  def _kept(self, stream: _S) -> _S:
    """The stream, whose pauses end with this client."""
    with self._lock:
      self._resumables.add(stream)
    return stream

  def _wake_streams(self) -> None:
    """Ends the pauses of broken streams. As the channels are closed, their next calls fail."""
    with self._lock:
      streams = list(self._resumables)
    for stream in streams:
      stream._wake()

  def _options(self, timeout: Optional[float], request_id: str, traceparent: str) -> dict[str, Any]:
    check_ids(request_id, traceparent)
    named = (("x-request-id", request_id), ("traceparent", traceparent))
    timeout = self._timeout if timeout is None else timeout
    return {"timeout": None if timeout is None else min(timeout, _LONGEST_TIMEOUT),
            "metadata": self._metadata + tuple((key, value) for key, value in named if value)}

  def _one_request_options(self, *options: Any) -> dict[str, Any]:
    """The options of a stream with one request. Its error ends the stream, with a code."""
    named = self._options(*options)
    return {**named, "metadata": named["metadata"] + (("triton_grpc_error", "true"),)}

  def _resumable(self, timeout: Optional[float], request_id: str, traceparent: str,
                 on_resumed: Optional[Callable[[Resumed], None]]) -> dict[str, Any]:
    check_ids(request_id, "")  # _options checks the other
    return {**self._options(timeout, "", traceparent), "request_id": request_id, "max_resumes": self._max_resumes,
            "on_resumed": on_resumed}


class Client(Connection):
  """The servers behind one address. Calls go in turn to those that are reachable and serve. A refused call is sent
  again, if possible to another server, at most `max_attempts` times in all; imports and deletions of states, and streams
  of inferences, are not. A generation or scoring that breaks is resumed.

  `addresses`: "host:port"; any gRPC target, such as "dns:///aft:8500"; or several IP addresses with ports. `token`
  identifies this client to the servers; without TLS, the network must be trusted. `timeout`: in seconds, for every
  call without its own; None: no limit. More than a year counts as a year. `max_resumes`: how often in a row, without
  new tokens in between, a stream is resumed. `options`: options of the gRPC channel, which win over the client's own.

  Errors of calls are AftError. A wrong argument is a ValueError or TypeError, also a `token`, `request_id` or
  `traceparent` that gRPC cannot send or servers would not understand. Any thread may call any method.
  """

  def __init__(self, addresses: Union[str, Sequence[str]] = "127.0.0.1:8500", *, token: str = "",
               tls: Optional[Tls] = None, timeout: Optional[float] = 600, max_attempts: int = 5,
               max_resumes: int = 10, options: Sequence[Tuple[str, Any]] = ()) -> None:
    super().__init__(grpc, addresses, token, tls, timeout, max_attempts, max_resumes, options)

  def __enter__(self) -> Client:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    """Ends all calls."""
    self._channel.close()
    self._any_channel.close()
    self._wake_streams()

  def generate(self, prompt: Text, *, model: str = "", model_version: str = "", max_tokens: Optional[int] = None,
               sampling: Sampling = Sampling(), stop: Sequence[str] = (), stop_token_ids: Sequence[int] = (),
               include_stop_string: bool = False, ignore_eos: bool = False, min_tokens: int = 0,
               top_logprobs: Optional[int] = None, echo: bool = False, prompt_logprobs: bool = False,
               priority: Priority = Priority.DEFAULT, previous: Union[str, bytes, None] = None,
               store: Union[bool, int] = False, n: int = 1, initial_state: str = "",
               cache_salt: str = "", timeout: Optional[float] = None, request_id: str = "", traceparent: str = "",
               on_resumed: Optional[Callable[[Resumed], None]] = None) -> Generation:
    """Continues a prompt. Returns an iterator over the events; .text() gives the text.

    `previous`: the id or the exported bytes of a state that the prompt continues. `store`: whether to store the state
    after the answer; a number stores it for that many milliseconds. `n`: number of answers to the prompt, which is
    read once; each event has its `sequence`, and .outputs has the output of each. `echo`: Started repeats the prompt.
    `prompt_logprobs`: PromptScores come before the output; with it `max_tokens` may be 0. `initial_state`: the name
    of a tuned state of the model (Model.initial_states), from which the text begins.
    `on_resumed`: called, during the iteration, each time that the stream was resumed. `cache_salt`: the cached
    prefix of the prompt is shared only with prompts that have the same salt, for example those of one user.
    `model_version`: a version of the model that serves; default: the newest. `traceparent`: the W3C trace that the
    call belongs to."""
    request = _generate_request(prompt, model, model_version, max_tokens, sampling, stop, stop_token_ids,
                                include_stop_string, ignore_eos, min_tokens, top_logprobs, echo, priority, previous,
                                store, n, cache_salt, prompt_logprobs, initial_state)
    return self._generated(request, timeout, request_id, traceparent, on_resumed)

  def complete(self, prompt: Text, *, model: str = "", model_version: str = "", max_tokens: Optional[int] = None,
               sampling: Sampling = Sampling(), stop: Sequence[str] = (), stop_token_ids: Sequence[int] = (),
               include_stop_string: bool = False, ignore_eos: bool = False, min_tokens: int = 0,
               top_logprobs: Optional[int] = None, echo: bool = False, prompt_logprobs: bool = False,
               priority: Priority = Priority.DEFAULT, previous: Union[str, bytes, None] = None,
               store: Union[bool, int] = False, n: int = 1, initial_state: str = "",
               cache_salt: str = "", timeout: Optional[float] = None, request_id: str = "", traceparent: str = "") -> Completion:
    """As generate(), but returns one value at the end, with `n` answers. A call that breaks is sent again, from the
    beginning."""
    request = _generate_request(prompt, model, model_version, max_tokens, sampling, stop, stop_token_ids,
                                include_stop_string, ignore_eos, min_tokens, top_logprobs, echo, priority, previous,
                                store, n, cache_salt, prompt_logprobs, initial_state)
    return self._unary(self._inference.Complete, request, Completion.of, timeout, request_id, traceparent)

  def tokenize(self, text: Union[str, bytes], *, model: str = "", model_version: str = "",
               timeout: Optional[float] = None) -> Tokens:
    """Converts a text to token ids of the model."""
    request = wire.aft.TokenizeRequest(model=model, model_version=model_version)
    _set_text(request, text)
    return self._unary(self._inference.Tokenize, request, Tokens.of, timeout)

  def detokenize(self, token_ids: Sequence[int], *, model: str = "", model_version: str = "",
                 timeout: Optional[float] = None) -> bytes:
    """The exact bytes that the ids stand for. `.decode(errors="replace")` gives the text that a generation has."""
    request = wire.aft.DetokenizeRequest(model=model, model_version=model_version, token_ids=token_ids)
    return self._unary(self._inference.Detokenize, request, lambda response: bytes(response.raw), timeout)

  def score(self, text: Text, *, model: str = "", model_version: str = "", top_logprobs: int = 0,
            priority: Priority = Priority.DEFAULT, previous: Union[str, bytes, None] = None,
            store: Union[bool, int] = False, context_tokens: int = 0, initial_state: str = "", cache_salt: str = "",
            timeout: Optional[float] = None, request_id: str = "", traceparent: str = "",
            on_resumed: Optional[Callable[[Resumed], None]] = None) -> Scores:
    """The log-probability of every token of a text, and of the `top_logprobs` likeliest tokens at each place. The
    first `context_tokens` have no scores, and are not read if the prefix cache has them. `initial_state`,
    `cache_salt` and `on_resumed` are as in generate()."""
    request = _score_request(model, model_version, top_logprobs, priority, previous, store, initial_state)
    request.context_tokens, request.cache_salt = context_tokens, cache_salt
    _set_text(request, text)
    return self._scored(request, lambda scores: scores[0], timeout, request_id, traceparent, on_resumed)

  def score_all(self, texts: Sequence[Text], *, model: str = "", model_version: str = "", top_logprobs: int = 0,
                priority: Priority = Priority.DEFAULT, previous: Union[str, bytes, None] = None,
                store: Union[bool, int] = False, initial_state: str = "", timeout: Optional[float] = None,
                request_id: str = "", traceparent: str = "",
                on_resumed: Optional[Callable[[Resumed], None]] = None) -> List[Scores]:
    """Scores several texts in one call; results have the order of the texts. Each continues `previous`, if given, or
    begins from `initial_state`."""
    if not texts:
      return self._ready([])
    request = _score_request(model, model_version, top_logprobs, priority, previous, store, initial_state)
    _set_texts(request, texts)
    return self._scored(request, lambda scores: scores, timeout, request_id, traceparent, on_resumed)

  def encode(self, text: Text, *, model: str = "", model_version: str = "", pooling: Pooling = Pooling.NONE,
             normalize: bool = False, priority: Priority = Priority.DEFAULT, timeout: Optional[float] = None,
             request_id: str = "", traceparent: str = "") -> Vectors:
    """The vectors of a text."""
    request = wire.aft.EncodeRequest(model=model, model_version=model_version, pooling=int(pooling),
                                          normalize=normalize, priority=int(priority))
    _set_text(request, text)
    encoding = _Encoding(1)
    return self._gathered(self._inference.Encode, request, encoding.take, lambda: encoding.results()[0], timeout,
                          request_id, traceparent)

  def encode_all(self, texts: Sequence[Text], *, model: str = "", model_version: str = "",
                 pooling: Pooling = Pooling.NONE, normalize: bool = False, priority: Priority = Priority.DEFAULT,
                 timeout: Optional[float] = None, request_id: str = "",
                 traceparent: str = "") -> List[Vectors]:
    """Encodes several texts in one call; the results have the order of the texts."""
    if not texts:
      return self._ready([])
    request = wire.aft.EncodeRequest(model=model, model_version=model_version, pooling=int(pooling),
                                          normalize=normalize, priority=int(priority))
    _set_texts(request, texts)
    encoding = _Encoding(len(texts))
    return self._gathered(self._inference.Encode, request, encoding.take, encoding.results, timeout, request_id,
                          traceparent)

  def get_state(self, state_id: str, *, timeout: Optional[float] = None) -> State:
    request = wire.aft.StateServiceGetRequest(id=state_id)
    return self._unary(self._states.Get, request, State.of_response, timeout)

  def list_states(self, *, timeout: Optional[float] = None) -> Iterator[State]:
    """The states of this client. The servers must have a file of known clients."""
    request = wire.aft.StateServiceListRequest()
    while page := self._unary(self._states.List, request, State.all_of, timeout):
      yield from page
      request.after_id = page[-1].id

  def delete_state(self, state_id: str, *, timeout: Optional[float] = None) -> None:
    return self._unary(self._states.Delete, wire.aft.StateServiceDeleteRequest(id=state_id), _nothing, timeout)

  def export_state(self, state_id: str, *, timeout: Optional[float] = None) -> bytes:
    """The state as sealed bytes."""
    chunks: List[bytes] = []
    return self._gathered(self._states.Export, wire.aft.StateServiceExportRequest(id=state_id),
                          lambda response: chunks.append(response.chunk), lambda: b"".join(chunks), timeout)

  def import_state(self, model: str, state: bytes, *, timeout: Optional[float] = None) -> State:
    """Imports exported bytes, on the server that exported them or on one with the same keys."""

    def requests() -> Iterator[Any]:
      first = {"model": model, "bytes": len(state)}
      for at in range(0, len(state), _CHUNK_BYTES):
        yield wire.aft.StateServiceImportRequest(chunk=state[at:at + _CHUNK_BYTES], **first)
        first = {}

    return self._unary(self._states.Import, requests(), State.of_response, timeout)

  def list_models(self, *, timeout: Optional[float] = None) -> List[Model]:
    """All models of a server, even if it is not SERVING."""
    return self._unary(self._models.List, wire.aft.ListRequest(),
                       lambda response: [Model.of(one) for one in response.models], timeout)

  def get_model(self, name: str, *, model_version: str = "", timeout: Optional[float] = None) -> Model:
    """One model. The error NOT_FOUND names the existing models."""
    return self._unary(self._models.Get, wire.aft.GetRequest(name=name, version=model_version),
                       lambda response: Model.of(response.model), timeout)

  def health(self, service: str = "", *, timeout: Optional[float] = None) -> Health:
    """The health of a service, or of the whole server. NOT_FOUND if there is no such service."""
    return self._unary(self._health.Check, wire.health.HealthCheckRequest(service=service),
                       lambda response: Health(response.status), timeout)

  def infer(self, model: str, inputs: Sequence[Tensor], *, model_version: str = "", outputs: Sequence[str] = (),
            parameters: Mapping[str, Parameter] = {}, id: str = "", timeout: Optional[float] = None,
            request_id: str = "", traceparent: str = "") -> Inference:
    """Sends a request of the Open Inference Protocol, with tensors as input and output. `outputs`: the names of the
    outputs to return; default: all."""
    request = infer_request(model, model_version, inputs, outputs, parameters, id)
    return self._unary(self._oip.ModelInfer, request, Inference.of, timeout, request_id, traceparent)

  def stream_infer(self, model: str, inputs: Sequence[Tensor], *, model_version: str = "", outputs: Sequence[str] = (),
                   parameters: Mapping[str, Parameter] = {}, id: str = "", timeout: Optional[float] = None,
                   request_id: str = "", traceparent: str = "") -> Generator[Inference, None, None]:
    """As infer(), but returns an iterator over the answers. A language model answers with every token, other models
    answer once. Closing the iterator ends the call."""
    request = infer_request(model, model_version, inputs, outputs, parameters, id)
    return self._iterated(self._oip.ModelStreamInfer, request, lambda response: Inference.of(response.infer_response),
                          timeout, request_id, traceparent)

  def metadata(self, model: str, *, model_version: str = "", timeout: Optional[float] = None) -> ModelMetadata:
    """The tensors that infer() sends to a model and returns."""
    return self._unary(self._oip.ModelMetadata, wire.oip.ModelMetadataRequest(name=model, version=model_version),
                       ModelMetadata.of, timeout)

  def statistics(self, model: str = "", *, model_version: str = "",
                 timeout: Optional[float] = None) -> List[ModelStatistics]:
    """The counts of a server for each version of a model, or of all models, even if it is not SERVING."""
    return self._unary(self._repository.ModelStatistics,
                       wire.oip.ModelStatisticsRequest(name=model, version=model_version),
                       lambda response: [ModelStatistics.of(one) for one in response.model_stats], timeout)

  def list_repository(self, *, timeout: Optional[float] = None) -> List[RepositoryModel]:
    """All versions in the repository of the server, loaded or not."""
    return self._unary(self._repository.RepositoryIndex, wire.oip.RepositoryIndexRequest(),
                       lambda response: [RepositoryModel.of(one) for one in response.models], timeout)

  def load_model(self, name: str, *, timeout: Optional[float] = None) -> None:
    """Makes a server load the newest versions of a model of its repository, and returns when that is done. With several
    servers behind the address, one of them gets the call. PERMISSION_DENIED if this client may not do it."""
    return self._unary(self._repository.RepositoryModelLoad, wire.oip.RepositoryModelLoadRequest(model_name=name),
                       _nothing, timeout)

  def unload_model(self, name: str, *, timeout: Optional[float] = None) -> None:
    """Makes a server unload a model, and returns after the last requests of the model have ended."""
    return self._unary(self._repository.RepositoryModelUnload, wire.oip.RepositoryModelUnloadRequest(model_name=name),
                       _nothing, timeout)

  # AsyncClient overrides only the calls below; there, each returns an awaitable or an AsyncGeneration.

  def _ready(self, value: _R) -> _R:
    return value

  def _unary(self, method: Any, request: Any, convert: Callable[[Any], _R], timeout: Optional[float],
             request_id: str = "", traceparent: str = "") -> _R:
    """Makes a unary call and converts its response."""
    try:
      return convert(method(request, **self._options(timeout, request_id, traceparent)))
    except grpc.RpcError as call:
      raise from_call(call) from None

  def _gathered(self, method: Any, request: Any, take: Callable[[Any], None], result: Callable[[], _R],
                timeout: Optional[float], request_id: str = "", traceparent: str = "") -> _R:
    """Passes each response of a stream to `take`, and then returns `result()`."""
    call = method(request, **self._options(timeout, request_id, traceparent))
    try:
      for response in call:
        take(response)
    except grpc.RpcError:
      raise from_call(call) from None
    finally:
      call.cancel()  # has no effect if the call has ended
    return result()

  def _iterated(self, method: Any, request: Any, convert: Callable[[Any], _R],
                *options: Any) -> Generator[_R, None, None]:
    """Sends one request on a stream of requests, and converts each response."""
    call = method(iter([request]), **self._one_request_options(*options))
    try:
      for response in call:
        yield convert(response)
    except grpc.RpcError:
      raise from_call(call) from None
    finally:
      call.cancel()  # has no effect if the call has ended

  def _generated(self, request: Any, *options: Any) -> Generation:
    return self._kept(Generation(self._inference.Generate, request, **self._resumable(*options)))

  def _scored(self, request: Any, convert: Callable[[List[Scores]], _R], *options: Any) -> _R:
    return convert(self._kept(Scoring(self._inference.Score, request, **self._resumable(*options))).results())
