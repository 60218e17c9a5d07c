#!/usr/bin/env python3
"""Runs the examples of a page against the real programs, and compares what they print with what the page shows.

  examples_test.py PROGRAMS PAGE...     PROGRAMS: the folder with aft-server and aftctl
  examples_test.py --cpp PAGE FILE      writes the page's C++ example, which CMake builds as `api_example`

The page is read from top to bottom, in one folder that has the repository's model/ and proto/, an encoder, a bare layer and
a made RWKV-x070-World.pth:

  ```textproto   a file, whose name is in its first line; server.textproto: the server runs with it from here on;
                 without a name: a piece of a config, which the server must accept
  ```console     commands behind `$ `, in one shell, and what they print
  ```python      a program; ```text after it is what it prints
  ```sh, ```cpp, ```cmake, ```json  not run here (a command on the page runs the C++ example; cpp_package_test.py builds it)

`...` stands for anything, alone on a line for any lines; numbers with a point may differ by a hundredth of themselves.
Examples of missing tools are skipped, and named: tritonclient (AFT_TRITONCLIENT), buf (next to this Python), curl.
"""

import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/bench/serving")]
import aft_server  # noqa: E402
from server import write_checkpoint, write_encoder  # noqa: E402

TOOLS = Path(sys.executable).parent  # ./dev's environment, with buf
SHELL_MARK = "== the next command =="
NUMBER = re.compile(r"\d+\.\d+")


def blocks(page):
  """(line, language, text) of each fenced block."""
  text = page.read_text()
  for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
    yield text.count("\n", 0, found.start()) + 1, found.group(1), found.group(2)


def matches(shown, printed):
  pattern, numbers = "", []
  for line in shown.strip().splitlines():
    if line.strip() == "...":
      pattern += r"(?:.*\n)*?"
      continue
    for i, part in enumerate(re.split(rf"({NUMBER.pattern})", line.rstrip())):
      if i % 2:
        numbers.append(float(part))
        pattern += rf"({NUMBER.pattern})"
      else:
        pattern += ".*?".join(map(re.escape, part.split("...")))
    pattern += r" *\n"
  found = re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.strip().splitlines()))
  return found is not None and all(abs(float(got) - want) <= 0.01 * want + 1e-4
                                   for want, got in zip(numbers, found.groups()))


def write_layer(folder):
  """A bare mixer, as aft-convert makes it from a module."""
  d, t = 16, 32
  folder.mkdir()
  write_checkpoint(folder, {
      "format_version": 1, "architecture": "mixer", "d_model": d, "n_layers": 1, "max_seq_len": t,
      "mixer": {"kind": "aft_full", "causal": False, "band_rows": t, "bias": "full"}}, {
          f"layers.0.mixer.{name}": shape for name, shape in {
              "qkv.weight": (3 * d, d), "qkv.bias": (3 * d,), "out.weight": (d, d), "out.bias": (d,),
              "w.full": (t, t)}.items()})


def write_rwkv(path):
  """A small RWKV-7 with random weights and the World vocabulary, with BlinkDL's names."""
  d, vocab = 64, 65536
  shapes = {"emb.weight": (vocab, d), "head.weight": (vocab, d), "ln_out.weight": (d,), "ln_out.bias": (d,),
            "blocks.0.ln0.weight": (d,), "blocks.0.ln0.bias": (d,)}
  for layer in range(2):
    ranks = {"w": 8, "a": 8, "g": 16, **({"v": 8} if layer else {})}
    part = {f"{norm}.{kind}": (d,) for norm in ("ln1", "ln2", "att.ln_x") for kind in ("weight", "bias")}
    part |= {f"att.x_{share}": (1, 1, d) for share in "rwkvag"} | {"ffn.x_k": (1, 1, d), "att.r_k": (1, d)}
    part |= {f"att.{name}.weight": (d, d) for name in ("receptance", "key", "value", "output")}
    part |= {f"att.{name}": (1, 1, d) for name in ("k_k", "k_a", *(f"{low}0" for low in ranks if low != "g"))}
    for low, rank in ranks.items():
      part |= {f"att.{low}1": (d, rank), f"att.{low}2": (rank, d)}
    part |= {"ffn.key.weight": (4 * d, d), "ffn.value.weight": (d, 4 * d)}
    shapes |= {f"blocks.{layer}.{name}": shape for name, shape in part.items()}
  write_pth(path, shapes)


def write_pth(path, shapes):
  """Writes random numbers in fp16 as torch.save does."""
  draw = random.Random(0)
  # The upper byte of a number of fp16 between 2^-9 and 2^-3, of either sign.
  upper = bytes((byte & 0x80) | (0x18 + (byte & 0x7f) % 0x18) for byte in range(256))

  def storage(count):
    data = bytearray(2 * count)
    data[0::2], data[1::2] = draw.randbytes(count), draw.randbytes(count).translate(upper)
    return bytes(data)

  def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()

  def number(value):
    return b"J" + struct.pack("<i", value)

  def sizes(values):
    return b"(" + b"".join(map(number, values)) + b"t"

  with zipfile.ZipFile(path, "w") as archive:
    pickled = b"\x80\x02}("
    for key, (name, shape) in enumerate(shapes.items()):
      count = math.prod(shape)
      strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
      pickled += (text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\nHalfStorage\n" +
                  text(str(key)) + text("cpu") + number(count) + b"tQ" + number(0) + sizes(shape) + sizes(strides) +
                  b"\x89ccollections\nOrderedDict\n)RtR")
      archive.writestr(f"archive/data/{key}", storage(count))
    archive.writestr("archive/data.pkl", pickled + b"u.")
    archive.writestr("archive/byteorder", b"little")


class Server(aft_server.ServerProcess):

  def terminate(self):
    self._process.send_signal(signal.SIGINT)  # skips the lame-duck time, as no balancer uses the server


class Page:

  def __init__(self, folder, programs):
    self._folder = folder
    self._programs = programs
    self._server = None
    self._environment = {
        **os.environ, "PATH": f"{programs}:{TOOLS}:{os.environ['PATH']}", "no_grpc_proxy": "127.0.0.1",
        "no_proxy": "127.0.0.1", "PYTHONDONTWRITEBYTECODE": "1"}

  def stop(self):
    if self._server:
      self._server.stop()

  def _run(self, command, text="", environment=()):
    return subprocess.run(command, input=text, capture_output=True, cwd=self._folder, text=True,
                          timeout=aft_server.PATIENCE, env={**self._environment, **dict(environment)})

  def _placed(self, text):
    """With the addresses of the server that runs."""
    if self._server:
      text = text.replace("127.0.0.1:8500", self._server.address)
      text = text.replace("127.0.0.1:8501", self._server.metrics_address)
      text = text.replace("127.0.0.1:8080", str(self._server.http_address))
    return text

  def textproto(self, text, _):
    named = re.match(r"# (\w+\.textproto)\n", text)
    name = named.group(1) if named else "piece.textproto"
    text = text.replace("127.0.0.1:8080", "127.0.0.1:0")
    (self._folder / name).write_text(text if named or re.match("models|repository", text) else
                                     f'models {{ path: "m" }}\n{text}')
    if not named:
      done = self._run([self._programs / "aft-server", f"--config={name}", "--print_config"])
      assert done.returncode == 0, done.stderr
    if name == "server.textproto":
      self.stop()
      self._server = Server(self._folder, "server", self._programs / "aft-server", self._folder / name)
      self._environment["AFT_ADDRESS"] = self._server.address

  def python(self, text, shown):
    site = {}
    if "tritonclient" in text:
      if "AFT_TRITONCLIENT" not in os.environ:
        return "no tritonclient"
      site = {"PYTHONPATH": os.environ["AFT_TRITONCLIENT"]}
    done = self._run([sys.executable, "-"], self._placed(text), site)
    assert done.returncode == 0, done.stderr
    assert shown is None or matches(shown, done.stdout), f"printed:\n{done.stdout}"

  def console(self, text, _):
    for tool in ("buf", "curl"):
      if re.search(rf"^\$ {tool} ", text, re.MULTILINE) and not shutil.which(tool, path=self._environment["PATH"]):
        return f"no {tool}"
    commands = [(found.group(1), found.group(2)) for found in
                re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)]
    assert commands, "no command"
    script = "".join(f"{command}\necho; echo '{SHELL_MARK}' $?\n" for command, _ in commands)
    (self._folder / "commands.sh").write_text(self._placed(script))
    # The commands run in a terminal, so that programs print everything, and in order.
    printed = self._run(["script", "-qec", "bash commands.sh", "/dev/null"]).stdout.replace("\r", "")
    ended = re.findall(rf"(.*?)\n{SHELL_MARK} (\d+)\n", printed, re.DOTALL)
    for (command, shown), (output, code) in zip(commands, ended):
      assert code == "0", f"$ {command}\nexit code {code}:\n{output}"
      assert matches(shown, output), f"$ {command}\nprinted:\n{output}"
    assert len(ended) == len(commands), printed

  def sh(self, *_):
    pass

  cmake = cpp = json = text = sh


def run(page, programs):
  """The number of examples that were wrong."""
  wrong = 0
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for there in ("model", "proto"):
      (folder / there).symlink_to(ROOT / there)
    write_encoder(folder / "my-encoder", width=16)
    write_layer(folder / "my-layer")
    if "RWKV-x070-World.pth" in page.read_text():
      write_rwkv(folder / "RWKV-x070-World.pth")
      write_pth(folder / "my-state.pth", {f"blocks.{layer}.att.time_state": (1, 64, 64) for layer in range(2)})
    runner = Page(folder, programs)
    try:
      found = list(blocks(page))
      for (line, language, text), (_, following, shown) in zip(found, found[1:] + [(0, "", "")]):
        place = f"{page.relative_to(ROOT)}:{line}"
        try:
          left_out = getattr(runner, language or "no_language")(text, shown if following == "text" else None)
          if left_out:
            print(f"{place}: not run: {left_out}")
        except (AssertionError, AttributeError, subprocess.TimeoutExpired) as error:
          wrong += 1
          print(f"{place}: {error}\n", flush=True)
    finally:
      runner.stop()
  print(f"{page.name}: {len(found)} blocks, {wrong} wrong")
  return wrong


def main(arguments):
  if arguments[0] == "--cpp":
    example, = [text for _, language, text in blocks(Path(arguments[1])) if language == "cpp"]
    Path(arguments[2]).write_text(example)
    return 0
  return int(sum(run(Path(page).resolve(), Path(arguments[0]).resolve()) for page in arguments[1:]) > 0)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
