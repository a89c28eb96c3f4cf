"""What happens in one sequence of the campaign, as data made from a seed: claims come and go while things fail.

Pure. `sequence` is what `campaign.run` carries out; the same seed and devices give the same steps. Each fault is a step
of its own, so a failing sequence is made smaller by leaving steps out.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from campaign.oracle import ADMIN, SHARED

type Kind = Literal["gpu", "mig", "vfio", "share", "channel"]


@dataclass(frozen=True)
class Layout:
    """One kind of node. `roles` are of its GPUs, by index: what the policy offers of each. The MIG mode of a `changing`
    GPU is switched by a reset while a policy of its own is there, and back after that."""

    profile: str
    roles: tuple[str, ...]
    channels: int = 0


LAYOUTS = {
    "hopper": Layout("h200-nvl", ("plain", "dynamic", "mps", "passthrough")),
    "ampere": Layout("a100-pcie-80", ("changing", "static", "changing", "passthrough")),
    "blackwell": Layout("gb200", ("plain", "dynamic", "mps", "slices"), channels=4),
}


def policy_of(layout: Layout, names: Sequence[str]) -> dict[str, Any]:
    """The PublishingPolicy for GPUs of these published names, by index."""

    def of(role: str) -> list[dict[str, Any]]:
        chosen = [name for name, own in zip(names, layout.roles, strict=True) if own == role]
        return [{"gpus": {"names": chosen}}] if chosen else []

    mps = [{**rule, "strategy": "MPS", "capacity": ["memory", "cores"]} for rule in of("mps")]
    slices = [{**rule, "strategy": "TimeSlicing", "replicas": 4, "interval": "Long"} for rule in of("slices")]
    domains = [{"channels": layout.channels}] if layout.channels else []
    return {
        "apiVersion": "dra.gpu/v1alpha1",
        "kind": "PublishingPolicy",
        "mig": [{**rule, "mode": "Dynamic"} for rule in of("dynamic")],
        "sharing": [*mps, *slices],
        "passthrough": of("passthrough"),
        "computeDomains": domains,
    }


@dataclass(frozen=True)
class Device:
    """What can be allocated. `uses` is the part of each counter that it takes; no counter has more than 1 to give."""

    name: str
    kind: Kind
    uses: Mapping[str, float]
    consumed: Mapping[str, str] = field(default_factory=dict)
    """Of a share: what a claim takes of it."""
    binds: bool = False
    """Whether it is published with binding conditions."""
    mode: bool | None = None
    """Of a changing GPU: whether it is offered while the MIG mode is on, or while it is off. None: always."""


@dataclass(frozen=True)
class Step:
    do: str
    args: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.do} {', '.join(f'{name}={value}' for name, value in self.args.items())}".strip()


@dataclass(frozen=True)
class Sequence_:
    seed: int
    layout: str
    steps: tuple[Step, ...]

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Sequence_":
        return cls(data["seed"], data["layout"], tuple(Step(**step) for step in data["steps"]))


LONG = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}
LIMITED = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
CONFIGS: Mapping[Kind, Sequence[dict[str, Any] | None]] = {
    "gpu": (None, None, LONG, {"kind": "GpuConfig", "sharing": LIMITED}),
    "mig": (None, None, None, {"kind": "MigDeviceConfig", "sharing": LIMITED}),
    "vfio": (None,),
    "share": (None,),
    "channel": (None,),
}

POLICIES: Sequence[dict[str, Any]] = (
    {"publish": False},
    {"attributes": {"campaign": {"bool": True}}},
    {"sharing": [{"strategy": "TimeSlicing", "unlimited": True}]},
    {"mig": {"mode": "Static"}},
    {"passthrough": False},
    {"health": {"evict": True}},
)
"""Of a GpuPolicy for all GPUs. Whatever it says, a claim gets the device that it was allocated, and keeps it."""

NVML_CALLS = (
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
)
NVML_CODES = (1, 2, 3, 4, 6, 10, 15, 16, 19, 999)
"""Uninitialized, invalid argument, not supported, no permission, not found, timeout, lost, reset required, in use,
unknown."""
_NOT_SUPPORTED = 3

_FAULTS = {
    "kill": 8,
    "kill in": 12,
    "stop": 4,
    "roll": 6,
    "reboot": 5,
    "damage": 4,
    "disk": 9,
    "api": 14,
    "rotate": 3,
    "nvml": 16,
    "hang": 3,
    "lose": 4,
    "busy": 3,
    "clock": 4,
    "controller": 2,
    "policy": 8,
    "modes": 20,
}
"""How often each is drawn, in proportion; `modes` only where a GPU is `changing`."""


def sequence(seed: int, layout: str, devices: Sequence[Device]) -> Sequence_:
    author = _Author(random.Random(seed), devices, changing="changing" in LAYOUTS[layout].roles)
    return Sequence_(seed, layout, tuple(author.steps()))


class _Author:
    def __init__(self, rng: random.Random, devices: Sequence[Device], *, changing: bool) -> None:
        self._rng = rng
        self._devices = list(devices)
        self._changing = changing
        self._modes_on = False
        self._live: dict[int, list[Device]] = {}
        """Claims that are allocated, with their devices."""
        self._movable: dict[int, list[Device]] = {}
        """Claims that may wait for their node, with the devices that they had first."""
        self._asked: set[int] = set()
        """Claims that kubelet wants prepared."""
        self._number = 0

    def steps(self) -> list[Step]:
        rng = self._rng
        steps = self._modes() if self._changing and rng.random() < 0.6 else []
        steps += self._claim()
        faults = rng.choices((0, 1, 2, 3), (10, 50, 30, 10))[0]
        length = rng.randint(3, 8)
        when = sorted(rng.randrange(length) for _ in range(faults))
        for position in range(length):
            for _ in range(when.count(position)):
                steps += self._fault()
            steps += self._work()
        return steps

    def _work(self) -> list[Step]:
        rng = self._rng
        what = rng.choices(("claim", "prepare", "unprepare", "forget", "move", "wait"), (5, 10, 5, 2, 3, 1))[0]
        if what == "claim" and len(self._live) < 4:
            return self._claim()
        if what == "unprepare" and self._asked:
            chosen = self._some(self._asked)
            self._asked -= set(chosen)
            return [Step("unprepare", {"claims": chosen, **self._waiting()})]
        if what == "forget" and self._live:
            (gone,) = rng.sample(sorted(self._live), 1)
            devices = self._live.pop(gone)
            self._movable.pop(gone, None)
            thief = self._claim(devices) if rng.random() < 0.7 else []
            return [Step("forget", {"claim": gone}), *thief]
        if what == "move" and self._movable.keys() - self._asked:
            return self._move(*rng.sample(sorted(self._movable.keys() - self._asked), 1))
        if what == "wait":
            longest_s = 2.5 if rng.random() < 0.15 else 0.2
            return [Step("wait", {"seconds": round(rng.uniform(0.02, longest_s), 3)})]
        if self._live:
            chosen = self._some(self._live)
            self._asked |= set(chosen)
            return [Step("prepare", {"claims": chosen, **self._waiting()})]
        return self._claim()

    def _some(self, claims: "set[int] | dict[int, Any]") -> list[int]:
        return sorted(self._rng.sample(sorted(claims), self._rng.randint(1, min(3, len(claims)))))

    def _waiting(self) -> dict[str, Any]:
        """Whether the next step waits for the answer, and when kubelet gives up."""
        if self._rng.random() < 0.65:
            return {}
        return {"goes_on_after": round(self._rng.choice((0.0, 0.005, 0.02, 0.1)), 3)}

    def _free(self) -> list[Device]:
        """Mostly of what is offered if all modes are as the policy says, which is not known here."""
        live = [device for devices in self._live.values() for device in devices]
        modes = (None, self._modes_on) if self._rng.random() < 0.9 else (None, True, False)
        return [
            device
            for device in self._devices
            if device.mode in modes and (device.kind == "share" or fits(device, live))
        ]

    def _move(self, number: int) -> list[Step]:
        """The scheduler took the claim from its node, and gives it other devices there, or another node's."""
        rng = self._rng
        before = self._live.pop(number, [])
        devices: list[Device] = []
        for first in self._movable[number] if rng.random() < 0.7 else ():
            free = [device for device in self._free() if device.kind == first.kind and fits(device, devices)]
            devices += [rng.choice(free)] if free else []
        if len(devices) == len(self._movable[number]):
            self._live[number] = devices
        else:
            devices = []
        thief = self._claim(before) if before and rng.random() < 0.5 and self._fit(before) else []
        return [Step("move", {"claim": number, "devices": [_plain(device) for device in devices]}), *thief]

    def _fit(self, devices: Sequence[Device]) -> bool:
        live = [device for others in self._live.values() for device in others]
        return all(device.kind == "share" or fits(device, live) for device in devices)

    def _modes(self) -> list[Step]:
        rng = self._rng
        resets = "nvidia-smi" if rng.random() < 0.2 else "nvml"
        waits_s = rng.choice((0.0, 0.3, 0.6, 2.0, 2.0))
        self._modes_on = not self._modes_on if rng.random() < 0.8 else self._modes_on
        return [Step("modes", {"on": self._modes_on, "resets": resets, "waits_s": waits_s})]

    def _claim(self, wanted: Sequence[Device] = ()) -> list[Step]:
        rng = self._rng
        live = [device for devices in self._live.values() for device in devices]
        free = self._free()
        if not free and not wanted:
            return []
        # By kind first, or the many partitions would be nearly all.
        kind = rng.choice(sorted({device.kind for device in free})) if free else "gpu"
        kind = "mig" if kind == "vfio" and rng.random() < 0.6 and any(device.kind == "mig" for device in free) else kind
        chosen = list(wanted) or [rng.choice([device for device in free if device.kind == kind])]
        rest = [device for device in free if device.kind in ("gpu", "mig") and fits(device, [*live, *chosen])]
        if chosen[0].kind in ("gpu", "mig") and rest and not wanted and rng.random() < 0.2:
            chosen.append(rng.choice(rest))
        number, self._number = self._number, self._number + 1
        admin = chosen[0].kind in ("gpu", "mig") and rng.random() < 0.08
        config = None if admin else rng.choice(CONFIGS[chosen[0].kind])
        self._live[number] = [] if admin else chosen
        # A claim that was allocated before the gate was on has no binding conditions.
        binds = any(device.binds for device in chosen) and rng.random() < 0.8
        if binds and not admin:
            self._movable[number] = chosen
        args = {
            "claim": number,
            "devices": [_plain(device) for device in chosen],
            "config": config,
            "admin": admin,
            "domain": rng.randrange(2),
            "binds": binds,
        }
        return [Step("claim", args)]

    def _fault(self) -> list[Step]:
        rng = self._rng
        kinds = {kind: weight for kind, weight in _FAULTS.items() if kind != "modes" or self._changing}
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        gpu = rng.randrange(4)
        match kind:
            case "kill in":
                return [Step("kill in", {"changes": rng.randint(1, 14)})]
            case "disk":
                folder = rng.choice(("cdi", "state"))
                return [Step("disk", {"folder": folder, "error": rng.choice(("ENOSPC", "EROFS", "EIO"))})]
            case "damage":
                file = rng.choice(("claims.journal", "holds.log"))
                return [Step("damage", {"file": file, "how": rng.choice(("lose", "halve", "zero", "flip"))})]
            case "api":
                return [Step("api", {"mode": rng.choice(("down", "slow", "429", "500", "garbage"))})]
            case "nvml":
                times = rng.choice((1, 1, 2, 5, None))
                call, code = rng.choice(NVML_CALLS), rng.choice(NVML_CODES)
                if call == "nvmlDeviceSetMigMode" and code == _NOT_SUPPORTED:
                    code = 999  # what a machine cannot do is not tried again
                return [Step("nvml", {"gpu": gpu, "call": call, "code": code, "times": times})]
            case "hang":
                call, delay_s = rng.choice(NVML_CALLS), round(rng.uniform(0.2, 2.0), 2)
                return [Step("hang", {"gpu": gpu, "call": call, "delay_s": delay_s})]
            case "lose":
                return [Step("lose", {"gpu": gpu, "code": rng.choice((15, 16, 999))})]
            case "busy":
                return [Step("busy", {"gpu": gpu})]
            case "clock":
                return [Step("clock", {"offset_s": rng.choice((-86400 * 400, -3600, 3600, 86400 * 400))})]
            case "policy":
                return [Step("policy", {"spec": rng.choice(POLICIES)})]
            case "modes":
                return self._modes()
            case "reboot":
                return [Step("reboot", {"renumber": rng.random() < 0.3})]
            case _:
                return [Step(kind)]


def _plain(device: Device) -> dict[str, Any]:
    return {"name": device.name, "kind": device.kind, "consumed": dict(device.consumed), "binds": device.binds}


def fits(device: Device, others: Sequence[Device]) -> bool:
    """Beside these: what counters the scheduler compares."""
    return all(
        part + sum(other.uses.get(counter, 0.0) for other in others) < 1 + 1e-9 for counter, part in device.uses.items()
    )


def group_of(claim_uid: str, args: Mapping[str, Any], domains: Sequence[str]) -> str:
    """Who a claim may share its devices with, as the oracle wants it."""
    if args["admin"]:
        return ADMIN
    kind: Kind = args["devices"][0]["kind"]
    if kind == "channel":
        return domains[int(args["domain"])]
    return SHARED if kind == "share" else claim_uid
