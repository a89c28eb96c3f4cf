"""Prepares and unprepares claims of `compute-domain.nvidia.com`; the kubelet's calls enter through
`kubelet_plugin.rpc`.

* A channel waits, outside any lock, until the domain is ready on this node, or is refused with what is missing. When
  the kubelet gives up the call, the wait ends, and nothing is prepared. Calls for the same claim share one API request.
* A claim is in the journal before its CDI file exists, and leaves it after the file is removed. So a repeated prepare
  waits for nothing, and unprepare never asks the API server.
* A file of a claim that the journal does not have means that the journal lost the claim, whose pods may run: the file
  stays, and no channel is prepared until the API server has been asked what the claim has.
* A start and a sweep release the claims that the kubelet will never unprepare.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi.model import Mount
from dra_driver.errors import ClusterError, DriverError, InvalidInput, NodeNotReady
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, ClaimRef
from kubelet_plugin.claims.operations import ClaimNotes, Operations
from kubelet_plugin.domains.readiness import DomainReader
from kubelet_plugin.domains.wanted import (
    DAEMON_DEVICE,
    answer_of,
    asked_for,
    binding_stage,
    channel_file,
    daemon_file,
    wanted_devices,
    with_domain_claim,
    without_domain_claim,
)
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.monitor import SeenFacts
from kubelet_plugin.hardware.capabilities import management_node
from kubelet_plugin.hardware.imex import all_channels, channel_nodes
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.claim_reads import ClaimReader, ClaimReads, explained
from kubelet_plugin.prepare.journal import DomainClaim, DomainDevice, DomainName
from kubelet_plugin.prepare.known_node import ContainerFiles
from kubelet_plugin.prepare.lifecycle import BindingStage, PreparedDevice
from kubelet_plugin.prepare.listener import AllocatedTo, ClaimListener
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.prepare.wanted import checked, well_formed

_log = structlog.get_logger(__name__)

_SWEEP_AGAIN_S = 130.0
"""A claim that seems to be gone is released when it still is after this: longer than the kubelet's own loop of 60 s."""
_API_PATIENCE_S = 10.0

type Answer = tuple[PreparedDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainHost:
    """The node, as the driver of ComputeDomains needs it."""

    name: str
    namespace: str
    """The driver's own. Only claims in it get the daemon's device."""
    host: HostFiles
    facts: SeenFacts
    container_files: Callable[[NodeFacts], ContainerFiles]
    readable: Callable[[], str | None]
    """The highest CDI version that the container runtime reads; None when that is not known."""
    host_imex: Callable[[], str | None] | None
    """Asks an IMEX daemon that the node runs itself why it is not ready. None: daemons run in pods."""
    daemon_mounts: tuple[Mount, ...]
    """What daemons in pods need besides the driver's files."""


class DomainClaims:
    """Claims of one node. `start`, then serve, with `run` beside."""

    def __init__(
        self,
        claims: ClaimReader,
        domains: DomainReader,
        journal: JournalStore,
        cdi: CdiFiles,
        node: DomainHost,
        listener: ClaimListener,
        *,
        sweep_interval_s: float,
    ) -> None:
        self._claims = claims
        self._reads = ClaimReads(claims)
        self._domains = domains
        self._journal = journal
        self._cdi = cdi
        self._node = node
        self._sweep_interval_s = sweep_interval_s
        self._doubted: frozenset[str] = frozenset()
        self._operations = Operations(COMPUTE_DOMAIN_DRIVER, listener)
        self._files = asyncio.Lock()
        """Held while journal and files are looked at and changed. Nothing is waited for meanwhile, except for the API
        server before a claim is released that the kubelet may be about to prepare again."""
        self._waiting: dict[str, object] = {}
        """By claim UID: a mark of the prepare that waits for its domain, until the claim is released."""

    async def start(self) -> None:
        """Write the CDI files of all claims again (a reboot removes them), and look for stale claims.

        Their containers may still run, so a sweep releases them only if the kubelet has not done so.
        """
        try:
            async with self._files:
                await asyncio.to_thread(self._write_files)
            await self.release_given_up()
            self._doubted = await self._stale()
            await self._restore_lost()
        except DriverError as error:
            _log.warning("claims of ComputeDomains are checked later", error=str(error))

    async def run(self) -> None:
        """Release what the kubelet will never unprepare, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_AGAIN_S if self._doubted else self._sweep_interval_s)
            await self.sweep()

    async def sweep(self) -> None:
        """Release the claims that were gone at this look and at the one before."""
        try:
            stale = await self._stale()
            await self._release_stale(stale & self._doubted)
            self._doubted = stale - self._doubted
            await self._restore_lost()
            # An instance that is killed during a rolling update leaves them when its successor has already started.
            await asyncio.to_thread(self._cdi.remove_leftovers)
        except DriverError as error:
            _log.warning("claims of ComputeDomains could not be checked", error=str(error))

    async def close(self) -> None:
        """Finish what was begun. Called after the last call was accepted."""
        await self._operations.close()

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Answer | DriverError]:
        return await self._operations.each("prepare", claims, self._prepare)

    async def prepare_ahead(self, claim: ClaimRef) -> DriverError | None:
        """See `PreparesAhead` in `kubelet_plugin.reporting.binding`."""
        return await self._operations.ahead(claim, self._prepare)

    async def release_given_up(self) -> bool:
        """See `PreparesAhead` in `kubelet_plugin.reporting.binding`."""
        try:
            domains = self._journal.current.domains
            ahead = {uid: known for uid, known in domains.items() if known.binding is BindingStage.AHEAD}
            stale = {uid for uid, known in ahead.items() if not await self._stands(known)}
            async with self._files:
                for uid in sorted(stale):
                    known = self._journal.current.domains.get(uid)
                    if known == ahead[uid]:
                        await self._drop(uid)
                        _log.info("released a channel whose pod was not bound", claim=str(known.claim))
        except DriverError as error:
            _log.warning("claims whose pods wait for this node could not be checked", error=str(error))
            return True
        return bool(ahead)

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, DriverError | None]:
        return await self._operations.each("unprepare", claims, self._unprepare)

    async def _prepare(self, ref: ClaimRef, notes: ClaimNotes) -> Answer:
        well_formed(ref)
        async with self._files:
            known = self._journal.current.domains.get(ref.uid)
            if known is not None and known.binding is not BindingStage.AHEAD:
                return await self._repeated(known, notes)
        mark = self._waiting[ref.uid] = object()
        try:
            return await self._prepared(ref, notes, known, mark)
        finally:
            # The kubelet never releases what only the controller asked for.
            if notes.ahead and self._waiting.get(ref.uid) is mark:
                del self._waiting[ref.uid]

    async def _prepared(self, ref: ClaimRef, notes: ClaimNotes, known: DomainClaim | None, mark: object) -> Answer:
        """`known` was prepared ahead. `mark` is no longer that of the claim once it is released, or asked for again."""
        claim = await self._read(ref, notes)
        notes.read(claim, COMPUTE_DOMAIN_DRIVER)
        devices = self._wanted(claim)
        if known is not None:
            async with self._files:
                # While the claim was read it may have been given up, or the kubelet may have got it.
                now = self._journal.current.domains.get(ref.uid)
                if now is not None and now.devices == devices:
                    return await self._repeated(now, notes)
                if now == known:
                    await self._drop(ref.uid)  # it was allocated again
        domain = await notes.while_wanted(ref, lambda: self._domain(ref, devices))
        await self._restore_lost(but=ref.uid)
        stage = binding_stage(claim, self._node.name, ahead=notes.ahead)
        wanted = DomainClaim(ref, devices, domain, stage)
        if notes.ahead and not await self._stands(wanted):
            # The kubelet gives a call up when the pod is deleted. The controller does not.
            raise NodeNotReady("was given up while it waited for its domain", about=str(ref))
        async with self._files:
            notes.wanted(ref)
            if self._waiting.get(ref.uid) is not mark:
                # The author of the claim can correct nothing.
                raise NodeNotReady("was released, or asked for again, while it waited for its domain", about=str(ref))
            del self._waiting[ref.uid]
            await self._journal.commit(with_domain_claim(wanted, self._node.name))
            await asyncio.to_thread(self._publish, wanted)
        return answer_of(wanted, self._node.name)

    async def _repeated(self, known: DomainClaim, notes: ClaimNotes) -> Answer:
        """The answer about a claim that is prepared; the files are locked. From now on the kubelet releases it."""
        await asyncio.to_thread(self._publish, known)
        if known.binding is BindingStage.AHEAD and not notes.ahead:
            await self._journal.commit(asked_for(known.claim.uid))
        notes.repeated, notes.devices = True, self._devices(known)
        return answer_of(known, self._node.name)

    def _wanted(self, claim: ResourceClaim) -> tuple[DomainDevice, ...]:
        return wanted_devices(claim, self._node.name, daemons_in=self._node.namespace)

    async def _stands(self, known: DomainClaim) -> bool:
        """Whether the claim is allocated what it was prepared with. Raises ClusterError."""
        claim = await self._allocated_here(known)
        with suppress(InvalidInput):
            return claim is not None and self._wanted(claim) == known.devices
        return False

    async def _allocated_here(self, known: DomainClaim) -> ResourceClaim | None:
        """The claim's object; None if it is gone, or is no longer allocated here. Raises ClusterError."""
        claim = await self._claims.read(known.claim)
        if claim is None or claim.metadata.uid != known.claim.uid:
            return None
        return claim if claim.results_of(COMPUTE_DOMAIN_DRIVER, self._node.name) else None

    async def _unprepare(self, ref: ClaimRef, notes: ClaimNotes) -> None:
        self._waiting.pop(ref.uid, None)
        self._reads.released(ref.uid)
        async with self._files:
            notes.wanted(ref)
            had = await self._drop(ref.uid)
        notes.repeated = had is None
        notes.devices = () if had is None else self._devices(had)

    async def _read(self, ref: ClaimRef, notes: ClaimNotes) -> ResourceClaim:
        answer = await notes.while_wanted(ref, lambda: self._reads.begin(ref, patience_s=_API_PATIENCE_S).ended())
        try:
            return checked(answer.claim(), ref)
        except ClusterError as error:
            raise explained(error, ref) from error

    async def _domain(self, ref: ClaimRef, devices: tuple[DomainDevice, ...]) -> DomainName | None:
        """The domain of the claim, once its container can start. A daemon does not wait: others wait for it."""
        uid = _domain_uid(devices)
        if not uid:
            return None
        if devices[0].name == DAEMON_DEVICE:
            domain = await self._domains.find(uid, ref, None)
        elif self._node.host_imex is not None:
            domain = await self._domains.find(uid, ref, ref.namespace)
            problem = await asyncio.to_thread(self._node.host_imex)
            if problem is not None:
                raise NodeNotReady(f"{problem}; the kubelet tries again", about=str(ref))
        else:
            domain = await self._domains.ready(uid, ref, lambda: self._has_other_domain(uid))
        return _named(domain, self._node.name)

    def _has_other_domain(self, uid: str) -> bool:
        claims = self._journal.current.domains.values()
        return any(claim.domain is not None and claim.domain.uid != uid for claim in claims)

    async def _forget_released(self, files: Collection[str], *, but: str) -> None:
        """A journal that lost its end has claims that were released since: without one of `files`, and no longer
        allocated here. Raises ClusterError, NodeNotReady."""
        for uid, known in self._journal.current.domains.items():
            if uid not in files and uid != but and not await self._stands(known):
                async with self._files:
                    if self._journal.current.domains.get(uid) == known:
                        await self._drop(uid)
                        _log.warning("a claim was released before the journal was damaged", claim=str(known.claim))

    async def _restore_lost(self, *, but: str = "") -> None:
        """Enter claims again that the journal lost, and remove the files of those that are gone. `but`: UID of a claim
        that is being prepared. Raises NodeNotReady while the API server cannot be asked."""
        # The files first: another instance, which serves, has a claim in the journal before its file exists.
        files = await asyncio.to_thread(self._cdi.claims)
        with suppress(ClusterError):
            await self._forget_released(files, but=but)
        lost = files - self._journal.current.domains.keys() - {but}
        if not lost:
            return
        try:
            allocated = await self._claims.allocated(COMPUTE_DOMAIN_DRIVER, self._node.name)
            claims = {claim.metadata.uid: claim for claim in allocated}
            restored = {uid: await self._restored(claims[uid]) for uid in lost & claims.keys()}
        except ClusterError as error:
            raise NodeNotReady(
                f"was lost from the journal, and what it has cannot be read from the API server ({error.message}); no"
                " channel is prepared until it can",
                about=f"claim UID {min(lost)}",
            ) from error
        async with self._files:
            files = await asyncio.to_thread(self._cdi.claims)
            for uid in sorted(lost & files - self._journal.current.domains.keys()):
                claim = restored.get(uid)
                if claim is None:
                    await asyncio.to_thread(self._cdi.remove, uid)
                else:
                    await self._journal.commit(with_domain_claim(claim, self._node.name))
                _log.warning("a claim was lost from the journal", uid=uid, restored=claim is not None)

    async def _restored(self, claim: ResourceClaim) -> DomainClaim | None:
        """What the claim was given; None when that can no longer be known. Raises ClusterError."""
        ref = claim.ref
        try:
            devices = self._wanted(claim)
            uid = _domain_uid(devices)
            domain = _named(await self._domains.find(uid, ref, None), self._node.name) if uid else None
        except InvalidInput as error:
            _log.warning("a claim that the journal lost cannot be restored", claim=str(ref), error=str(error))
            return None
        return DomainClaim(ref, devices, domain, binding_stage(claim, self._node.name, ahead=False))

    async def _drop(self, uid: str) -> DomainClaim | None:
        """Release a claim: the file first, so that no container can still get it. Returns what the claim had."""
        had = self._journal.current.domains.get(uid)
        await asyncio.to_thread(self._cdi.remove, uid)
        if had is not None:
            await self._journal.commit(without_domain_claim(uid))
        return had

    def _write_files(self) -> None:
        self._cdi.remove_leftovers()
        for claim in self._journal.current.domains.values():
            try:
                self._publish(claim)
            except DriverError as error:
                _log.warning("a claim's CDI file cannot be written again", claim=str(claim.claim), error=str(error))

    def _publish(self, claim: DomainClaim) -> None:
        content = self._content(claim)
        if self._cdi.read(claim.claim.uid) != content:
            self._cdi.write(claim.claim.uid, content)

    def _content(self, claim: DomainClaim) -> bytes:
        node = self._node
        if claim.devices[0].name == DAEMON_DEVICE and claim.domain is not None:
            return self._daemon_content(claim, claim.domain)
        every = any(device.mode == "All" or device.admin for device in claim.devices)
        channels = channel_nodes(node.host, all_channels(node.host) if every else [0])
        return channel_file(claim, channels, node.readable())

    def _daemon_content(self, claim: DomainClaim, domain: DomainName) -> bytes:
        node = self._node
        facts = node.facts.facts
        files = node.container_files(facts)
        gpus = (gpu_node for uuid in sorted(gpu.uuid for gpu in facts.gpus) for gpu_node in files.nodes_there(uuid))
        common = files.driver.common_edits
        common = replace(common, mounts=(*common.mounts, *node.daemon_mounts))
        return daemon_file(claim, domain, common, (*gpus, management_node(node.host)), node.readable())

    async def _stale(self) -> frozenset[str]:
        """UIDs of claims whose object is gone, or is no longer allocated here."""
        domains = self._journal.current.domains
        return frozenset([uid for uid, known in domains.items() if await self._allocated_here(known) is None])

    async def _release_stale(self, uids: frozenset[str]) -> None:
        for uid in sorted(uids):
            async with self._files:
                known = self._journal.current.domains.get(uid)
                if known is None or await self._allocated_here(known) is not None:
                    continue  # it was allocated again, and prepared, while the others were read
                await self._drop(uid)
            _log.info("released what a deleted claim had of a ComputeDomain", uid=uid)

    def _devices(self, claim: DomainClaim) -> tuple[AllocatedTo, ...]:
        return tuple(AllocatedTo(self._node.name, device.name) for device in claim.devices)


def _domain_uid(devices: Sequence[DomainDevice]) -> str:
    return next((device.domain_uid for device in devices if not device.admin), "")


def _named(domain: ComputeDomain, node: str) -> DomainName:
    entry = next((entry for entry in domain.status.nodes if entry.name == node), None)
    metadata = domain.metadata
    name = DomainName(metadata.namespace or "", metadata.name, metadata.uid)
    return name if entry is None else replace(name, clique=entry.clique_id)
