"""A Kubernetes cluster of one node. etcd, the control plane, dockerd, kubelet and kube-proxy are children of this
process. They leave nothing behind, because ./dev e2e gives it namespaces of its own for network, mounts and processes.
Debian has no CoreDNS, so this process answers DNS queries."""

import json
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

BRIDGE = "172.17.0.1"  # docker0: the address of the node and of the DNS server.
API = "https://127.0.0.1:6443"
SERVICES = "10.96.0.0/16"
PATIENCE = 3600  # The seconds after which a wait fails.

# The pause container asks for a lower OOM score, which runc may not set here. This wrapper of runc removes it.
RUNTIME = """#!/bin/bash
for (( i = 1; i < $#; ++i )); do
  next=$(( i + 1 ))
  if [[ ${!i} == --bundle || ${!i} == -b ]]; then bundle=${!next}; fi
done
if [[ -e ${bundle:-}/config.json ]]; then
  jq 'if (.process.oomScoreAdj // 0) < 0 then .process.oomScoreAdj = 0 else . end' "$bundle/config.json" \
    >"$bundle/new" && mv "$bundle/new" "$bundle/config.json"
fi
exec runc "$@"
"""

KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "oomScoreAdj": 0,
    "makeIPTablesUtilChains": False,
    "clusterDNS": [BRIDGE],
    "clusterDomain": "cluster.local",
    # Other programs also fill the disk, and the cluster could not pull a deleted image again.
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "100Mi"},
}


def wait_until(true, what, patience=PATIENCE):
  """Calls `true` until it returns a true value, which it returns. Fails after `patience` seconds."""
  end = time.monotonic() + patience
  while not (answer := true()):
    if time.monotonic() > end:
      raise AssertionError(f"never happened: {what}")
    time.sleep(0.5)
  return answer


class Cluster:

  def __init__(self, programs, kubectl, docker_root, folder):
    self.programs, self.folder = Path(programs), Path(folder)
    self.kubectl_command = [str(kubectl), "--kubeconfig", f"{folder}/kubeconfig"]
    self._docker_root = docker_root
    self._processes = []
    self._docker = f"unix://{folder}/docker.sock"

  def __enter__(self):
    try:
      self._start_docker()
      self._start_control_plane()
      self._start_node()
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *_):
    kinds = ("kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
    for name, process in sorted(self._processes, key=lambda one: kinds.index(one[0]) if one[0] in kinds else 9):
      if name == "dockerd" and process.poll() is None:
        self._remove_containers()  # The kubelet has ended, so it does not start them again.
      process.terminate()
      process.wait(PATIENCE)
    self._processes.clear()

  def kubectl(self, *arguments, **options):
    return self._run([*self.kubectl_command, *map(str, arguments)], **options)

  def get(self, *arguments):
    return json.loads(self.kubectl("get", "-o", "json", *arguments))

  def docker(self, *arguments):
    return self._run(["/usr/bin/docker", "-H", self._docker, *arguments])

  def _remove_containers(self):
    if containers := self.docker("ps", "-aq").split():
      self.docker("rm", "-f", *containers)

  def _run(self, command, check=True, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)
    if check and done.returncode != 0:
      raise AssertionError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
    return done.stdout

  def _start(self, program, *flags):
    with open(self.folder / f"{Path(program).name}.log", "wb") as log:
      process = subprocess.Popen([str(program), *flags], stdout=log, stderr=log)
    self._processes.append((Path(program).name, process))

  def check_alive(self):
    for name, process in self._processes:
      if process.poll() is not None:
        raise AssertionError(f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}")

  def _answers(self, *command):
    self.check_alive()
    return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0

  def _start_docker(self):
    runtime = self.folder / "runtime"
    runtime.write_text(RUNTIME)
    runtime.chmod(0o755)
    self._start("/usr/sbin/dockerd", "--storage-driver=overlay2", f"--data-root={self._docker_root}",
                f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/docker.pid", f"--host={self._docker}",
                f"--bip={BRIDGE}/16", f"--add-runtime=kept={runtime}", "--default-runtime=kept")
    wait_until(lambda: self._answers("/usr/bin/docker", "-H", self._docker, "info"), "docker answers")
    self._remove_containers()  # After a killed run, the kubelet would consider old containers its own.

  def _start_control_plane(self):
    key = self.folder / "service-accounts.key"
    self._run(["openssl", "genrsa", "-out", str(key), "2048"])
    (self.folder / "tokens").write_text("token,admin,admin,system:masters\n")
    (self.folder / "kubeconfig").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "e2e",
        "clusters": [{"name": "e2e", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "e2e", "user": {"token": "token"}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}]}))
    etcd = "http://127.0.0.1:2379"
    self._start("/usr/bin/etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}", "--listen-peer-urls=http://127.0.0.1:2380")
    self._start(self.programs / "kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
                "--secure-port=6443", f"--cert-dir={self.folder}/certs", f"--advertise-address={BRIDGE}",
                f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
                "--service-account-issuer=https://kubernetes.default.svc", f"--token-auth-file={self.folder}/tokens",
                "--authorization-mode=Node,RBAC", "--allow-privileged=true", f"--service-cluster-ip-range={SERVICES}",
                "--kubelet-preferred-address-types=InternalIP")
    kubeconfig = f"--kubeconfig={self.folder}/kubeconfig"
    wait_until(lambda: self._answers(*self.kubectl_command, "get", "--raw", "/readyz"), "the API server is ready")
    self._start(self.programs / "kube-controller-manager", kubeconfig, f"--service-account-private-key-file={key}",
                "--leader-elect=false")
    self._start(self.programs / "kube-scheduler", kubeconfig, "--leader-elect=false")

  def _start_node(self):
    (self.folder / "kubelet.json").write_text(json.dumps(KUBELET))
    kubeconfig = f"--kubeconfig={self.folder}/kubeconfig"
    self._start(self.programs / "kubelet", kubeconfig, f"--config={self.folder}/kubelet.json",
                "--container-runtime=docker", f"--docker-endpoint={self._docker}", "--network-plugin=",
                "--hostname-override=node", f"--node-ip={BRIDGE}", "--pod-infra-container-image=aft-e2e-pause:1")
    self._start(self.programs / "kube-proxy", kubeconfig, "--proxy-mode=iptables", "--hostname-override=node",
                "--conntrack-max-per-core=0", "--conntrack-min=0")
    threading.Thread(target=self._answer_names, daemon=True).start()
    wait_until(lambda: self._answers(*self.kubectl_command, "wait", "--for=condition=Ready", "node/node",
                                     "--timeout=1s"), "the node is ready")
    wait_until(lambda: self._answers(*self.kubectl_command, "get", "serviceaccount", "default"),
               "pods can be created")

  # ---- Names -------------------------------------------------------------------------------------
  def addresses(self, service, namespace):
    """Returns the addresses of a Service: its cluster IP, or its ready pods if it is headless. None: no such name."""
    try:
      spec = self.get("service", service, "-n", namespace)["spec"]
      if spec["clusterIP"] != "None":
        return [spec["clusterIP"]]
      subsets = self.get("endpoints", service, "-n", namespace).get("subsets", [])
    except AssertionError:
      return None
    return [address["ip"] for subset in subsets for address in subset.get("addresses", [])]

  def _answer_names(self):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
      port.bind((BRIDGE, 53))
      while True:
        query, peer = port.recvfrom(512)
        threading.Thread(target=lambda query=query, peer=peer: port.sendto(self._answer(query), peer),
                         daemon=True).start()

  def _answer(self, query):
    labels, at = [], 12
    while size := query[at]:
      labels.append(query[at + 1:at + 1 + size].decode().lower())
      at += 1 + size
    question = query[12:at + 5]
    kind = struct.unpack("!H", query[at + 1:at + 3])[0]
    found = None
    if labels[2:] == ["svc", "cluster", "local"]:
      found = self.addresses(*labels[:2])
    records = [struct.pack("!HHHIH", 0xC00C, 1, 1, 5, 4) + socket.inet_aton(address)
               for address in (found or []) if kind == 1]
    flags = 0x8580 | (3 if found is None else 0)  # An authoritative answer; 3: no such name.
    return query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0) + question + b"".join(records)
