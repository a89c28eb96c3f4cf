"""Judges a node by its CDI files and its hardware alone: no device in two hands, nothing left behind, answers kept.

It imports nothing of the product, which a test holds it to: what it knows of device nodes is written down here once
more. The simulated hardware is the node's files: `sim/state.json`, /proc and /sys below its root.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

type Holding = frozenset[tuple[str, ...]]
"""What a container can reach: ("gpu", PCI address), ("mig", PCI address, gi, ci), ("channel", number)."""

SHARED = "shared"
ADMIN = "admin"


@dataclass(frozen=True)
class Place:
    """The folders of one node."""

    cdi: Path
    state: Path
    host: Path


def holdings(place: Place) -> dict[str, Holding]:
    """What each claim's CDI files give, by file name. A file that cannot be read gives what nobody may have."""
    hardware = _hardware(place)
    found: dict[str, Holding] = {}
    for path in _listed(place.cdi):
        if path.name.startswith(".") or path.suffix != ".json":
            continue
        try:
            spec = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue  # removed since it was listed
        except ValueError:
            found[path.name] = frozenset({("unreadable", path.name)})
            continue
        edits = [spec.get("containerEdits") or {}, *(one["containerEdits"] for one in spec["devices"])]
        paths = [node["path"] for edit in edits for node in edit.get("deviceNodes") or ()]
        found[path.name] = _reached(paths, place.host, hardware)
    return found


def conflicts(place: Place, groups: Mapping[str, str]) -> list[str]:
    """Devices that two claims hold which may not have them together.

    `groups` by claim UID: claims of one group may share, those with ADMIN count for nobody, and for a claim that is not
    named the rule is the strictest.
    """
    held = [(name, _group(name, groups), what) for name, what in sorted(holdings(place).items())]
    return [
        f"{one} and {other} both hold {common}"
        for (one, mine, first), (other, yours, second) in combinations(held, 2)
        if ADMIN not in (mine, yours) and mine != yours
        for common in _common(first, second)
    ]


def unkept(place: Place, cdi_ids: Sequence[str]) -> list[str]:
    """CDI devices that an answer names and no file defines, or that mount a file of the plugin that is not there."""
    defined = set()
    missing: dict[str, str] = {}
    for path in _listed(place.cdi):
        if path.suffix == ".json" and not path.name.startswith("."):
            try:
                spec = json.loads(path.read_bytes())
            except (FileNotFoundError, ValueError):
                continue
            for device in spec["devices"]:
                name = f"{spec['kind']}={device['name']}"
                defined.add(name)
                for mount in device["containerEdits"].get("mounts") or ():
                    if mount["hostPath"].startswith(f"{place.state}/") and not Path(mount["hostPath"]).exists():
                        missing[name] = mount["hostPath"]
    found = [f"answered {one}, which no CDI file defines" for one in cdi_ids if one not in defined]
    return found + [f"answered {one}, which mounts {missing[one]}: missing" for one in cdi_ids if one in missing]


def phantoms(place: Place) -> list[str]:
    """Device nodes in CDI files that no hardware stands behind."""
    return [
        f"{name} names {what[1]}, which does not exist"
        for name, holding in sorted(holdings(place).items())
        for what in sorted(holding)
        if what[0] in ("nothing", "unreadable")
    ]


def standing(place: Place) -> dict[str, object]:
    """How the hardware stands, in what claims change of it; equal before the first claim and after the last."""
    state = json.loads((place.host / "sim" / "state.json").read_bytes())
    found: dict[str, object] = {}
    for gpu in state["gpus"]:
        instances = [
            (one["profile"], one["start"], sorted((ci["profile"], ci["start"]) for ci in one["compute_instances"]))
            for one in gpu["instances"]
        ]
        found[gpu["uuid"]] = {
            "compute mode": gpu["compute_mode"],
            "time slice": gpu["time_slice"],
            "MIG mode": (gpu["mig"]["current"], gpu["mig"]["pending"]) if gpu["mig"] else None,
            "MIG instances": sorted(instances),
            "kernel driver": gpu["bound_to"],
            "persistent": bool(gpu["persistenced"] or gpu["persistence_mode"]),
            "clients": sorted((client["kind"], client["name"]) for client in gpu["clients"]),
        }
    return found


class ModeWitness:
    """Of GPUs whose MIG mode is switched by a reset: that none is while a claim has the GPU.

    `look` is called often enough to see each mode: one that is switched and back between two looks is missed.
    """

    def __init__(self, uuids: Collection[str]) -> None:
        self._uuids = uuids
        self._seen: dict[tuple[str, int, int], Mapping[str, tuple[int, int]]] = {}
        """By a CDI file's name, inode and time: the modes when it was seen first."""
        self._last: Mapping[str, tuple[int, int]] = {}
        self._judged: object = None
        """The files as they were when a look found all in order."""
        self.switches = 0

    def look(self, place: Place) -> list[str]:
        files = _identities(place.cdi)
        facts = (place.host / "sim" / "state.json").stat()
        looked_at = files, facts.st_ino, facts.st_mtime_ns
        if looked_at == self._judged:
            return []
        before = self._modes(place)
        held = holdings(place)
        there = [file for file in _identities(place.cdi) if file in files]
        after = self._modes(place)
        self._seen = {file: self._seen.get(file, after) for file in there}
        self.switches += sum(self._last.get(address, mode)[0] != mode[0] for address, mode in after.items())
        self._last = after
        if before != after:
            return []  # it is being switched, as the next look sees
        problems = []
        for file in there:
            for address in sorted({what[1] for what in held.get(file[0], ()) if what[0] in ("gpu", "mig")}):
                was, now = self._seen[file].get(address), after.get(address)
                if was != now:
                    problems.append(f"MIG mode of {address} became {now} while {file[0]} holds it")
                if now is not None and now[0] != now[1]:
                    problems.append(f"{file[0]} holds {address} while its MIG mode is being switched: {now}")
        self._judged = None if problems else looked_at
        return problems

    def _modes(self, place: Place) -> dict[str, tuple[int, int]]:
        """Current and pending, by PCI address."""
        state = json.loads((place.host / "sim" / "state.json").read_bytes())
        gpus = [gpu for gpu in state["gpus"] if gpu["uuid"] in self._uuids]
        return {gpu["address"]: (gpu["mig"]["current"], gpu["mig"]["pending"]) for gpu in gpus}


def in_mode(start: Mapping[str, object], uuids: Collection[str], *, on: bool) -> dict[str, object]:
    """`start` with the MIG mode of these GPUs switched."""
    expected = dict(start)
    for uuid in uuids:
        known = expected[uuid]
        assert isinstance(known, dict)
        expected[uuid] = known | {"MIG mode": (int(on), int(on))}
    return expected


def leftovers(place: Place, start: Mapping[str, object]) -> list[str]:
    """Files and hardware that are not as at the start though no claim is there any more. See also `daemons`."""
    found = [f"CDI folder has {path.name}" for path in _listed(place.cdi)]
    temporary = [path for path in place.state.rglob("*") if path.name.endswith(".tmp") or path.name.startswith(".")]
    found += [f"temporary file {path.relative_to(place.state)}" for path in temporary]
    found += [f"device metadata {path.name}" for path in _listed(place.state / "dra-device-metadata")]
    found += [f"MPS folder {path.name}" for path in _listed(place.state / "mps")]
    now = standing(place)
    if now.keys() != start.keys():
        found.append(f"GPUs {sorted(start)} became {sorted(now)}")
    for uuid in sorted(now.keys() & start.keys()):
        was, is_now = start[uuid], now[uuid]
        assert isinstance(was, dict) and isinstance(is_now, dict)
        found += [
            f"{name} of {uuid} was {was[name]} and is {is_now[name]}" for name in was if was[name] != is_now[name]
        ]
    return found


def daemons(place: Place) -> list[int]:
    """Processes whose pipes of MPS are in the node's state folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(one.startswith(f"CUDA_MPS_PIPE_DIRECTORY={place.state}/".encode()) for one in environment):
                found.append(int(process.name))
    return found


def _common(one: Holding, other: Holding) -> list[tuple[str, ...]]:
    """A whole GPU also holds what is made of it, by whatever way a container reaches it."""
    found = sorted(one & other)
    for whole, parts in ((one, other), (other, one)):
        gpus = {what[1] for what in whole if what[0] == "gpu"}
        found += sorted(what for what in parts if what[0] == "mig" and what[1] in gpus)
    return found


def _group(name: str, groups: Mapping[str, str]) -> str:
    return next((group for uid, group in groups.items() if uid in name), name)


@dataclass(frozen=True)
class _Hardware:
    addresses: Mapping[int, str]
    """By minor number."""
    instances: Mapping[int, tuple[str, ...]]
    """("mig", PCI address, gi, ci) by minor number of its capability; of a GPU instance, ci is empty."""


def _hardware(place: Place) -> _Hardware:
    state = json.loads((place.host / "sim" / "state.json").read_bytes())
    addresses = {gpu["minor"]: gpu["address"] for gpu in state["gpus"]}
    instances = {}
    capabilities = place.host / "proc/driver/nvidia/capabilities"
    for access in capabilities.glob("gpu*/mig/gi*/**/access"):
        parts = access.relative_to(capabilities).parts
        try:
            text = access.read_text()
        except OSError:
            continue  # destroyed since it was listed
        if "DeviceFileMinor:" not in text:
            continue  # it is being made
        minor = int(text.split("DeviceFileMinor:")[1].split()[0])
        gi, ci = parts[2], parts[3] if len(parts) > 4 else ""
        instances[minor] = ("mig", addresses[int(parts[0].removeprefix("gpu"))], gi, ci)
    return _Hardware(addresses, instances)


def _reached(paths: Sequence[str], host: Path, hardware: _Hardware) -> Holding:
    found: set[tuple[str, ...]] = set()
    gpus: set[str] = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder == "/dev" and name.removeprefix("nvidia").isdecimal():
            minor = int(name.removeprefix("nvidia"))
            gpus.add(hardware.addresses.get(minor, path))
        elif folder == "/dev/nvidia-caps":
            found.add(hardware.instances.get(int(name.removeprefix("nvidia-cap")), ("nothing", path)))
        elif folder == "/dev/nvidia-caps-imex-channels":
            found.add(("channel", name))
        elif folder == "/dev/vfio" and name.isdecimal():
            group = host / "sys/kernel/iommu_groups" / name / "devices"
            found |= {("gpu", device.name) for device in _listed(group)} or {("nothing", path)}
        elif folder == "/dev/vfio/devices":
            device = host / "sys/class/vfio-dev" / name / "device"
            found.add(("gpu", device.resolve().name) if device.exists() else ("nothing", path))
    # A GPU instance counts through its compute instances, and a GPU through its instances.
    divided = {what[1] for what in found if what[0] == "mig"}
    found = {what for what in found if what[0] != "mig" or what[3]}
    return frozenset(found | {("gpu", one) for one in gpus - divided})


def _identities(folder: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in _listed(folder):
        if not path.name.startswith("."):
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            found.append((path.name, facts.st_ino, facts.st_mtime_ns))
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
