"""A headless Chromium through chromedriver's own protocol (plain HTTP and JSON): just what the page's tests need."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-device-scale-factor=1",
)  # fmt: skip


def why_no_chrome() -> str:
    """Why the browser tests cannot run here: "" where they can."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not installed (apt-get install chromium chromium-driver)" if missing else ""


class Chrome:
    """One browser with a fresh profile. Use as a context manager."""

    def __init__(self, size: tuple[int, int] = (1500, 950)) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="autopar-chrome-", ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            [str(shutil.which("chromedriver")), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._driver.stdout is not None
        port = ""
        for line in self._driver.stdout:
            found = re.search(r"successfully on port (\d+)", line)
            if found:
                port = found.group(1)
                break
        self._url = f"http://127.0.0.1:{port}/session"
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={self._profile.name}", f"--window-size={size[0]},{size[1]}"],
        }
        always = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = self._call("POST", "", {"capabilities": {"alwaysMatch": always}})
        assert isinstance(session, dict)
        self._url += f"/{session['sessionId']}"

    def _call(self, method: str, path: str, data: object = None) -> object:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self._url + path, data=body, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None

    def open(self, path: Path) -> None:
        self._call("POST", "/url", {"url": path.resolve().as_uri()})

    def enter_frame(self, index: int | None) -> None:
        """Look into a frame of the page; None: back out."""
        self._call("POST", "/frame", {"id": index})

    def run(self, script: str, *args: object) -> object:
        """The value that the script returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def wait(self, condition: str) -> object:
        """The first value of the expression that is not false."""
        script = f"""const done = arguments[0]; const t = setInterval(() => {{ const v = {condition}; if (v) {{ clearInterval(t); done(v); }} }}, 10);"""
        return self._call("POST", "/execute/async", {"script": script, "args": []})

    def click(self, selector: str, index: int = 0) -> None:
        """A real click, at the middle of what the selector finds."""
        found = self._call("POST", "/elements", {"using": "css selector", "value": selector})
        assert isinstance(found, list) and len(found) > index, f"nothing at {selector}"
        (element,) = found[index].values()
        self._call("POST", f"/element/{element}/click", {})

    def type(self, selector: str, text: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        assert isinstance(found, dict)
        (element,) = found.values()
        self._call("POST", f"/element/{element}/value", {"text": text})

    def start_cpu_clock(self) -> None:
        """From here on `cpu_s` counts the pages' own processor time, whatever else runs on this machine."""
        self._call("POST", "/goog/cdp/execute", {"cmd": "Performance.disable", "params": {}})
        self._call("POST", "/goog/cdp/execute", {"cmd": "Performance.enable", "params": {"timeDomain": "threadTicks"}})

    def cpu_s(self) -> float:
        metrics = self._call("POST", "/goog/cdp/execute", {"cmd": "Performance.getMetrics", "params": {}})
        assert isinstance(metrics, dict)
        return float({m["name"]: m["value"] for m in metrics["metrics"]}["TaskDuration"])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(str(self._call("GET", "/screenshot"))))

    def console_messages(self) -> list[str]:
        log = self._call("POST", "/se/log", {"type": "browser"})
        assert isinstance(log, list)
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Addresses that pages asked for, themselves included; what the browser's own first tab shows is not ours."""
        log = self._call("POST", "/se/log", {"type": "performance"})
        assert isinstance(log, list)
        events = [json.loads(entry["message"])["message"] for entry in log]
        asked = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [p["request"]["url"] for p in asked if not p["documentURL"].startswith(("chrome:", "chrome-untrusted:"))]

    def __enter__(self) -> Chrome:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(10)
            if self._driver.stdout is not None:
                self._driver.stdout.close()
            self._profile.cleanup()
