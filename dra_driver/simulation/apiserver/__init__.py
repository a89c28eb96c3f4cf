"""A Kubernetes API server to develop, test and demonstrate against: one process, plain HTTP, nothing to install.

Enter through `SimulatedApiServer`; `python -m dra_driver.simulation.apiserver` runs it alone. It answers kubectl, and
is held to the behaviour of a real kube-apiserver by tests/contracts/. Its tables and rules are of use without a server,
to `dra_driver.checking` for one; so the server is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dra_driver.simulation.apiserver.server import SimulatedApiServer

__all__ = ["SimulatedApiServer"]


def __getattr__(name: str) -> Any:
    if name != "SimulatedApiServer":
        raise AttributeError(name)
    from dra_driver.simulation.apiserver.server import SimulatedApiServer

    return SimulatedApiServer
