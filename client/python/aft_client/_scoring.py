"""A scoring over all the calls that it takes."""

from __future__ import annotations

from typing import Any, List, Optional

from ._resumable import Resumable
from ._types import Scores, State, TokenLogprobs


class Scoring(Resumable):
  """The scores of a text: one by one inside, and whole for the application."""

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self._token_ids: List[int] = []
    self._logprobs: List[TokenLogprobs] = []
    self._unscored: Optional[int] = None  # tokens of the text before its first score, once one has come
    self._finished: Any = None

  def result(self) -> Scores:
    """Blocks until it is there."""
    for _ in self._run():
      pass
    end = self._finished
    return Scores(tuple(self._token_ids), tuple(self._logprobs), end.logprob, end.perplexity, end.scored_bytes,
                  State.of(end.state) if end.HasField("state") else None, self.resumes, self.exact)

  def _received(self) -> int:
    return len(self._token_ids)

  def _is_finished(self) -> bool:
    return self._finished is not None

  def _take_started(self, message: Any) -> None:
    pass

  def _take(self, response: Any) -> None:
    chunk, received = response.chunk, self._received()
    if chunk.token_ids:
      if self._unscored is None:
        self._unscored = 0 if chunk.first_index == 0 else 1  # 0: another text comes before
      self._check_first("score", chunk.first_index - self._unscored, received)
      if len(chunk.token_ids) != len(chunk.logprobs):
        raise self._broken("a chunk has not as many log-probabilities as tokens")
      self._token_ids.extend(chunk.token_ids)
      self._logprobs.extend(map(TokenLogprobs.of, chunk.logprobs))
      resume = self._request.resume
      resume.scores = self._received()
      for score in chunk.logprobs:
        resume.logprob += score.logprob
      self._has_brought()
    if response.HasField("finished"):
      if response.finished.scored_tokens != received:
        raise self._broken(f"{response.finished.scored_tokens} scores, and {received} have come")
      self._finished = response.finished
