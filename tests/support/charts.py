"""Fixtures of the chart's tests: servers to install it into, and releases on them."""

import hashlib
import json
import os
import pickle
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import real_api_server
from support.helm import Cluster, Helm, Release, ServerThread, simulated_server

type Render = Callable[..., Release]


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """An empty simulated API server."""
    with simulated_server() as thread:
        yield thread


@pytest.fixture
def helm(server: ServerThread, tmp_path: Path) -> Helm:
    """Helm with `server`."""
    return Helm(server.kubeconfig)


@pytest.fixture
def render(tmp_path_factory: pytest.TempPathFactory) -> Render:
    """Installs the chart with these values into a server of its own, with these objects there before.

    The same values on the same cluster are the same objects, so one worker of a run renders them for all.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def rendered(
        values: Mapping[str, Any] | None = None, *, before: tuple[Mapping[str, Any], ...] = (), **names: str
    ) -> Release:
        given = json.dumps([values, before, names])
        file = folder / f"rendered-{hashlib.sha256(given.encode()).hexdigest()}"
        if not file.exists():
            with simulated_server() as thread:
                for obj in before:
                    thread.create(obj)
                release = Helm(thread.kubeconfig, **names).install(values)
            own = file.with_suffix(f".{os.getpid()}")
            own.write_bytes(pickle.dumps(release))
            own.rename(file)
        loaded: Release = pickle.loads(file.read_bytes())
        return loaded

    return rendered


_SERVERS = ["simulated", *(["real"] if real_api_server.ASSETS in os.environ else [])]


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_api_server.RealApiServer]:
    """A real kube-apiserver, for as long as there are tests."""
    server = real_api_server.start(real_api_server.assets_folder(), tmp_path_factory.mktemp("real"))
    _wait_for_own_objects(server)
    yield server
    server.stop()


def _wait_for_own_objects(server: real_api_server.RealApiServer) -> None:
    """Roles and the like, which the server makes after it has begun to answer."""
    request = urllib.request.Request(f"{server.url}/readyz", headers={"Authorization": f"Bearer {server.token}"})
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request, context=server.ssl_context(), timeout=5).close()
            return
        except urllib.error.HTTPError:
            assert time.monotonic() < end, "the real API server is not ready"
            time.sleep(0.2)


@pytest.fixture(params=_SERVERS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A server of each kind. The real one lives on: whoever uses it cleans up."""
    if request.param == "simulated":
        with simulated_server() as thread:
            yield thread
        return
    real = request.getfixturevalue("real_server")
    kubeconfig = tmp_path / "kubeconfig"
    real_api_server.write_kubeconfig(real, kubeconfig)
    shared = Cluster(kubeconfig)
    shared.settle()
    yield shared
