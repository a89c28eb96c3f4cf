"""What containers need to use this node's GPUs, files and device nodes, and what they lack.

`kubelet_plugin.main` gives both functions to the claim service. `container_files_of` blocks, in any thread.
"""

from collections.abc import Callable, Iterator

from dra_driver.api.inventory import NO_HOOK_PROGRAM, Problem
from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import NodeNotReady
from kubelet_plugin.facts.hardware import DRIVER_INCOMPLETE, NodeFacts
from kubelet_plugin.facts.own_node import OwnNode
from kubelet_plugin.hardware.driver_root import CompleteDriver, DriverInstallation
from kubelet_plugin.hardware.hook_program import hook_warning
from kubelet_plugin.prepare.cdi_files import OtherClaims
from kubelet_plugin.prepare.known_node import ContainerFiles


def lacking(driver: DriverInstallation, node: OwnNode) -> Iterator[Problem]:
    """What containers of this node go without, because of its hook program or of its runtime. May run the former."""
    try:
        warning = hook_warning(driver.hook())
    except NodeNotReady as error:
        warning = Problem(subject="hook program", reason=NO_HOOK_PROGRAM, message=str(error))
    yield from () if warning is None else (warning,)
    yield from node.runtime_warnings()


def incomplete(driver: DriverInstallation, version: str) -> Problem | None:
    """Why no container can use a GPU with driver `version`, or None. Reported before a claim is refused for it."""
    try:
        driver.for_containers(version)
    except NodeNotReady as error:
        return Problem(subject="driver files", reason=DRIVER_INCOMPLETE, message=error.message)
    return None


def container_files_of(
    installation: DriverInstallation,
    facts: NodeFacts,
    *,
    others: OtherClaims | None = None,
    readable: Callable[[], str | None] = lambda: None,
) -> ContainerFiles:
    """Looks at the host each time; what did not change is found again quickly. Raises NodeNotReady: what the driver
    lacks.

    Without `others`, claims of other drivers are not searched, because no GPU is given away. `readable` is the highest
    CDI version that the container runtime reads, None when that is not known; it may raise NodeNotReady.
    """
    if facts.driver is None:
        reasons = "; ".join(problem.message for problem in facts.problems if problem.subject == "driver")
        raise NodeNotReady(reasons or "no NVIDIA driver answers", about="driver")
    return _files_of(installation.for_containers(facts.driver.version), installation, facts, others, readable)


def known_container_files(
    installation: DriverInstallation, facts: NodeFacts, *, others: OtherClaims, readable: Callable[[], str | None]
) -> ContainerFiles | None:
    """What `container_files_of` returns if the driver's files have not changed since its last look, else None. Never
    waits for another thread. Calls stat some dozen times, and reads the CDI files of other drivers' claims."""
    driver = None if facts.driver is None else installation.known_for_containers(facts.driver.version)
    return None if driver is None else _files_of(driver, installation, facts, others, readable)


def _files_of(
    driver: CompleteDriver,
    installation: DriverInstallation,
    facts: NodeFacts,
    others: OtherClaims | None,
    readable: Callable[[], str | None],
) -> ContainerFiles:
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}

    nodes: dict[str, tuple[DeviceNode, ...]] = {}

    def gpu_nodes(uuid: str) -> tuple[DeviceNode, ...]:
        if uuid not in nodes:  # a claim's GPU is asked for several times
            if uuid not in gpus:
                raise NodeNotReady("has no device node now", about=f"GPU {uuid}")
            nodes[uuid] = driver.nodes_of(gpus[uuid])
        return nodes[uuid]

    taken = {} if others is None else others.gpus([gpu.minor for gpu in facts.gpus])
    return ContainerFiles(
        driver.files,
        gpu_nodes,
        installation.mig_nodes,
        installation.host_node,
        {gpu.uuid: taken[gpu.minor] for gpu in facts.gpus if gpu.minor in taken},
        readable(),
    )
