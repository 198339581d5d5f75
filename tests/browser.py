"""A real Chromium without a window, driven over a pipe by its own protocol: https://chromedevtools.github.io/devtools-protocol/."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = "no Chromium here: apt install chromium"
_ANSWER_S = 60.0


class Browser:
    """One process with a profile of its own. Names of other hosts lead nowhere."""

    def __init__(self, profile: Path, *, but_for: str = "127.0.0.1") -> None:
        to_browser, from_browser = os.pipe(), os.pipe()
        argv = [
            str(PROGRAM), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--no-first-run",
            "--disable-background-networking", f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {but_for}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        # It reads commands from 3 and answers on 4.
        shell = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "browser", *argv],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        self._to, self._from = to_browser[1], from_browser[0]
        self._left = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, 9)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, session: str = "", **values: Any) -> dict[str, Any]:
        """A command's answer. What happens meanwhile is added to `events`."""
        self._number += 1
        number = self._number
        sent = {"id": number, "method": method, "params": values, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(sent).encode() + b"\0")
        for message in self.messages(_ANSWER_S):
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                found: dict[str, Any] = message["result"]
                return found
            self.events.append(message)
        raise AssertionError(f"{method}: no answer")

    def messages(self, seconds: float) -> Iterator[dict[str, Any]]:
        """All data that arrive within this many seconds."""
        until = time.monotonic() + seconds
        while True:
            whole, end, rest = self._left.partition(b"\0")
            if end:
                self._left = rest
                yield json.loads(whole)
                continue
            if not select.select([self._from], [], [], max(0.0, until - time.monotonic()))[0]:
                return
            read = os.read(self._from, 1 << 20)
            assert read, "the browser has ended"
            self._left += read


class Page:
    """A tab of a given size in CSS pixels."""

    def __init__(self, browser: Browser, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self._browser = browser
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.bringToFront")
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.media("", dark=dark)
        self.ask("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def ask(self, method: str, **values: Any) -> dict[str, Any]:
        """A command to this tab."""
        return self._browser.ask(method, self._session, **values)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise's is waited for."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _evaluated(self, script: str) -> dict[str, Any]:
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)

    def wait(self, script: str, seconds: float = 60.0) -> None:
        """Until the expression holds; between two pages there is nothing that it could be asked of."""
        until = time.monotonic() + seconds
        while not self._evaluated(script)["result"].get("value"):
            assert time.monotonic() < until, f"not within {seconds} s: {script}"
            time.sleep(0.05)

    def media(self, kind: str, *, dark: bool) -> None:
        """kind: print, or the screen. dark: what the reader prefers."""
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", media=kind, features=wanted)

    def press(self, key: str, code: int) -> None:
        """A key and its Windows virtual key code, as the protocol wants it."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)

    def picture(self, path: Path, *, height: int | None = None) -> None:
        """The whole page, or its first so many CSS pixels, as a PNG."""
        size = self.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(height or size[1], size[1]), "scale": 1}
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it would be printed."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"])

    def _happened(self) -> list[dict[str, Any]]:
        self._browser.events += list(self._browser.messages(0.2))
        return [one for one in self._browser.events if one.get("sessionId") == self._session]

    @property
    def complaints(self) -> list[str]:
        """All that went to the console, and every exception."""
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [json.dumps(one["params"])[:600] for one in self._happened() if one["method"] in kinds]

    @property
    def requests(self) -> list[str]:
        """The URL of every request, but for data that a page has in itself."""
        sent = [
            one["params"]["request"]["url"] for one in self._happened() if one["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]


@contextmanager
def tab(profile: Path, url: str, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """A browser with one tab."""
    with Browser(profile) as browser:
        yield Page(browser, url, width=width, dark=dark)
