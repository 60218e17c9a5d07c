"""Arguments and results as plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

# A text; bytes that need not be valid UTF-8; or token ids.
Text = Union[str, bytes, Sequence[int]]


def check_several(texts: Any, name: str) -> None:
  """Raises TypeError for a single text, whose characters would be taken for texts."""
  if isinstance(texts, str):
    raise TypeError(f"{name} must be a sequence of texts, not a text")


class _OpenEnum(enum.IntEnum):
  """An enum in which a value of a newer server, unknown to this client, becomes the value 0."""

  @classmethod
  def _missing_(cls, value: object) -> Any:
    return cls(0) if value else None


class Priority(enum.IntEnum):
  """How urgent a request is."""

  DEFAULT = 0
  INTERACTIVE = 1
  NORMAL = 2
  BATCH = 3


class FinishReason(_OpenEnum):
  """Why a generation ended."""

  UNSPECIFIED = 0
  EOS = 1
  STOP = 2
  LENGTH = 3


class CacheMiss(_OpenEnum):
  """Why the prefix cache saved no tokens. inference.proto describes each value."""

  UNSPECIFIED = 0
  COLD = 1
  TOO_SHORT = 2
  DIVERGED = 3
  EVICTED = 4


class Pooling(enum.IntEnum):
  """Which vectors of a text to return. NONE: one for each token."""

  NONE = 0
  MEAN = 1
  FIRST = 2
  LAST = 3
  MODEL = 4


@dataclass(frozen=True)
class Tls:
  """PEM for TLS. Without `authorities`, those of the system; without `certificate` and `key`, no client certificate."""

  authorities: Optional[bytes] = None
  certificate: Optional[bytes] = None
  key: Optional[bytes] = field(default=None, repr=False)

  def __post_init__(self) -> None:
    # gRPC ends the process if one of a certificate and its key is missing or empty.
    if b"" in (self.authorities, self.certificate, self.key):
      raise ValueError("authorities, certificate and key must not be empty")
    if (self.certificate is None) != (self.key is None):
      raise ValueError("certificate and key need each other")


@dataclass(frozen=True)
class Sampling:
  """Sampling options. None means the server's default, which generation_options.proto gives."""

  temperature: Optional[float] = None
  top_k: Optional[int] = None
  top_p: Optional[float] = None
  min_p: Optional[float] = None
  repetition_penalty: Optional[float] = None
  presence_penalty: Optional[float] = None
  frequency_penalty: Optional[float] = None
  penalty_decay: Optional[float] = None
  temperature_last: Optional[bool] = None
  preset: Optional[str] = None  # "rwkv"
  seed: Optional[int] = None
  # These name tokens by id: what is added to a logit, the only ids to sample, and ids that are never sampled.
  logit_bias: Optional[Mapping[int, float]] = None
  allowed_tokens: Optional[Sequence[int]] = None
  banned_tokens: Optional[Sequence[int]] = None
  bad_words: Optional[Sequence[str]] = None  # not written with the tokens that they are usually made of

  def __post_init__(self) -> None:
    check_several(self.bad_words, "bad_words")

  def fill(self, message: Any) -> None:
    """Sets what is not None."""
    for name, value in vars(self).items():
      if value is not None:
        message.MergeFrom(type(message)(**{name: value}))


@dataclass(frozen=True)
class State:
  """A state that a request with `store` has stored."""

  id: str
  model: str
  tokens: int
  bytes: int
  ttl_ms: int
  pending: bool
  history: int = 0  # a hash of the text's token ids

  @classmethod
  def of(cls, message: Any) -> State:
    return cls(message.id, message.model, message.tokens, message.bytes, message.ttl_ms, message.pending,
               message.history)

  @classmethod
  def of_response(cls, message: Any) -> State:
    return cls.of(message.state)

  @classmethod
  def all_of(cls, message: Any) -> List[State]:
    return [cls.of(one) for one in message.states]


@dataclass(frozen=True)
class Usage:
  """Numbers of tokens."""

  prompt_tokens: int = 0
  generated_tokens: int = 0
  scored_tokens: int = 0
  cached_tokens: int = 0
  resumed_tokens: int = 0
  cache_miss: CacheMiss = CacheMiss.UNSPECIFIED  # why cached_tokens is 0
  diverged_at: int = 0  # with DIVERGED: the number of known tokens of the prompt

  @classmethod
  def of(cls, message: Any) -> Usage:
    return cls(message.prompt_tokens, message.generated_tokens, message.scored_tokens, message.cached_tokens,
               message.resumed_tokens, CacheMiss(message.cache_miss), message.diverged_at)


@dataclass(frozen=True)
class Timings:
  """Microseconds on the server's clock, from the arrival of the request."""

  queue_us: int = 0
  first_token_us: int = 0  # 0: the request ended before
  total_us: int = 0

  @classmethod
  def of(cls, message: Any) -> Timings:
    return cls(message.queue_us, message.first_token_us, message.total_us)


@dataclass(frozen=True)
class TokenLogprobs:
  """Natural logarithms. `top`: the likeliest tokens at this place, as (token id, logprob)."""

  logprob: float
  top: Tuple[Tuple[int, float], ...] = ()

  @classmethod
  def of(cls, message: Any) -> TokenLogprobs:
    return cls(message.logprob, tuple((one.token_id, one.logprob) for one in message.top))


@dataclass(frozen=True)
class Started:
  """The first event of a generation."""

  model: str
  model_version: str
  seed: int
  prompt_tokens: int
  # These have the prompt, as ids and as text, only with `echo`.
  prompt_ids: Tuple[int, ...] = ()
  prompt: str = ""
  numerics: str = ""  # servers with the same value give the same bits; empty on a GPU

  @classmethod
  def of(cls, message: Any) -> Started:
    return cls(message.model, message.model_version, message.seed, message.prompt_tokens,
               tuple(message.prompt.token_ids), message.prompt.text, message.numerics)


@dataclass(frozen=True)
class PromptScores:
  """Log-probabilities of tokens of the prompt, the first of which is the token number `first_index` of the prompt. The
  first token of a text has none."""

  first_index: int
  token_ids: Tuple[int, ...]
  logprobs: Tuple[TokenLogprobs, ...]

  @classmethod
  def of(cls, message: Any, skip: int = 0) -> PromptScores:
    return cls(message.first_index + skip, tuple(message.token_ids[skip:]),
               tuple(map(TokenLogprobs.of, message.logprobs[skip:])))


@dataclass(frozen=True)
class Delta:
  """One or more tokens; or, at the end, text that was held back."""

  first_index: int
  token_ids: Tuple[int, ...]
  text: str
  logprobs: Tuple[TokenLogprobs, ...] = ()
  sequence: int = 0

  @classmethod
  def of(cls, message: Any, sequence: int = 0) -> Delta:
    return cls(message.first_index, tuple(message.token_ids), message.text,
               tuple(map(TokenLogprobs.of, message.logprobs)), sequence)


@dataclass(frozen=True)
class Finished:
  """The last event of a sequence that went well."""

  reason: FinishReason
  usage: Usage
  # What ended the sequence, if it was one of these; else None.
  stop_string: Optional[str] = None
  stop_token_id: Optional[int] = None
  limit: Optional[str] = None
  # Only if the request has `store`.
  state: Optional[State] = None
  sequence: int = 0
  timings: Timings = Timings()  # of the last server, if the stream was resumed

  @classmethod
  def of(cls, message: Any, sequence: int = 0) -> Finished:
    ended = message.WhichOneof("stopped_by")
    return cls(reason=FinishReason(message.reason), usage=Usage.of(message.usage), sequence=sequence,
               timings=Timings.of(message.timings),
               state=State.of(message.state) if message.HasField("state") else None,
               **({ended: getattr(message, ended)} if ended else {}))


Event = Union[Started, PromptScores, Delta, Finished]


@dataclass(frozen=True)
class Answer:
  """A complete answer."""

  token_ids: Tuple[int, ...]
  text: str
  finished: Finished
  logprobs: Tuple[TokenLogprobs, ...] = ()
  prompt_scores: Optional[PromptScores] = None  # with `prompt_logprobs`, of the first answer

  @classmethod
  def of(cls, message: Any) -> Answer:
    return cls(tuple(message.token_ids), message.text, Finished.of(message.finished),
               tuple(map(TokenLogprobs.of, message.logprobs)),
               PromptScores.of(message.prompt_scores) if message.HasField("prompt_scores") else None)


@dataclass(frozen=True)
class Completion:
  """The result of `complete`: `n` answers. `text` is that of the first answer."""

  started: Started
  answers: Tuple[Answer, ...]

  @classmethod
  def of(cls, message: Any) -> Completion:
    return cls(Started.of(message.started), tuple(map(Answer.of, message.answers)))

  @property
  def text(self) -> str:
    return self.answers[0].text


@dataclass(frozen=True)
class Tokens:
  """The tokens of a text. `byte_ends`: where the piece of each id ends in the bytes that the ids stand for."""

  ids: Tuple[int, ...]
  byte_ends: Tuple[int, ...]

  @classmethod
  def of(cls, message: Any) -> Tokens:
    return cls(tuple(message.token_ids), tuple(message.byte_ends))


@dataclass(frozen=True)
class Scores:
  """The scores of a text. The tuples have one entry for each scored token, in order."""

  token_ids: Tuple[int, ...]
  logprobs: Tuple[TokenLogprobs, ...]
  logprob: float  # their sum
  perplexity: float
  scored_bytes: int
  state: Optional[State] = None
  resumes: int = 0  # how often the stream was resumed
  exact: bool = True  # Resumed.exact of the last resume
  usage: Usage = Usage()  # empty if the server is too old to send it


@dataclass(frozen=True)
class Vectors:
  """One vector for each token, or a single pooled vector."""

  vectors: Tuple[Tuple[float, ...], ...] = field(repr=False)
  tokens: int = 0
