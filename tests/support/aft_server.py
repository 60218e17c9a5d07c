"""Starts aft-server, on ports that the kernel chooses, and other programs that a test ends."""

import http.client
import re
import subprocess
import tempfile
import time
from pathlib import Path

PATIENCE = 600  # Seconds until something that must happen counts as failed.
# Lines of a server's config with which it does not end a stream that is read slowly.
SLOW_READERS = "limits { write_stall_ms: 600000 max_stream_buffer_bytes: 1073741824 }"


def wait_until(true, what):
  """Waits until `true` returns true, for something that another process does by itself."""
  end = time.monotonic() + PATIENCE
  while not true():
    if time.monotonic() > end:
      raise AssertionError(f"never happened: {what}")
    time.sleep(0.01)


class Process:
  """A program that runs until stop(), with its output in a file."""

  def __init__(self, folder, name, command, **options):
    self.log = folder / f"{name}.log"
    with open(self.log, "wb") as log:
      self._process = subprocess.Popen(command, stdout=log, stderr=log, **options)
    self.pid = self._process.pid

  def alive(self):
    return self._process.poll() is None

  def wait_for(self, true, what):
    """Waits as wait_until() does. Ends the program if that fails, or if the program has ended by itself."""
    try:
      wait_until(lambda: not self.alive() or true(), what)
      assert self.alive(), self.log.read_text()[-2000:]
    except BaseException:
      self.stop(hard=True)
      raise

  def terminate(self):
    """Sends SIGTERM."""
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
  """aft-server with this config file, on ports that the kernel chooses; ready once it is made."""

  def __init__(self, folder, name, program, config):
    ready = folder / f"{name}.ready"
    super().__init__(folder, name, [program, f"--config={config}", "--listen_address=127.0.0.1:0",
                                    "--metrics_address=127.0.0.1:0", f"--ready_file={ready}"])
    self.wait_for(ready.exists, "the server is ready")
    self.address, self.metrics_address, *http_address = ready.read_text().split()
    self.http_address = http_address[0] if http_address else None

  def page(self, path):
    """(answer, body) of one of the server's pages."""
    connection = http.client.HTTPConnection(self.metrics_address, timeout=PATIENCE)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body

  def metric(self, pattern):
    """The sum of the samples whose name, with labels if there are any, matches the pattern."""
    page = self.page("/metrics")[1].decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if re.match(rf"{pattern}[{{ ]", line))


class Server(ServerProcess):
  """aft-server with one model, "m", and these additional lines of config."""

  def __init__(self, folder, program, model, name="server", config=""):
    path = folder / f"{name}.textproto"
    path.write_text(f'models {{ name: "m" path: "{model}" intra_op_threads: 1 }}\n{config}\n')
    super().__init__(folder, name, program, path)


def new_folder(test):
  """A folder for one unittest.TestCase."""
  folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # Chromium may still write to it.
  test.addCleanup(folder.cleanup)
  return Path(folder.name)
