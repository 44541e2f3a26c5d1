"""A headless Firefox, driven over WebDriver BiDi, which it speaks without a further program."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from .daemon import PATIENCE
from .tab import AnyTab, PageGoneError
from .wire import START, Wire, ending_on_failure

__all__ = ["Firefox"]

_GONE = {"no such frame", "no such node", "no such realm"}
"""Kinds of errors while a page gives way to the next."""
_PREFERENCES = {
    "datareporting.healthreport.uploadEnabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    # Two processes for all sites: tests that open pages of one site at once have them in both.
    "fission.autostart": False,
    "dom.ipc.processCount": 2,
    "dom.ipc.processPrelaunch.enabled": False,
    "toolkit.shutdown.fastShutdownStage": 3,  # it ends at once
    # What it does beside showing pages takes a quarter of its CPU time.
    "app.normandy.enabled": False,
    "browser.newtabpage.enabled": False,
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
    "browser.sessionstore.interval": 100_000_000,
    "browser.startup.page": 0,
    "browser.topsites.contile.enabled": False,
    "extensions.getAddons.cache.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "toolkit.telemetry.unified": False,
    "ui.prefersReducedMotion": 1,
}


class Firefox:
    """A browser, used as a context manager. Its profile is in the folder."""

    name = "firefox"

    def __init__(self, folder: Path) -> None:
        command = shutil.which("firefox-esr")
        assert command is not None, "there is no firefox-esr; scripts/need firefox-esr firefox-esr installs it"
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in _PREFERENCES.items()]
        (folder / "user.js").write_text("".join(lines))
        self._process = subprocess.Popen(
            [command, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port=0", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._tabs: dict[str, FirefoxTab] = {}
        with ending_on_failure(self._process):
            port = self._port(folder / "WebDriverBiDiServer.json")
            self._wire = Wire(f"ws://127.0.0.1:{port}/session", self._happened)
            self.call("session.new", START, capabilities={})
        self.call("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])

    def _port(self, file: Path) -> int:
        """The port on which Firefox listens, as soon as it does."""
        deadline = time.monotonic() + START
        while not file.exists() or not (text := file.read_text()).rstrip().endswith("}"):
            assert self._process.poll() is None, f"firefox ended with {self._process.returncode}"
            assert time.monotonic() < deadline, "firefox does not start"
            time.sleep(0.02)
        port: int = json.loads(text)["ws_port"]
        return port

    def tab(self) -> FirefoxTab:
        context = self.call("browsingContext.create", type="tab")["context"]
        tab = self._tabs[context] = FirefoxTab(self, context)
        return tab

    def call(self, method: str, patience: float = PATIENCE, **params: Any) -> Any:
        answer = self._wire.call(method, params, patience=patience)
        if answer.get("error") in _GONE or "destroyed" in answer.get("message", ""):
            raise PageGoneError
        assert answer["type"] == "success", f"{method}: {answer}"
        return answer["result"]

    def _happened(self, told: dict[str, Any]) -> None:
        params = told["params"]
        tab = self._tabs.get(params.get("context") or params.get("source", {}).get("context"))
        if tab is None:
            return
        if told["method"] == "network.beforeRequestSent":
            tab.requests.append(params["request"]["url"])
        elif params["level"] in {"error", "warn"}:
            tab.complaints.append(params["text"])

    def __enter__(self) -> Firefox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wire.close()
        self._process.terminate()
        self._process.wait(PATIENCE)


class FirefoxTab(AnyTab):
    def __init__(self, browser: Firefox, context: str) -> None:
        super().__init__()
        self._browser = browser
        self._context = context

    def open(self, url: str) -> None:
        self._browser.call("browsingContext.navigate", context=self._context, url=url, wait="none")

    def reload(self) -> None:
        self._browser.call("browsingContext.reload", context=self._context, wait="none")

    def run_first(self, code: str) -> None:
        self._browser.call("script.addPreloadScript", functionDeclaration=f"() => {{{code}}}", contexts=[self._context])

    def close(self) -> None:
        self._browser.call("browsingContext.close", context=self._context)

    def evaluate(self, expression: str) -> Any:
        target = {"context": self._context}
        done = self._browser.call("script.evaluate", expression=expression, target=target, awaitPromise=True)
        assert done["type"] == "success", done["exceptionDetails"]
        return _value(done["result"])


def _value(told: dict[str, Any]) -> Any:
    """The value of a result, in which lists and objects have their members described likewise."""
    match told:
        case {"type": "array", "value": members}:
            return [_value(each) for each in members]
        case {"type": "object", "value": members}:
            return {name: _value(value) for name, value in members}
    return told.get("value")
