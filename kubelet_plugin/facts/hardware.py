"""This node's hardware, for one who looks and for those who change it: driver, NVML, PCI and kernel become `NodeFacts`.

`look` in `Hardware` does the blocking work and never raises for the state of the hardware: each fault becomes a
`Problem`, and is looked at again next time. A call into a broken driver can hang for ever: one about a GPU makes that
GPU a problem. `kubelet_plugin.facts.discovery` calls it in a thread.

What this driver made of the hardware for claims is not in the facts (`kubelet_plugin.prepare`). What changes a GPU
does it inside `Hardware.use`, so that a look never falls between a change and what the journal says of it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dra_driver.api.inventory import MOST_GPUS, MOST_PROBLEMS, MOST_WARNINGS, DriverFacts, GpuFacts, ImexFacts, Problem
from dra_driver.devices.nvlink import fabric_of
from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.facts.fabric_answers import FabricAnswer, partitioned
from kubelet_plugin.hardware.calls import NvmlLibrary, load_library, problem_of, session_over
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.health import HealthReading
from kubelet_plugin.hardware.imex import imex_facts
from kubelet_plugin.hardware.lanes import HUNG_S, READ_S, Lanes, is_silent
from kubelet_plugin.hardware.nvml import GpuReadings, Nvml
from kubelet_plugin.hardware.sysfs import HostFiles, PciFacts
from kubelet_plugin.hardware.vfio import bound_elsewhere, is_vfio, passthrough_facts
from kubelet_plugin.prepare.holds import GpuIdentity
from kubelet_plugin.prepare.ours import NOTHING, DriverFootprint, Lost, during, lost, without_ours

if TYPE_CHECKING:
    from kubelet_plugin.simulation.host import SimulatedHost

TURN_S = 30.0
"""How long a change of the hardware waits for a look, or for another change, to end."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One look at the node. `gpus` are sorted by PCI address, `problems` by subject; `driver` None: see `problems`."""

    boot_id: str
    driver: DriverFacts | None
    gpus: tuple[GpuFacts, ...]
    problems: tuple[Problem, ...]
    health: Mapping[str, HealthReading] = field(default_factory=dict)
    """What each GPU answered about its health, by UUID; `kubelet_plugin.facts.monitor` makes conditions of it."""
    lost: tuple[Lost, ...] = ()
    """MIG devices that claims have and that are gone; it makes conditions of these, too."""
    imex: ImexFacts | None = None
    """None where the driver knows no IMEX channels."""
    warnings: tuple[Problem, ...] = ()
    """What containers go without here, sorted by subject."""
    divided: bool = field(default=False, compare=False)
    """Whether a GPU is in MIG mode, for claims or otherwise."""


@dataclass(frozen=True, slots=True)
class NvmlSource:
    """A library that was found, and the host's folder below which the driver it belongs to lies."""

    library: NvmlLibrary
    driver_root: str


type OpenNvml = Callable[[], NvmlSource]
"""Finds NVML; called for every new session, because the driver may have moved. Raises NodeNotReady."""


def installed_nvml(installation: DriverInstallation) -> OpenNvml:
    """The real NVML, of the driver that is installed at the time of each call."""

    def find() -> NvmlSource:
        root = installation.root()
        return NvmlSource(load_library(root.nvml_library), root.path)

    return find


def simulated_nvml(host: "SimulatedHost") -> OpenNvml:
    """That of a simulated node, which is looked for as a real one is: nothing else knows that it is simulated."""
    # Only here: a real node has no use for profiles.
    from kubelet_plugin.simulation.recorded.nvml import nvml_of

    installation = DriverInstallation(HostFiles(host.root), configured_root=host.configured_root)
    library = nvml_of(host)

    def find() -> NvmlSource:
        installation.root()
        return NvmlSource(library, str(host.driver_root))

    return find


class _Closed(Exception):
    """There is no session just now."""


class Hardware:
    """Looks at the node and changes it; keeps one NVML session as long as it serves. For any thread, each GPU in a lane
    of its own (`kubelet_plugin.hardware.lanes`): one that is slow, or hangs, does not block the others.

    The journal is asked first, without waiting, what it made for claims. `imex_state` asks an IMEX daemon that the node
    runs itself. `imex_problem` is what keeps IMEX daemons of ComputeDomains from starting here, if the node has
    channels. `make_nodes` makes device nodes that are missing, before each look; what it returns is wrong with them.
    `incomplete` says what containers lack that need the driver of this version.
    `warnings` are what containers go without; they are asked for while no job waits for the hardware, and so is
    Fabric Manager (`fabric`).
    """

    def __init__(
        self,
        host: HostFiles,
        open_nvml: OpenNvml,
        ours: Callable[[], DriverFootprint] = lambda: NOTHING,
        *,
        imex_state: Callable[[], str | None] = lambda: None,
        imex_problem: Callable[[], Problem | None] = lambda: None,
        make_nodes: Callable[[], Problem | None] = lambda: None,
        incomplete: Callable[[str], Problem | None] = lambda version: None,
        warnings: Callable[[], Iterable[Problem]] = lambda: (),
        fabric: Callable[[], FabricAnswer] = FabricAnswer,
        turn_s: float = TURN_S,
        read_s: float = READ_S,
    ) -> None:
        self._host = host
        self._open_nvml = open_nvml
        self._ours = ours
        self._imex_state = imex_state
        self._imex_problem = imex_problem
        self._make_nodes = make_nodes
        self._incomplete = incomplete
        self._warnings = warnings
        self._fabric = fabric
        self._lanes = Lanes(turn_s)
        self._read_s = read_s
        self._session: _Session | None = None
        self._opened_before = False
        self._reopened: Callable[[], None] = lambda: None
        self._released: str | None = None
        """Why no session may be open; None: one may."""
        self._last: NodeFacts | None = None

    def when_reopened(self, listener: Callable[[], None]) -> None:
        """Call `listener`, in any thread, when a session begins that is not the first, or a fabric partition of claims
        is no longer active.

        Before a session, perhaps no process had a GPU open. Then the driver forgot the compute mode and time slice of
        each that is not persistent. Source: NVIDIA, Driver Persistence, "Data Persistence". Fabric Manager forgets
        active partitions when it restarts.
        """
        self._reopened = listener

    def release(self, why: str, last: NodeFacts | None = None) -> None:
        """Close the session and open none until `resume`; the facts stay as they are, or `last`, with the problem.

        Blocks, and raises HardwareError, as `without_session` does.
        """

        def close() -> None:
            self._released = why
            self._last = self._last or last
            self.close()

        self._lanes.run_alone(close)

    def resume(self) -> None:
        """Sessions may be open again."""
        self._opened_before = True  # by an earlier process, if not by this one
        self._released = None

    def look(self) -> NodeFacts:
        """The facts now. A GPU that does not answer in time is a problem, as one that is lost.

        Raises NodeNotReady only when the kernel does not even tell its boot id.
        """
        expected = self._ours().partitions
        fabric = self._fabric()
        warnings = [*self._warnings(), *([fabric.warning] if fabric.warning is not None else [])]
        facts = replace(self._seen(fabric), warnings=tuple(sorted(warnings, key=by_subject)))
        if fabric.partitions and (expected & self._ours().partitions) - fabric.active:
            self._reopened()
        return _bounded(facts)

    def _seen(self, fabric: FabricAnswer) -> NodeFacts:
        boot_id = self._host.boot_id()
        if self._released is not None:
            return _as_released(boot_id, self._last, self._released)
        nodes = self._make_nodes()
        renewed = False
        while True:
            session = None
            try:
                self._prepare_session()
                with self._lanes.together():
                    if self._released is not None:
                        return _as_released(boot_id, self._last, self._released)
                    session = self._session
                    if session is None:
                        continue  # it was closed for a moment, as it is when a GPU is lent
                    facts = self._looked(session, boot_id, nodes, fabric)
            except NodeNotReady as error:
                self._renew(session)
                if isinstance(error, HardwareError) and session_over(error) and not renewed:
                    renewed = True  # the driver was reloaded since the last look
                    continue
                problem = _driver_problem(error, self._host.nvidia_gpus())
                facts = NodeFacts(boot_id, None, (), tuple(item for item in (nodes, problem) if item is not None))
            else:
                if not facts.gpus and any(problem.subject.startswith("GPU ") for problem in facts.problems):
                    # Nothing answers: perhaps the driver was reset under the session. The next look starts a new one.
                    self._renew(session)
            self._last = facts
            return facts

    def _looked(self, session: "_Session", boot_id: str, nodes: Problem | None, fabric: FabricAnswer) -> NodeFacts:
        pci = self._host.nvidia_gpus()
        driver, readings, ours = self._read(session)
        readings = replace(readings, gpus=partitioned(readings.gpus, fabric))
        seen = self._located(readings.gpus, pci)
        imex = self._imex(session)
        imex_problem = self._imex_problem() if imex is not None and imex.usable else None
        of_node = filter(None, (nodes, imex_problem, fabric.problem, self._incomplete(driver.version)))
        return NodeFacts(
            boot_id,
            driver,
            partitioned(without_ours(seen, ours), fabric),
            tuple(sorted((*_problems(readings, pci, ours), *of_node), key=by_subject)),
            readings.health,
            lost(seen, ours),
            imex,
            divided=any(gpu.mig is not None and gpu.mig.enabled for gpu in seen),
        )

    def _read(self, session: "_Session") -> tuple[DriverFacts, GpuReadings, DriverFootprint]:
        """With the driver's own changes, as they were when each GPU was read. A change to a GPU is made in its lane,
        after the journal knows of it, and taken back in its lane before the journal forgets it."""
        ours = [self._ours()]

        def in_lane[T](about: str, work: Callable[[], T], /) -> T:
            def looked() -> T:
                ours.append(self._ours())
                return work()

            return self._lanes.run(about, looked, total_s=self._read_s)

        driver = session.nvml.driver(session.driver_root)
        return driver, session.nvml.gpus(in_lane), during(ours)

    def _imex(self, session: "_Session") -> ImexFacts | None:
        facts = imex_facts(self._host, session.driver_root)
        return facts.model_copy(update={"state": self._imex_state()}) if facts is not None and facts.usable else facts

    def use[T](self, gpu: GpuIdentity, work: Callable[[Nvml], T]) -> T:
        """Do something with a GPU while no other job does, or looks at it. Blocks; keep it short, and sleep outside.

        `work` is done again, once, in a new session when the old one is over: it must look at what is there first.
        Raises HardwareError when the GPU does not answer, or is in use for too long; NodeNotReady without a driver.
        """
        session = self._session
        try:
            return self._used(gpu, work)
        except HardwareError as error:
            if is_silent(error) or (not session_over(error) and not self._is_outdated()):
                raise
        self._renew(session)
        return self._used(gpu, work)

    def _used[T](self, gpu: GpuIdentity, work: Callable[[Nvml], T]) -> T:
        def at_work() -> T:
            self._check_not_released()
            session = self._session
            if session is None:
                raise _Closed
            session.nvml.find(gpu.uuid, gpu.pci_bus_id)
            return work(session.nvml)

        while True:
            if self._session is None:
                self._lanes.run_alone(self._open, hung_s=HUNG_S)
            with suppress(_Closed):  # for a moment, as it is when a GPU is lent
                return self._lanes.run(f"GPU {gpu.pci_bus_id}", at_work)

    def without_session[T](self, work: Callable[[], T]) -> T:
        """Do something that the kernel refuses while this process has a GPU open. Blocks until it is done.

        Raises HardwareError while a GPU is in use for too long, or a call about any GPU hangs.
        """

        def closed() -> T:
            self._check_not_released()
            self.close()
            return work()

        return self._lanes.run_alone(closed)

    def _check_not_released(self) -> None:
        if self._released is not None:
            raise NodeNotReady(self._released, about="GPUs")

    def boot_id(self) -> str:
        """Raises NodeNotReady when the kernel does not tell."""
        return self._host.boot_id()

    def bound(self, pci_bus_id: str) -> bool:
        """Whether the nvidia driver has the GPU, as the kernel says, which may differ from NVML."""
        return self._host.pci(pci_bus_id).driver == "nvidia"

    def close(self) -> None:
        """Give the NVML session back. Looking again starts a new one."""
        session, self._session = self._session, None
        if session is not None:
            session.nvml.stop()

    def end(self) -> None:
        """The plugin ends: from now on no caller waits long for a turn, or for NVML."""
        self._lanes.end()

    def _renew(self, session: "_Session | None") -> None:
        """Close the session, unless it is closed already; the next is a new one. It stays while a call hangs in it."""

        def close() -> None:
            if self._session is session:
                self.close()

        if session is not None:
            with suppress(HardwareError):
                self._lanes.run_alone(close)

    def _prepare_session(self) -> None:
        """See that there is a session, and that it is of the driver and the GPUs as they are now. Waits as long as it
        takes, because the caller of a look does not. Raises NodeNotReady."""
        if self._released is not None or (self._session is not None and not self._is_outdated()):
            return
        try:
            self._lanes.run_alone(self._open)
        except HardwareError as error:
            if self._session is None or not is_silent(error):
                raise

    def _open(self) -> None:
        """Called alone. Raises NodeNotReady."""
        self._check_not_released()
        if self._is_outdated():
            self.close()
        if self._session is not None:
            return
        fingerprint = self._fingerprint()
        source = self._open_nvml()
        nvml = Nvml(source.library)
        nvml.start()
        if self._opened_before:
            self._reopened()
        self._opened_before = True
        self._session = _Session(nvml, source.driver_root, fingerprint)

    def _is_outdated(self) -> bool:
        session = self._session
        return session is not None and session.fingerprint != self._fingerprint()

    def _fingerprint(self) -> tuple[str | None, ...]:
        """What a session depends on: the loaded kernel module, and which GPUs it holds. It ends when they change."""
        held = (gpu.address for gpu in self._host.nvidia_gpus() if gpu.driver == "nvidia")
        return self._host.kernel_driver_version(), *held

    def _located(self, gpus: Sequence[GpuFacts], pci: Sequence[PciFacts]) -> tuple[GpuFacts, ...]:
        """GPUs with what the kernel knows of them, by PCI address. NVML's own NUMA question is about another thing."""
        by_address = {facts.address: facts for facts in pci}
        located = []
        for gpu in gpus:
            place = by_address.get(gpu.pci_bus_id, PciFacts(gpu.pci_bus_id))
            passthrough = passthrough_facts(self._host, place)
            located.append(
                gpu.model_copy(
                    update={"numa_node": place.numa_node, "pcie_root": place.root, "passthrough": passthrough}
                )
            )
        return tuple(sorted(located, key=lambda gpu: gpu.pci_bus_id))


RELEASED, DRIVER_INCOMPLETE = "Released", "DriverIncomplete"
"""Reasons of problems while no GPU may be given away: the GPUs were released, or no container can use the driver."""


def _as_released(boot_id: str, last: NodeFacts | None, why: str) -> NodeFacts:
    problem = Problem(subject="GPUs", reason=RELEASED, message=why)
    if last is None or last.boot_id != boot_id:
        return NodeFacts(boot_id, None, (), (problem,))
    return replace(last, problems=tuple(sorted((*last.problems, problem), key=by_subject)))


@dataclass(frozen=True, slots=True)
class _Session:
    nvml: Nvml
    driver_root: str
    fingerprint: tuple[str | None, ...]


def _bounded(facts: NodeFacts) -> NodeFacts:
    """No more than a NodeInventory can have; a machine with more is reported in part."""
    problems = facts.problems
    if (total := len(facts.gpus)) > MOST_GPUS:
        message = f"{total - MOST_GPUS} of {total} GPUs are not offered: an inventory can have {MOST_GPUS}"
        problems = (Problem(subject="GPUs", reason="TooMany", message=message), *problems)
    return replace(
        facts,
        gpus=facts.gpus[:MOST_GPUS],
        problems=problems[:MOST_PROBLEMS],
        warnings=facts.warnings[:MOST_WARNINGS],
    )


def _problems(readings: GpuReadings, pci: Sequence[PciFacts], ours: DriverFootprint) -> tuple[Problem, ...]:
    problems, fabric = list(readings.problems), fabric_of(readings.gpus)
    if fabric.problem is not None:
        problems.append(Problem(subject="fabric", reason=fabric.reason or "Fabric", message=fabric.problem))
    lent = {gpu.pci_bus_id for gpu in ours.lent}
    # One that comes back from a virtual machine needs a while.
    held = [gpu.address for gpu in pci if gpu.driver == "nvidia" and gpu.address not in lent]
    problems = _with_silent(problems, held, readings.listed)
    problems += [bound_elsewhere(gpu) for gpu in pci if is_vfio(gpu.driver) and gpu.address not in lent]
    return tuple(sorted(problems, key=by_subject))


def _with_silent(problems: list[Problem], held: Collection[str], listed: Collection[str]) -> list[Problem]:
    """Add the GPUs that the kernel driver holds and NVML does not list: their initialization failed.

    A GPU that NVML lists but that never said who it is has only an index; it is one of the silent ones, so it is not
    counted twice, and gets its address when there is no doubt which it is.
    """
    silent = sorted(set(held) - set(listed))
    nameless = [problem for problem in problems if problem.subject.startswith("GPU at index ")]
    if len(nameless) == 1 and len(silent) == 1:
        named = nameless[0].model_copy(update={"subject": f"GPU {silent[0]}"})
        return [named if problem is nameless[0] else problem for problem in problems]
    if nameless:
        return problems
    return problems + [
        Problem(
            subject=f"GPU {address}",
            reason="NotListed",
            message="the nvidia kernel driver holds it, but NVML does not list it; search the kernel log for NVRM",
        )
        for address in silent
    ]


def _driver_problem(error: NodeNotReady, pci: Sequence[PciFacts]) -> Problem:
    problem = (
        problem_of(error, "driver")
        if isinstance(error, HardwareError)
        else Problem(subject="driver", reason="DriverNotFound", message=error.message)
    )
    on_the_bus = f"{problem.message}; {len(pci)} NVIDIA GPUs are on the PCI bus"
    return problem.model_copy(update={"message": on_the_bus})


def by_subject(problem: Problem) -> tuple[str, str]:
    return (problem.subject, problem.reason)
