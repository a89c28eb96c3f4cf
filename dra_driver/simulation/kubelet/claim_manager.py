"""Kubelet's DRA manager: which claims are prepared on this node, for which pods, with which CDI devices.

Claims are prepared once for all pods of the node and unprepared when the last is gone. The record is written to
`dra_manager_state` before and after drivers are called; that a claim is *prepared* is known in memory only, so after a
restart every claim of a running pod is prepared again. Source: kubelet's DRA manager, Kubernetes 1.36.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import DriverError, NodeNotReady, NotFound
from dra_driver.kube.client import Kube
from dra_driver.simulation.kubelet.registry import Plugin, PluginRegistry, Times
from dra_driver.simulation.pods import claims_of_entries


@dataclass(frozen=True, slots=True)
class KubeletClaim:
    """A claim of a pod: `entry` is its name in the pod's spec, `claim` the object's name.

    A claim that the scheduler made for extended resources has no entry.
    """

    entry: str | None
    claim: str
    generated: bool


@dataclass(slots=True)
class AnsweredDevice:
    """A device as the driver answered it; `requests` is empty when it serves all requests of the claim."""

    pool: str
    device: str
    requests: list[str]
    cdi_ids: list[str]
    share_id: str | None = None


@dataclass(slots=True)
class ClaimRecord:
    """What kubelet remembers of one claim."""

    uid: str
    namespace: str
    name: str
    pods: list[str] = field(default_factory=list)
    devices: dict[str, list[AnsweredDevice]] = field(default_factory=dict)
    """By driver; a driver that has not answered yet has an empty list."""


_RECORDS = TypeAdapter(list[ClaimRecord])


class ClaimManager:
    """All calls to `prepare` and `unprepare` for one node. Not safe for two calls for one pod at once."""

    def __init__(
        self, kube: Kube, registry: PluginRegistry, state: Path, times: Times, silent: frozenset[str] = frozenset()
    ) -> None:
        """`silent` are drivers whose claims need nothing of a plugin, so none is called."""
        self._silent = silent
        self._kube = kube
        self._registry = registry
        self._state = state
        self._times = times
        self._records: dict[str, ClaimRecord] = {}
        self._prepared: set[str] = set()

    def load(self) -> None:
        """Read the record that an earlier kubelet of this node left."""
        if self._state.exists():
            self._records = {record.uid: record for record in _RECORDS.validate_json(self._state.read_bytes())}

    def records(self) -> tuple[ClaimRecord, ...]:
        return tuple(self._records.values())

    def record_of(self, namespace: str, name: str) -> ClaimRecord | None:
        return next(
            (record for record in self._records.values() if (record.namespace, record.name) == (namespace, name)), None
        )

    async def prepare(self, pod: JsonObject) -> None:
        """Prepare all claims of a pod. Raises DriverError with the reason that the pod's event shows."""
        wanted = [await self._claim(pod, claim) for claim in pod_claims(pod)]
        # Nothing is remembered before all drivers are known to be there, so that the pod can be deleted freely.
        plugins = {driver: self._registry.newest(driver) for driver in self._called(map(_drivers, wanted))}
        mine = [self._remember(claim, pod["metadata"]["uid"]) for claim in wanted]
        unprepared = [record for record in mine if record.uid not in self._prepared]
        self._save()
        drivers = self._called(record.devices for record in unprepared)
        random.shuffle(drivers)
        for driver in drivers:
            records = [record for record in unprepared if driver in record.devices]
            answers = await self._call("NodePrepareResources", plugins[driver], records)
            for record, answer in zip(records, answers, strict=True):
                record.devices[driver] = [*map(_device, answer.devices)]
        self._prepared.update(record.uid for record in unprepared)
        self._save()

    async def unprepare(self, pod_uid: str) -> None:
        """The pod has stopped: release the claims that no other pod of this node uses. Raises DriverError."""
        mine = [record for record in self._records.values() if pod_uid in record.pods]
        last = [record for record in mine if record.pods == [pod_uid]]
        plugins = {driver: self._registry.newest(driver) for driver in self._called(item.devices for item in last)}
        for driver, plugin in plugins.items():
            records = [record for record in last if driver in record.devices]
            await self._call("NodeUnprepareResources", plugin, records)
        for record in mine:
            record.pods.remove(pod_uid)
            if not record.pods:
                del self._records[record.uid]
                self._prepared.discard(record.uid)
        self._save()

    def _called(self, drivers: Iterable[Iterable[str]]) -> list[str]:
        """Of the drivers of several claims, each one that has a plugin to call, in order."""
        return sorted({driver for of_claim in drivers for driver in of_claim} - self._silent)

    async def _call(self, method: str, plugin: Plugin, records: Sequence[ClaimRecord]) -> list[Any]:
        """The answer for each claim. Raises DriverError when one is missing or is an error."""
        refs = [{"namespace": record.namespace, "uid": record.uid, "name": record.name} for record in records]
        response = await plugin.call(method, refs, self._times.call_s)
        for record in records:
            if record.uid not in response.claims:
                raise DriverError(f"DRA driver {plugin.driver} did not answer for claim {record.uid}")
            if response.claims[record.uid].error:
                raise DriverError(response.claims[record.uid].error)
        return [response.claims[record.uid] for record in records]

    async def _claim(self, pod: JsonObject, wanted: KubeletClaim) -> ResourceClaim:
        """Read a claim and check that this pod may use it."""
        namespace = pod["metadata"]["namespace"]
        about = f"ResourceClaim {namespace}/{wanted.claim}"
        try:
            claim = ResourceClaim.of(await self._kube.get(RESOURCE_CLAIMS, wanted.claim, namespace))
        except NotFound as error:
            raise NodeNotReady("the claim does not exist", about=about) from error
        owners = {owner.uid for owner in claim.metadata.owner_references}
        if wanted.generated and pod["metadata"]["uid"] not in owners:
            raise NodeNotReady("the claim was not created for this pod", about=about)
        if claim.status.allocation is None:
            raise NodeNotReady("the claim is not allocated", about=about)
        if pod["metadata"]["uid"] not in {consumer.uid for consumer in claim.status.reserved_for}:
            raise NodeNotReady("the claim is not reserved for this pod", about=about)
        return claim

    def _remember(self, claim: ResourceClaim, pod_uid: str) -> ClaimRecord:
        uid, namespace, name = claim.metadata.uid, claim.metadata.namespace or "", claim.metadata.name
        old = self.record_of(namespace, name)
        if old is not None and old.uid != uid:
            raise NodeNotReady("an older claim of this name is still being released", about=f"claim {namespace}/{name}")
        devices: dict[str, list[AnsweredDevice]] = {driver: [] for driver in _drivers(claim)}
        record = self._records.setdefault(uid, ClaimRecord(uid, namespace, name, devices=devices))
        if pod_uid not in record.pods:
            record.pods.append(pod_uid)
        return record

    def _save(self) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._state.with_suffix(".tmp")
        temporary.write_bytes(_RECORDS.dump_json(list(self._records.values()), indent=1))
        temporary.rename(self._state)


def _drivers(claim: ResourceClaim) -> set[str]:
    """Those whose devices the claim has."""
    assert claim.status.allocation is not None
    return {result.driver for result in claim.status.allocation.devices.results}


def pod_claims(pod: JsonObject) -> list[KubeletClaim]:
    """The claims of a pod in its order, without those that turned out not to be needed.

    Raises NodeNotReady when a template's claim has not been created yet.
    """
    claims = []
    for entry, claim in claims_of_entries(pod):
        if claim is None:
            raise NodeNotReady(f"the claim for pod claim {entry.name} has not been created yet")
        claims.append(KubeletClaim(entry.name, claim, entry.resource_claim_name is None))
    if extended := (pod.get("status") or {}).get("extendedResourceClaimStatus"):
        claims.append(KubeletClaim(None, extended["resourceClaimName"], True))
    return claims


def container_devices(
    pod: JsonObject, container: JsonObject, records: Iterable[ClaimRecord]
) -> Iterator[tuple[str, str, AnsweredDevice]]:
    """The devices of the claims, or single requests of claims, that a container refers to: reference, driver, device.

    The reference is `claim` or `claim/request` in the pod's words; a claim for extended resources has only its name.
    """
    by_name = {(record.namespace, record.name): record for record in records}
    names = {claim.entry: claim.claim for claim in pod_claims(pod) if claim.entry is not None}
    wanted: list[tuple[str, str, str | None]] = [
        (reference["name"], names[reference["name"]], reference.get("request"))
        for reference in (container.get("resources") or {}).get("claims") or ()
        if reference["name"] in names
    ]
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    wanted += [
        (extended["resourceClaimName"], extended["resourceClaimName"], mapping["requestName"])
        for mapping in extended.get("requestMappings") or ()
        if mapping["containerName"] == container["name"]
    ]
    for name, claim, request in wanted:
        record = by_name.get((pod["metadata"]["namespace"], claim))
        for driver, devices in sorted(record.devices.items()) if record is not None else ():
            for device in devices:
                if request is None or not device.requests or request in device.requests:
                    yield f"{name}/{request}" if request is not None else name, driver, device


def _device(message: Any) -> AnsweredDevice:
    share_id = message.share_id if "share_id" in message.DESCRIPTOR.fields_by_name and message.share_id else None
    requests, ids = list(message.request_names), list(message.cdi_device_ids)
    return AnsweredDevice(message.pool_name, message.device_name, requests, ids, share_id)
