#!/usr/bin/env python3
"""Writes schemas/ anew: pin_schemas.py CLONES

CLONES has the repositories of SOURCES, as git clones or bare, at CLONES/<name>. The schema of a CRD is cut down to the
fields that deploy/ uses, and allows no others. The test refuses new fields until this program has run again.
Rules in CEL (x-kubernetes-validations) are left out.
"""

import json
import subprocess
import sys
from pathlib import Path

from rendered import is_custom, render_all, yaml

SCHEMAS = Path(__file__).resolve().parent / "schemas"
SOURCES = {
    "ScaledObject": ("kedacore/keda", "v2.20.2", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    "PodMonitor": ("prometheus-operator/prometheus-operator", "v0.93.0",
                   "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"),
    "PrometheusRule": ("prometheus-operator/prometheus-operator", "v0.93.0",
                       "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"),
    "GRPCRoute": ("kubernetes-sigs/gateway-api", "v1.6.1",
                  "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"),
    "ClusterServingRuntime": ("kserve/kserve", "v0.20.0",
                              "config/crd/full/serving.kserve.io_clusterservingruntimes.yaml"),
    "InferenceService": ("kserve/kserve", "v0.20.0",
                         "config/crd/full/serving.kserve.io_inferenceservices.yaml"),
}
RULES = ["enum", "format", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "pattern", "type"]
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = {"type": "object", "required": ["name"], "additionalProperties": False, "properties": {
    "name": {"type": "string"}, "namespace": {"type": "string"}, "labels": STRINGS, "annotations": STRINGS}}


def pinned(schema, values):
  """The part of `schema` that `values` need, which are all values at its place."""
  result = {rule: schema[rule] for rule in RULES if rule in schema}
  if schema.get("x-kubernetes-int-or-string"):
    result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
  if "items" in schema:
    result["items"] = pinned(schema["items"], [item for value in values for item in value])
  if "properties" in schema:
    used = sorted({key for value in values for key in value})
    result["properties"] = {
        key: pinned(schema["properties"][key], [value[key] for value in values if key in value])
        for key in used if key in schema["properties"]}
    result["required"] = schema.get("required", [])
    result["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
  elif "additionalProperties" in schema:
    result["additionalProperties"] = pinned(schema["additionalProperties"],
                                            [item for value in values for item in value.values()])
  return result


def main(clones):
  documents = [document for rendered in render_all().values() for document in rendered if is_custom(document)]
  for kind, (repository, tag, path) in SOURCES.items():
    used = [document for document in documents if document["kind"] == kind]
    if not used:
      continue
    clone = next(clones.glob(repository.partition("/")[2]))
    crd = yaml.safe_load(subprocess.run(["git", "-C", clone, "show", f"{tag}:{path}"], check=True,
                                        capture_output=True).stdout)
    version = next(version for version in crd["spec"]["versions"]
                   if crd["spec"]["group"] + "/" + version["name"] == used[0]["apiVersion"])
    schema = pinned(version["schema"]["openAPIV3Schema"], used)
    schema["properties"].update(apiVersion={"const": used[0]["apiVersion"]}, kind={"const": kind}, metadata=METADATA)
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    schema = {"$comment": f"{repository} {tag} {path}", **schema}
    (SCHEMAS / f"{kind}.json").write_text(json.dumps(schema, indent=1) + "\n")


if __name__ == "__main__":
  main(Path(sys.argv[1]))
