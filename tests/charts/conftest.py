"""Servers to install the chart into, and releases on them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.helm import Helm, Release, ServerThread, simulated_server

type Render = Callable[..., Release]


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """An empty simulated API server."""
    with simulated_server() as thread:
        yield thread


@pytest.fixture
def helm(server: ServerThread, tmp_path: Path) -> Helm:
    """Helm with `server`."""
    return Helm(server.server.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Installs the chart with these values into a server of its own, with these objects there before."""

    def rendered(
        values: Mapping[str, Any] | None = None, *, before: tuple[Mapping[str, Any], ...] = (), **names: str
    ) -> Release:
        with simulated_server() as thread:
            for one in before:
                thread.create(one)
            return Helm(thread.server.kubeconfig(tmp_path / "rendered"), **names).install(values)

    return rendered
