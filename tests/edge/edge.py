"""Starts aft-server and the shipped edge, deploy/envoy, on ports that the kernel chooses."""

import http.client
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import attacker

DEPLOY = Path(__file__).resolve().parents[2] / "deploy/envoy"
ENVOY = os.environ.get("AFT_ENVOY", "")
PATIENCE = 60  # Seconds until something that must happen counts as failed.


def wait_until(true, what):
  """Asks until it is so: for what another process will do by itself."""
  end = time.monotonic() + PATIENCE
  while not true():
    if time.monotonic() > end:
      raise AssertionError(f"never happened: {what}")
    time.sleep(0.01)


class Process:
  """A program that runs until stop(), with its output in a file."""

  def __init__(self, folder, name, command):
    self.log = folder / f"{name}.log"
    with open(self.log, "wb") as log:
      self._process = subprocess.Popen(command, stdout=log, stderr=log)
    self.pid = self._process.pid

  def alive(self):
    return self._process.poll() is None

  def terminate(self):
    """Asks it to end."""
    self._process.terminate()

  def stop(self, hard=False):
    """Ends it, if it still runs, and returns its exit code."""
    if self.alive():
      if hard:
        self._process.kill()
      else:
        self.terminate()
    return self._process.wait(PATIENCE)

  def reset_peak(self):
    Path(f"/proc/{self.pid}/clear_refs").write_text("5")

  def megabytes(self, field="VmRSS"):
    """Resident memory; field VmHWM: its peak since reset_peak()."""
    status = Path(f"/proc/{self.pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) / 1024


class ServerProcess(Process):
  """aft-server by that config file, once it is ready, on ports that the kernel chooses."""

  def __init__(self, folder, name, program, config):
    ready = folder / f"{name}.ready"
    super().__init__(folder, name, [program, f"--config={config}", "--listen_address=127.0.0.1:0",
                                    "--metrics_address=127.0.0.1:0", f"--ready_file={ready}"])
    wait_until(lambda: ready.exists() or not self.alive(), "the server is ready")
    assert ready.exists(), self.log.read_text()[-2000:]
    self.address, self.metrics_address = ready.read_text().split()


class Server(ServerProcess):

  def __init__(self, folder, program, model, name="server", config=""):
    path = folder / f"{name}.textproto"
    path.write_text(f'models {{ name: "m" path: "{model}" intra_op_threads: 1 }}\n{config}\n')
    super().__init__(folder, name, program, path)

  def metric(self, pattern):
    """The sum of the samples of that name, with these labels where it has some."""
    connection = http.client.HTTPConnection(self.metrics_address, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if re.match(rf"{pattern}[{{ ]", line))


class Certificates:
  """An authority made for one test, with its files in a new folder, and certificates that it has signed."""

  def __init__(self, folder):
    folder.mkdir()
    self.folder = folder
    self.authority = folder / "ca.crt"
    self._openssl("req", "-x509", *self._new_key("ca.key"), "-subj", "/CN=authority", "-days", "2",
                  "-out", self.authority)

  def make(self, name, *hosts):
    """(certificate, key) under that common name, for localhost and these hosts."""
    key, request, certificate = (self.folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
    names = self.folder / "names.txt"
    names.write_text(f"subjectAltName={','.join(f'DNS:{host}' for host in (*hosts, 'localhost'))},IP:127.0.0.1\n")
    self._openssl("req", *self._new_key(f"{name}.key"), "-subj", f"/CN={name}", "-out", request)
    self._openssl("x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", self.folder / "ca.key",
                  "-CAcreateserial", "-days", "2", "-extfile", names, "-out", certificate)
    return certificate, key

  def _new_key(self, name):
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.folder / name]

  @staticmethod
  def _openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=PATIENCE)


def fill_in(text, sites, uncommented=()):
  """deploy/envoy's files for one place: `sites` says for each name what stands on its lines and what is
  to stand there; of the lines that begin `# WORD:`, those of `uncommented` come to life."""
  for word in uncommented:
    text, count = re.subn(rf"(?m)^( *)# {word}: ", r"\1", text)
    assert count, f"no line begins # {word}:"
  for name, (old, new) in sites.items():
    lines = [line for line in text.splitlines() if re.search(rf"# site: {name}\b", line)
             and not line.lstrip().startswith("#")]
    assert lines and all(old in line for line in lines), f"{old} is not on every line of site {name}"
    for line in lines:
      text = text.replace(line, line.replace(old, new))
  return text


class Edge(Process):
  """The shipped edge in front of `replicas` (addresses), once `healthy` of them (all) are healthy. `collector`: the
  address that gets its traces. `inner`: the Certificates by which it and the replicas know each other; none: they speak
  plaintext."""

  def __init__(self, folder, replicas, descriptors, mtls=False, collector=None, inner=None, healthy=None, name="edge",
               **sites):
    self.certificates = Certificates(folder / f"{name}-authority")
    self._folder, self._name = folder, name
    self._admin = str(folder / f"{name}-admin.sock")
    tls = self._secret("tls.yaml", "/etc/envoy-tls", self.certificates.make("localhost"))
    if inner:
      proxy = self._secret("replicas.yaml", "/etc/envoy-replicas", inner.make("edge"))
    endpoint = "- endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}"
    all_replicas = f"\n{' ' * 14}".join(endpoint % address.rsplit(":", 1)[1] for address in replicas)
    admin = "{socket_address: {address: 127.0.0.1, port_value: 9901}}"
    sites = {
        "admin": (admin, f"{{pipe: {{path: {self._admin}}}}}"),
        "listen": ('"::", ipv4_compat: true, port_value: 8443', "127.0.0.1, port_value: 0"),
        "status": ('"::", ipv4_compat: true, port_value: 9902', "127.0.0.1, port_value: 0"),
        "tls": ("/etc/envoy/tls.yaml", str(tls)),
        "descriptors": ("/opt/aft/share/aft-serve/aft.pb", str(descriptors)),
        "replicas": (endpoint % 8500, all_replicas),
        **({"clients": ("/etc/envoy-tls/ca.crt", str(self.certificates.authority))} if mtls else {}),
        **({"proxy": ("/etc/envoy/replicas.yaml", str(proxy)),
            "authority": ("/etc/envoy-replicas/ca.crt", str(inner.authority))} if inner else {}),
        **({"collector": ("port_value: 4317", f"port_value: {collector.rsplit(':', 1)[1]}")} if collector else {}),
        **sites,
    }
    uncommented = [word for word, wanted in (("mtls", mtls), ("tracing", collector), ("replica tls", inner),
                                             ("balancer", len(replicas) > 1)) if wanted]
    config = folder / f"{name}.yaml"
    config.write_text(fill_in((DEPLOY / "envoy.yaml").read_text(), sites, uncommented))
    super().__init__(folder, name, [ENVOY, "-c", config, "--concurrency", "2", "-l", "warning",
                                    "--disable-hot-restart"])
    wait_until(lambda: not self.alive() or self._listening(), "the edge listens")
    assert self.alive(), self.log.read_text()
    listeners = {one["name"]: one["local_address"]["socket_address"]["port_value"]
                 for one in json.loads(self.admin("/listeners?format=json"))["listener_statuses"]}
    self.address = f"127.0.0.1:{listeners['edge']}"
    self.status_address = f"127.0.0.1:{listeners['status']}"
    healthy = len(replicas) if healthy is None else healthy
    for cluster in ("aft", "aft_watches"):
      wait_until(lambda name=f"cluster.{cluster}.membership_healthy": self.stat(name) == healthy,
                 f"{healthy} replicas are healthy")

  def install(self, certificate, key, secret="tls.yaml"):
    """Moves a certificate and its key to where the edge looks for those of this file of deploy/envoy."""
    folder = self._folder / f"{self._name}-{secret}-files"
    folder.mkdir(exist_ok=True)
    for source, name in ((key, "tls.key"), (certificate, "tls.crt")):
      fresh = folder / f"{name}.new"
      fresh.write_bytes(Path(source).read_bytes())
      fresh.rename(folder / name)
    return folder

  def client_tls(self, certificate=None, key=None):
    return attacker.client_tls(certificate, key, self.certificates.authority)

  def admin(self, path):
    with socket.socket(socket.AF_UNIX) as peer:
      peer.connect(self._admin)
      connection = http.client.HTTPConnection("localhost")
      connection.sock = peer
      connection.request("GET", path)
      return connection.getresponse().read().decode()

  def stat(self, name):
    found = re.search(rf"(?m)^{re.escape(name)}: (\d+)$", self.admin(f"/stats?filter=^{re.escape(name)}$"))
    return int(found.group(1)) if found else None

  def _secret(self, name, shipped, certificate):
    """That file of deploy/envoy, with a certificate in the folder that it names."""
    folder = self.install(*certificate, secret=name)
    path = self._folder / f"{self._name}-{name}"
    path.write_text(fill_in((DEPLOY / name).read_text(), {
        site: (shipped, str(folder)) for site in ("certificate", "key", "folder")}))
    return path

  def _listening(self):
    try:
      return "LIVE" in self.admin("/ready")
    except OSError:
      return False


def new_folder(test):
  """A folder for one unittest.TestCase."""
  folder = tempfile.TemporaryDirectory()
  test.addCleanup(folder.cleanup)
  return Path(folder.name)
