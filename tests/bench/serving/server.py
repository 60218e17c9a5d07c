"""An aft-server of a benchmark, and a model that computes next to nothing."""

import array
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PATIENCE = 600  # seconds


class Program:
  """`with Program(...) as program`; or start() and stop(), again and again."""

  _process = None

  def stop(self):
    if self._process is not None:
      self._process.terminate()
      self._process.wait(PATIENCE)
      self._process = None

  def __enter__(self):
    self.start()
    return self

  def __exit__(self, *_):
    self.stop()


class Server(Program):
  """`with Server(...) as server`; or start() and stop(), again and again, on the same ports."""

  def __init__(self, folder_of_programs, model, slots, max_step_tokens=256, limits="", states="",
               weight_format="stored"):
    self._program = Path(folder_of_programs) / "aft-server"
    self._folder = tempfile.TemporaryDirectory()
    self.address = self._metrics = self.http = "127.0.0.1:0"
    # There is only one client, so it may use the whole server.
    self._config = f"""
      models {{ path: {json.dumps(str(Path(model).resolve()))} slots: {slots}
               max_step_tokens: {max(max_step_tokens, slots + 1)} weight_format: "{weight_format}" }}
      scheduling {{ max_client_slots: {slots} reserved_slots: -1 max_client_queued_requests: 256 }}
      limits {{ {limits} }}
      states {{ {states} }}
      drain {{ lame_duck_ms: 1000 }}
    """

  def start(self):
    config = Path(self._folder.name) / "config"
    config.write_text(f'listen_address: "{self.address}" metrics_address: "{self._metrics}" '
                      f'http_address: "{self.http}"\n{self._config}')
    self.address, self._metrics, self.http = self._launch(f"--config={config}")

  def _launch(self, *flags):
    """Starts the program; returns what it writes when it is ready."""
    ready, log = (Path(self._folder.name) / name for name in ("ready", "log"))
    ready.unlink(missing_ok=True)
    start = time.monotonic()
    with log.open("a") as stderr:
      self._process = subprocess.Popen([self._program, f"--ready_file={ready}", *flags], stderr=stderr)
    while not ready.exists():
      if self._process.poll() is not None or time.monotonic() - start > PATIENCE:
        sys.exit(f"{self._program.name} did not start:\n{log.read_text()[-2000:]}")
      time.sleep(0.002)
    self.start_seconds = time.monotonic() - start
    return ready.read_text().split()

  def kill(self):
    """Ends the program as a crash would."""
    self._process.kill()
    self._process.wait(PATIENCE)
    self._process = None

  def calls(self):
    """The fields of the lines request.done in its log, over all its starts."""
    for line in (Path(self._folder.name) / "log").read_text().splitlines():
      if "event=request.done" in line:
        yield dict(re.findall(r'(\w+)=("[^"]*"|\S*)', line))

  def resident_mb(self):
    return int(re.search(r"VmRSS:\s+(\d+)", self._proc("status").read_text()).group(1)) / 1024

  def threads(self):
    return int(re.search(r"Threads:\s+(\d+)", self._proc("status").read_text()).group(1))

  def files(self):
    return len(os.listdir(self._proc("fd")))

  def cpu_seconds(self):
    user, system = self._proc("stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

  def wait_until(self, metric, value):
    """Waits until the sum of a metric's samples is `value`."""
    start = time.monotonic()
    while (now := self.sum(metric)) != value:
      if time.monotonic() - start > PATIENCE:
        sys.exit(f"{metric} stays at {now:g}, not {value:g}")
      time.sleep(0.1)

  def sum(self, metric):
    """The sum of the metric's samples."""
    with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=PATIENCE) as page:
      samples = re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", page.read().decode(), re.MULTILINE)
    if not samples:
      sys.exit(f"the server has no metric {metric}")
    return sum(map(float, samples))

  def _proc(self, name):
    return Path("/proc") / str(self._process.pid) / name


class Redis(Program):
  """A redis-server that keeps nothing on disk, on a socket of its own."""

  def __init__(self):
    self._folder = tempfile.TemporaryDirectory()
    self.address = f"unix:{self._folder.name}/socket"

  def start(self):
    path = self.address.removeprefix("unix:")
    # Debian's redis-tools installs this program; the package redis-server would start a service.
    self._process = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "",
                                      "--daemonize", "no"], executable="redis-check-rdb", stdout=subprocess.DEVNULL)
    while subprocess.run(["redis-cli", "-s", path, "ping"], capture_output=True, check=False).stdout != b"PONG\n":
      if self._process.poll() is not None:
        sys.exit("redis-server did not start")
      time.sleep(0.01)


class BareServer(Server):
  """bare_server: gRPC and the same messages, without model and engine."""

  def __init__(self, folder_of_programs):
    super().__init__(folder_of_programs, model="", slots=1)
    self._program = Path(folder_of_programs) / "bare_server"

  def start(self):
    [self.address] = self._launch()


def model_config(kind, width, layers, **mixer):
  """config.json of a language model of bytes."""
  return {"format_version": 1, "architecture": "decoder_lm", "vocab_size": 256, "d_model": width, "n_layers": layers,
          "d_ff": 4 * width, "activation": "gelu_tanh", "norm": "layer_norm", "norm_eps": 1e-5, "tie_embeddings": True,
          "head_bias": False, "mixer": {"kind": kind} | mixer, "tokenizer": {"kind": "bytes"}}


NULL_MODEL = model_config("aft_simple", 32, 1) | {"vocab_size": 128, "d_ff": 32, "tokenizer": {"kind": "chars"}}


def mixer_shapes(mixer, d):
  """Columns of the packed input, and the tables, of the kinds that benchmarks use (model/config/kind_specs.cc)."""
  heads, window = mixer.get("heads", 1), mixer.get("window")
  return {"aft_simple": (3 * d, {}), "dot_product": (3 * d, {}), "aft_local": (3 * d, {"w.band": (1, window)}),
          "aft_conv": (2 * d + heads, {"conv.w": (heads, window)})}[mixer["kind"]]


def write_model(folder, config):
  """Writes a language model or an encoder with random weights."""
  d, ff = config["d_model"], config["d_ff"]
  packed, tables = mixer_shapes(config["mixer"], d)
  shapes = {"embed.weight": (config["vocab_size"], d), "norm.weight": (d,), "norm.bias": (d,)}
  for i in range(config["n_layers"]):
    layer = f"layers.{i}."
    shapes |= {layer + "norm1.weight": (d,), layer + "norm1.bias": (d,), layer + "mixer.qkv.weight": (packed, d),
               layer + "mixer.qkv.bias": (packed,)}
    shapes |= {layer + "mixer." + name: shape for name, shape in tables.items()}
    shapes |= {layer + "mixer.out.weight": (d, d), layer + "mixer.out.bias": (d,), layer + "norm2.weight": (d,),
               layer + "norm2.bias": (d,), layer + "ffn.up.weight": (ff, d), layer + "ffn.up.bias": (ff,),
               layer + "ffn.down.weight": (d, ff), layer + "ffn.down.bias": (d,)}
  write_checkpoint(folder, config, shapes)
  if config["tokenizer"]["kind"] == "chars":
    (folder / "chars.json").write_text(json.dumps([chr(point) for point in range(1, config["vocab_size"] + 1)]))


def write_checkpoint(folder, config, shapes):
  """Writes random weights of these shapes. The numbers repeat: this is quick, and steps take equally long."""
  chance = random.Random(0)
  numbers = array.array("f", (chance.gauss(0, config["d_model"]**-0.5) for _ in range(65_537)))  # prime: no two rows are equal
  header, end = {}, 0
  for name, shape in shapes.items():
    start, end = end, end + 4 * math.prod(shape)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
  head = json.dumps(header).encode()
  head += b" " * (-len(head) % 8)
  with (folder / "model.safetensors").open("wb") as file:
    file.write(struct.pack("<Q", len(head)) + head)
    data = numbers.tobytes()
    for _ in range(end // len(data)):
      file.write(data)
    file.write(data[:end % len(data)])
  (folder / "config.json").write_text(json.dumps(config))


def write_encoder(folder, width):
  """A new folder with an encoder of one layer that has no labels."""
  config = model_config("aft_simple", width, 1, causal=False) | {"architecture": "encoder"}
  folder.mkdir()
  write_model(folder, {name: value for name, value in config.items() if name not in ("tie_embeddings", "head_bias")})
  return folder


def write_null_model(folder):
  """One layer of width 32."""
  write_model(folder, NULL_MODEL)
