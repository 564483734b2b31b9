"""
Chromium, driven by WebDriver (https://www.w3.org/TR/webdriver2/): the few commands that the tests
of the status page need, by http.client.

Debian's packages: chromium, chromium-driver. axe-core (https://github.com/dequelabs/axe-core) is
fetched once from the npm registry into the cache of the tests.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from tests.control_plane.build import CACHE
from tests.harness import Json, Node, free_port
from tests.pace import patient

AXE = "4.14.1"
# As the registry has it: npm view axe-core@4.14.1 dist.integrity
_AXE_SHA512 = (
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)
_AXE_URL = f"https://registry.npmjs.org/axe-core/-/axe-core-{AXE}.tgz"
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--no-first-run",
)


def find_browser() -> bool:
    return all(map(shutil.which, ("chromium", "chromedriver")))


def fetch_axe() -> Path | None:
    """The script of axe-core; None where it cannot be fetched."""
    script = CACHE / f"axe-core-{AXE}.min.js"
    if script.exists():
        return script
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        folder = Path(name)
        try:
            archive = _download_axe(folder)
        except (OSError, subprocess.SubprocessError):
            return None
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        assert digest == _AXE_SHA512, f"axe-core {AXE} is not the one that was tried: {digest}"
        with tarfile.open(archive) as tar:
            member = tar.extractfile("package/axe.min.js")
            assert member is not None
            (folder / "axe.js").write_bytes(member.read())
        (folder / "axe.js").replace(script)
    return script


def _download_axe(folder: Path) -> Path:
    if shutil.which("npm"):
        command = ["npm", "pack", "--silent", f"axe-core@{AXE}"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=patient(60))
    else:
        with urllib.request.urlopen(_AXE_URL, timeout=patient(60)) as answer:
            (folder / f"axe-core-{AXE}.tgz").write_bytes(answer.read())
    return folder / f"axe-core-{AXE}.tgz"


class Browser:
    """One tab. `requests` are those since the last call of `open`."""

    def __init__(self, port: int) -> None:
        self._port = port
        options = {"args": [*_ARGUMENTS], "binary": shutil.which("chromium")}
        logs = {"performance": "ALL", "browser": "ALL"}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": logs}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: Json | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=patient(60))
        try:
            text = json.dumps(body) if body is not None else None
            connection.request(method, path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def tell(self, command: str, **parameters: object) -> Json:
        """A command of the DevTools protocol."""
        body = {"cmd": command, "params": parameters}
        return cast("Json", self._ask("POST", f"{self._session}/goog/cdp/execute", body))

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise awaited. The page's policy does not apply
        to it.
        """
        done = self.tell(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def open(self, url: str, width: int = 1280, *, dark: bool = False, height: int = 900) -> None:
        self.read_log("performance")
        self.read_log("browser")
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", media="", features=[feature])
        self._ask("POST", f"{self._session}/url", {"url": url})

    def read_log(self, name: str) -> list[Json]:
        """What was logged since it was last read: `performance` or `browser`."""
        return cast("list[Json]", self._ask("POST", f"{self._session}/se/log", {"type": name}))

    def list_requests(self) -> list[str]:
        """The URLs that were asked for since the page was opened, without those that the policy of
        the page stopped.
        """
        log = self.read_log("performance")
        entries = [json.loads(entry["message"])["message"] for entry in log]
        stopped = {
            entry["params"]["requestId"]
            for entry in entries
            if entry["method"] == "Network.loadingFailed"
            and entry["params"].get("blockedReason") == "csp"
        }
        return [
            entry["params"]["request"]["url"]
            for entry in entries
            if entry["method"] == "Network.requestWillBeSent"
            and entry["params"]["requestId"] not in stopped
        ]

    def check_with_axe(self, script: Path) -> list[str]:
        """What axe-core complains of, with the element."""
        self.run(script.read_text(encoding="utf-8") + ";0")
        found = self.run("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for one in found["violations"]
            for node in one["nodes"]
        ]

    def take_screenshot(self, path: Path) -> None:
        """Of the whole page."""
        size = self.tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.tell("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def print_page(self, path: Path) -> None:
        """As PDF."""
        printed = self.tell("Page.printToPDF", printBackground=False)
        path.write_bytes(base64.b64decode(printed["data"]))

    def close(self) -> None:
        self._ask("DELETE", self._session)


@contextmanager
def start_browser() -> Iterator[Browser]:
    port = free_port()
    with tempfile.TemporaryFile() as log:
        driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=log, stderr=log)
        try:
            Node.until(lambda: _is_ready(port), 20.0, "chromedriver")
            browser = Browser(port)
            yield browser
            browser.close()
        finally:
            driver.terminate()
            driver.wait(patient(10))


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patient(5))
    try:
        connection.request("GET", "/status")
        return bool(json.loads(connection.getresponse().read())["value"]["ready"])
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
