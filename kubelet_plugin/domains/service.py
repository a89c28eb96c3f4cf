"""Prepares and unprepares claims of `compute-domain.nvidia.com`; kubelet's calls enter through `kubelet_plugin.rpc`.

* A channel waits, outside any lock, until the domain is ready on this node, and is refused with what is missing. When
  kubelet gives up the call, the wait ends, and nothing is prepared.
* Calls that wait for the same claim ask the API server once.
* A repeated prepare finds its record, makes the CDI file again if it is not as it should be, and waits for nothing.
* Unprepare never asks the API server.
* What claims had that kubelet will never unprepare is found at the start, and now and then, and taken away.
* A claim whose record was damaged may have pods: its file stays, and no channel is given out until the API server has
  said what the claim is.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi.model import Mount
from dra_driver.errors import ClusterError, DeviceInUse, DriverError, InvalidInput, NodeNotReady
from dra_driver.names import ClaimRef
from kubelet_plugin.claims.operations import Notes, Operations
from kubelet_plugin.domains.records import Records
from kubelet_plugin.domains.standing import DomainReader
from kubelet_plugin.domains.wanted import (
    DAEMON_DEVICE,
    DaemonNeeds,
    DomainName,
    Record,
    WantedDevice,
    answer_of,
    cdi_ids,
    channel_file,
    daemon_file,
    wanted_devices,
)
from kubelet_plugin.effects.cdi_files import CdiFiles
from kubelet_plugin.facts.discovery import NodeFacts
from kubelet_plugin.facts.monitor import SeenFacts
from kubelet_plugin.hardware.imex import all_channels, channel_nodes, management_node
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.claims import ClaimReader, ClaimReads, explained
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.prepare.listener import AllocatedTo, ClaimListener
from kubelet_plugin.prepare.node import ContainerFiles
from kubelet_plugin.prepare.wanted import checked

_log = structlog.get_logger(__name__)

SWEEP_INTERVAL_S = 600.0
_SWEEP_AGAIN_S = 130.0
"""A claim that seems to be gone is released when it still is after this: longer than kubelet's own loop of 60 s."""
_API_PATIENCE_S = 10.0

type Answer = tuple[PreparedDevice, ...]


class DomainClaims:
    """Claims of one node. `start`, then serve, with `run` beside."""

    def __init__(
        self,
        *,
        claims: ClaimReader,
        domains: DomainReader,
        records: Records,
        cdi: CdiFiles,
        host: HostFiles,
        facts: SeenFacts,
        container_files: Callable[[NodeFacts], ContainerFiles],
        driver: str,
        node_name: str,
        readable: Callable[[], str | None] = lambda: None,
        host_imex: Callable[[], str | None] | None = None,
        daemon_mounts: Sequence[Mount] = (),
        sweep_interval_s: float = SWEEP_INTERVAL_S,
        listener: ClaimListener | None = None,
    ) -> None:
        """`readable` is the highest CDI version that the container runtime reads, None when that is not known.
        `host_imex` asks an IMEX daemon that the node runs itself, and answers why it is not ready; None: pods do.
        `daemon_mounts` are what those need besides the driver's files."""
        self._claims = claims
        self._reads = ClaimReads(claims)
        self._domains = domains
        self._records = records
        self._cdi = cdi
        self._host = host
        self._facts = facts
        self._container_files = container_files
        self._driver = driver
        self._node = node_name
        self._readable = readable
        self._host_imex = host_imex
        self._daemon_mounts = tuple(daemon_mounts)
        self._sweep_interval_s = sweep_interval_s
        self._doubted: frozenset[str] = frozenset()
        self._operations = Operations(driver, listener or ClaimListener())
        self._turns = records.turns()
        self._files = asyncio.Lock()
        """Held while files are looked at and changed, never while anything is waited for."""
        self._waiting: dict[str, object] = {}
        """By claim UID: a mark of the prepare that waits for its domain, until the claim is released."""

    async def start(self) -> None:
        """Make the CDI files of all records again (a reboot takes them away), and release what nobody needs."""
        try:
            async with self._files:
                await asyncio.to_thread(self._heal)
            await self._release_stale(await self._stale())
            await self._restore_damaged()
        except DriverError as error:
            _log.warning("what claims of ComputeDomains had is looked at later", error=str(error))

    async def run(self) -> None:
        """Release what kubelet will never unprepare, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_AGAIN_S if self._doubted else self._sweep_interval_s)
            await self.sweep()

    async def sweep(self) -> None:
        """One look; claims that were found gone by the look before as well are released."""
        try:
            stale = await self._stale()
            await self._release_stale(stale & self._doubted)
            self._doubted = stale - self._doubted
            await self._restore_damaged()
            await asyncio.to_thread(self._remove_leftovers)
        except DriverError as error:
            _log.warning("claims of ComputeDomains could not be looked at", error=str(error))

    async def close(self) -> None:
        """Finish what was begun. Called after the last call was accepted."""
        await self._operations.close()
        self._turns.close()

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Answer | DriverError]:
        return await self._operations.each("prepare", claims, self._prepare)

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, DriverError | None]:
        return await self._operations.each("unprepare", claims, self._unprepare)

    async def _prepare(self, ref: ClaimRef, notes: Notes) -> Answer:
        async with self._files:
            known = await asyncio.to_thread(self._again, ref.uid)
        if known is not None:
            notes.repeated, notes.devices = True, self._devices(known)
            return self._answer(known)
        mark = self._waiting[ref.uid] = object()
        claim = await self._read(ref, notes)
        notes.read(claim, self._driver)
        devices = wanted_devices(claim, self._driver, self._node)
        domain = await notes.while_wanted(ref, self._domain(ref, devices))
        await self._restore_damaged(but=ref.uid)
        record = Record(ref, devices, domain)
        async with self._files, self._turns.of("channels", about=str(ref)):
            notes.wanted(ref)
            if self._waiting.get(ref.uid) is not mark:
                raise InvalidInput("was released, or asked for again, while it waited for its domain", about=str(ref))
            await asyncio.to_thread(self._keep, record)
            del self._waiting[ref.uid]
        return self._answer(record)

    async def _unprepare(self, ref: ClaimRef, notes: Notes) -> None:
        self._waiting.pop(ref.uid, None)
        self._reads.released(ref.uid)
        async with self._files:
            had = await asyncio.to_thread(self._drop, ref.uid)
        notes.repeated = had is None
        notes.devices = () if had is None else self._devices(had)

    async def _read(self, ref: ClaimRef, notes: Notes) -> ResourceClaim:
        answer = await notes.while_wanted(ref, self._reads.of(ref, patience_s=_API_PATIENCE_S))
        try:
            return checked(answer.claim(), ref)
        except ClusterError as error:
            raise explained(error, ref) from error

    async def _domain(self, ref: ClaimRef, devices: tuple[WantedDevice, ...]) -> DomainName | None:
        """The domain of the claim, once its container can start. A daemon waits for nobody: others wait for it."""
        uid = next((device.domain_uid for device in devices if not device.admin), "")
        if not uid:
            return None
        if devices[0].name == DAEMON_DEVICE:
            domain = await self._domains.find(uid, ref, None)
        elif self._host_imex is not None:
            domain = await self._domains.find(uid, ref, ref.namespace)
            problem = await asyncio.to_thread(self._host_imex)
            if problem is not None:
                raise NodeNotReady(f"{problem}; kubelet tries again", about=str(ref))
        else:
            domain = await self._domains.ready(uid, ref)
        return _named(domain, self._node)

    async def _restore_damaged(self, *, but: str = "") -> None:
        """Find out from the API server what the claims are whose records were damaged. Raises NodeNotReady while that
        cannot be known; of a claim that is gone nothing is left. `but`: UID of a claim that is prepared again."""
        damaged = await asyncio.to_thread(self._records.damaged) - {but}
        if not damaged:
            return
        try:
            claims = {one.metadata.uid: one for one in await self._claims.allocated(self._driver, self._node)}
            records = {uid: await self._restored(claims[uid]) for uid in damaged & claims.keys()}
        except ClusterError as error:
            raise NodeNotReady(
                f"was damaged, and what the claim has cannot be read from the API server ({error.message}); no channel"
                " is prepared until it can",
                about=f"the record of claim UID {min(damaged)}",
            ) from error
        async with self._files:
            for uid in sorted(damaged & await asyncio.to_thread(self._records.damaged)):
                record = records.get(uid)
                if record is None:
                    await asyncio.to_thread(self._drop, uid)
                else:
                    await asyncio.to_thread(self._records.write, record)
                _log.warning("a damaged record was settled", uid=uid, kept=record is not None)

    async def _restored(self, claim: ResourceClaim) -> Record | None:
        """What the claim was given; None when it cannot be anything any more. Raises ClusterError."""
        ref = ClaimRef(claim.metadata.namespace or "", claim.metadata.name, claim.metadata.uid)
        try:
            devices = wanted_devices(claim, self._driver, self._node)
            uid = next((device.domain_uid for device in devices if not device.admin), "")
            domain = _named(await self._domains.find(uid, ref, None), self._node) if uid else None
        except InvalidInput as error:
            _log.warning("a damaged record cannot be restored", claim=str(ref), error=str(error))
            return None
        return Record(ref, devices, domain)

    def _again(self, uid: str) -> Record | None:
        """The record of a claim that is prepared, its CDI file as it should be; None when it is not prepared."""
        known = self._records.get(uid)
        if known is not None:
            self._publish(known)
        return known

    def _keep(self, record: Record) -> None:
        self._refuse_neighbours(record)
        self._records.write(record)
        self._publish(record)

    def _refuse_neighbours(self, record: Record) -> None:
        """The last line: two domains never have channels on one node, whatever labels and statuses say."""
        if record.domain is None or record.devices[0].name == DAEMON_DEVICE:
            return
        for other in self._records.all().values():
            same = other.domain is None or other.domain.uid == record.domain.uid
            if not same and other.devices[0].name != DAEMON_DEVICE and other.domain is not None:
                raise DeviceInUse(
                    f"node {self._node} is in ComputeDomain {other.domain.namespace}/{other.domain.name} until"
                    f" {other.claim} is released",
                    about=str(record.claim),
                )

    def _publish(self, record: Record) -> None:
        content = self._content(record)
        if not self._cdi.intact(record.claim.uid, content):
            self._cdi.write(record.claim.uid, content)

    def _content(self, record: Record) -> bytes:
        if record.devices[0].name == DAEMON_DEVICE and record.domain is not None:
            return daemon_file(self._driver, record, self._daemon_needs(), record.domain, self._readable())
        every = any(device.mode == "All" or device.admin for device in record.devices)
        channels = channel_nodes(self._host, all_channels(self._host) if every else [0])
        return channel_file(self._driver, record, channels, self._readable())

    def _daemon_needs(self) -> DaemonNeeds:
        files = self._container_files(self._facts.facts)
        gpus = (node for uuid in sorted(files.nodes) for node in files.nodes[uuid])
        common = files.driver.common_edits
        common = replace(common, mounts=(*common.mounts, *self._daemon_mounts))
        return DaemonNeeds(common, (*gpus, management_node(self._host)))

    def _drop(self, uid: str) -> Record | None:
        """The file first: what is in no file, nobody gets any more. What there was."""
        had = self._records.get(uid)
        self._cdi.remove(uid)
        self._records.remove(uid)
        return had

    def _remove_leftovers(self) -> None:
        """Temporary files of instances that were killed; also in each sweep, because the other one of a rolling update
        may be killed when this one has already started."""
        self._records.remove_leftovers()
        self._cdi.remove_leftovers()

    def _heal(self) -> None:
        self._remove_leftovers()
        # In this order: another instance, which serves, writes a record before its file.
        files = self._cdi.claims()
        records = self._records.all()
        for uid in files - records.keys() - self._records.damaged():
            self._cdi.remove(uid)
        for record in records.values():
            try:
                self._publish(record)
            except DriverError as error:
                _log.warning("a claim's CDI file cannot be made again", claim=str(record.claim), error=str(error))

    async def _stale(self) -> frozenset[str]:
        """UIDs of claims with a record whose object is gone, or that are not allocated here any more."""
        found = set()
        for uid, record in (await asyncio.to_thread(self._records.all)).items():
            claim = await self._claims.read(record.claim)
            if claim is None or claim.metadata.uid != uid or not self._is_here(claim):
                found.add(uid)
        return frozenset(found)

    def _is_here(self, claim: ResourceClaim) -> bool:
        allocation = claim.status.allocation
        results = allocation.devices.results if allocation is not None else []
        return any((result.driver, result.pool) == (self._driver, self._node) for result in results)

    async def _release_stale(self, uids: frozenset[str]) -> None:
        for uid in sorted(uids):
            async with self._files:
                await asyncio.to_thread(self._drop, uid)
            _log.info("released what a claim that is gone had of a ComputeDomain", uid=uid)

    def _devices(self, record: Record) -> tuple[AllocatedTo, ...]:
        return tuple(AllocatedTo(self._node, device.name) for device in record.devices)

    def _answer(self, record: Record) -> Answer:
        return answer_of(record.devices, self._node, cdi_ids(self._driver, record))


def _named(domain: ComputeDomain, node: str) -> DomainName:
    entry = next((one for one in domain.status.nodes if one.name == node), None)
    metadata = domain.metadata
    name = DomainName(metadata.namespace or "", metadata.name, metadata.uid)
    return name if entry is None else replace(name, clique=entry.clique_id)
