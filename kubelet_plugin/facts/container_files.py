"""What containers need to use this node's GPUs, as prepare asks for it: the driver's files and each GPU's device nodes.

`kubelet_plugin.main` gives `ContainerFilesOfNode` to the claim service. Calls block, in any thread.
"""

from collections.abc import Callable

from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import NodeNotReady
from kubelet_plugin.effects.cdi_files import OtherClaims
from kubelet_plugin.facts.discovery import NodeFacts
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.prepare.node import ContainerFiles


class ContainerFilesOfNode:
    """Looks at the host each time; what did not change is found again quickly."""

    def __init__(
        self,
        installation: DriverInstallation,
        others: OtherClaims | None = None,
        readable: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Without `others` nobody looks for claims of other drivers: for what hands out no GPUs. `readable` is the
        highest CDI version that the container runtime reads, None when that is not known; it may raise NodeNotReady."""
        self._installation = installation
        self._others = others
        self._readable = readable

    def __call__(self, facts: NodeFacts) -> ContainerFiles:
        """GPUs that no container can use now are among the missing. Raises NodeNotReady: what the driver lacks."""
        if facts.driver is None:
            reasons = "; ".join(problem.message for problem in facts.problems if problem.subject == "driver")
            raise NodeNotReady(reasons or "no NVIDIA driver answers", about="driver")
        found = self._installation.for_containers(facts.driver.version, facts.gpus)
        missing = {uuid: error.message for uuid, error in found.missing.items()}
        return ContainerFiles(
            found.driver,
            found.nodes,
            missing,
            self.mig_nodes,
            self._installation.host_node,
            self._taken(facts),
            self._readable(),
        )

    def _taken(self, facts: NodeFacts) -> dict[str, str]:
        if self._others is None:
            return {}
        taken = self._others.gpus([gpu.minor for gpu in facts.gpus])
        return {gpu.uuid: taken[gpu.minor] for gpu in facts.gpus if gpu.minor in taken}

    def mig_nodes(self, gpu_uuid: str, minor: int, gi: int, ci: int) -> tuple[DeviceNode, ...]:
        """Of a MIG device, see `DriverInstallation.mig_nodes`. Raises NodeNotReady when one is missing."""
        return self._installation.mig_nodes(gpu_uuid, minor, gi, ci)
