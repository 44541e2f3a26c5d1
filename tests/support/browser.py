"""A headless Chromium, driven over its DevTools protocol. It shows a page's content, requests and console messages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from .daemon import PATIENCE
from .tab import AnyTab, PageGoneError
from .wire import START, Wire, ending_on_failure

__all__ = ["Browser", "Tab"]

_SWITCHES = (
    "--headless", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--force-color-profile=srgb", "--disable-site-isolation-trials", "--renderer-process-limit=2",
    "--disable-extensions",
)  # fmt: skip
_KEY_CODES = {"ArrowDown": 40, "Enter": 13, "Escape": 27}

_AXE = Path(__file__).parents[1] / "sdks" / "node_modules" / "axe-core" / "axe.min.js"
_VIOLATIONS = """axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }).then(({ violations, passes }) => {
  if (!passes.some(({ id, nodes }) => id === "color-contrast" && nodes.length > 10)) throw new Error("few texts");
  const said = ({ id, nodes }) => nodes.map(({ html, any }) => `${id}: ${any[0]?.message}: ${html}`);
  return [getComputedStyle(document.body).backgroundColor, violations.flatMap(said)];
})"""

# What Chromium answers while a page gives way to the next.
_GONE = {
    "Inspected target navigated or closed", "Cannot find default execution context", "Execution context was destroyed.",
}  # fmt: skip


class Browser:
    """A browser, used as a context manager. Its profile is in the folder."""

    name = "chromium"

    def __init__(self, folder: Path) -> None:
        command = shutil.which("chromium")
        assert command is not None, "there is no chromium; scripts/need chromium chromium installs it"
        # Chromium has no sandbox for root. The tests open only ingestd's pages.
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [command, *_SWITCHES, *as_root, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._tabs: dict[str, Tab] = {}
        with ending_on_failure(self._process):
            port, path = self._told(folder / "DevToolsActivePort")
            self._wire = Wire(f"ws://127.0.0.1:{port}{path}", self._happened)

    def _told(self, file: Path) -> list[str]:
        """The lines with the port and the path on which Chromium listens, as soon as it does."""
        deadline = time.monotonic() + START
        while not file.exists() or len(lines := file.read_text().split("\n")) != 2:
            assert self._process.poll() is None, f"chromium ended with {self._process.returncode}"
            assert time.monotonic() < deadline, "chromium does not start"
            time.sleep(0.02)
        return lines

    def tab(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Tab:
        """A new tab with this size and colour scheme."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            tab.call(f"{domain}.enable")
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1 if width > 800 else 2, mobile=width <= 800,
        )  # fmt: skip
        tab.set_scheme(dark=dark)
        return tab

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """The result of a command. Events before it are handled. Raises `PageGoneError`."""
        answer = self._wire.call(method, params, {"sessionId": session} if session else None)
        if answer.get("error", {}).get("message") in _GONE:
            raise PageGoneError
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _happened(self, told: dict[str, Any]) -> None:
        if told.get("sessionId") in self._tabs:
            self._tabs[told["sessionId"]].happened(told["method"], told["params"])

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wire.close()
        self._process.terminate()
        self._process.wait(PATIENCE)


class Tab(AnyTab):
    """A tab. `preflights` are the URLs of its preflight requests, which are in `requests` too."""

    def __init__(self, browser: Browser, session: str) -> None:
        super().__init__()
        self.preflights: list[str] = []
        self._browser = browser
        self._session = session

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def happened(self, event: str, told: dict[str, Any]) -> None:
        match event:
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
                if told["request"]["method"] == "OPTIONS":
                    self.preflights.append(told["request"]["url"])
            case "Network.webSocketCreated":
                self.requests.append(told["url"])
            case "Log.entryAdded" if told["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(told["entry"]["text"])
            case "Runtime.consoleAPICalled" if told["type"] in {"error", "warning", "assert"}:
                self.complaints.append(json.dumps(told["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"]))

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def reload(self) -> None:
        self.call("Page.reload")

    def run_first(self, code: str) -> None:
        self.call("Page.addScriptToEvaluateOnNewDocument", source=code)

    def evaluate(self, expression: str) -> Any:
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key, given by its name in JavaScript, on the focused element."""
        code = _KEY_CODES[key]
        text = "\r" if key == "Enter" else ""  # without its text, Enter follows no link
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text, windowsVirtualKeyCode=code)

    def close(self) -> None:
        self.call("Page.close")

    def observe_shifts(self) -> None:
        """Begins to collect layout shifts, which `shifts` returns."""
        self.evaluate("""(() => {
            window.shifts = [];
            new PerformanceObserver((list) => list.getEntries().filter((each) => !each.hadRecentInput).forEach((each) =>
                window.shifts.push([each.value, each.sources.map(({ node }) => node?.id || node?.textContent).join()])))
                .observe({ type: "layout-shift" });
        })()""")

    def shifts(self) -> list[tuple[float, str]]:
        """The layout shifts since `observe_shifts` that no input of the user explains, each with its elements."""
        found: list[tuple[float, str]] = self.evaluate("window.shifts")
        return found

    def violations(self) -> list[str]:
        """Where the page breaks a rule of WCAG 2.1, level AA, in light or dark colours, as far as axe sees it.

        The page has more than ten texts.
        """
        assert _AXE.exists(), "axe is missing; make tests/sdks/node_modules/installed installs it"
        if not self.evaluate("'axe' in window"):
            self.evaluate(_AXE.read_text())
        found = []
        papers = set()
        for dark in (True, False):
            self.set_scheme(dark=dark)
            paper, violations = self.evaluate(_VIOLATIONS)
            papers.add(paper)
            found += violations
        assert len(papers) == 2, "the page has no dark colours"
        return found

    def set_scheme(self, *, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def accessibility(self) -> list[tuple[str, str]]:
        """Role and name of all elements that assistive technology sees, in order."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]

    def picture(self, file: Path, *, height: int | None = None) -> None:
        """Saves the page as a PNG, or its upper part with this height."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))
