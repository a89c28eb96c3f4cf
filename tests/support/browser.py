"""A real browser without a window: Debian's chromium, driven by its own debugging protocol over a WebSocket."""

import asyncio
import base64
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = os.environ.get("GPU_DRA_TEST_CHROMIUM") or shutil.which("chromium")
"""None: there is no browser here. `apt-get install chromium` makes one."""
_FLAGS = """
--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-port=0
"""
_START_S = 60.0
_ANSWER_S = 60.0


class BrowserPage:
    """One tab. `errors` are what the page wrote to the console as errors, and what the browser refused to load."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.errors: list[str] = []

    async def read(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.errors.append(str(event["params"]["entry"]))
            elif event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] == "error":
                self.errors.append(str(event["params"]["args"]))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        event = await asyncio.wait_for(answer, _ANSWER_S)
        assert "error" not in event, (method, event)
        result: dict[str, Any] = event["result"]
        return result

    async def start(self) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def open(self, address: str) -> None:
        await self.call("Page.navigate", url=address)
        await self.until("document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        """Of JavaScript; a promise is awaited."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str, within_s: float = 60.0) -> None:
        """Until the expression is true."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    # While a page is replaced by another, there is nothing to ask.
                    with suppress(AssertionError):
                        if await self.value(f"Boolean({expression})"):
                            return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never true: {expression}") from None

    async def looks(self, *, width: int, scheme: str = "light", height: int = 900) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    async def picture(self) -> bytes:
        """PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[BrowserPage]:
    """`folder` is empty; the browser keeps there what it remembers."""
    assert BROWSER is not None
    process = await asyncio.create_subprocess_exec(
        BROWSER, *_FLAGS.split(), f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                targets = await answer.json()
            address = next(item["webSocketDebuggerUrl"] for item in targets if item["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = BrowserPage(socket)
                reading = asyncio.create_task(page.read())
                await page.start()
                try:
                    yield page
                finally:
                    reading.cancel()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(_START_S):
        while not (file.exists() and file.read_text().strip()):  # noqa: ASYNC110 - the browser writes the file
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
