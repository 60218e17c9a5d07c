"""Starts the shipped edge, deploy/envoy, before aft-servers, on ports that the kernel chooses."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import unittest
from pathlib import Path

import attacker
from http2 import Connection

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from aft_server import PATIENCE, SLOW_READERS, Process, Server, new_folder, wait_until  # noqa: E402

DEPLOY = Path(__file__).resolve().parents[2] / "deploy/envoy"
ENVOY = os.environ.get("AFT_ENVOY", "")
PROGRAM = DESCRIPTORS = MODEL = ""  # Set by take_arguments().


class Certificates:
  """An authority made for one test, with its files in a new folder, and certificates that it has signed."""

  def __init__(self, folder):
    folder.mkdir()
    self.folder = folder
    self.authority = folder / "ca.crt"
    self._openssl("req", "-x509", *self._new_key("ca.key"), "-subj", "/CN=authority", "-days", "2",
                  "-out", self.authority)

  def make(self, name, *hosts):
    """Makes (certificate, key) with this common name, for localhost and these hosts."""
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
  """Adapts a file of deploy/envoy. `sites` maps each name to (old, new): on the lines with this site, `old` is
  replaced by `new`. Lines that begin with `# WORD:` are uncommented for each WORD of `uncommented`."""
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
  """The shipped edge in front of `replicas` (addresses). The constructor waits until `healthy` of them are healthy
  (default: all). `http_replicas` are the addresses of their HTTP, and `collector` receives the edge's traces. With the
  Certificates `inner` the edge and the replicas authenticate each other; otherwise they speak plaintext."""

  def __init__(self, folder, replicas, descriptors, mtls=False, collector=None, inner=None, healthy=None, name="edge",
               http_replicas=(), **sites):
    self.certificates = Certificates(folder / f"{name}-authority")
    self._folder, self._name = folder, name
    self._admin = str(folder / f"{name}-admin.sock")
    self.install(*self.certificates.make("localhost"), self.certificates.authority)
    secrets = self._secrets("/etc/envoy-tls", {"tls": "tls.yaml", "clients": "clients.yaml"} if mtls else {"tls": "tls.yaml"})
    if inner:
      self.install(*inner.make("edge"), inner.authority, "/etc/envoy-replicas")
      secrets |= self._secrets("/etc/envoy-replicas", {"proxy": "replicas.yaml", "authority": "authority.yaml"})
    endpoint = "endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}"
    ports, http_ports = ([address.rsplit(":", 1)[1] for address in addresses] for addresses in (replicas, http_replicas))
    admin = "{socket_address: {address: 127.0.0.1, port_value: 9901}}"
    sites = {
        "admin": (admin, f"{{pipe: {{path: {self._admin}}}}}"),
        "listen": ('"::", ipv4_compat: true, port_value: 8443', "127.0.0.1, port_value: 0"),
        "status": ('"::", ipv4_compat: true, port_value: 9902', "127.0.0.1, port_value: 0"),
        **secrets,
        "descriptors": ("/opt/aft/share/aft-serve/aft.pb", str(descriptors)),
        "replicas": ("- " + endpoint % 8500, f"\n{' ' * 14}".join("- " + endpoint % port for port in ports)),
        # A test that takes long keeps its connections, unless it asks for shorter times.
        "max_age": ("20s", "600s"),
        "http_idle": ("10s", "600s"),
        "http_listen": ('"::", ipv4_compat: true, port_value: 8444', "127.0.0.1, port_value: 0"),
        **({"http_replicas": (f"{{{endpoint % 8080}}}", ", ".join(f"{{{endpoint % port}}}" for port in http_ports))}
           if http_ports else {}),
        **({"collector": ("port_value: 4317", f"port_value: {collector.rsplit(':', 1)[1]}")} if collector else {}),
        **sites,
    }
    uncommented = [word for word, wanted in (("mtls", mtls), ("tracing", collector), ("replica tls", inner),
                                             ("balancer", len(replicas) > 1)) if wanted]
    config = folder / f"{name}.yaml"
    config.write_text(fill_in((DEPLOY / "envoy.yaml").read_text(), sites, uncommented))
    super().__init__(folder, name, [ENVOY, "-c", config, "--concurrency", "2", "-l", "warning",
                                    "--disable-hot-restart"])
    self.wait_for(self._listening, "the edge listens")
    listeners = {one["name"]: one["local_address"]["socket_address"]["port_value"]
                 for one in json.loads(self.admin("/listeners?format=json"))["listener_statuses"]}
    self.address = f"127.0.0.1:{listeners['edge']}"
    self.http_address = f"127.0.0.1:{listeners['http']}"
    self.status_address = f"127.0.0.1:{listeners['status']}"
    healthy = len(replicas) if healthy is None else healthy
    for cluster in ("aft", "aft_watches", *(["aft_http"] if http_replicas else [])):
      self.wait_for(lambda name=f"cluster.{cluster}.membership_healthy": self.stat(name) == healthy,
                    f"{healthy} replicas are healthy")

  def install(self, certificate, key, authority, shipped="/etc/envoy-tls"):
    """Moves a certificate, its key and an authority to the folder that stands for the folder `shipped`."""
    folder = self._files(shipped)
    folder.mkdir(exist_ok=True)
    for source, name in ((authority, "ca.crt"), (key, "tls.key"), (certificate, "tls.crt")):
      fresh = folder / f"{name}.new"
      fresh.write_bytes(Path(source).read_bytes())
      fresh.rename(folder / name)

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

  def _files(self, shipped):
    return self._folder / f"{self._name}-{Path(shipped).name}"

  def _secrets(self, shipped, names):
    """Writes these files of deploy/envoy (by the site of envoy.yaml that names each), with the folder that stands for
    `shipped`. Returns what to fill in at these sites."""
    sites = {}
    for site, name in names.items():
      text = (DEPLOY / name).read_text()
      path = self._folder / f"{self._name}-{name}"
      path.write_text(fill_in(text, {
          found: (shipped, str(self._files(shipped))) for found in re.findall(r"# site: (\w+)", text)}))
      sites[site] = (f"/etc/envoy/{name}", str(path))
    return sites

  def _listening(self):
    try:
      return "LIVE" in self.admin("/ready")
    except OSError:
      return False


class EdgeTest(unittest.TestCase):
  """Starts servers and edges, and stops them at the end of the test."""

  def setUp(self):
    self.folder = new_folder(self)

  def start_server(self, name="server", config=""):
    server = Server(self.folder, PROGRAM, MODEL, name, config)
    self.addCleanup(server.stop, hard=True)
    return server

  def start_edge(self, *replicas, **options):
    front = Edge(self.folder, [replica.address for replica in replicas], DESCRIPTORS,
                 http_replicas=[replica.http_address for replica in replicas if getattr(replica, "http_address", None)],
                 **options)
    self.addCleanup(front.stop, hard=True)
    return front

  def connect_to(self, address, tls, **how):
    connection = Connection(address, tls, patience=PATIENCE, **how)
    self.addCleanup(connection.close)
    return connection

  def connect(self, front, **how):
    return self.connect_to(front.address, front.client_tls(), **how)

  def until(self, connection, true, what):
    """Lets the connection read and write until `true()` is true."""
    wait_until(lambda: (connection.turn(0), true())[1], what)

  def call(self, front, path, body, headers=(), connection=None):
    """Makes one call and waits for its end."""
    connection = connection or self.connect(front)
    number = connection.request(path, headers)
    connection.data(number, body)
    connection.settle(PATIENCE)
    return connection.streams[number]


def take_arguments():
  """Takes PROGRAM, DESCRIPTORS and MODEL from the command line. Without Envoy the test is skipped."""
  global PROGRAM, DESCRIPTORS, MODEL
  if not ENVOY:
    print("skipped: AFT_ENVOY is not set; ./dev test edge fetches Envoy and sets it")
    sys.exit(77)
  PROGRAM, DESCRIPTORS, MODEL = (str(Path(sys.argv.pop(1)).resolve()) for _ in range(3))


def main():
  """Runs the tests of the program."""
  take_arguments()
  unittest.main()
