"""Compares what nvidia-smi prints for people with NVML's answers. Pure.

NVIDIA promises no format, so a line that is not understood counts as a difference instead of being dropped.
Source: outputs in NVIDIA's MIG user guide and in public issues, of drivers 450 to 590.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.api.inventory import GpuFacts, MigProfileFacts

_GPU = re.compile(r"GPU (?P<number>\d+): (?P<name>.*) \(UUID: (?P<uuid>GPU-[0-9a-f-]+)\)\s*")
_MIG = re.compile(r"\s+MIG \S+\s+Device\s+\d+:\s+\(UUID: (?P<uuid>MIG-[^)]+)\)\s*")
_PLACEMENTS = re.compile(
    r"GPU\s+(?P<gpu>\d+) Profile ID\s+(?P<id>\d+) Placements?\s*:"
    r"\s*\{(?P<starts>[\d,\s]*)\}:(?P<size>\d+)(\s+MIG \S+)?\s*"
)
_PROFILE = re.compile(
    r"\|\s+(?P<gpu>\d+)\s+MIG (?P<name>\S+)\s+(?P<id>\d+)\s+\d+/(?P<total>\d+)\s+(?P<gib>\d+\.\d+)\s+\S+"
    r"\s+(?P<sm>\d+)\s+(?P<dec>\d+)\s+(?P<enc>\d+)\s*\|\s*"
)
_ENGINES = re.compile(r"\|\s+(?P<ce>\d+)\s+(?P<jpeg>\d+)\s+(?P<ofa>\d+)\s*\|\s*")
_DECORATION = re.compile(r"[+|=\-\s]*|\|[^|]*(GPU instance profiles:|Name\s+ID|Free/Total)[^|]*\|\s*")
_SLICE = re.compile(r"\btimeslice\b.*?\b(?P<word>default|short|medium|long)\b", re.IGNORECASE)
_ROUNDED = 0.0101
"""nvidia-smi rounds GiB to hundredths."""


@dataclass(frozen=True, slots=True, order=True)
class MigProfileOf:
    """A MIG profile of a GPU, by nvidia-smi's number of the GPU."""

    gpu: int
    profile: int

    def __str__(self) -> str:
        return f"MIG profile {self.profile} of GPU {self.gpu}"


type Rows[K] = dict[K, dict[str, object]]
"""Values by name, by what they are about."""


@dataclass(frozen=True, slots=True)
class SmiListing[K: (str, MigProfileOf)]:
    """`strange` are lines that are not understood."""

    rows: Rows[K]
    strange: tuple[str, ...] = ()


def gpu_list(text: str) -> SmiListing[str]:
    """`nvidia-smi -L`: GPUs and MIG devices by UUID."""
    rows: Rows[str] = {}
    strange = []
    for line in filter(str.strip, text.splitlines()):
        if gpu := _GPU.fullmatch(line):
            rows[gpu["uuid"]] = {"name": gpu["name"]}
        elif rows and (mig := _MIG.fullmatch(line)):
            rows[mig["uuid"]] = {}
        else:
            strange.append(line.strip())
    return SmiListing(rows, tuple(strange))


def list_differences(gpus: Sequence[GpuFacts], listed: SmiListing[str]) -> tuple[str, ...]:
    ours: Rows[str] = {gpu.uuid: {"name": gpu.product_name} for gpu in gpus}
    ours |= {device.uuid: {} for gpu in gpus for device in gpu.mig_devices}
    return tuple(_differences(ours, listed))


def profile_list(profiles: str, placements: str) -> SmiListing[MigProfileOf]:
    """`nvidia-smi mig -lgip`, in which a profile has two lines, and `-lgipp`."""
    rows: Rows[MigProfileOf] = {}
    strange = []
    first: re.Match[str] | None = None
    for line in profiles.splitlines():
        if head := _PROFILE.fullmatch(line):
            first = head
        elif first is not None and (rest := _ENGINES.fullmatch(line)):
            rows[MigProfileOf(int(first["gpu"]), int(first["id"]))] = {
                "name": first["name"],
                "instances": int(first["total"]),
                "GiB": float(first["gib"]),
                **{name.upper(): int(first[name]) for name in ("sm", "dec", "enc")},
                **{name.upper(): int(rest[name]) for name in ("ce", "jpeg", "ofa")},
            }
            first = None
        elif not _DECORATION.fullmatch(line):
            strange.append(line.strip())
    for line in filter(str.strip, placements.splitlines()):
        if match := _PLACEMENTS.fullmatch(line):
            starts = sorted(int(start) for start in match["starts"].split(",") if start.strip())
            row = rows.setdefault(MigProfileOf(int(match["gpu"]), int(match["id"])), {})
            row["placements"] = _places(starts, int(match["size"]))
        else:
            strange.append(line.strip())
    return SmiListing(rows, tuple(strange))


def _places(starts: Sequence[int], size: int) -> str:
    return f"{{{','.join(map(str, starts))}}}:{size}"


def profile_differences(gpus: Sequence[GpuFacts], list_text: str, listed: SmiListing[MigProfileOf]) -> tuple[str, ...]:
    """`list_text` is the output of `nvidia-smi -L`, which numbers the GPUs. Those in MIG mode must be in `listed`."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    numbers = {int(match["number"]): match["uuid"] for match in map(_GPU.fullmatch, list_text.splitlines()) if match}
    with_profiles = {key.gpu for key in listed.rows}
    ours: Rows[MigProfileOf] = {}
    for number, uuid in numbers.items():
        mig = by_uuid[uuid].mig if uuid in by_uuid else None
        if mig is not None and (mig.enabled or number in with_profiles):
            ours |= {MigProfileOf(number, profile.id): _values(profile) for profile in mig.profiles}
    return tuple(_differences(ours, listed))


def _values(profile: MigProfileFacts) -> dict[str, object]:
    return {
        "name": profile.name,
        "instances": profile.max_instances,
        "GiB": round(profile.memory_bytes / 2**30, 2),
        "SM": profile.multiprocessors,
        "DEC": profile.decoders,
        "ENC": profile.encoders,
        "CE": profile.copy_engines,
        "JPEG": profile.jpeg_engines,
        "OFA": profile.ofa_engines,
        "placements": _places(sorted(profile.starts), profile.size),
    }


def _differences[K: (str, MigProfileOf)](ours: Rows[K], listed: SmiListing[K]) -> Iterator[str]:
    yield from (f"unknown line of nvidia-smi: {line}" for line in listed.strange)
    for about in sorted(ours.keys() | listed.rows.keys()):
        if about not in listed.rows:
            yield f"nvidia-smi does not list {about}"
        elif about not in ours:
            yield f"NVML does not list {about}"
        else:
            for name, value in ours[about].items():
                other = listed.rows[about].get(name, "missing")
                if not _same(value, other):
                    yield f"{name} of {about} is {value!r} in NVML and {other!r} in nvidia-smi"


def _same(value: object, other: object) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, abs_tol=_ROUNDED)
    return value == other


def time_slices(text: str) -> tuple[str, ...]:
    """The intervals that `nvidia-smi compute-policy --list` names: `Default`, `Short`, `Medium`, `Long`."""
    matches = [_SLICE.search(line) for line in text.splitlines()]
    return tuple(match["word"].capitalize() for match in matches if match is not None)
