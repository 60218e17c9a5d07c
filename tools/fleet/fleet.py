"""Simulates replicas behind proxies, and measures the latencies of their clients."""

import array
import collections
import math
import random

import simpy

from fleet import routing
from fleet.replica import FluidReplica, Request, StepReplica
from fleet.stats import Spread


class Workload:
  """Poisson arrivals with log-normal lengths, as in aftload (median, sigma, most).

  rate       requests a second, or a function of the time; `most` is then its maximum
  prefixes   0: prompts share nothing. Else each prompt follows one of this number of prefixes, each of `prefix_tokens`
             tokens; the i-th one has a popularity of 1 / i (Zipf)
  """

  def __init__(self, rate, prompt=(64, 0.0, 64), output=(64, 0.8, 512), prefixes=0, prefix_tokens=0, most=None):
    self.rate = rate if callable(rate) else lambda now: rate
    self.most = most if callable(rate) else rate
    self.prompt, self.output, self.prefix_tokens = prompt, output, prefix_tokens
    self._prefixes = range(prefixes)
    self._weights = list(_running_sum(1 / (i + 1) for i in self._prefixes))

  def draw(self, rng, number, now):
    prompt, output = (min(most, max(1, round(rng.lognormvariate(math.log(median), sigma))))
                      for median, sigma, most in (self.prompt, self.output))
    if not self._prefixes:
      return Request(number, now, prompt, output)
    [prefix] = rng.choices(self._prefixes, cum_weights=self._weights)
    return Request(number, now, prompt + self.prefix_tokens, output, prefix, self.prefix_tokens)


def _running_sum(values):
  total = 0.0
  for value in values:
    total += value
    yield total


def mean_length(lengths, draws=20_000):
  median, sigma, most = lengths
  rng = random.Random(1)
  return sum(min(most, max(1, round(rng.lognormvariate(math.log(median), sigma)))) for _ in range(draws)) / draws


class Fleet:
  """A fleet with `count` replicas at the start; add() adds more. Requests that arrive before `warmup` run, but are not
  part of the figures. `seed` determines everything.

  Figures, in seconds: ttft, e2e, gap (the longest gap of a stream that moved), itl (for each token, its step's time).
  """

  # Seconds from the break of a stream to its start at another replica (tests/bench/RESULTS.md, streams over replicas).
  RECONNECT = (0.010, 0.080)

  def __init__(self, costs, count, policy="two choices", proxies=1, exact=False, seed=1, warmup=0.0, prefixes=0):
    self.env = simpy.Environment()
    self.costs, self.warmup = costs, warmup
    self._make = StepReplica if exact else FluidReplica
    self._rng, self._prefixes = random.Random(seed), prefixes
    self._names = 0
    self.replicas = []  # those that the proxies know
    self.proxies = [routing.POLICIES[policy](random.Random(self._rng.random())) for _ in range(proxies)]
    self._homeless = collections.deque()
    self.arrived = self.completed = self.moved = self.hits = self.misses = 0
    self.tokens = 0.0  # generated tokens without the first one of each stream
    self.ttft, self.e2e, self.gap, self.itl = Spread(), Spread(), Spread(), Spread()
    self.arrivals_ended, self.ttfts_ended = array.array("d"), array.array("d")  # for every ended stream
    for _ in range(count):
      self._create()
    self._tell()

  # ---- Replicas ----
  def _create(self):
    replica = self._make(self.env, self.costs, self._ended, self._stepped, prefixes=self._prefixes)
    replica.name = self._names
    self._names += 1
    replica.index = len(self.replicas)
    self.replicas.append(replica)
    return replica

  def _tell(self):
    for proxy in self.proxies:
      proxy.set_replicas(self.replicas)
    while self._homeless and self.replicas:
      self.submit(self._homeless.popleft())

  def add(self, count=1):
    """Adds replicas that are ready at once."""
    for _ in range(count):
      self._create()
    self._tell()

  def withdraw(self, replicas):
    """From now on proxies send nothing to these replicas."""
    for replica in replicas:
      replica.index = -1
    self.replicas = [replica for replica in self.replicas if replica.index >= 0]
    for i, replica in enumerate(self.replicas):
      replica.index = i
    self._tell()

  def hand_over(self, replica, with_states):
    """Moves the replica's streams to other ones. Without their states their text is read again there. Requests that
    have not begun are sent again too."""
    for request in replica.drain():
      request.proxy.ended(replica)
      request.moves += 1
      self.moved += 1
      had = request.whole_output - request.output
      if had and with_states:
        request.prompt = 1
      else:
        request.prompt = request.whole_prompt + had
      delay = self._rng.uniform(*self.RECONNECT)
      self.env.timeout(delay, request).callbacks.append(lambda event: self.submit(event.value))

  # ---- Requests ----
  def submit(self, request):
    if not self.replicas:
      self._homeless.append(request)
      return
    request.proxy = self.proxies[0] if len(self.proxies) == 1 else self._rng.choice(self.proxies)
    request.proxy.send(request).submit(request)

  def _stepped(self, seconds, rows):
    self.tokens += rows
    if self.env.now >= self.warmup:
      self.itl.add(seconds, rows)

  def _ended(self, replica, request):
    request.proxy.ended(replica)
    self.completed += 1
    overhead = self.costs.overhead
    ttft = request.first - request.arrival + overhead
    self.arrivals_ended.append(request.arrival)
    self.ttfts_ended.append(ttft)
    if request.arrival >= self.warmup:
      self.ttft.add(ttft)
      if request.prefix >= 0:
        self.hits += bool(request.cached)
        self.misses += not request.cached
      self.e2e.add(request.last - request.arrival + overhead)
      if request.gap and request.moves:
        self.gap.add(request.gap)

  def arrivals(self, workload, until):
    """A process. It draws arrivals at the highest rate, and drops some of them where the rate is lower (thinning)."""
    rng, env = random.Random(self._rng.random()), self.env
    while True:
      yield env.timeout(rng.expovariate(workload.most))
      if env.now >= until:
        return
      if rng.random() * workload.most <= workload.rate(env.now):
        self.arrived += 1
        self.submit(workload.draw(rng, self.arrived, env.now))

  def run(self, workload, until, *processes):
    """Runs the simulation: requests arrive until the time `until`, and all of them end."""
    self.env.process(self.arrivals(workload, until))
    for process in processes:
      self.env.process(process)
    self.env.run()
    return self

  # ---- Changes of the fleet ----
  def rolling_update(self, begin, at_once, start_seconds, with_states, lame_duck=1.0):
    """A process that replaces all replicas, `at_once` at a time."""
    yield self.env.timeout(begin)
    old = list(self.replicas)
    for i in range(0, len(old), at_once):
      batch = old[i:i + at_once]
      self.withdraw(batch)
      yield self.env.timeout(lame_duck)
      for replica in batch:
        self.hand_over(replica, with_states)
      yield self.env.timeout(start_seconds)
      self.add(len(batch))
    self.updated = self.env.now - begin

  def autoscale(self, measure, target, lag, until, full=1.0, period=15.0, cool=300.0, most=10**6):
    """A process that acts as Kubernetes' HorizontalPodAutoscaler. New replicas are ready after `lag`. It compares the
    average of this measure over all replicas with the target:

    slots     share of the replica's slots that are used
    requests  requests that run or wait, divided by the slots
    tokens    tokens generated per second in the last period, divided by the highest rate `full`
    shipped   slots, or a target of four waiting requests, whichever needs more replicas
              (deploy/k8s/components/autoscaling)
    """
    self.sizes = [(0.0, len(self.replicas))]
    coming, history, tokens = 0, collections.deque([(0.0, len(self.replicas))]), 0.0

    def arrive(count):
      nonlocal coming
      yield self.env.timeout(lag)
      coming -= count
      self.add(count)
      self.sizes.append((self.env.now, len(self.replicas)))

    while self.env.now < until:
      yield self.env.timeout(period)
      if measure == "tokens":
        used = (self.tokens - tokens) / (period * full * len(self.replicas))
      else:
        used = sum(replica.load() if measure == "requests" else replica.live for replica in self.replicas) / (
            self.costs.slots * len(self.replicas))
      if measure == "shipped":
        waiting = sum(replica.load() - replica.live for replica in self.replicas)
        used = max(used, target * waiting / (4 * len(self.replicas)))
      tokens = self.tokens
      now = len(self.replicas) + coming
      wanted = now if abs(used / target - 1) <= 0.1 else max(1, math.ceil(len(self.replicas) * used / target))
      wanted = min(wanted, most)
      history.append((self.env.now, wanted))
      while history[0][0] < self.env.now - cool:
        history.popleft()
      if wanted > now:
        coming += wanted - now
        self.env.process(arrive(wanted - now))
      elif (down := max(size for _, size in history)) < now and not coming:
        leaving = self.replicas[down:]
        self.withdraw(leaving)
        for replica in leaving:
          self.hand_over(replica, with_states=True)
        self.sizes.append((self.env.now, len(self.replicas)))
