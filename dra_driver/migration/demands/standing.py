"""What a resource of the device plugin means in one pod, and which units of devices each container sees. Pure.

Configurations and nodes define the meaning, then a DeviceClass that answers the name, then labels by which the pod
selects its nodes, then the name. Long-running containers have separate units; those of an init container go to the
containers after it, as in the device manager of the kubelet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dra_driver.migration.codes import CONFLICTING_NODES, MEANING_UNKNOWN, SHARES_ABOVE_ONE, FindingSeverity
from dra_driver.migration.demands import amounts as amounts_room
from dra_driver.migration.demands.amounts import Ask, Notes
from dra_driver.migration.model import ContainerAt, Demand, DeviceShare, Options, Path, Role, Want, What
from dra_driver.migration.understand.labels import Hints, Requirement, quoted
from dra_driver.migration.understand.meaning import Meaning, Stands
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE, PluginSharing
from dra_driver.phrases import and_more


def demands_of_kind(want: Want, asks: Sequence[Ask]) -> Iterator[Demand]:
    """Demands for units that are alike, cut so that each unit is seen by those who used it.

    Lasting containers have units of their own, one after the other. An init container uses units of those that are not
    running beside it, the first ones, and units beyond where those are not enough.
    """
    spans: list[tuple[Ask, list[int]]] = []
    owners: dict[int, Ask] = {}
    for ask in asks:
        if ask.container.role is not Role.INIT:
            units = list(range(len(owners), len(owners) + ask.want.count))
            owners |= dict.fromkeys(units, ask)
            spans.append((ask, units))
    for ask in asks:
        if ask.container.role is Role.INIT:
            free = [unit for unit, owner in owners.items() if not _runs_beside(owner, ask)]
            missing = max(0, ask.want.count - len(free))
            spans.append((ask, [*free, *range(len(owners), len(owners) + missing)][: ask.want.count]))
    users = _users_of_units(spans)
    seen: set[Path] = set()
    for together, units in users:
        removes = tuple(path for ask in together for path in ask.removes if path not in seen)
        seen.update(removes)
        containers = tuple({ask.container.path: ask.container for ask in together}.values())
        counts = [1] * len(units) if want.distinct else [len(units)]
        for number, count in enumerate(counts):
            yield Demand(
                containers, replace(want, count=count), removes=() if number else removes, resource=together[0].resource
            )


def _runs_beside(owner: Ask, init: Ask) -> bool:
    """Sidecars that start before an init container run beside it; everything else starts after it."""
    return owner.container.role is Role.SIDECAR and _position(owner.container) < _position(init.container)


def _position(container: ContainerAt) -> int:
    """Among init containers."""
    return next((part for part in reversed(container.path) if isinstance(part, int)), 0)


def _users_of_units(spans: Iterable[tuple[Ask, list[int]]]) -> list[tuple[tuple[Ask, ...], list[int]]]:
    """Units with the same users together; lasting containers come first among users."""
    by_unit: dict[int, list[Ask]] = {}
    for ask, units in spans:
        for unit in units:
            by_unit.setdefault(unit, []).append(ask)
    by_users: dict[tuple[Path, ...], tuple[tuple[Ask, ...], list[int]]] = {}
    for unit, asks in sorted(by_unit.items()):
        key = tuple(ask.container.path for ask in asks)
        by_users.setdefault(key, (tuple(asks), []))[1].append(unit)
    return list(by_users.values())


def handed_on(demands: Iterable[Demand]) -> set[Path]:
    """Init containers that share a demand with a container after them."""
    shared = (demand.containers for demand in demands if len(demand.containers) > 1)
    return {container.path for containers in shared for container in containers if container.role is Role.INIT}


_DEFAULTS = Options()


class ResourceMeaning:
    """Of the resources that one pod asks for."""

    def __init__(
        self, notes: Notes, hints: Hints, requirements: Sequence[Requirement], meaning: Meaning, options: Options
    ) -> None:
        self._notes = notes
        self._hints = hints
        self._requirements = requirements
        self._meaning = meaning
        self._options = options

    def ask(self, container: ContainerAt, resource: str, number: int, paths: tuple[Path, ...]) -> Ask:
        own = self._meaning.own.get(resource)
        named = own is not None and not amounts_room.is_whole_or_mig(resource)
        if own is not None and named:
            return Ask(container, Want(own.what, number, device_class=own.device_class), paths, resource)
        stands = self._stands(resource, paths[0])
        single = stands.what is What.MIG and resource.startswith(GPU_RESOURCE)
        if single:
            self._notes.needs_claims.append(f"{resource} means MIG devices here, not whole GPUs")
            if stands.profile is None:
                message = f"{resource} means MIG devices here (strategy single), of an unknown profile"
                self._notes.say(MEANING_UNKNOWN, paths[0], message, severity=FindingSeverity.ERROR)
                self._notes.leave.append(message)
        if stands.sharing is not None:
            return Ask(container, self._share(stands, resource, number, paths[0]), paths, resource, single)
        want = Want(stands.what, number, stands.profile, selectors=self._alone(stands))
        if own is not None and own.what is What.GPU is stands.what and self._options.gpu_class == _DEFAULTS.gpu_class:
            want = replace(want, device_class=own.device_class)
        return Ask(container, want, paths, resource, single)

    def _stands(self, resource: str, path: Path) -> Stands:
        meanings = self._meaning.meanings(resource, self._requirements, self._hints)
        if len(meanings) > 1:
            different = "; ".join(f"{_words(stands)} on {_some(titles)}" for stands, titles in meanings.items())
            self._notes.say(CONFLICTING_NODES, path, f"{resource} is {different}")
        if meanings:
            return max(meanings, key=lambda stands: len(meanings[stands]))
        if self._meaning.views:
            message = f"none of the given nodes and configurations has {resource} for this pod"
            self._notes.say(MEANING_UNKNOWN, path, message)
        elif resource == GPU_RESOURCE and self._hints == Hints():
            advice = "pass the device-plugin configuration with --with to be sure"
            message = f"{resource} is assumed to mean a whole GPU; {advice}"
            self._notes.say(MEANING_UNKNOWN, path, message)
        return _by_name(resource, self._hints)

    def _alone(self, stands: Stands) -> tuple[str, ...]:
        """Where some devices are shared, a condition for those that are not."""
        if not self._meaning.shares(stands.what):
            return ()
        self._notes.needs_claims.append(
            "some GPUs are shared, and extended resources do not distinguish them from others"
        )
        return (f"device.attributes[{quoted(self._options.driver)}].sharing == 'exclusive'",)

    def _share(self, stands: Stands, resource: str, number: int, path: Path) -> Want:
        sharing = stands.sharing or PluginSharing(None, None)
        self._notes.needs_claims.append("extended resources do not distinguish shares from whole devices")
        # No device has more shares than replicas, so these were of several.
        beyond = sharing.replicas is not None and number > sharing.replicas
        several = beyond or self._options.several_shares == "devices"
        if number > 1:
            why = f", because no device has more than {sharing.replicas}" * beyond
            how = f"{number} devices, a share of each{why}" if several else f"{number} shares of one device"
            refused = "; the device plugin refused more than one" if sharing.one_only else ""
            self._notes.say(SHARES_ABOVE_ONE, path, f"{resource}: {number} became {how}{refused}")
        count, shares = (number, 1) if several else (1, number)
        selectors: tuple[str, ...] = ()
        if sharing.strategy == "MPS":
            selectors = (f"device.attributes[{quoted(self._options.driver)}].sharing == 'mps'",)
        return Want(
            stands.what, count, stands.profile, DeviceShare(number=shares), selectors, distinct=several and number > 1
        )


def _by_name(resource: str, hints: Hints) -> Stands:
    """What the name alone says."""
    base = resource.removesuffix(".shared")
    sharing = None
    if base != resource or hints.shared:
        sharing = PluginSharing("MPS" if hints.mps else None, None, renamed=base != resource)
    if base != GPU_RESOURCE:
        return Stands(What.MIG, amounts_room.profile_of(base), sharing)
    if hints.mig_profile is not None or hints.mig_strategy == "single":
        return Stands(What.MIG, hints.mig_profile, sharing)
    return Stands(What.GPU, None, sharing)


def _words(stands: Stands) -> str:
    what = {What.GPU: "a whole GPU", What.MIG: f"a MIG device {stands.profile or ''}".rstrip()}[stands.what]
    if stands.sharing is None:
        return what
    return f"one of {stands.sharing.replicas or 'several'} shares of {what}"


def _some(titles: Sequence[str]) -> str:
    return and_more(titles, 2)


_GKE_SHARING = "cloud.google.com/gke-gpu-sharing-strategy"
_GKE_PROFILE = "cloud.google.com/gke-gpu-partition-size"


def with_clouds(hints: Hints, requirements: Iterable[Requirement]) -> Hints:
    """GKE's node pools say by labels of their own what `nvidia.com/gpu` is."""
    chosen: Mapping[str, str] = {
        requirement.key: requirement.values[0]
        for requirement in requirements
        if requirement.operator == "In" and len(requirement.values) == 1
    }
    if chosen.get(_GKE_PROFILE):
        hints = replace(hints, mig_profile=amounts_room.profile_of(chosen[_GKE_PROFILE]) or hints.mig_profile)
    if chosen.get(_GKE_SHARING) in ("time-sharing", "mps"):
        hints = replace(hints, shared=True, mps=chosen[_GKE_SHARING] == "mps")
    return hints
