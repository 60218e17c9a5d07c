"""What kustomize makes of deploy/, as lists of documents. AFT_KUBERNETES: a folder with kubectl and the Python
packages of `fetch_kubernetes` (tests/commands.sh)."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = os.environ.get("AFT_KUBERNETES")
if not TOOLS:
  print("SKIPPED: AFT_KUBERNETES names no folder with kubectl and kubernetes-validate; ./dev test fetches them")
  sys.exit(77)
sys.path.insert(0, TOOLS)

import yaml  # from TOOLS

COMPONENTS = sorted((DEPLOY / "k8s/components").iterdir())
OVERLAYS = {
    "cpu": [DEPLOY / "k8s/cpu"],
    "gpu": [DEPLOY / "k8s/gpu"],
    "ha": [DEPLOY / "k8s/ha"],
    "edge": [DEPLOY / "k8s/edge"],
    "kserve": [DEPLOY / "kserve"],
    # Components can be combined with each other, and with overlays that do not name them.
    "cpu, every component": [DEPLOY / "k8s/cpu", *COMPONENTS],
    "gpu, every component": [DEPLOY / "k8s/gpu", *COMPONENTS],
    "edge, every component but the gateway": [
        DEPLOY / "k8s/edge", *[component for component in COMPONENTS if component.name != "gateway"]],
    "gpu, edge": [DEPLOY / "k8s/gpu", DEPLOY / "envoy"],
    "e2e": [ROOT / "tests/e2e"],
}


def kustomize(folder):
  rendered = subprocess.run([Path(TOOLS) / "kubectl", "kustomize", folder], capture_output=True, text=True)
  assert rendered.returncode == 0, f"{folder}: {rendered.stderr}"
  return [document for document in yaml.safe_load_all(rendered.stdout) if document]


def render(base, *components):
  if not components:
    return kustomize(base)
  with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder).resolve()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({
        "resources": [os.path.relpath(base, folder)],
        "components": [os.path.relpath(component, folder) for component in components],
    }))
    return kustomize(folder)


def render_changed(overlay, file, change):
  """Renders the overlay in a copy of deploy/ in which `change` has changed the text of the file."""
  with tempfile.TemporaryDirectory() as folder:
    deploy = Path(folder).resolve() / "deploy"
    shutil.copytree(DEPLOY, deploy)
    text = (deploy / file).read_text()
    assert change(text) != text, f"{file} is not changed"
    (deploy / file).write_text(change(text))
    return kustomize(deploy / overlay)


def render_all():
  return {
      **{name: render(*folders) for name, folders in OVERLAYS.items()},
      # The comment in its kustomization.yaml allows to remove these.
      **{f"ha without {name}": render_changed("k8s/ha", "k8s/ha/kustomization.yaml",
                                              lambda text, line=f"  - ../components/{name}\n": text.replace(line, ""))
         for name in ("autoscaling", "monitoring")},
  }


def objects(value):
  """All objects in a document."""
  for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
    yield from objects(child)
  if isinstance(value, dict):
    yield value


def of_kind(documents, *kinds):
  return [document for document in documents if document["kind"] in kinds]


def is_custom(document):
  """Whether the document's kind is not part of Kubernetes itself."""
  group = document["apiVersion"].rpartition("/")[0]
  return "." in group and not group.endswith(".k8s.io") or group == "gateway.networking.k8s.io"
