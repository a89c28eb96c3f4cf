"""A bare HTTP client for API servers: paths and plain objects in, plain objects or refusals out.

For contract tests, which look at statuses, headers and bodies that a proper client hides.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self

import aiohttp
import pytest
from support.real_api_server import ASSETS

from dra_driver.kubernetes import CURRENT
from dra_driver.simulation.apiserver.server import SimulatedApiServer

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass
class Refused(Exception):
    """An answer of 400 or above: its HTTP status and its Status object."""

    status: int
    body: dict[str, Any]

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def causes(self) -> set[tuple[str, str]]:
        """(field, reason) of every cause."""
        return {(cause.get("field", ""), cause["reason"]) for cause in self.body.get("details", {}).get("causes", [])}

    def __str__(self) -> str:
        return f"{self.status} {self.body}"


class Api:
    """One server. `simulated` is the server itself when it runs in this process."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ssl: SSLContext | None = None,
        simulated: SimulatedApiServer | None = None,
        has_controllers: bool = True,
        ca_file: Path | None = None,
    ) -> None:
        self.url = url
        self.token = token
        self.ssl = ssl
        self.simulated = simulated
        self.has_controllers = has_controllers
        self.ca_file = ca_file
        self.minor = CURRENT
        """Of the server's version."""
        self.warnings: list[str] = []
        """Warning headers of the last answer."""

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        connector = aiohttp.TCPConnector(ssl=self.ssl) if self.ssl is not None else None
        self._session = aiohttp.ClientSession(headers=headers, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> dict[str, Any]:
        """A text goes as it is. Raises Refused for an answer of 400 or above."""
        data = body if isinstance(body, str | None) else json.dumps(body, separators=(",", ":"))
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self._session.request(method, self.url + path, data=data, headers=sent, params=query) as response:
            self.warnings = response.headers.getall("Warning", [])
            text = await response.text()
            answer = json.loads(text) if text.startswith(("{", "[")) else {"message": text}
            if response.status >= 400:
                raise Refused(response.status, answer)
            return answer

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        return await self.request("GET", path, headers=None, **query)

    async def post(self, path: str, body: object, **query: str) -> dict[str, Any]:
        return await self.request("POST", path, body, headers=None, **query)

    async def put(self, path: str, body: object, **query: str) -> dict[str, Any]:
        return await self.request("PUT", path, body, headers=None, **query)

    async def patch(self, path: str, body: object, kind: str = MERGE, **query: str) -> dict[str, Any]:
        return await self.request("PATCH", path, body, headers={"Content-Type": kind}, **query)

    async def delete(self, path: str, body: object = None, **query: str) -> dict[str, Any]:
        return await self.request("DELETE", path, body, headers=None, **query)

    async def refused(self, method: str, path: str, body: object = None, kind: str = "", **query: str) -> Refused:
        """The refusal that this request must meet."""
        try:
            answer = await self.request(method, path, body, headers={"Content-Type": kind} if kind else None, **query)
        except Refused as refusal:
            return refusal
        raise AssertionError(f"{method} {path} was accepted: {answer}")

    async def define(self, crd: dict[str, Any]) -> None:
        """Creates a CustomResourceDefinition and waits until its type is served."""
        await self.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        await self.until_served(crd)

    async def until_served(self, crd: dict[str, Any]) -> None:
        """Waits until every served version of a definition answers lists."""
        spec = crd["spec"]
        for version in (entry["name"] for entry in spec["versions"] if entry["served"]):
            path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
            for _ in range(100):
                try:
                    await self.get(path)
                except Refused as refusal:
                    if refusal.status not in (404, 429, 503):
                        raise
                    await asyncio.sleep(0.1)
                else:
                    break

    def needs_controllers(self) -> None:
        """Skips the test on a server beside which no controllers run."""
        if not self.has_controllers:
            pytest.skip(f"kube-controller-manager is not among the binaries in {ASSETS}")

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Waits until `condition` holds, for what controllers do in the background."""
        for _ in range(300):
            if await condition():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it did not happen")

    async def is_gone(self, path: str) -> bool:
        """Whether there is no object at `path`."""
        try:
            await self.get(path)
        except Refused as refusal:
            if refusal.status == 404:
                return True
            raise
        return False

    @asynccontextmanager
    async def watch(
        self, path: str, *, headers: Mapping[str, str] | None = None, **query: str
    ) -> AsyncIterator["Watch"]:
        """A stream of events."""
        timeout = aiohttp.ClientTimeout(total=30)
        params = {"watch": "true", "timeoutSeconds": "20", **query}
        url = self.url + path
        async with self._session.get(url, params=params, headers=headers, timeout=timeout) as response:
            if response.status >= 400:
                raise Refused(response.status, await response.json())
            yield Watch(response)


class Watch:
    """Events of one stream, in order."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event's type and object."""
        line = await self._response.content.readline()
        if not line:
            raise AssertionError("the watch ended")
        event = json.loads(line)
        return event["type"], event["object"]

    async def rest(self) -> list[tuple[str, dict[str, Any]]]:
        """All events until the stream ends."""
        events = []
        while line := await self._response.content.readline():
            event = json.loads(line)
            events.append((event["type"], event["object"]))
        return events

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Type and name of the next `count` events."""
        events = []
        for _ in range(count):
            event_type, obj = await self.next()
            events.append((event_type, obj["metadata"]["name"]))
        return events
