"""The field tables of built-in types that the simulated server carries are those of a real server."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from support import real_api_server
from support.api import Api
from support.real_api_server import RealApiServer
from support.versions import real_minor

from dra_driver.apirules.schema import definitions
from dra_driver.kubernetes import CURRENT


def extractor() -> ModuleType:
    """The script that made the tables; a module of this folder, which is no package."""
    path = Path(__file__).with_name("extract_schemas.py")
    spec = importlib.util.spec_from_file_location("extract_schemas", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_tables_are_those_of_a_real_server(real_server: Callable[..., RealApiServer]) -> None:
    """Skipped without a real server, which says that the other contracts ran against the simulated one only."""
    real_api_server.assets_folder()
    # Everything that may be switched on is in the tables; gates and versions decide what is served and kept.
    real = real_server({}, apis="resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true")
    async with Api(real.url, token=real.token, ssl=real.ssl_context()) as api:
        tool = extractor()
        documents = [await api.get(f"/openapi/v3/{name}") for name in tool.GROUP_VERSIONS]
    wanted: dict[str, Any] = {}
    for content in tool.extract(documents).values():
        wanted.update(content)
    minor = real_minor(real_api_server.assets_folder())
    carried = definitions(minor)
    if minor == CURRENT:
        assert {name for name in wanted if wanted[name] != carried.get(name)} == set()
        return
    # Older servers have other defaults and comments on the same fields: which fields there are decides what they drop.
    fields = {name: set(schema.get("properties", ())) for name, schema in wanted.items() if name in carried}
    assert {name: have ^ set(carried[name].get("properties", ())) for name, have in fields.items()} == {
        name: GONE.get(name, set()) if minor == 35 else set() for name in fields
    }


GONE = {"io.k8s.api.core.v1.PodSpec": {"workloadRef"}}
"""Of Kubernetes 1.35 alone, behind a gate that is off; not simulated."""


def test_every_reference_in_the_tables_leads_somewhere() -> None:
    known = definitions()

    def references(value: object) -> set[str]:
        if isinstance(value, list):
            return {name for item in value for name in references(item)}
        if not isinstance(value, dict):
            return set()
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own | {name for item in value.values() for name in references(item)}

    assert references(known) <= set(known)
