#!/usr/bin/env python3
"""Tests tools/fleet: it agrees with queueing theory, no request is lost, and the two grains agree. Exit code 77 without
SimPy, which ./dev test fetches."""

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path[:0] = [str(TOOLS), os.environ.get("AFT_SIMPY", "")]

try:
  import simpy  # pylint: disable=unused-import
except ImportError:
  print("skipped: no SimPy; ./dev test fetches it")
  sys.exit(77)

import fleet_sim
from fleet import experiments, routing
from fleet.costs import Costs
from fleet.fleet import Fleet, Workload
from fleet.replica import FluidReplica, Request, StepReplica
from fleet.stats import Spread

ONE = (1, 0.0, 1)  # a length of 1
SERVER = Costs([[1, 0.002], [8, 0.003], [64, 0.020]], [[1, 0.002], [64, 0.009], [256, 0.030]], slots=64,
               step_target_seconds=0.020)
GRAINS = (False, True)


def fleet(*arguments, **more):
  return Fleet(*arguments, **{"policy": "two choices"} | more)


class QueueTest(unittest.TestCase):
  """With one slot, a replica is a queue with one server. If a step's time is proportional to its rows, it is a queue with
  processor sharing."""

  def test_one_slot_waits_as_pollaczek_and_khinchine_say(self):
    costs = Costs([[1, 0.010]], [[1, 0.010]], slots=1, max_step_tokens=2)
    for output in (ONE, (4, 0.7, 60)):  # M/D/1, M/G/1
      draws = [Workload(1, ONE, output).draw(random.Random(i), i, 0).output * 0.010 for i in range(20_000)]
      service, square = statistics.mean(draws), statistics.mean(draw**2 for draw in draws)
      for load in (0.5, 0.8):
        rate = load / service
        expected = 0.010 + rate * square / (2 * (1 - load))  # the wait, and the prompt's own step
        for exact in GRAINS:
          count = 40_000 if output is ONE else 15_000
          ran = fleet(costs, 1, exact=exact, seed=3).run(Workload(rate, ONE, output), count / rate)
          self.assertAlmostEqual(ran.ttft.mean() / expected, 1, delta=0.12, msg=(output, load, exact))

  def test_time_that_is_shared_is_the_same_for_all(self):
    """M/G/1 with processor sharing: a request of x seconds stays x / (1 - load), whatever the distribution."""
    slots = 400  # more than there ever are
    costs = Costs([[1, 0.001], [slots, 0.001 * slots]], [[1, 1e-9], [slots + 1, 1e-9]], slots=slots,
                  max_step_tokens=slots + 1)
    for output in ((20, 0.0, 20), (20, 1.0, 400)):
      mean = statistics.mean(Workload(1, ONE, output).draw(random.Random(i), i, 0).output for i in range(20_000))
      load = 0.6
      ran = fleet(costs, 1, seed=5).run(Workload(load / (mean * 0.001), ONE, output), 400)
      self.assertAlmostEqual(ran.e2e.mean() * (1 - load) / (mean * 0.001), 1, delta=0.12, msg=output)


class ReplicaTest(unittest.TestCase):

  def test_the_grains_agree(self):
    for load in (0.3, 0.6, 0.9):
      fine, coarse = (experiments.latencies(fleet(SERVER, 2, exact=exact, seed=2, warmup=5).run(
          experiments.offered(SERVER, 2, load), 40)) for exact in (True, False))
      for name in ("ttft_p50", "e2e_p50", "e2e_p99", "itl_p50"):
        self.assertAlmostEqual(coarse[name] / fine[name], 1, delta=0.15, msg=(load, name))

  def test_one_request_takes_its_steps(self):
    for exact in GRAINS:
      ran = fleet(SERVER, 1, exact=exact)
      # 300 tokens in steps of 256 and 44, and 9 more of one row.
      request = Request(0, 0.0, 300, 10)
      ran.submit(request)
      ran.env.run()
      self.assertEqual(ran.completed, 1)
      prompt = SERVER.step(0, 256) + SERVER.step(0, 44)
      self.assertAlmostEqual(request.first, prompt, delta=1e-9 if exact else 0.1 * prompt)
      self.assertAlmostEqual(request.last - request.first, 9 * SERVER.step(1, 0), places=9)

  def test_prompts_share_a_step_as_the_scheduler_has_it(self):
    replica = StepReplica(None, SERVER, None)
    for lengths, budget, expected in (([100, 100, 100], 9, [9, 0, 0]), ([1, 100, 100], 9, [1, 8, 0]), ([5], 9, [5]),
                                      ([100, 9, 3], 9, [5, 1, 3]), ([100, 3], 9, [6, 3]), ([4, 4, 4], 9, [4, 4, 1]),
                                      ([9, 9, 2], 1, [1, 0, 0]), ([], 9, [])):
      replica._prompts = [Request(i, 0, length, 1) for i, length in enumerate(lengths)]
      self.assertEqual(replica._share(budget), expected)

  def test_decodes_leave_prompts_what_the_target_allows(self):
    self.assertEqual(SERVER.prompt_budget(0), 256)
    budget = SERVER.prompt_budget(8)
    self.assertLessEqual(SERVER.step(8, budget), 0.8 * 0.020)
    self.assertGreater(SERVER.step(8, budget + 1), 0.8 * 0.020)
    budget = SERVER.prompt_budget(60)  # the decodes alone need more than the target
    self.assertLessEqual(SERVER.step(60, budget), 1.25 * SERVER.step(60, 0))
    self.assertGreater(SERVER.step(60, budget + 1), 1.25 * SERVER.step(60, 0))

  def test_never_more_than_its_slots(self):
    for grain in (StepReplica, FluidReplica):
      ran = fleet(SERVER, 1, exact=grain is StepReplica)
      for i in range(100):
        ran.submit(Request(i, 0.0, 8, 50))
      [replica] = ran.replicas
      self.assertEqual((replica.live <= 64, replica.load()), (True, 100))
      ran.env.run(until=0.1)
      self.assertEqual(replica.live, 64)
      ran.env.run()
      self.assertEqual((ran.completed, replica.load()), (100, 0))

  def test_costs_that_make_no_sense_are_refused(self):
    # Prompts shorter than the shortest that was measured take as long.
    Costs([[1, 0.1], [8, 0.2]], [[8, 0.001], [32, 0.010]], slots=8)
    for bad in ({"decode_seconds": [[1, 0.0]]}, {"prompt_seconds": [[1, -1.0]]}, {"max_step_tokens": 64}):
      with self.assertRaises(ValueError):
        Costs(**{"decode_seconds": [[1, 0.1]], "prompt_seconds": [[1, 0.1]], "slots": 64} | bad)


class FleetTest(unittest.TestCase):

  def test_every_request_ends_and_the_seed_decides_everything(self):
    for exact in GRAINS:
      runs = [fleet(SERVER, 5, exact=exact, proxies=2, seed=seed).run(experiments.offered(SERVER, 5, 0.9), 15)
              for seed in (1, 1, 2)]
      for ran in runs:
        self.assertEqual(ran.completed, ran.arrived)
        self.assertGreater(ran.completed, 50)
        self.assertEqual(sum(replica.load() for replica in ran.replicas), 0)
      figures = [list(ran.ttfts_ended) for ran in runs]
      self.assertEqual(figures[0], figures[1])
      self.assertNotEqual(figures[0], figures[2])

  def test_policies_that_know_more_have_a_shorter_tail(self):
    tails = {}
    for policy in ("random", "round robin", "two choices", "least request"):
      ran = Fleet(SERVER, 30, policy, seed=4, warmup=10).run(experiments.offered(SERVER, 30, 0.85), 40)
      tails[policy] = ran.e2e.quantile(0.99)
    self.assertLess(tails["two choices"], 0.95 * tails["random"])
    self.assertLess(tails["two choices"], tails["round robin"])
    self.assertLess(tails["least request"], 1.02 * tails["two choices"])

  def test_a_rolling_update_loses_no_request(self):
    longest = {}
    for exact in GRAINS:
      for states in (True, False):
        ran = fleet(SERVER, 10, exact=exact, proxies=2, seed=6)
        old = list(ran.replicas)
        ran.run(experiments.offered(SERVER, 10, 0.5), 40, ran.rolling_update(5, 2, 3, states))
        self.assertEqual(ran.completed, ran.arrived)
        self.assertGreater(ran.moved, 5)
        self.assertEqual(len(ran.replicas), 10)
        self.assertFalse(set(old) & set(ran.replicas))
        self.assertAlmostEqual(ran.updated, 5 * (1 + 3))
        self.assertEqual(sum(replica.load() for replica in old), 0)
        longest[exact, states] = ran.gap.max
      # Without stored states, a stream's prompt is read again before the stream continues.
      self.assertLess(longest[exact, True], longest[exact, False])
      self.assertGreater(longest[exact, True], Fleet.RECONNECT[0])

  def test_a_fleet_without_a_replica_keeps_its_requests(self):
    ran = fleet(SERVER, 1, seed=1)
    ran.run(experiments.offered(SERVER, 1, 0.5), 20, ran.rolling_update(5, 1, 3, True))
    self.assertEqual(ran.completed, ran.arrived)
    self.assertGreater(ran.gap.max, 3)

  def test_an_autoscaler_follows_the_load(self):
    late = {}
    for lag in (1, 60):
      base = 0.6 * 4 * experiments.capacity(SERVER)
      ran = fleet(SERVER, 4, seed=7)
      work = Workload(lambda now, base=base: base * (2 if 30 <= now < 150 else 0.3), experiments.PROMPT,
                      experiments.OUTPUT, most=2 * base)
      ran.run(work, 400, ran.autoscale("requests", 0.3, lag, 400, cool=60))
      self.assertEqual(ran.completed, ran.arrived)
      sizes = [size for _, size in ran.sizes]
      self.assertGreater(max(sizes), 4)
      self.assertLess(sizes[-1], max(sizes))
      self.assertEqual(sizes[-1], len(ran.replicas))
      late[lag] = sum(ttft > 1 for ttft in ran.ttfts_ended)
    self.assertLess(late[1], late[60])

  def test_the_shipped_autoscaler_sees_what_waits_too(self):
    sizes = {}
    for measure in ("slots", "shipped"):  # With a target that slots never reach.
      ran = fleet(SERVER, 2, seed=7)
      ran.run(experiments.offered(SERVER, 2, 1.5), 120, ran.autoscale(measure, 2, 1, 120))
      sizes[measure] = max(size for _, size in ran.sizes)
    self.assertEqual(sizes["slots"], 2)
    self.assertGreater(sizes["shipped"], 2)


class RoutingTest(unittest.TestCase):

  class Replica:
    def __init__(self, name):
      self.name = name

  def test_the_emptiest_is_chosen_whatever_came_before(self):
    rng = random.Random(1)
    proxy = routing.LeastRequest(random.Random(2))
    replicas = [self.Replica(i) for i in range(8)]
    proxy.set_replicas(replicas)
    sent = []
    for turn in range(3000):
      if turn % 500 == 499:
        proxy.set_replicas(replicas := rng.sample(replicas, len(replicas) - 1))
      if sent and rng.random() < 0.45:
        proxy.ended(sent.pop(rng.randrange(len(sent))))
      else:
        least = min(proxy.open[replica] for replica in replicas)
        replica = proxy.send(None)
        self.assertIn(replica, replicas)
        self.assertEqual(proxy.open[replica], least + 1)
        sent.append(replica)

  def test_round_robin_goes_round(self):
    proxy = routing.RoundRobin(random.Random(1))
    replicas = [self.Replica(i) for i in range(5)]
    proxy.set_replicas(replicas)
    for _ in range(3):
      self.assertEqual({proxy.send(None) for _ in range(5)}, set(replicas))

  def test_a_prefix_stays_where_it_is(self):
    proxy = routing.Affinity(random.Random(1))
    replicas = [self.Replica(i) for i in range(20)]
    proxy.set_replicas(replicas)
    requests = [Request(i, 0, 1, 1, prefix=i) for i in range(1000)]
    before = [proxy.send(request) for request in requests]
    self.assertEqual([proxy.send(request) for request in requests], before)
    self.assertEqual(set(before), set(replicas))
    proxy.set_replicas(replicas[1:])
    for old, request in zip(before, requests):
      if old is not replicas[0]:
        self.assertIs(proxy.send(request), old)

  def test_bounded_affinity_keeps_to_its_bound(self):
    proxy = routing.BoundedAffinity(random.Random(1))
    replicas = [self.Replica(i) for i in range(10)]
    proxy.set_replicas(replicas)
    sent = [proxy.send(Request(i, 0, 1, 1, prefix=0)) for i in range(400)]
    self.assertLessEqual(max(proxy.open.values()), 1.25 * 400 / 10 + 1)
    for replica in sent:
      proxy.ended(replica)
    self.assertEqual(set(proxy.open.values()), {0})
    first = proxy.send(Request(0, 0, 1, 1, prefix=0))
    self.assertIs(first, sent[0])

  def test_bounded_affinity_forgets_the_requests_of_a_removed_replica(self):
    proxy = routing.BoundedAffinity(random.Random(1))
    replicas = [self.Replica(i) for i in range(10)]
    proxy.set_replicas(replicas)
    sent = [proxy.send(Request(i, 0, 1, 1, prefix=0)) for i in range(400)]
    proxy.set_replicas(replicas[:5])
    for replica in sent:
      proxy.ended(replica)
    for i in range(10):
      proxy.send(Request(i, 0, 1, 1, prefix=0))
    self.assertLessEqual(max(proxy.open.values()), 1.25 * 10 / 5 + 1)

  def test_affinity_finds_what_is_cached(self):
    hits = {}
    for policy in ("two choices", "affinity", "bounded affinity", "affinity of two"):
      ran = Fleet(SERVER, 10, policy, seed=8, prefixes=20)
      ran.run(experiments.offered(SERVER, 10, 0.3, prefixes=200, prefix_tokens=256), 30)
      self.assertEqual(ran.completed, ran.arrived)
      hits[policy] = ran.hits / ran.arrived
    self.assertGreater(hits["affinity"], hits["two choices"] + 0.1)
    self.assertGreater(hits["affinity of two"], hits["two choices"])
    self.assertGreater(hits["affinity"], hits["affinity of two"])


  def test_requests_of_the_warm_up_are_not_counted(self):
    ran = Fleet(SERVER, 10, "affinity", seed=8, prefixes=20, warmup=15)
    ran.run(experiments.offered(SERVER, 10, 0.3, prefixes=200, prefix_tokens=256), 30)
    self.assertEqual(ran.hits + ran.misses, ran.ttft.count)
    self.assertLess(ran.ttft.count, ran.completed)


class ExperimentTest(unittest.TestCase):

  def test_policies_name_the_requests_that_were_measured(self):
    for row in experiments.policies(SERVER, 1, sizes=(2,), loads=(), seconds=6, proxies=1):
      ran = Fleet(SERVER, 2, row["policy"], seed=1, warmup=2).run(experiments.offered(SERVER, 2, 0.8), 6)
      self.assertEqual(row["requests"], ran.ttft.count)
      self.assertLess(row["requests"], ran.completed)

  def test_waiting_requests_use_no_slot(self):
    rows = list(experiments.slots_by_load(SERVER, 1, loads=(1.5,), replicas=2))
    self.assertLessEqual(rows[0]["slots_used"], 1)
    self.assertGreater(rows[0]["slots_used"], 0.9)

  def test_only_requests_after_the_jump_count_as_late(self):
    costs = Costs([[1, 0.002]], [[1, 0.002], [256, 0.030]], slots=1, step_target_seconds=0.020)
    made, series = [], {}

    def make(*arguments, **more):
      made.append(Fleet(*arguments, **more))
      return made[-1]

    with mock.patch.object(experiments, "Fleet", make):
      rows = list(itertools.islice(experiments.autoscaling(costs, 1, replicas=1, series=series), 3))
    late = series["slots, 0.5"]["late"]
    self.assertGreater(sum(late[:60]), 0)
    self.assertEqual(rows[1]["seconds_with_late"], sum(count > 0 for count in late[60:]))
    self.assertAlmostEqual(rows[1]["late_share"],
                           sum(late[60:]) / sum(arrival >= 60 for arrival in made[1].arrivals_ended))
    self.assertLess(rows[0]["late_share"], rows[2]["late_share"], "a replica that starts later")

  def test_a_rollout_reports_gaps_and_lost_streams(self):
    class Losing(Fleet):
      def run(self, *arguments):
        super().run(*arguments)
        self.completed -= 2
        return self

    with mock.patch.object(experiments, "Fleet", Losing):
      travel, again = itertools.islice(experiments.rollout(SERVER, 1, replicas=4, start_seconds=1), 2)
    self.assertEqual((travel["lost"], again["lost"]), (2, 2))
    self.assertEqual((travel["states"], again["states"]), ("travel", "are read again"))
    self.assertLess(2 * travel["gap_p99"], again["gap_p99"])

  def test_affinity_finds_prefixes_in_caches(self):
    rows = itertools.islice(experiments.affinity(SERVER, 1, replicas=4, prefixes=40, tokens=64, kept=10), 2)
    hits = {row["policy"]: row["hits"] for row in rows}
    self.assertGreater(hits["affinity"], 0.9)
    self.assertLess(hits["two choices"], 0.7)


class ProgramTest(unittest.TestCase):

  def run_program(self, *arguments, code=0):
    done = subprocess.run([sys.executable, "-B", TOOLS / "fleet_sim.py", *map(str, arguments)], text=True, check=False,
                          capture_output=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    self.assertEqual(done.returncode, code, done.stderr)
    return done.stdout + done.stderr

  def test_it_answers_and_keeps_what_it_found(self):
    with tempfile.TemporaryDirectory() as folder:
      self.assertIn("e2e_p99", self.run_program("grains", "--out", folder))
      rows = json.loads((Path(folder) / "grains.json").read_text())["rows"]
      self.assertEqual([row["load"] for row in rows], [0.3, 0.6, 0.8, 0.9])
      for row in rows:
        self.assertAlmostEqual(row["e2e_p50"], 1, delta=0.1)

  def test_each_name_is_that_of_its_experiment(self):
    self.assertEqual({name: run.__name__ for name, run in fleet_sim.NAMES.items()}, {
        "grains": "grains", "policies": "policies", "slots": "slots_by_load", "autoscaling": "autoscaling",
        "rollout": "rollout", "affinity": "affinity"})

  def test_the_experiment_gets_the_options(self):
    with tempfile.TemporaryDirectory() as folder:
      self.run_program("policies", "--replicas", 2, "--seed", 3, "--out", folder)
      rows = json.loads((Path(folder) / "policies.json").read_text())["rows"]
    costs = Costs.load(TOOLS / "fleet" / "m-int8.json")
    self.assertEqual(rows, list(experiments.policies(costs, 3, sizes=(2,), loads=())))

  def test_the_costs_that_are_shipped_make_sense(self):
    costs = {path.stem: Costs.load(path) for path in (TOOLS / "fleet").glob("*.json")}
    self.assertEqual(set(costs), {"austen-int8", "m-int8"})
    self.assertGreater(experiments.capacity(costs["austen-int8"]), 5 * experiments.capacity(costs["m-int8"]))

  def test_errors_say_what_is_wrong(self):
    self.assertIn("no fly: grains", self.run_program("fly", code=2))
    self.assertIn("must be in [1, 100000]", self.run_program("policies", "--replicas", "0", code=2))
    self.assertIn("--costs nowhere: ", self.run_program("--costs", "nowhere", code=2))


class SpreadTest(unittest.TestCase):

  def test_quantiles_are_within_a_bin(self):
    rng, spread = random.Random(1), Spread()
    values = sorted(rng.lognormvariate(-3, 1.5) for _ in range(10_000))
    for value in values:
      spread.add(value)
    for share in (0.01, 0.5, 0.99, 1.0):
      self.assertAlmostEqual(spread.quantile(share) / values[max(0, round(share * 10_000) - 1)], 1, delta=0.02)
    self.assertAlmostEqual(spread.mean(), statistics.mean(values))

  def test_weights_count(self):
    spread = Spread()
    spread.add(1.0, weight=97)
    spread.add(5.0, weight=3)
    self.assertAlmostEqual(spread.quantile(0.95), 1.0, delta=0.02)
    self.assertAlmostEqual(spread.quantile(0.99), 5.0, delta=0.06)
    self.assertAlmostEqual(spread.mean(), 1.12)


if __name__ == "__main__":
  unittest.main()
