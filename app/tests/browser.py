"""Chromium by the WebDriver protocol, over HTTP by Python's own library."""

import json
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(DRIVER is None, reason="no Chromium with its driver is installed: .ci/run has both")
KEYS = {"space": " ", "enter": "\ue007", "escape": "\ue00c", "shift": "\ue008"}


_CUT = """
const scrolls = one => one && (/auto|scroll/.test(getComputedStyle(one).overflowX) || scrolls(one.parentElement));
return [...document.querySelectorAll("body *")].filter(one => {
  const right = Math.max(one.getBoundingClientRect().right, ...[...one.getClientRects()].map(box => box.right));
  return right > innerWidth + 1 && !scrolls(one);
}).map(one => one.outerHTML.slice(0, 99));
"""


class Browser:
    """A session; elements are found by CSS."""

    def __init__(self, address, session):
        self.address, self.path = address, f"/session/{session}"

    def call(self, path, value=None, method="POST"):
        return call(self.address + self.path + path, value, method)

    def open(self, page, width=1200, height=900):
        # A window has a least width; the viewport of a telephone has none.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})
        self.call("/url", {"url": Path(page).absolute().as_uri()})
        # Chromium drops keys and clicks until the page has its first frame.
        self.run("addEventListener('keydown', () => { document.heard = true; }, { once: true })")
        assert soon(lambda: self.press("shift") or self.run("return document.heard"), True)

    def run(self, script, *arguments):
        return self.call("/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, css):
        return self.call("/elements", {"using": "css selector", "value": css})

    def click(self, css):
        """Click the first element once it is drawn and nothing lies over it; until then Chromium refuses to."""
        assert soon(lambda: self._click(self.find(css)[0]), True)

    def _click(self, element):
        """Click in the middle of the window, where no bar lies over it, and tell whether that could be done."""
        try:
            self.run("arguments[0].scrollIntoView({ block: 'center' })", element)
            self.call(f"/element/{next(iter(element.values()))}/click", {})
        except HTTPError:
            return False
        return True

    def texts(self, css):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(one => one.innerText)", css)

    def press(self, *keys):
        """Press keys one after the other, as a keyboard does; ``shift+t`` holds the first down."""
        actions = []
        for key in keys:
            held = [KEYS.get(part, part) for part in key.split("+")]
            actions += [{"type": "keyDown", "value": one} for one in held]
            actions += [{"type": "keyUp", "value": one} for one in reversed(held)]
        self.call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def cut(self):
        """Texts and pictures that reach beyond the window, and lie in nothing that scrolls."""
        return self.run(_CUT)


def soon(look, expected, seconds=30):
    """Look until it is as expected, or the time is over; what was seen last."""
    deadline = time.monotonic() + seconds
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def call(address, value=None, method="POST"):
    body = json.dumps(value or {}).encode() if method == "POST" else None
    with urlopen(Request(address, body, {"Content-Type": "application/json"}, method=method), timeout=180) as answer:
        return json.load(answer)["value"]


@contextmanager
def browser(folder):
    """Start Chromium, with what it downloads in `folder`."""
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        port = next(found[1] for found in (re.search(r"on port (\d+)\.", line) for line in driver.stdout) if found)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments.append(f"--user-data-dir={folder / 'profile'}")
        options = {"args": arguments, "prefs": {"download.default_directory": str(folder)}}
        asked = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        address = f"http://localhost:{port}"
        found = Browser(address, call(f"{address}/session", asked)["sessionId"])
        try:
            yield found
        finally:
            found.call("", method="DELETE")
    finally:
        driver.terminate()
        driver.communicate(timeout=20)
