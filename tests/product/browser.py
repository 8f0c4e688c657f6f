"""A real browser, driven over its own debugging pipe: no package is needed for that, only Debian's chromium."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
SOON_S = 30.0
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}

_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--hide-scrollbars",
)  # fmt: skip


class Page:
    """One tab."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._number = 0
        self._rest = b""
        self.complaints: list[str] = []  # what the console said, or the policy refused
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """The next document may come after the reply; until then this one would be taken for it."""
        self.read("window.isLeft = true")
        has_next = "loaderId" in self.call("Page.navigate", url=url)
        is_next = "!window.isLeft && " if has_next else ""  # else it is another place in this one
        self.wait(f"{is_next}document.readyState === 'complete' && location.href !== 'about:blank'")

    def look(self, *, width: int = 1024, height: int = 900, dark: bool = False) -> None:
        """A window of this size, in light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def read(self, script: str) -> Any:
        """What an expression gives."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, condition: str) -> None:
        until = time.monotonic() + SOON_S
        while not self.read(condition):
            assert time.monotonic() < until, (condition, self.read("document.body.innerText"))
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.read(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def focus(self, selector: str) -> None:
        self.read(f"document.querySelector({json.dumps(selector)}).focus()")

    def focused(self) -> str:
        return str(self.read("document.activeElement.id || document.activeElement.tagName"))

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def shoot(self, file: Path, *, height: float | None = None) -> None:
        """The whole page, or it down to a height, not only what the window shows."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        self._shoot(file, clip=clip, captureBeyondViewport=True)

    def shoot_window(self, file: Path) -> None:
        self._shoot(file)

    def _shoot(self, file: Path, **part: Any) -> None:
        told = self.call("Page.captureScreenshot", format="png", **part)
        file.write_bytes(base64.b64decode(told["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        assert self._session
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while (told := self._next()).get("id") != self._number:
            if told.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}:
                self.complaints.append(json.dumps(told["params"]))
        assert "error" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._reads, 1 << 20)
            assert part, "The browser has gone."
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def browser() -> Iterator[Page]:
    """It reads commands from descriptor 3 and answers on 4."""
    assert CHROMIUM
    takes, tells = os.pipe()
    hears, says = os.pipe()
    theirs = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (takes, says)]
    with tempfile.TemporaryDirectory(prefix="affidavit-browser-", ignore_cleanup_errors=True) as profile:
        words = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", *words],
            pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for descriptor in (takes, says, *theirs):
            os.close(descriptor)
        try:
            yield Page(hears, tells)
        finally:
            os.close(tells)
            os.close(hears)
            process.terminate()
            process.wait(SOON_S)
