"""What nvidia-smi prints for people, as values. Pure.

NVIDIA promises no format, so a line that is not understood is kept as `strange` instead of being dropped.
Source: outputs in NVIDIA's MIG user guide and in public issues, of drivers 450 to 590.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_GPU = re.compile(r"GPU (?P<index>\d+): (?P<name>.*) \(UUID: (?P<uuid>GPU-[0-9a-f-]+)\)\s*")
_MIG = re.compile(r"\s+MIG (?P<name>\S+)\s+Device\s+(?P<index>\d+):\s+\(UUID: (?P<uuid>MIG-[^)]+)\)\s*")
_PLACEMENTS = re.compile(
    r"GPU\s+(?P<gpu>\d+) Profile ID\s+(?P<id>\d+) Placements?\s*:"
    r"\s*\{(?P<starts>[\d,\s]*)\}:(?P<size>\d+)(\s+MIG \S+)?\s*"
)
_PROFILE = re.compile(
    r"\|\s+(?P<gpu>\d+)\s+MIG (?P<name>\S+)\s+(?P<id>\d+)\s+(?P<free>\d+)/(?P<total>\d+)\s+(?P<gib>\d+\.\d+)\s+\S+"
    r"\s+(?P<sm>\d+)\s+(?P<dec>\d+)\s+(?P<enc>\d+)\s*\|\s*"
)
_ENGINES = re.compile(r"\|\s+(?P<ce>\d+)\s+(?P<jpeg>\d+)\s+(?P<ofa>\d+)\s*\|\s*")
_DECORATION = re.compile(r"[+|=\-\s]*|\|[^|]*(GPU instance profiles:|Name\s+ID|Free/Total)[^|]*\|\s*")
_SLICE = re.compile(r"\btimeslice\b.*?\b(?P<word>default|short|medium|long)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ListedMig:
    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class ListedGpu:
    index: int
    name: str
    uuid: str
    devices: tuple[ListedMig, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuList:
    """`nvidia-smi -L`."""

    gpus: tuple[ListedGpu, ...]
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedProfile:
    """A row of `nvidia-smi mig -lgip`. `gib` is memory rounded to hundredths."""

    gpu: int
    name: str
    id: int
    total: int
    gib: float
    multiprocessors: int
    decoders: int
    encoders: int
    copy_engines: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True)
class ListedPlacements:
    """A line of `nvidia-smi mig -lgipp`, in memory slices."""

    gpu: int
    id: int
    starts: tuple[int, ...]
    size: int


def gpu_list(text: str) -> GpuList:
    gpus: list[ListedGpu] = []
    strange: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        if gpu := _GPU.fullmatch(line):
            gpus.append(ListedGpu(int(gpu["index"]), gpu["name"], gpu["uuid"]))
        elif gpus and (mig := _MIG.fullmatch(line)):
            last = gpus[-1]
            gpus[-1] = ListedGpu(last.index, last.name, last.uuid, (*last.devices, ListedMig(mig["name"], mig["uuid"])))
        else:
            strange.append(line.strip())
    return GpuList(tuple(gpus), tuple(strange))


def profiles(text: str) -> tuple[tuple[ListedProfile, ...], tuple[str, ...]]:
    """The rows of `nvidia-smi mig -lgip`, and lines that are not understood."""
    rows: list[ListedProfile] = []
    strange: list[str] = []
    first: re.Match[str] | None = None
    for line in text.splitlines():
        if head := _PROFILE.fullmatch(line):
            first = head
        elif first is not None and (rest := _ENGINES.fullmatch(line)):
            rows.append(_profile(first, rest))
            first = None
        elif not _DECORATION.fullmatch(line):
            strange.append(line.strip())
    return tuple(rows), tuple(strange)


def _profile(first: re.Match[str], rest: re.Match[str]) -> ListedProfile:
    return ListedProfile(
        gpu=int(first["gpu"]),
        name=first["name"],
        id=int(first["id"]),
        total=int(first["total"]),
        gib=float(first["gib"]),
        multiprocessors=int(first["sm"]),
        decoders=int(first["dec"]),
        encoders=int(first["enc"]),
        copy_engines=int(rest["ce"]),
        jpeg_engines=int(rest["jpeg"]),
        ofa_engines=int(rest["ofa"]),
    )


def placements(text: str) -> tuple[tuple[ListedPlacements, ...], tuple[str, ...]]:
    """The lines of `nvidia-smi mig -lgipp`, and those that are not understood."""
    rows: list[ListedPlacements] = []
    strange: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        if found := _PLACEMENTS.fullmatch(line):
            starts = tuple(sorted(int(start) for start in found["starts"].split(",") if start.strip()))
            rows.append(ListedPlacements(int(found["gpu"]), int(found["id"]), starts, int(found["size"])))
        else:
            strange.append(line.strip())
    return tuple(rows), tuple(strange)


def time_slices(text: str) -> tuple[str, ...]:
    """The intervals that `nvidia-smi compute-policy --list` names: `Default`, `Short`, `Medium`, `Long`."""
    return tuple(_words(text))


def _words(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if found := _SLICE.search(line):
            yield found["word"].capitalize()
