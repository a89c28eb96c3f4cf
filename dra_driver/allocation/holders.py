"""Who has which device, and whether whoever it is for still exists. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dra_driver.allocation.snapshot import Candidate, CounterId, Pool, PoolId
from dra_driver.allocation.world import Key, World, claim_key
from dra_driver.api.resource import ResourceClaim
from dra_driver.names import DeviceId


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that has devices, with the pods that it is reserved for; `gone` are those of them that do not exist."""

    claim: Key
    pods: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def is_forgotten(self) -> bool:
        """Whether nobody is left who uses it."""
        return len(self.gone) == len(self.pods)

    def __str__(self) -> str:
        return f"{self.claim[0]}/{self.claim[1]}"

    @property
    def described(self) -> str:
        """With who uses it: `team-a/train-7-gpu (pod train-7)`."""
        if not self.pods:
            return f"{self} (used by no pod)"
        alive = [pod for pod in self.pods if pod not in self.gone]
        if not alive:
            return f"{self} (pod {self.pods[0]}, which no longer exists)"
        return f"{self} ({_listed(alive, 'pod')})"


def holder_of(claim: ResourceClaim, world: World) -> Holder:
    users = [one for one in claim.status.reserved_for if one.resource == "pods"]
    namespace = claim_key(claim)[0]
    return Holder(
        claim_key(claim),
        tuple(one.name for one in users),
        tuple(one.name for one in users if _is_gone(world, namespace, one.name, one.uid)),
    )


def _is_gone(world: World, namespace: str, name: str, uid: str) -> bool:
    """False where pods could not be read: what is not known is not claimed."""
    if not world.live or any(one.kind == "Pod" for one in world.unread):
        return False
    pod = world.pods.get((namespace, name))
    return pod is None or bool(uid and pod.uid and uid != pod.uid)


class Holders:
    """Of all devices of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_counter: dict[PoolId, Mapping[CounterId, tuple[Holder, ...]]] = {}

    @cached_property
    def _by_device(self) -> Mapping[DeviceId, tuple[Holder, ...]]:
        found: dict[DeviceId, list[Holder]] = defaultdict(list)
        for claim in self._world.claims.values():
            if claim.status.allocation is None:
                continue
            holder = holder_of(claim, self._world)
            for result in claim.status.allocation.devices.results:
                device = DeviceId(result.driver, result.pool, result.device)
                if not result.admin_access and holder not in found[device]:
                    found[device].append(holder)
        return {device: tuple(sorted(holders, key=str)) for device, holders in found.items()}

    def of(self, device: DeviceId) -> tuple[Holder, ...]:
        return self._by_device.get(device, ())

    def of_counters(self, candidate: Candidate, pool: Pool) -> tuple[Holder, ...]:
        """Claims with devices that draw on the same counters as this one, which they may have made scarce."""
        if pool.id not in self._by_counter:
            self._by_counter[pool.id] = self._drawing(pool)
        known = self._by_counter[pool.id]
        found = dict.fromkeys(holder for id_, _ in candidate.consumes for holder in known.get(id_, ()))
        return tuple(sorted(found, key=str))

    def _drawing(self, pool: Pool) -> Mapping[CounterId, tuple[Holder, ...]]:
        found: dict[CounterId, tuple[Holder, ...]] = {}
        for name, draws in pool.draws.items():
            if holders := self.of(DeviceId(pool.driver, pool.name, name)):
                for id_, _ in draws:
                    found[id_] = (*found.get(id_, ()), *holders)
        return found


_MOST_NAMED = 3


def listed_holders(holders: Iterable[Holder]) -> str:
    """`team-a/train-7 (pod train-7) and 3 others`."""
    found = list(dict.fromkeys(holders))
    if not found:
        return "a claim that is not known"
    named = [one.described for one in found[:_MOST_NAMED]]
    more = len(found) - len(named)
    return _listed([*named, *([f"{more} other{'s' if more > 1 else ''}"] if more else [])])


def _listed(parts: Iterable[str], word: str = "") -> str:
    texts = list(parts)
    lead = f"{word}{'s' if len(texts) > 1 else ''} " if word else ""
    return lead + (texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}")
