"""The measured times of a server's steps."""

import bisect
import json


class Table:
  """A function through measured points: constant before the first one, linear between them and after the last one."""

  def __init__(self, points):
    self._x, self._y = zip(*sorted((float(x), float(y)) for x, y in points))

  def __call__(self, x):
    if len(self._x) == 1 or x <= self._x[0]:
      return self._y[0]
    i = min(max(bisect.bisect_right(self._x, x), 1), len(self._x) - 1)
    (x0, x1), (y0, y1) = self._x[i - 1:i + 1], self._y[i - 1:i + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class Costs:
  """The costs of one model on one machine, in seconds and tokens.

  decode_seconds    [[rows, seconds], ...]: the time of a step in which this number of streams decode
  prompt_seconds    [[tokens, seconds], ...]: the time of a step with only this number of tokens of a prompt
  overhead_seconds  the time that a request takes outside of the engine: gRPC, the client
  slots, max_step_tokens, step_target_seconds: the server's configuration
  """

  def __init__(self, decode_seconds, prompt_seconds, overhead_seconds=0.0, slots=64, max_step_tokens=256,
               step_target_seconds=0.0, **about):
    if max_step_tokens <= slots:
      raise ValueError("max_step_tokens: must be more than slots")
    self.overhead, self.slots, self.max_step_tokens = overhead_seconds, slots, max_step_tokens
    self.step_target, self.about = step_target_seconds, about
    decode, prompt = Table(decode_seconds), Table(prompt_seconds)
    # Every step looks these up, so there are tables for every number of rows and tokens.
    self._decode = [0.0] + [decode(rows) for rows in range(1, slots + 1)]
    self._prompt = [0.0] + [prompt(tokens) for tokens in range(1, max_step_tokens + 1)]
    # A step with decodes reads the weights in any case: a prompt adds only the computation of its tokens.
    self._beside = [max(0.0, seconds - self._prompt[1]) for seconds in self._prompt]
    if min(self._decode[1:] + self._prompt[1:]) <= 0:
      raise ValueError("decode_seconds, prompt_seconds: the time of every step must be positive")

  @classmethod
  def load(cls, path):
    with open(path, encoding="utf-8") as file:
      return cls(**json.load(file))

  def step(self, decodes, prompt_tokens):
    """The seconds of a step with this number of rows that decode and of prompt tokens."""
    if decodes == 0:
      return self._prompt[prompt_tokens]
    return self._decode[decodes] + self._beside[prompt_tokens]

  def prompt_budget(self, decodes):
    """The largest number of prompt tokens in a step, as in server/scheduling/step_pacer.h."""
    budget = self.max_step_tokens - decodes
    if decodes == 0 or self.step_target == 0:
      return budget
    decode = self._decode[decodes]
    left = max(0.8 * self.step_target, 1.25 * decode) - decode
    within = bisect.bisect_right(self._beside, left) - 1
    return min(budget, max(within, 2))

  def request_seconds(self, prompt, output):
    """The part of the replica's time that a request takes when all slots are in use: its share of the steps. The
    reciprocal is the largest number of requests that a replica completes in a second."""
    return prompt * self._beside[-1] / self.max_step_tokens + output * self._decode[-1] / self.slots
