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
    held: dict[str, Holding] = {}
    for path in _listed(place.cdi):
        if path.name.startswith(".") or path.suffix != ".json":
            continue
        try:
            spec = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue  # removed since it was listed
        except ValueError:
            held[path.name] = frozenset({("unreadable", path.name)})
            continue
        edits = [spec.get("containerEdits") or {}, *(device["containerEdits"] for device in spec["devices"])]
        paths = [node["path"] for edit in edits for node in edit.get("deviceNodes") or ()]
        held[path.name] = _reached(paths, place.host, hardware)
    return held


def conflicts(place: Place, groups: Mapping[str, str]) -> list[str]:
    """Devices that two claims hold which may not have them together.

    `groups` by claim UID: claims of one group may share, those with ADMIN count for nobody, and for a claim that is not
    named the rule is the strictest.
    """
    held = [(name, _group(name, groups), what) for name, what in sorted(holdings(place).items())]
    return [
        f"{name} and {other} both hold {common}"
        for (name, mine, first), (other, yours, second) in combinations(held, 2)
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
    problems = [f"answered {cdi_id}, which no CDI file defines" for cdi_id in cdi_ids if cdi_id not in defined]
    return problems + [
        f"answered {cdi_id}, which mounts {missing[cdi_id]}: missing" for cdi_id in cdi_ids if cdi_id in missing
    ]


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
    states: dict[str, object] = {}
    for gpu in state["gpus"]:
        instances = [
            (
                instance["profile"],
                instance["start"],
                sorted((ci["profile"], ci["start"]) for ci in instance["compute_instances"]),
            )
            for instance in gpu["instances"]
        ]
        states[gpu["uuid"]] = {
            "compute mode": gpu["compute_mode"],
            "time slice": gpu["time_slice"],
            "MIG mode": (gpu["mig"]["current"], gpu["mig"]["pending"]) if gpu["mig"] else None,
            "MIG instances": sorted(instances),
            "kernel driver": gpu["bound_to"],
            "persistent": bool(gpu["persistenced"] or gpu["persistence_mode"]),
            "clients": sorted((client["kind"], client["name"]) for client in gpu["clients"]),
        }
    return states


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
    problems = [f"CDI folder has {path.name}" for path in _listed(place.cdi)]
    temporary = [path for path in place.state.rglob("*") if path.name.endswith(".tmp") or path.name.startswith(".")]
    problems += [f"temporary file {path.relative_to(place.state)}" for path in temporary]
    problems += [f"device metadata {path.name}" for path in _listed(place.state / "dra-device-metadata")]
    problems += [f"MPS folder {path.name}" for path in _listed(place.state / "mps")]
    now = standing(place)
    if now.keys() != start.keys():
        problems.append(f"GPUs {sorted(start)} became {sorted(now)}")
    for uuid in sorted(now.keys() & start.keys()):
        was, is_now = start[uuid], now[uuid]
        assert isinstance(was, dict) and isinstance(is_now, dict)
        problems += [
            f"{name} of {uuid} was {was[name]} and is {is_now[name]}" for name in was if was[name] != is_now[name]
        ]
    return problems


def daemons(place: Place) -> list[int]:
    """Processes whose pipes of MPS are in the node's state folder."""
    pids = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(variable.startswith(f"CUDA_MPS_PIPE_DIRECTORY={place.state}/".encode()) for variable in environment):
                pids.append(int(process.name))
    return pids


def _common(mine: Holding, yours: Holding) -> list[tuple[str, ...]]:
    """A whole GPU also holds what is made of it, by whatever way a container reaches it."""
    common = sorted(mine & yours)
    for whole, parts in ((mine, yours), (yours, mine)):
        gpus = {what[1] for what in whole if what[0] == "gpu"}
        common += sorted(what for what in parts if what[0] == "mig" and what[1] in gpus)
    return common


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
    reached: set[tuple[str, ...]] = set()
    gpus: set[str] = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder == "/dev" and name.removeprefix("nvidia").isdecimal():
            minor = int(name.removeprefix("nvidia"))
            gpus.add(hardware.addresses.get(minor, path))
        elif folder == "/dev/nvidia-caps":
            reached.add(hardware.instances.get(int(name.removeprefix("nvidia-cap")), ("nothing", path)))
        elif folder == "/dev/nvidia-caps-imex-channels":
            reached.add(("channel", name))
        elif folder == "/dev/vfio" and name.isdecimal():
            group = host / "sys/kernel/iommu_groups" / name / "devices"
            reached |= {("gpu", device.name) for device in _listed(group)} or {("nothing", path)}
        elif folder == "/dev/vfio/devices":
            device = host / "sys/class/vfio-dev" / name / "device"
            reached.add(("gpu", device.resolve().name) if device.exists() else ("nothing", path))
    # A GPU instance counts through its compute instances, and a GPU through its instances.
    divided = {what[1] for what in reached if what[0] == "mig"}
    reached = {what for what in reached if what[0] != "mig" or what[3]}
    return frozenset(reached | {("gpu", address) for address in gpus - divided})


def _identities(folder: Path) -> list[tuple[str, int, int]]:
    identities = []
    for path in _listed(folder):
        if not path.name.startswith("."):
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            identities.append((path.name, facts.st_ino, facts.st_mtime_ns))
    return identities


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
