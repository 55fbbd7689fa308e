"""A headless Chromium, driven over its DevTools protocol; it reaches nothing but the local disk.

    with Browser() as browser:
        page = browser.open("file:///…/welcome.html", width=390, theme="dark")
        page.evaluate("document.title")
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
    "--allow-file-access-from-files", "--remote-debugging-port=0", "--remote-allow-origins=*",
    # Whatever a page might ask from the network fails, as it does on a train.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


def find_chromium():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One Chromium with a profile of its own; close it, or use it as a context manager."""

    def __init__(self, timeout=60):
        self.timeout = timeout
        self.profile = tempfile.mkdtemp(prefix="ringtree-chromium-")
        command = [find_chromium(), *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.count = 0
        self.waiting_events = []
        try:
            self.socket = websocket.create_connection(self._address(), timeout=timeout, suppress_origin=True)
        except BaseException:
            self.close()
            raise

    def _address(self):
        file = Path(self.profile, "DevToolsActivePort")
        deadline = time.monotonic() + self.timeout
        while not (file.is_file() and len(lines := file.read_text().split()) == 2):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"Chromium did not start: exit status {self.process.poll()}")
            time.sleep(0.05)
        return f"ws://127.0.0.1:{lines[0]}{lines[1]}"

    def call(self, method, session=None, **params):
        """Send one DevTools command and return its result; events met on the way are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.waiting_events.append(answer)

    def event(self, name, session):
        """Wait for the next event of this name."""
        while True:
            for place, event in enumerate(self.waiting_events):
                if event.get("method") == name and event.get("sessionId") == session:
                    return self.waiting_events.pop(place)["params"]
            self.waiting_events.append(json.loads(self.socket.recv()))

    def open(self, url, width=1400, height=1000, theme="light"):
        """Load a page, wait until its mathematics and fonts are set, and return it as a `Page`."""
        return Page(self, url, width, height, theme)

    def close(self):
        if getattr(self, "socket", None):
            self.socket.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Page:
    """A loaded page. `problems` lists console errors, uncaught exceptions and failed requests."""

    def __init__(self, browser, url, width, height, theme):
        self.browser = browser
        self.problems = []
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        # The theme's own script reads these two when a page starts.
        chosen = f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}');"
        self.call("Page.addScriptToEvaluateOnNewDocument", source=chosen)
        self.call("Page.navigate", url=url)
        browser.event("Page.loadEventFired", self.session)
        self.evaluate(
            "(async () => { await document.fonts.ready; if (window.MathJax) await MathJax.startup.promise; })()"
        )
        self.collect_problems()

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def evaluate(self, expression):
        """The value of a JavaScript expression, awaited where it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def collect_problems(self):
        ours = [event for event in self.browser.waiting_events if event.get("sessionId") == self.session]
        self.browser.waiting_events[:] = [event for event in self.browser.waiting_events if event not in ours]
        for event in ours:
            name, params = event["method"], event["params"]
            if name == "Runtime.exceptionThrown":
                self.problems.append(f"exception: {params['exceptionDetails'].get('exception', params)}")
            elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                self.problems.append(f"console: {params['args']}")
            elif name == "Log.entryAdded" and params["entry"]["level"] == "error":
                self.problems.append(f"log: {params['entry']['text']} {params['entry'].get('url', '')}")
            elif name == "Network.loadingFailed" and not params.get("canceled"):
                self.problems.append(f"request failed: {params}")

    def screenshot(self, path, whole=False, quality=None):
        import base64

        kind = {"format": "png"} if quality is None else {"format": "jpeg", "quality": quality}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **kind)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
