"""A Kubernetes API server to develop, test and demonstrate against: one process, plain HTTP, nothing to install.

Enter through `SimulatedApiServer`; `python -m dra_driver.simulation.apiserver` runs it alone. It answers kubectl, and
is held to the behaviour of a real kube-apiserver by tests/contracts/.
"""

from dra_driver.simulation.apiserver.server import SimulatedApiServer

__all__ = ["SimulatedApiServer"]
