"""Decides where a proxy sends a request. A proxy knows only its own requests, as Envoy and gRPC's clients do."""

import bisect
import collections
import hashlib


class Proxy:
  """A policy. `open` has the number of its open requests at each replica. Subclasses choose among `replicas`."""

  def __init__(self, rng):
    self.rng, self.replicas, self.open = rng, [], collections.Counter()

  def set_replicas(self, replicas):
    """Sets the replicas for new requests. Open requests at other replicas still end."""
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
  """Chooses the emptier one of two random replicas, as Envoy's LEAST_REQUEST does by default."""

  def choose(self, request):
    count = len(self.replicas)
    a, b = (self.replicas[int(self.rng.random() * count)] for _ in range(2))
    return a if self.open[a] <= self.open[b] else b


class LeastRequest(Proxy):
  """Chooses the emptiest replica, at random among equals. Each number of requests has a list of its replicas."""

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
    if level is None:  # the replica has been removed
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
  """Chooses by a consistent hash of the prompt's prefix, whatever the load."""

  POINTS = 40  # points of each replica on the ring

  def changed(self):
    points = sorted((_hash(replica.name, i), replica.name, replica) for replica in self.replicas
                    for i in range(self.POINTS))
    self._keys, self._owners = [point[0] for point in points], [point[2] for point in points]

  def _from(self, prefix, turn=0):
    return bisect.bisect(self._keys, _hash(prefix, turn)) % len(self._keys)

  def choose(self, request):
    return self._owners[self._from(request.prefix)]


class BoundedAffinity(Affinity):
  """Chooses the next replica on the ring with at most 1.25 times the mean load (Mirrokni et al., 2016)."""

  BOUND = 1.25

  def changed(self):
    super().changed()
    self._known = set(self.replicas)
    self._total = sum(self.open[replica] for replica in self.replicas)

  def opened(self, replica):
    self._total += 1

  def closed(self, replica):
    self._total -= replica in self._known  # The total has no requests of a replica that has been removed.

  def choose(self, request):
    most = self.BOUND * (self._total + 1) / len(self.replicas)
    start = self._from(request.prefix)
    for i in range(len(self._owners)):
      replica = self._owners[(start + i) % len(self._owners)]
      if self.open[replica] + 1 <= max(most, 1):
        return replica
    return self._owners[start]


class AffinityOfTwo(Affinity):
  """Chooses the emptier one of two replicas that the prefix hashes to."""

  def choose(self, request):
    a, b = (self._owners[self._from(request.prefix, turn)] for turn in range(2))
    return a if self.open[a] <= self.open[b] else b


POLICIES = {"random": Random, "round robin": RoundRobin, "least request": LeastRequest, "two choices": PowerOfTwo,
            "affinity": Affinity, "bounded affinity": BoundedAffinity, "affinity of two": AffinityOfTwo}
