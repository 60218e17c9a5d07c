"""Which replica a proxy sends a request to. A proxy knows its own requests alone, as Envoy and gRPC's clients do."""

import bisect
import collections
import hashlib


class Proxy:
  """A policy and what it knows: `open`, its requests at each replica. Subclasses choose among `replicas`."""

  def __init__(self, rng):
    self.rng, self.replicas, self.open = rng, [], collections.Counter()

  def set_replicas(self, replicas):
    """From now on; requests under way at others still end."""
    self.replicas = list(replicas)
    self.changed()

  def send(self, request):
    replica = self.choose(request)
    self.open[replica] += 1
    self.opened(replica)
    return replica

  def ended(self, replica):
    self.open[replica] -= 1
    self.closed(replica)

  def choose(self, request):
    raise NotImplementedError

  def changed(self):
    pass

  def opened(self, replica):
    pass

  def closed(self, replica):
    pass


class Random(Proxy):

  def choose(self, request):
    return self.replicas[int(self.rng.random() * len(self.replicas))]


class RoundRobin(Proxy):

  def changed(self):
    self._next = int(self.rng.random() * len(self.replicas))

  def choose(self, request):
    self._next += 1
    return self.replicas[self._next % len(self.replicas)]


class PowerOfTwo(Proxy):
  """The emptier one of two at random: Envoy's LEAST_REQUEST, as it comes."""

  def choose(self, request):
    count = len(self.replicas)
    a, b = (self.replicas[int(self.rng.random() * count)] for _ in range(2))
    return a if self.open[a] <= self.open[b] else b


class LeastRequest(Proxy):
  """The emptiest of all, one at random of equals: replicas by their requests, each in a list and with its place."""

  def changed(self):
    self._level, self._place, self._lists = {}, {}, []
    for replica in self.replicas:
      self._put(replica, self.open[replica])

  def _put(self, replica, level):
    while len(self._lists) <= level:
      self._lists.append([])
    self._level[replica], self._place[replica] = level, len(self._lists[level])
    self._lists[level].append(replica)

  def _move(self, replica, by):
    level = self._level.get(replica)
    if level is None:  # it has left
      return
    last = self._lists[level].pop()
    if last is not replica:
      self._lists[level][self._place[replica]] = last
      self._place[last] = self._place[replica]
    self._put(replica, level + by)

  def opened(self, replica):
    self._move(replica, 1)

  def closed(self, replica):
    self._move(replica, -1)

  def choose(self, request):
    emptiest = next(filter(None, self._lists))
    return emptiest[int(self.rng.random() * len(emptiest))]


def _hash(*key):
  return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big")


class Affinity(Proxy):
  """A consistent hash of the prompt's prefix, whatever the load."""

  POINTS = 40  # of a replica on the ring

  def changed(self):
    points = sorted((_hash(replica.name, i), replica.name, replica) for replica in self.replicas
                    for i in range(self.POINTS))
    self._keys, self._owners = [point[0] for point in points], [point[2] for point in points]

  def _from(self, prefix, turn=0):
    return bisect.bisect(self._keys, _hash(prefix, turn)) % len(self._keys)

  def choose(self, request):
    return self._owners[self._from(request.prefix)]


class BoundedAffinity(Affinity):
  """The first one on the ring from there that has at most 1.25 times the mean (Mirrokni et al., 2016)."""

  BOUND = 1.25

  def changed(self):
    super().changed()
    self._total = sum(self.open[replica] for replica in self.replicas)

  def opened(self, replica):
    self._total += 1

  def closed(self, replica):
    self._total -= 1

  def choose(self, request):
    most = self.BOUND * (self._total + 1) / len(self.replicas)
    start = self._from(request.prefix)
    for i in range(len(self._owners)):
      replica = self._owners[(start + i) % len(self._owners)]
      if self.open[replica] + 1 <= max(most, 1):
        return replica
    return self._owners[start]


class AffinityOfTwo(Affinity):
  """The emptier one of the prefix's two."""

  def choose(self, request):
    a, b = (self._owners[self._from(request.prefix, turn)] for turn in range(2))
    return a if self.open[a] <= self.open[b] else b


POLICIES = {"random": Random, "round robin": RoundRobin, "least request": LeastRequest, "two choices": PowerOfTwo,
            "affinity": Affinity, "bounded affinity": BoundedAffinity, "affinity of two": AffinityOfTwo}
