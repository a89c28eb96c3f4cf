"""How the programs of a claim share a device: the `sharing` block of configs for GPUs and MIG devices.

`dra_driver.api.config` enters here for these two kinds. A claim's config and its class's make one together, so a
strategy and its settings may come from different configs; whether they fit is asked of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from dra_driver.api.fields import (
    Block,
    Choice,
    Field,
    Flag,
    Integer,
    Leaf,
    Memory,
    MemoryByDevice,
    Problems,
    Tree,
    listed,
    wrong,
)

type Strategy = Literal["TimeSlicing", "MPS"]
type Interval = Literal["Default", "Short", "Medium", "Long"]

_TIME_SLICING = Block(
    (
        Field(
            "interval",
            Choice(("Default", "Short", "Medium", "Long")),
            "How long a program runs before the next one has its turn. MIG devices have no such setting.",
            default="Default",
        ),
    )
)


def _mps(uuid_prefix: Literal["GPU", "MIG"]) -> Block:
    return Block(
        (
            Field(
                "defaultActiveThreadPercentage",
                Integer(0, 100),
                "Percent of the device's threads that each program can have. 0, or left out: no limit.",
            ),
            Field(
                "defaultPinnedDeviceMemoryLimit",
                Memory(),
                "Device memory that each program can have, on every device that the config is for: a quantity of at"
                " least 1Mi, rounded down to whole MiB. Left out: no limit.",
            ),
            Field(
                "defaultPerDevicePinnedMemoryLimit",
                MemoryByDevice(uuid_prefix),
                "The same for single devices: by index (in the claim's devices that the config is for, sorted by UUID),"
                " by UUID, or `*` for all others. Goes before defaultPinnedDeviceMemoryLimit.",
            ),
            Field(
                "multiUser",
                Flag(),
                "Programs of several users at once. Wants compute capability 7.0 (Volta) or newer.",
                default=False,
            ),
        )
    )


def sharing_block(uuid_prefix: Literal["GPU", "MIG"]) -> Block:
    strategy = Field(
        "strategy",
        Choice(("TimeSlicing", "MPS")),
        "How the programs that use the claim share the device. A claim may leave it to the config of its class.",
    )
    time_slicing = Field(
        "timeSlicingConfig", _TIME_SLICING, "Settings of strategy TimeSlicing.", only_with="TimeSlicing"
    )
    mps = Field("mpsConfig", _mps(uuid_prefix), "Settings of strategy MPS.", only_with="MPS")
    return Block((strategy, time_slicing, mps))


@dataclass(frozen=True, slots=True)
class TimeSlicing:
    interval: Interval = "Default"


@dataclass(frozen=True, slots=True)
class Mps:
    default_active_thread_percentage: int | None = None
    """1 to 100. None: no limit."""
    default_pinned_device_memory_limit: int | None = None
    """Bytes, whole MiB. None: no limit."""
    per_device: tuple[tuple[str, int], ...] = ()
    """Index in the sorted UUIDs of the devices that the config is for, UUID, or `*`, to bytes; sorted."""
    multi_user: bool = False

    @property
    def limited(self) -> bool:
        return bool(self.per_device) or not (
            self.default_active_thread_percentage is None and self.default_pinned_device_memory_limit is None
        )

    def memory_limits(self, uuids: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """Bytes by UUID, sorted, of the devices that have a limit; `uuids` are those of all devices
        of the claim that the config is for.

        A UUID goes before an index, an index before `*`, and `*` before the default for all.
        """
        limits = dict(self.per_device)
        found = []
        for index, uuid in enumerate(sorted(uuids)):
            keys = (uuid, str(index), "*")
            limit = next((limits[key] for key in keys if key in limits), self.default_pinned_device_memory_limit)
            if limit is not None:
                found.append((uuid, limit))
        return tuple(found)

    def strangers(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Keys of `per_device` that are none of these devices: no limit would be set for them, so they are refused."""
        known = {"*", *uuids, *(str(index) for index in range(len(uuids)))}
        return tuple(key for key, _ in self.per_device if key not in known)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the programs of a claim share its device. The block of the strategy is there, that of the other is not."""

    strategy: Strategy
    time_slicing: TimeSlicing | None = None
    mps: Mps | None = None


_BLOCK_OF: dict[Leaf, str] = {"TimeSlicing": "timeSlicingConfig", "MPS": "mpsConfig"}


@dataclass(frozen=True, slots=True)
class Written:
    """One config as somebody wrote it: right in itself, but maybe only a part of what applies. `field` is its path."""

    tree: Tree
    field: str


def without_strategy(configs: Sequence[Written]) -> Problems:
    problems: Problems = []
    sharings = [(config, sharing) for config in configs if (sharing := block_of(config.tree, "sharing")) is not None]
    if sharings and not any("strategy" in sharing for _, sharing in sharings):
        last, _ = sharings[-1]
        wrong(problems, f"{last.field}.sharing.strategy", f"is missing; must be one of {listed(map(str, _BLOCK_OF))}")
    return problems


def of_another_strategy(configs: Sequence[Written]) -> Problems:
    """Settings that belong to a strategy which is not the one at their level: nobody would obey them."""
    problems: Problems = []
    strategy, by = None, ""
    for config in configs:
        sharing = block_of(config.tree, "sharing") or {}
        if "strategy" in sharing:
            strategy, by = sharing["strategy"], config.field
        for other, block in _BLOCK_OF.items():
            if strategy is not None and other != strategy and block in sharing:
                where = "" if by == config.field else f" ({by}.sharing.strategy)"
                wrong(
                    problems,
                    f"{config.field}.sharing.{block}",
                    f"is for strategy `{other}`, but the strategy is `{strategy}`{where}; leave it out, or change the"
                    " strategy",
                )
    return problems


def sharing_of(tree: Tree) -> Sharing | None:
    sharing = block_of(tree, "sharing")
    if sharing is None:
        return None
    if sharing["strategy"] == "TimeSlicing":
        time_slicing = block_of(sharing, "timeSlicingConfig") or {}
        return Sharing("TimeSlicing", time_slicing=TimeSlicing(cast(Interval, time_slicing.get("interval", "Default"))))
    mps = block_of(sharing, "mpsConfig") or {}
    return Sharing(
        "MPS",
        mps=Mps(
            cast(int | None, mps.get("defaultActiveThreadPercentage")) or None,
            cast(int | None, mps.get("defaultPinnedDeviceMemoryLimit")),
            cast(tuple[tuple[str, int], ...], mps.get("defaultPerDevicePinnedMemoryLimit", ())),
            mps.get("multiUser") is True,
        ),
    )


def sharing_tree(sharing: Sharing | None) -> Tree:
    if sharing is None:
        return {}
    block: Tree = {}
    if sharing.time_slicing is not None:
        block["interval"] = sharing.time_slicing.interval
    if sharing.mps is not None:
        block = _mps_tree(sharing.mps)
    return {"sharing": {"strategy": sharing.strategy, _BLOCK_OF[sharing.strategy]: block}}


def _mps_tree(mps: Mps) -> Tree:
    tree: Tree = {"multiUser": mps.multi_user}
    if mps.default_active_thread_percentage is not None:
        tree["defaultActiveThreadPercentage"] = mps.default_active_thread_percentage
    if mps.default_pinned_device_memory_limit is not None:
        tree["defaultPinnedDeviceMemoryLimit"] = mps.default_pinned_device_memory_limit
    if mps.per_device:
        tree["defaultPerDevicePinnedMemoryLimit"] = mps.per_device
    return tree


def block_of(tree: Tree, name: str) -> Tree | None:
    """A block that was written, or None."""
    block = tree.get(name)
    return block if isinstance(block, dict) else None
