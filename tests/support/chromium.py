"""Drives a page in headless Chromium over the DevTools protocol, by a pipe: no port and no library."""

import json
import os
import shutil
import subprocess

import aft_server

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


class Page:
  """One page. `console` collects what it complains of: violations of its policy, errors, exceptions."""

  def __init__(self, test):
    theirs_in, self._out = os.pipe()
    self._in, theirs_out = os.pipe()
    # Chromium reads commands from descriptor 3 and writes to 4.
    self._process = subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "sh", CHROMIUM, "--headless", "--no-sandbox",
         "--disable-gpu", f"--user-data-dir={aft_server.new_folder(test)}", "--remote-debugging-pipe", "about:blank"],
        pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
    test.addCleanup(self._stop)
    os.close(theirs_in)
    os.close(theirs_out)
    self._rest, self._id, self._session, self.console = b"", 0, {}, []
    targets = self.send("Target.getTargets")["targetInfos"]
    target = next(one["targetId"] for one in targets if one["type"] == "page")
    self._session = {"sessionId": self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
    for domain in ("Page", "Runtime", "Log"):
      self.send(f"{domain}.enable")

  def _stop(self):
    os.close(self._out)  # which ends it
    os.close(self._in)
    self._process.wait(aft_server.PATIENCE)

  def send(self, method, **params):
    """The result of a command."""
    self._id += 1
    os.write(self._out, json.dumps({"id": self._id, "method": method, "params": params} | self._session).encode() + b"\0")
    while True:
      while b"\0" not in self._rest:
        piece = os.read(self._in, 1 << 16)
        assert piece, "Chromium has ended"
        self._rest += piece
      line, self._rest = self._rest.split(b"\0", 1)
      answer = json.loads(line)
      if answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
        # Information is no complaint: Chromium logs, for example, that a test typed before the page's autofocus.
        if answer["params"].get("entry", {}).get("level") not in ("verbose", "info"):
          self.console.append(json.dumps(answer["params"]))
      if answer.get("id") == self._id:
        return answer["result"]

  def open(self, url, width=1280, height=900):
    self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    self.send("Page.navigate", url=url)
    self.until("document.readyState === 'complete'")

  def run(self, script):
    """The value of an expression of the page."""
    result = self.send("Runtime.evaluate", expression=script, returnByValue=True)
    assert "exceptionDetails" not in result, result
    return result["result"].get("value")

  def until(self, script):
    aft_server.wait_until(lambda: self.run(script), script)

  def text(self, selector):
    return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

  def fill(self, selector, value):
    """As a person types it: the old value is gone."""
    self.run(f"document.querySelector({json.dumps(selector)}).focus(); document.activeElement.select()")
    self.send("Input.insertText", text=value)

  def press(self, key, control=False):
    event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 2 * control}
    text = {"text": "\r"} if key == "Enter" else {}
    self.send("Input.dispatchKeyEvent", type="keyDown", **event, **text)
    self.send("Input.dispatchKeyEvent", type="keyUp", **event)

  def point(self, selector, click=False):
    """Moves the mouse there, and clicks."""
    found = f"document.querySelector({json.dumps(selector)})"
    self.run(f"{found}.scrollIntoView({{block: 'center'}})")
    x, y = self.run(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({found}.getBoundingClientRect())")
    for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
      self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left" if click else "none", clickCount=1)
