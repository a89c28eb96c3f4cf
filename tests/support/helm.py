"""The real Helm (its Go library, from PyPI) against API servers: what a chart becomes, and what a release does.

There is no dry run in the package, so to render is to install into a simulated API server, which is quick and shows
what a real one would say of each object. Helm blocks, and so do these functions: a simulated server lives in a thread.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.api.meta import Resource
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.simulation.apiserver import SimulatedApiServer

helm = pytest.importorskip("helm_sdkpy", reason="helm-sdkpy has wheels for Linux on x86-64 only")

CHART = Path(__file__).parents[2] / "charts" / "gpu-dra-driver"
NAMESPACE = "gpu-dra"
RELEASE = "gpu-dra-driver"

HelmError = helm.HelmError

type Object = dict[str, Any]


@dataclass(frozen=True)
class Release:
    """What Helm says after an action. `hooks` are not part of `objects`."""

    revision: int
    objects: tuple[Object, ...]
    hooks: tuple[Object, ...]
    notes: str

    def all(self, kind: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Object:
        (found,) = [one for one in self.all(kind) if name is None or one["metadata"]["name"] == name]
        return found


class Helm:
    """Helm with a kubeconfig. Every refusal is a HelmError."""

    def __init__(self, kubeconfig: Path, *, namespace: str = NAMESPACE, release: str = RELEASE) -> None:
        self._config = helm.Configuration(namespace=namespace, kubeconfig=str(kubeconfig))
        self._release = release

    def install(self, values: Mapping[str, Any] | None = None, *, chart: Path = CHART, **options: Any) -> Release:
        options = {"wait": False, "create_namespace": True, **options}
        action = helm.Install(self._config)
        return _release(asyncio.run(action.run(self._release, str(chart), values=dict(values or {}), **options)))

    def upgrade(self, values: Mapping[str, Any] | None = None, *, chart: Path = CHART, **options: Any) -> Release:
        """With these values alone: those of the release before are forgotten."""
        options = {"wait": False, "reset_values": True, **options}
        action = helm.Upgrade(self._config)
        return _release(asyncio.run(action.run(self._release, str(chart), values=dict(values or {}), **options)))

    def uninstall(self, *, timeout_s: int = 30) -> None:
        asyncio.run(helm.Uninstall(self._config).run(self._release, wait=False, timeout=timeout_s))

    def test(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = asyncio.run(helm.ReleaseTest(self._config).run(self._release))
        return found

    def lint(self, chart: Path = CHART) -> Mapping[str, Any]:
        found: Mapping[str, Any] = asyncio.run(helm.Lint(self._config).run(str(chart)))
        return found

    def package(self, folder: Path, chart: Path = CHART) -> Path:
        return Path(asyncio.run(helm.Package(self._config).run(str(chart), str(folder))))


def _release(answer: Mapping[str, Any]) -> Release:
    return Release(
        revision=answer["version"],
        objects=_documents(answer["manifest"]),
        hooks=tuple(document for hook in answer.get("hooks") or () for document in _documents(hook["manifest"])),
        notes=answer["info"].get("notes", ""),
    )


def _documents(text: str) -> tuple[Object, ...]:
    return tuple(document for document in yaml.safe_load_all(text) if document)


class ServerThread:
    """A simulated API server in a thread of its own. `call` runs a coroutine there."""

    def __init__(self, **options: Any) -> None:
        self.server = SimulatedApiServer(**options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.call(self.server.start())

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def create(self, obj: Mapping[str, Any]) -> Object:
        """An object that is there."""
        return self._kube(lambda kube, resource: kube.create(resource, dict(obj)), obj["apiVersion"], obj["kind"])

    def objects(self, api_version: str, kind: str) -> list[Object]:
        """All objects of a kind, of every namespace."""
        listing = self._kube(lambda kube, resource: kube.list(resource), api_version, kind)
        # The items of a list leave out what the list says.
        return [{"apiVersion": api_version, "kind": kind, **item} for item in listing.items]

    def all_objects(self) -> set[tuple[str, str, str]]:
        """Kind, namespace and name of everything that is stored."""
        kinds = {one.resource.kind: one.resource.api_version for one in self.server.registry}
        return {
            (kind, found["metadata"].get("namespace", ""), found["metadata"]["name"])
            for kind, api_version in kinds.items()
            for found in self.objects(api_version, kind)
        }

    def _kube(self, do: Callable[[Kube, Resource], Awaitable[Any]], api_version: str, kind: str) -> Any:
        found = self.server.registry.of_kind(api_version, kind)
        assert found is not None, f"{api_version} {kind} is not served"
        resource = found.resource

        async def done() -> Any:
            async with Kube(Endpoint(server=self.server.url)) as kube:
                return await do(kube, resource)

        return self.call(done())

    def stop(self) -> None:
        self.call(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def simulated_server(**options: Any) -> Iterator[ServerThread]:
    """An empty simulated API server while the block runs."""
    thread = ServerThread(**options)
    try:
        yield thread
    finally:
        thread.stop()
