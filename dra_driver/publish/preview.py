"""What policies would change: devices that appear, vanish and change, and GPUs that would wait. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_driver.api.gpu_settings import NodePolicy, WaitingGpu
from dra_driver.api.gpupolicy import GpuPolicy, combined
from dra_driver.api.inventory import Limitation, NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy, rules_of
from dra_driver.api.resource import Device, ResourceClaim
from dra_driver.devices.limitations import limitations_of
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.decisions import Users, after_mode_changes, decided, kind_of, settled, with_mode_changes
from dra_driver.slices.features import ServerFeatures
from dra_driver.slices.offline import DRIVERS


@dataclass(frozen=True, slots=True)
class NodePreview:
    """Devices by name, with their kind: `gpu`, `mig`, `vfio`, with `-share` for those that several claims can have."""

    node: str
    appear: Mapping[str, str]
    vanish: Mapping[str, str]
    change: Mapping[str, str]
    """They stay, with other attributes or amounts."""
    waiting: tuple[WaitingGpu, ...]
    """GPUs that change when the claims that use them are gone, or their MIG mode is switched."""
    not_followed: tuple[Limitation, ...]
    policies: frozenset[str] = frozenset()
    """Names of those that select a GPU of the node."""

    @property
    def changes(self) -> bool:
        return bool(self.appear or self.vanish or self.change)


def preview(
    inventory: NodeInventorySpec,
    now: NodePolicy | None,
    labels: Mapping[str, str],
    before: Iterable[GpuPolicy],
    after: Iterable[GpuPolicy],
    users: Users,
    features: ServerFeatures,
) -> NodePreview:
    """For one node. `now` is what holds for it; None: what the policies of `before` say. Lists devices as they will be
    when no claim uses them, and MIG modes are switched; `waiting` is what that delays."""
    before, after = list(before), list(after)
    held = now or decided(combined(before), before, inventory, labels)
    wanted = decided(combined(after), after, inventory, labels)
    later = after_mode_changes(inventory, with_mode_changes(wanted, inventory, {}))
    will, limitations = _published(later, rules_of(wanted), features)
    fields = ("publish", "channels", "health", "gpus")
    same = later is inventory and all(getattr(held, name) == getattr(wanted, name) for name in fields)
    have = will if same else _published(inventory, rules_of(held), features)[0]
    return NodePreview(
        inventory.node_name,
        {name: kind_of(device) for name, device in will.items() if name not in have},
        {name: kind_of(device) for name, device in have.items() if name not in will},
        {name: kind_of(device) for name, device in will.items() if name in have and have[name] != device},
        tuple(with_mode_changes(settled(held, wanted, inventory, users), inventory, users).waiting),
        limitations,
        frozenset(name for decisions in wanted.gpus for name in decisions.policies),
    )


def _published(
    inventory: NodeInventorySpec, rules: PublishingPolicy, features: ServerFeatures
) -> tuple[dict[str, Device], tuple[Limitation, ...]]:
    devices: dict[str, Device] = {}
    limitations: list[Limitation] = []
    for driver, describe in DRIVERS:
        description = describe(inventory, rules, {}, driver, features)
        devices |= {device.name: device for device in description.devices}
        limitations += limitations_of(description.notes, rules, driver, inventory.node_name)
    return devices, tuple(limitation for limitation in limitations if limitation.rule is not None)


def counted(kinds: Iterable[str]) -> str:
    """`8 gpu, 56 mig`."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items()))


def users_by_node(claims: Iterable[ResourceClaim]) -> dict[str, dict[str, list[str]]]:
    """Which claims have which GPU devices, by the node, which is the pool. Admin access holds no device."""
    users: dict[str, dict[str, list[str]]] = {}
    for claim in claims:
        for result in claim.results_of(GPU_DRIVER):
            if not result.admin_access:
                users.setdefault(result.pool, {}).setdefault(result.device, []).append(str(claim))
    return users
