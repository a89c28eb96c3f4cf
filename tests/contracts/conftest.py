"""The server under contract: the simulated one always, a real one as well when KUBEBUILDER_ASSETS names its binaries.

The real server lives for the whole session, so tests work in a namespace of their own and with names from `unique`.
"""

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support import real_api_server
from support.api import Api
from support.real_api_server import RealApiServer
from support.versions import gates_on, real_minor, simulated_minor

from dra_driver.kubernetes import SEEN, minor_of
from dra_driver.simulation.apiserver.server import SimulatedApiServer


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RealApiServer]]:
    """Starts real servers on demand, one for each set of feature gates and of APIs that are off by default."""
    running: dict[object, RealApiServer] = {}

    def started(gates: dict[str, bool], apis: str = "", *, own_defaults: bool = False) -> RealApiServer:
        key = frozenset(gates.items()), apis, own_defaults
        if key not in running:
            folder: Path = tmp_path_factory.mktemp("real")
            running[key] = real_api_server.start(
                real_api_server.assets_folder(), folder, gates, apis, own_defaults=own_defaults
            )
        return running[key]

    yield started
    for server in running.values():
        server.stop()


@pytest.fixture
def feature_gates() -> dict[str, bool]:
    """Gates that are not as the newest version has them by default; a module or test overrides this."""
    return {}


@pytest.fixture
def server_type() -> type[SimulatedApiServer]:
    """Of the simulated server; tests of webhooks have one that asks them."""
    return SimulatedApiServer


SERVERS = ["simulated", *(["real"] if real_api_server.ASSETS in os.environ else [])]


@pytest.fixture
def kubernetes() -> str:
    """The version of the simulated server; SIMULATED_KUBERNETES runs all contracts on another one."""
    return SEEN[simulated_minor()]


def _skip_where_another_version_is_asked_for(request: pytest.FixtureRequest) -> None:
    """A test that names versions holds for a real server of one of them alone."""
    asked = request.node.callspec.params.get("kubernetes")
    minor = real_minor(real_api_server.assets_folder())
    if asked is not None and minor_of(asked) != minor:
        pytest.skip(f"the real server is 1.{minor}, not {asked}")


@pytest_asyncio.fixture(params=SERVERS)
async def api(
    request: pytest.FixtureRequest,
    real_server: Callable[..., RealApiServer],
    kubernetes: str,
    feature_gates: dict[str, bool],
    server_type: type[SimulatedApiServer],
) -> AsyncIterator[Api]:
    """The API of a server of each kind."""
    if request.param == "real":
        _skip_where_another_version_is_asked_for(request)
        real = real_server(feature_gates)
        async with Api(
            real.url,
            token=real.token,
            ssl=real.ssl_context(),
            has_controllers=real.has_controllers,
            ca_file=real.ca_file,
        ) as api:
            api.minor = int((await api.get("/version"))["minor"])
            yield api
        return
    gates = gates_on(minor_of(kubernetes), feature_gates)
    server = server_type(version=kubernetes, feature_gates=gates, bookmark_interval_s=0.2)
    await server.start()
    async with Api(server.url, simulated=server) as api:
        api.minor = minor_of(kubernetes)
        yield api
    await server.stop()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return "t" + secrets.token_hex(5)


@pytest_asyncio.fixture
async def namespace(api: Api, unique: str) -> str:
    """A namespace of this test's own."""
    await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    return unique
