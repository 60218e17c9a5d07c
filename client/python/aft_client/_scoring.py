"""A scoring over all its calls."""

from __future__ import annotations

from typing import Any, List, Optional

from ._errors import AftError
from ._resumable import Resumable
from ._types import Scores, State, TokenLogprobs, Usage


class _Text:
  """What has arrived of one text."""

  def __init__(self) -> None:
    self.token_ids: List[int] = []
    self.logprobs: List[TokenLogprobs] = []
    self.finished: Any = None


class Scoring(Resumable):
  """The scores of one or more texts. The application gets them all at the end. If the stream breaks, texts that have
  not finished are sent again from their beginning, and scores that have arrived before are skipped."""

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self._several = len(self._request.texts) > 0
    self._texts = [_Text() for _ in range(max(len(self._request.texts), 1))]
    self._asked = list(range(len(self._texts)))  # numbers of the texts in the call under way
    # Number of tokens of a text before its first score, once known.
    self._unscored: Optional[int] = self._request.context_tokens or None
    self._numerics = ""  # of the first server

  def results(self) -> List[Scores]:
    """Blocks until all results have arrived. They have the order of the texts."""
    for _ in self._run():
      pass
    return self._all_scores()

  def _all_scores(self) -> List[Scores]:
    return [self._scores(text) for text in self._texts]

  def _scores(self, text: _Text) -> Scores:
    end = text.finished
    return Scores(tuple(text.token_ids), tuple(text.logprobs), end.logprob, end.perplexity, end.scored_bytes,
                  State.of(end.state) if end.HasField("state") else None, self.resumes, self.exact, Usage.of(end.usage))

  def _received(self) -> int:
    return sum(len(text.token_ids) for text in self._texts)

  def _is_finished(self) -> bool:
    return all(text.finished is not None for text in self._texts)

  def _take_started(self, message: Any) -> None:
    self._numerics = message.numerics

  def _remember(self, message: Any) -> None:
    if self._several:
      self._fingerprint = message.fingerprint
    else:
      super()._remember(message)

  def _is_exact(self, message: Any) -> bool:
    if self._several:  # the server does not know that this call continues another one
      return self._numerics != "" and message.numerics == self._numerics
    return super()._is_exact(message)

  def _take(self, response: Any) -> None:
    if response.index >= len(self._asked):
      raise self._broken(f"there is no sequence {response.index}")
    text = self._texts[self._asked[response.index]]
    self._check_open(response, "score", text.finished is not None)
    if response.chunk.token_ids:
      self._take_chunk(text, response.chunk)
    if response.HasField("finished"):
      if response.finished.scored_tokens != len(text.token_ids):
        raise self._broken(f"{response.finished.scored_tokens} scores, and {len(text.token_ids)} have come")
      text.finished = response.finished

  def _take_chunk(self, text: _Text, chunk: Any) -> None:
    if len(chunk.token_ids) != len(chunk.logprobs):
      raise self._broken("a chunk does not have one log-probability for each token")
    received = len(text.token_ids)
    if self._unscored is None:
      self._unscored = 0 if chunk.first_index == 0 else 1  # 0: a text comes before
    first, skip = chunk.first_index - self._unscored, 0
    if self._several and self.resumes > 0:  # skip scores that have arrived before
      skip = min(max(received - first, 0), len(chunk.token_ids))
      if skip == len(chunk.token_ids):
        return
    self._check_first("score", first + skip, received)
    text.token_ids.extend(chunk.token_ids[skip:])
    text.logprobs.extend(map(TokenLogprobs.of, chunk.logprobs[skip:]))
    if not self._several:
      resume = self._request.resume
      resume.scores = self._received()
      for score in chunk.logprobs:
        resume.logprob += score.logprob
    self._has_brought()

  def _prepare_next(self, error: AftError) -> float:
    pause = super()._prepare_next(error)
    if self._several:  # texts that have finished are not sent again
      left = [i for i, place in enumerate(self._asked) if self._texts[place].finished is None]
      texts = [self._request.texts[i] for i in left]
      request = type(self._request)()
      request.CopyFrom(self._request)
      del request.texts[:]
      request.texts.extend(texts)
      self._request, self._asked = request, [self._asked[i] for i in left]
    return pause
