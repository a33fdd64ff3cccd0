# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that opens files, spoken to over a pipe: what it was asked
for over the network, and what it wrote to the console, is kept.

One process for all pages of a test file. Not for several threads. A page is
waited for by its events, never by a time; a browser that says nothing for a
minute is an error.
"""

import base64
import contextlib
import fcntl
import json
import os
import pathlib
import select
import subprocess
import tempfile

_SILENCE = 60  # seconds
_QUIET = ("--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-default-apps",
          "--disable-extensions", "--disable-sync", "--disable-gpu",
          "--disable-dev-shm-usage", "--mute-audio", "--no-pings",
          "--disable-features=Translate,MediaRouter,OptimizationHints")
# What a page may do without asking anybody.
_OWN = ("file:", "data:", "blob:")


class BrowserError(AssertionError):
    """The browser said no, or nothing."""


@contextlib.contextmanager
def chromium(program="chromium"):
    """A Browser, which ends with the block."""
    to_read, our_write = _high(os.pipe())
    our_read, to_write = _high(os.pipe())

    def at_3_and_4():
        os.dup2(to_read, 3)
        os.dup2(to_write, 4)

    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "said"), "wb") as said:
            process = subprocess.Popen(
                [program, "--headless=new", "--no-sandbox",
                 "--remote-debugging-pipe", f"--user-data-dir={folder}/user",
                 *_QUIET, "about:blank"],
                preexec_fn=at_3_and_4, close_fds=False, stdout=said,
                stderr=said, env={**os.environ, "HOME": folder})
        os.close(to_read)
        os.close(to_write)
        try:
            yield Browser(our_read, our_write)
        finally:
            os.close(our_write)  # it ends when nobody speaks to it
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(our_read)


def _high(pair):
    """The same descriptors beyond those that the child's become."""
    found = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in pair]
    for one in pair:
        os.close(one)
    return found


class Browser:
    def __init__(self, read, write):
        self._read, self._write = read, write
        self._left = b""
        self._number = 0
        self.events = []

    def call(self, method, session=None, **given):
        """The result of a command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if session:
            message["sessionId"] = session
        raw = json.dumps(message).encode() + b"\0"
        while raw:
            raw = raw[os.write(self._write, raw):]
        while True:
            said = self._next()
            if said.get("id") == self._number:
                if "error" in said:
                    raise BrowserError(f"{method}: {said['error']}")
                return said["result"]

    def wait(self, method, session):
        """Until an event has come."""
        while not any(one.get("method") == method
                      and one.get("sessionId") == session
                      for one in self.events):
            self._next()

    def _next(self):
        while b"\0" not in self._left:
            if not select.select([self._read], [], [], _SILENCE)[0]:
                raise BrowserError("the browser says nothing")
            more = os.read(self._read, 1 << 20)
            if not more:
                raise BrowserError("the browser has ended")
            self._left += more
        raw, _, self._left = self._left.partition(b"\0")
        said = json.loads(raw)
        if "id" not in said:
            self.events.append(said)
        return said

    @contextlib.contextmanager
    def page(self, path, dark=False, width=1280, height=900, reduced=False):
        """A Page that has loaded a file."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target,
                            flatten=True)["sessionId"]
        made = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            made.call(f"{domain}.enable")
        made.call("Emulation.setDeviceMetricsOverride", width=width,
                  height=height, deviceScaleFactor=1, mobile=False)
        made.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme",
             "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion",
             "value": "reduce" if reduced else "no-preference"}])
        self.events.clear()
        made.call("Page.navigate", url=pathlib.Path(path).absolute().as_uri())
        self.wait("Page.loadEventFired", session)
        try:
            yield made
        finally:
            self.call("Target.closeTarget", targetId=target)


class Page:
    def __init__(self, browser, session):
        self._browser, self._session = browser, session

    def call(self, method, **given):
        return self._browser.call(method, self._session, **given)

    def run(self, script):
        """What an expression of JavaScript is worth, as JSON has it."""
        said = self.call("Runtime.evaluate", expression=script,
                         returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise BrowserError(str(said["exceptionDetails"].get(
                "exception", said["exceptionDetails"])))
        return said["result"].get("value")

    def key(self, name, shift=False):
        """A key goes down and up."""
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "End": 35}
        given = {"key": name, "code": name, "windowsVirtualKeyCode":
                 codes[name], "modifiers": 8 if shift else 0}
        if name == "Enter":
            given["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", **given)
        given.pop("text", None)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def complaints(self):
        """Texts of what was wrong: the console's, exceptions, requests that left
        this machine's files, what a policy refused."""
        self.run("1")  # what was said before is here now
        found = []
        for one in self._browser.events:
            if one.get("sessionId") != self._session:
                continue
            method, told = one["method"], one["params"]
            if method == "Network.requestWillBeSent":
                url = told["request"]["url"]
                if not url.startswith(_OWN):
                    found.append(f"request: {url}")
            elif method in ("Runtime.consoleAPICalled", "Log.entryAdded",
                            "Runtime.exceptionThrown"):
                found.append(f"{method}: {json.dumps(told)[:500]}")
        return found

    def shot(self, path):
        """A picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        told = self.call("Page.captureScreenshot", format="png",
                         captureBeyondViewport=True, clip={
                             "x": 0, "y": 0, "scale": 1,
                             "width": size["width"], "height": size["height"]})
        pathlib.Path(path).write_bytes(base64.b64decode(told["data"]))
