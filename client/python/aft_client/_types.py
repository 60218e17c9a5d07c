"""What goes in and comes out, as plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

# A text; bytes that need not be valid UTF-8; or token ids.
Text = Union[str, bytes, Sequence[int]]


class _OpenEnum(enum.IntEnum):
  """A value that a newer server has, and this client has not, is the one whose number is 0."""

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


class Pooling(enum.IntEnum):
  """Which vectors of a text are wanted."""

  NONE = 0
  MEAN = 1
  FIRST = 2
  LAST = 3
  MODEL = 4


@dataclass(frozen=True)
class Tls:
  """PEM. None: the system's authorities; no certificate of this client's own."""

  authorities: Optional[bytes] = None
  certificate: Optional[bytes] = None
  key: Optional[bytes] = None


@dataclass(frozen=True)
class Sampling:
  """None: the server's default, which generation_options.proto names."""

  temperature: Optional[float] = None
  top_k: Optional[int] = None
  top_p: Optional[float] = None
  min_p: Optional[float] = None
  repetition_penalty: Optional[float] = None
  presence_penalty: Optional[float] = None
  frequency_penalty: Optional[float] = None
  seed: Optional[int] = None
  # Of token ids: what is added to each one's logit; the only ones to sample; those never to sample.
  logit_bias: Optional[Mapping[int, float]] = None
  allowed_tokens: Optional[Sequence[int]] = None
  banned_tokens: Optional[Sequence[int]] = None
  bad_words: Optional[Sequence[str]] = None  # texts that the output never has

  def fill(self, message: Any) -> None:
    """Sets what is not None."""
    for name, value in vars(self).items():
      if value is not None:
        message.MergeFrom(type(message)(**{name: value}))


@dataclass(frozen=True)
class State:
  """What a request with `store` leaves behind."""

  id: str
  model: str
  tokens: int
  bytes: int
  ttl_ms: int
  pending: bool

  @classmethod
  def of(cls, message: Any) -> State:
    return cls(message.id, message.model, message.tokens, message.bytes, message.ttl_ms, message.pending)

  @classmethod
  def of_response(cls, message: Any) -> State:
    return cls.of(message.state)

  @classmethod
  def all_of(cls, message: Any) -> List[State]:
    return [cls.of(one) for one in message.states]


@dataclass(frozen=True)
class Usage:
  """Tokens that were counted."""

  prompt_tokens: int = 0
  generated_tokens: int = 0
  scored_tokens: int = 0
  cached_tokens: int = 0
  resumed_tokens: int = 0

  @classmethod
  def of(cls, message: Any) -> Usage:
    return cls(message.prompt_tokens, message.generated_tokens, message.scored_tokens, message.cached_tokens,
               message.resumed_tokens)


@dataclass(frozen=True)
class TokenLogprobs:
  """Natural logarithms; `top`: of the likeliest tokens in that place, (token id, logprob)."""

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
  # With `echo`: the prompt, as ids and as text.
  prompt_ids: Tuple[int, ...] = ()
  prompt: str = ""

  @classmethod
  def of(cls, message: Any) -> Started:
    return cls(message.model, message.model_version, message.seed, message.prompt_tokens,
               tuple(message.prompt.token_ids), message.prompt.text)


@dataclass(frozen=True)
class Delta:
  """One or more tokens; or text that was held back, at the end."""

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
  # What ended it, where that was one of these: else None.
  stop_string: Optional[str] = None
  stop_token_id: Optional[int] = None
  limit: Optional[str] = None
  # Where the request has `store`.
  state: Optional[State] = None
  sequence: int = 0

  @classmethod
  def of(cls, message: Any, sequence: int = 0) -> Finished:
    ended = message.WhichOneof("stopped_by")
    return cls(reason=FinishReason(message.reason), usage=Usage.of(message.usage), sequence=sequence,
               state=State.of(message.state) if message.HasField("state") else None,
               **({ended: getattr(message, ended)} if ended else {}))


Event = Union[Started, Delta, Finished]


@dataclass(frozen=True)
class Answer:
  """A whole generation."""

  token_ids: Tuple[int, ...]
  text: str
  finished: Finished
  logprobs: Tuple[TokenLogprobs, ...] = ()

  @classmethod
  def of(cls, message: Any) -> Answer:
    return cls(tuple(message.token_ids), message.text, Finished.of(message.finished),
               tuple(map(TokenLogprobs.of, message.logprobs)))


@dataclass(frozen=True)
class Completion:
  """What `complete` returns: `n` answers, of which .text is the first one's."""

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
  """Of a text. `byte_ends`: where the piece of each id ends in the text's bytes (UTF-8)."""

  ids: Tuple[int, ...]
  byte_ends: Tuple[int, ...]

  @classmethod
  def of(cls, message: Any) -> Tokens:
    return cls(tuple(message.token_ids), tuple(message.byte_ends))


@dataclass(frozen=True)
class Scores:
  """Of the scored tokens of a text, in order."""

  token_ids: Tuple[int, ...]
  logprobs: Tuple[TokenLogprobs, ...]
  logprob: float  # their sum
  perplexity: float
  scored_bytes: int
  state: Optional[State] = None
  resumes: int = 0  # how often the stream broke and went on
  exact: bool = True  # Resumed.exact, of the last time
  usage: Usage = Usage()  # empty: of an older server


@dataclass(frozen=True)
class Vectors:
  """One for each token, or the pooled one."""

  vectors: Tuple[Tuple[float, ...], ...] = field(repr=False)
  tokens: int = 0
