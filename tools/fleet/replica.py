"""Simulates one replica, in two degrees of detail.

StepReplica simulates every step of server/scheduling/continuous_scheduler.h for a single client, whose steps are not
shared. Each sequence has a slot, and each decode one row in every step. The rest of the step's tokens is for prompts:
half of them for the oldest one, what is left for the shortest ones. FluidReplica assumes a constant speed between the
events that change it, so that a request needs three events and not hundreds. fleet_test.py and `fleet_sim.py grains`
compare the two.

Both leave out fairness between clients and priorities (there is one client, in order), and refusals.
"""

import heapq
import math
from collections import deque


class Request:
  """One stream. `prompt` and `output` are the tokens that are left to read and to generate, at first at least 1."""

  __slots__ = ("number", "arrival", "prompt", "output", "whole_prompt", "whole_output", "prefix", "prefix_tokens",
               "first", "last", "gap", "cached", "moves", "proxy", "late")

  def __init__(self, number, arrival, prompt, output, prefix=-1, prefix_tokens=0):
    self.number, self.arrival = number, arrival
    self.prompt = self.whole_prompt = prompt
    self.output = self.whole_output = output
    self.prefix, self.prefix_tokens = prefix, prefix_tokens  # the beginning of its prompt, shared with others
    self.first = self.last = None  # times of its first and its last token
    self.gap = 0.0  # the longest time between two of its tokens
    self.cached = False
    self.moves = 0  # how often it moved to another replica
    self.proxy = None  # the proxy that routes it
    self.late = 0.0  # used by FluidReplica

  def token(self, now):
    if self.first is None:
      self.first = now
    else:
      self.gap = max(self.gap, now - self.last)
    self.last = now


class Replica:
  """The common part of both. It calls on_end(replica, request) when a request ends."""

  def __init__(self, env, costs, on_end, on_step=lambda seconds, rows: None, prefixes=0):
    self.env, self.costs, self.on_end, self.on_step = env, costs, on_end, on_step
    self.waiting = deque()
    self.live = 0  # slots in use
    self.prefixes, self._known = prefixes, {}  # the number of prefixes that are kept; the kept ones, oldest first
    self.index = -1  # index in the fleet's list
    self.epoch = 0

  def load(self):
    return self.live + len(self.waiting)

  def _admit(self, request):
    """Sets how much of the prompt is to be read when the request gets its slot: at least one token."""
    if request.prefix >= 0 and self.prefixes:
      request.cached = self._known.pop(request.prefix, False)
      self._known[request.prefix] = True
      if len(self._known) > self.prefixes:
        del self._known[next(iter(self._known))]
      if request.cached:
        request.prompt = max(1, request.prompt - request.prefix_tokens)


class StepReplica(Replica):

  def __init__(self, *args, **more):
    super().__init__(*args, **more)
    self._prompts, self._decodes = [], {}  # both in the order in which the requests got their slots
    self._step = None

  def submit(self, request):
    self.waiting.append(request)
    if self._step is None:
      self._begin()

  def drain(self):
    """Removes and returns all requests, waiting or live. The results of the current step are lost."""
    left = [*self._decodes.values(), *self._prompts, *self.waiting]
    self._prompts, self._decodes, self.live = [], {}, 0
    self.waiting.clear()
    self._step = None
    self.epoch += 1
    return left

  def _begin(self):
    while self.waiting and self.live < self.costs.slots:
      request = self.waiting.popleft()
      self._admit(request)
      self.live += 1
      self._prompts.append(request)
    if not self.live:
      self._step = None
      return
    chunks = self._share(self.costs.prompt_budget(len(self._decodes)))
    self._step = (list(self._decodes.values()), list(zip(self._prompts, chunks)), self.env.now)
    seconds = self.costs.step(len(self._decodes), sum(chunks))
    self.env.timeout(seconds, self.epoch).callbacks.append(self._end)

  def _share(self, budget):
    """The same as PromptShares::Share."""
    left = [request.prompt for request in self._prompts]
    chunks = [0] * len(left)
    for i, most in ((0, (budget + 1) // 2), *((i, budget) for i in sorted(range(len(left)), key=left.__getitem__))):
      if left:
        tokens = min(most, budget, left[i] - chunks[i])
        chunks[i] += tokens
        budget -= tokens
    return chunks

  def _end(self, event):
    if event.value != self.epoch:
      return
    decodes, prompts, start = self._step
    now = self.env.now
    if decodes:
      self.on_step(now - start, len(decodes))
    ended = []
    for request in decodes:
      request.token(now)
      request.output -= 1
      if request.output == 0:
        del self._decodes[request.number]
        ended.append(request)
    for request, tokens in prompts:
      request.prompt -= tokens
      if request.prompt:
        continue
      self._prompts.remove(request)
      request.token(now)
      request.output -= 1
      if request.output:
        self._decodes[request.number] = request
      else:
        ended.append(request)
    self.live -= len(ended)
    for request in ended:
      self.on_end(self, request)
    self._begin()


class FluidReplica(Replica):
  """Steps run at the speed of the current mix of requests. `_steps` is the number of steps since the beginning, with
  fractions; a stream that decodes ends when it reaches the stream's number. Prompts are read one after the other, each
  step at its budget. A prompt of one token, for example of a stream that moves with its state, is read in the next
  step."""

  def __init__(self, *args, **more):
    super().__init__(*args, **more)
    self._steps, self._since = 0.0, 0.0
    self._ends = []  # heap of (steps at its end, number, request)
    self._prompts = deque()
    self._tokens = 0  # prompt tokens of a step
    self._seconds = 0.0  # time of a step

  def submit(self, request):
    self._advance()
    # On average half of the current step is left.
    request.late = self._seconds / 2 if self.live else 0.0
    if self.live < self.costs.slots:
      self._take(request)
    else:
      self.waiting.append(request)
    self._plan()

  def drain(self):
    self._advance()
    for end, _, request in self._ends:
      request.output = max(1, round(end - self._steps))
      request.last = self.env.now
    left = [request for _, _, request in sorted(self._ends)] + [*self._prompts, *self.waiting]
    for request in self._prompts:
      request.prompt = max(1, round(request.prompt))
    self._ends, self.live = [], 0
    self._prompts.clear()
    self.waiting.clear()
    self.epoch += 1
    return left

  def _take(self, request):
    self._admit(request)
    self.live += 1
    if request.prompt > 1:
      self._prompts.append(request)
    else:  # the shortest prompts are read first
      heapq.heappush(self._ends, (self._steps + request.output, request.number, request))
      request.prompt = 0
      request.token(self.env.now + request.late + self.costs.step(len(self._ends), 0))

  def _advance(self):
    """Advances the state to the current time, at the speed since the last event."""
    elapsed = self.env.now - self._since
    self._since = self.env.now
    if not self.live or elapsed <= 0:
      return
    steps = elapsed / self._seconds
    self._steps += steps
    if self._ends:
      self.on_step(self._seconds, steps * len(self._ends))
    read = steps * self._tokens
    for request in self._prompts:
      taken = min(read, request.prompt)
      request.prompt -= taken
      read -= taken
      if read <= 0:
        break

  def _plan(self):
    """Computes the speed from now on, and the time when it changes next."""
    self.epoch += 1
    if not self.live:
      return
    decodes = len(self._ends)
    self._tokens = 0
    if self._prompts:
      backlog, budget = 0, self.costs.prompt_budget(decodes)
      for request in self._prompts:
        backlog += request.prompt
        if backlog >= budget:
          break
      self._tokens = max(1, min(int(backlog + 0.5), budget))
    self._seconds = self.costs.step(decodes, self._tokens)
    to_prompt = self._prompts[0].prompt / self._tokens if self._prompts else math.inf
    to_end = self._ends[0][0] - self._steps if self._ends else math.inf
    # These flags decide which event happens then, whatever the rounding errors of the sums.
    self._prompt_due, self._end_due = to_prompt <= to_end, to_end <= to_prompt
    self.env.timeout(max(min(to_prompt, to_end), 0.0) * self._seconds, self.epoch).callbacks.append(self._event)

  def _event(self, event):
    if event.value != self.epoch:
      return
    self._advance()
    now, prompt_due, end_due = self.env.now, self._prompt_due, self._end_due
    while self._prompts and (prompt_due or self._prompts[0].prompt <= 0):
      prompt_due = False
      request = self._prompts.popleft()
      request.prompt = 0
      request.token(now + request.late)
      request.output -= 1
      if request.output:
        heapq.heappush(self._ends, (self._steps + request.output, request.number, request))
      else:
        self._leave(request)
    while self._ends and (end_due or self._ends[0][0] <= self._steps):
      end_due = False
      request = heapq.heappop(self._ends)[2]
      request.output = 0
      request.last = now + request.late
      self._leave(request)
    self._plan()

  def _leave(self, request):
    self.live -= 1
    self.on_end(self, request)
    if self.waiting:
      request = self.waiting.popleft()
      request.late = 0.0
      self._take(request)
