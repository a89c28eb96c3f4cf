"""docs/library.md is true: its code runs, from top to bottom, and what it asserts holds."""

import asyncio
import re
from pathlib import Path

import pytest
from support.objects import node, pod

import dra_driver
from dra_driver import library
from dra_driver.api.meta import NODES, PODS
from dra_driver.errors import ClusterError, InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "library.md"


def _code() -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL))


def test_the_code_of_the_page_runs() -> None:
    exec(compile(_code(), str(DOCUMENTATION), "exec"), {"__name__": "library"})


def test_what_is_no_object_is_refused_with_what_it_is() -> None:
    with pytest.raises(InvalidInput, match="manifests: int is not a Kubernetes object"):
        library.world([1])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="is a single value"):
        library.world("abc")


async def test_a_cluster_is_read_once(api_server: SimulatedApiServer, kube: Kube, tmp_path: Path) -> None:
    await kube.create(NODES, node())
    await kube.create(PODS, pod("train", []))
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")
    world = await asyncio.to_thread(library.from_kubeconfig, kubeconfig)
    (answer,) = library.explain(world, "pod/train")
    assert library.text_of(answer).startswith("Pod default/train is on node node-1")
    api_server.url = "http://127.0.0.1:1"
    with pytest.raises(ClusterError):
        await asyncio.to_thread(library.from_kubeconfig, api_server.kubeconfig(tmp_path / "other"))


def test_each_public_name_is_documented_or_a_type_and_nothing_else_is_an_attribute() -> None:
    page = DOCUMENTATION.read_text()
    assert [
        name for name in library.__all__ if name.islower() and f"`{name}" not in page and f" {name}" not in page
    ] == []
    with pytest.raises(AttributeError):
        dra_driver.no_such_name  # noqa: B018
