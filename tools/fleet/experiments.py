"""The experiments of fleet_sim.py. Each function returns the rows of its table, as dicts of plain numbers."""

import math
import statistics

from fleet.fleet import Fleet, Workload, mean_length
from fleet.stats import Spread

PROMPT, OUTPUT = (256, 0.8, 2048), (256, 0.8, 2048)  # median, sigma, most: log-normal
SIZES = (10, 100, 1000, 10_000)


def capacity(costs, prompt=PROMPT, output=OUTPUT):
  """The largest number of requests that a replica completes in a second."""
  return 1 / costs.request_seconds(mean_length(prompt), mean_length(output))


def offered(costs, replicas, load, **more):
  return Workload(load * replicas * capacity(costs), PROMPT, OUTPUT, **more)


def latencies(fleet):
  return {"ttft_p50": fleet.ttft.quantile(0.5), "ttft_p99": fleet.ttft.quantile(0.99),
          "itl_p50": fleet.itl.quantile(0.5), "itl_p99": fleet.itl.quantile(0.99),
          "e2e_p50": fleet.e2e.quantile(0.5), "e2e_p99": fleet.e2e.quantile(0.99)}


def grains(costs, seed):
  """Compares the fluid replica with the one that simulates every step."""
  for load in (0.3, 0.6, 0.8, 0.9):
    fine, coarse = (Fleet(costs, 4, exact=exact, seed=seed, warmup=20).run(offered(costs, 4, load), 100)
                    for exact in (True, False))
    fine, coarse = latencies(fine), latencies(coarse)
    yield {"load": load} | {name: coarse[name] / fine[name] for name in fine}


def policies(costs, seed, sizes=SIZES, loads=(0.5, 0.7, 0.8, 0.9), seconds=None, proxies=10):
  """Compares the policies that choose a replica: fleets of several sizes at 0.8 of their capacity, then several loads
  of 100 replicas. Each proxy knows only its own requests."""
  cases = [(size, 0.8) for size in sizes] + [(100, load) for load in loads if load != 0.8]
  for size, load in cases:
    until = seconds or (60 if size <= 100 else 30 if size <= 1000 else 12)
    for policy in ("random", "round robin", "two choices", "least request"):
      for knowing in dict.fromkeys((proxies, 1) if policy == "least request" else (proxies,)):
        fleet = Fleet(costs, size, policy, knowing, seed=seed, warmup=until / 3)
        fleet.run(offered(costs, size, load), until)
        yield {"replicas": size, "load": load, "policy": policy, "proxies": knowing,
               "requests": int(fleet.ttft.count)} | latencies(fleet)


def slots_by_load(costs, seed, loads=(0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05), replicas=20):
  """How many slots are used at which load; an autoscaler sees this number."""
  for load in loads:
    fleet = Fleet(costs, replicas, "two choices", seed=seed, warmup=30)
    seen = []

    def watch():
      while fleet.env.now < 120:
        yield fleet.env.timeout(1)
        if fleet.env.now > 30:
          seen.append(sum(replica.live for replica in fleet.replicas) / replicas / costs.slots)

    fleet.run(offered(costs, replicas, load), 120, watch())
    yield {"load": load, "slots_used": statistics.mean(seen)} | latencies(fleet)


def autoscaling(costs, seed, replicas=20, series=None):
  """The load doubles at 60 s, from 0.6 of the fleet's capacity. `series` receives the data of the plot: the fleet's
  size and the streams that wait longer than 1 s."""
  until, jump, base = 600, 60, 0.6 * replicas * capacity(costs)
  full = capacity(costs) * mean_length(OUTPUT)
  for measure, target in (("slots", 0.5), ("slots", 0.2), ("requests", 0.2), ("tokens", 0.7), ("shipped", 0.7), ("shipped", 0.2)):
    for lag in (2, 30, 120):
      fleet = Fleet(costs, replicas, "two choices", seed=seed)
      fleet.run(Workload(lambda now: base * (2 if now >= jump else 1), PROMPT, OUTPUT, most=2 * base), until,
                fleet.autoscale(measure, target, lag, until, full, most=10 * replicas))
      late, after = [0] * until, Spread()
      for arrival, ttft in zip(fleet.arrivals_ended, fleet.ttfts_ended):
        late[int(arrival)] += ttft > 1
        if arrival >= jump:
          after.add(ttft)
      sizes = [size for _, size in fleet.sizes]
      yield {"measure": measure, "target": target, "lag": lag, "replicas_after": sizes[-1], "most_replicas": max(sizes),
             "ttft_p99": after.quantile(0.99), "ttft_max": after.max,
             "seconds_with_late": sum(count > 0 for count in late[jump:]), "late_share": sum(late[jump:]) / after.count}
      if series is not None and lag == 30:
        series[f"{measure}, {target}"] = {"sizes": fleet.sizes, "late": late}


def rollout(costs, seed, replicas=100, load=0.6, start_seconds=10):
  """Every replica is replaced while streams run. A new one is ready `start_seconds` after the end of the old one."""
  for share in (0.02, 0.1, 0.25):
    for states in (True, False):
      fleet = Fleet(costs, replicas, "two choices", 10, seed=seed, warmup=30)
      at_once = max(1, round(share * replicas))
      until = 60 + math.ceil(replicas / at_once) * (start_seconds + 1)
      fleet.run(offered(costs, replicas, load), until, fleet.rolling_update(30, at_once, start_seconds, states))
      yield {"at_once": share, "states": "travel" if states else "are read again", "minutes": fleet.updated / 60,
             "streams": fleet.completed, "lost": fleet.arrived - fleet.completed, "moved": fleet.moved,
             "gap_p50": fleet.gap.quantile(0.5), "gap_p99": fleet.gap.quantile(0.99), "gap_max": fleet.gap.max,
             "ttft_p99": fleet.ttft.quantile(0.99)}


def affinity(costs, seed, replicas=100, prefixes=2000, tokens=1024, kept=64):
  """Each prompt begins with one of `prefixes` prefixes, each of `tokens` tokens; a replica keeps the last `kept`."""
  for load in (0.2, 0.5):
    for policy in ("two choices", "affinity", "bounded affinity", "affinity of two"):
      fleet = Fleet(costs, replicas, policy, 10, seed=seed, warmup=60, prefixes=kept)
      loads = []

      def watch():
        while fleet.env.now < 120:
          yield fleet.env.timeout(5)
          if fleet.env.now > 60:
            each = [replica.load() for replica in fleet.replicas]
            loads.append(max(each) / max(statistics.mean(each), 1e-9))

      fleet.run(offered(costs, replicas, load, prefixes=prefixes, prefix_tokens=tokens), 120, watch())
      yield {"load": load, "policy": policy, "hits": fleet.hits / (fleet.hits + fleet.misses),
             "fullest_over_mean": statistics.mean(loads)} | latencies(fleet)
