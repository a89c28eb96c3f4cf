"""What NVML answered in a record: by function and arguments; and what it says of the MIG division of a GPU. Pure."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kubelet_plugin.hardware.mig import profile_name
from kubelet_plugin.record.format import NvmlCall
from kubelet_plugin.simulation.profiles import Engines, MigProfile, MigTable
from kubelet_plugin.simulation.state import ComputeInstanceState, GpuInstanceState

_FIELDS = "nvmlDeviceGetFieldValues"


class Answers:
    """The first answer counts where NVML gave several."""

    def __init__(self, calls: Iterable[NvmlCall]) -> None:
        self._calls: dict[str, NvmlCall] = {}
        self._fields: dict[tuple[str, int, int], Any] = {}
        self._field_calls: dict[str, NvmlCall] = {}
        for call in calls:
            self._calls.setdefault(_key(call.function, call.args), call)
            if call.function == _FIELDS:
                self._add_fields(call)

    def _add_fields(self, call: NvmlCall) -> None:
        name = str(_handle(call.args[0]))
        self._field_calls.setdefault(name, call)
        for item in (call.result or {}).get("items", ()):
            fields = item["fields"]
            self._fields.setdefault((name, fields["fieldId"], fields["scopeId"]), item)

    def call(self, function: str, args: Sequence[Any]) -> NvmlCall | None:
        """None when the record has no such call. Values of fields are found in any order of questions."""
        if function == _FIELDS:
            return self._field_values(args)
        return self._calls.get(_key(function, args))

    def _field_values(self, args: Sequence[Any]) -> NvmlCall | None:
        name = str(_handle(args[0]))
        wanted = [item if isinstance(item, list) else [item, 0] for item in args[1]]
        items = [self._fields.get((name, number, scope)) for number, scope in wanted]
        if all(item is not None for item in items):
            return NvmlCall(function=_FIELDS, result={"array": "c_nvmlFieldValue_t", "items": items})
        refused = self._field_calls.get(name)
        return refused if refused is not None and refused.result is None else None

    def result(self, function: str, *args: Any) -> Any:
        """The result of a call that succeeded; None otherwise."""
        call = self.call(function, args)
        return call.result if call is not None and call.code is None and not call.hung else None

    def code(self, function: str, *args: Any) -> int | None:
        """The error code of a call that failed."""
        call = self.call(function, args)
        return call.code if call is not None else None

    def of(self, function: str, first: Any) -> Iterator[NvmlCall]:
        """All calls of a function with this first argument that succeeded, in their order."""
        for call in self._calls.values():
            if call.function == function and call.args[:1] == [first] and call.code is None and not call.hung:
                yield call


def fields(value: Any) -> dict[str, Any]:
    """The fields of a structure; empty for anything else."""
    found = value.get("fields") if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def items(value: Any) -> list[Any]:
    """Of an array."""
    results = value.get("items") if isinstance(value, dict) else None
    return results if isinstance(results, list) else []


def handle(name: str) -> dict[str, str]:
    return {"handle": name}


def _handle(value: Any) -> Any:
    return value.get("handle") if isinstance(value, dict) else value


def _key(function: str, args: Sequence[Any]) -> str:
    return json.dumps([function, *args], sort_keys=True)


_ENUMERATIONS = 64
_ENGINES = {
    "memory_mib": "memorySizeMB",
    "multiprocessors": "multiprocessorCount",
    "copy_engines": "copyEngineCount",
    "decoders": "decoderCount",
    "encoders": "encoderCount",
    "jpeg_engines": "jpegCount",
    "ofa_engines": "ofaCount",
}
_INFO, _PLACEMENTS = "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements"


def table_of_record(answers: Answers, gpu: str) -> MigTable | None:
    """What the GPU with this handle can be divided into; None when the record has no profile of it.

    What all instances have to share out is not known to NVML: it is taken to be what the largest set of equal ones has.
    """
    memory = fields(answers.result("nvmlDeviceGetMemoryInfo", handle(gpu))).get("total", 0)
    profiles = tuple(_profiles(answers, gpu, memory))
    if not profiles:
        return None
    return MigTable(
        memory_slices=max(max(profile.starts) + profile.size for profile in profiles),
        totals=Engines(
            **{name: max(getattr(profile, name) * profile.max_instances for profile in profiles) for name in _ENGINES}
        ),
        profiles=profiles,
    )


def _profiles(answers: Answers, gpu: str, memory: int) -> Iterator[MigProfile]:
    seen = set()
    for enumeration in range(_ENUMERATIONS):
        results = (answers.result(_INFO, handle(gpu), enumeration, version) for version in (2, 1))
        info = next((fields(result) for result in results if result is not None), None)
        if info is None or info["id"] in seen:
            continue
        places = _placements(answers, gpu, info["id"])
        if places:
            seen.add(info["id"])
            yield MigProfile(
                name=profile_name(enumeration, _Info(info), memory) or f"unknown-{info['id']}",
                kind=enumeration,
                id=info["id"],
                slices=info["sliceCount"],
                max_instances=info["instanceCount"],
                size=places[0][1],
                starts=tuple(sorted(start for start, _ in places)),
                **{name: info.get(field, 0) for name, field in _ENGINES.items()},
            )


class _Info:
    """The structure of a profile, by its fields."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__ = values


def _placements(answers: Answers, gpu: str, profile: int) -> list[tuple[int, int]]:
    for call in answers.of(_PLACEMENTS, handle(gpu)):
        if call.args[1] == profile and 2 in call.out:
            count = call.out[3]["value"]
            return [(fields(item)["start"], fields(item)["size"]) for item in items(call.out[2])[:count]]
    return []


def instances_of_record(answers: Answers, gpu: str, renamed: Callable[[str], str]) -> list[GpuInstanceState]:
    """The GPU instances that existed, with what was in them. `renamed` gives the new UUID of a MIG device."""
    found: dict[int, GpuInstanceState] = {}
    for call in answers.of("nvmlDeviceGetGpuInstances", handle(gpu)):
        for item in _listed(call):
            info = fields(answers.result("nvmlGpuInstanceGetInfo", item))
            if info and info["id"] not in found:
                place = fields(info["placement"])
                found[info["id"]] = GpuInstanceState(
                    id=info["id"],
                    number=len(found) + 1,
                    profile=info["profileId"],
                    start=place["start"],
                    size=place["size"],
                    compute_instances=_compute_instances(answers, gpu, item, renamed),
                )
    return list(found.values())


def _compute_instances(
    answers: Answers, gpu: str, parent: Any, renamed: Callable[[str], str]
) -> list[ComputeInstanceState]:
    indices = dict(_indices(answers, gpu))
    found: dict[int, ComputeInstanceState] = {}
    for call in answers.of("nvmlGpuInstanceGetComputeInstances", parent):
        for item in _listed(call):
            info = fields(answers.result("nvmlComputeInstanceGetInfo_v2", item))
            uuid = answers.result("nvmlDeviceGetUUID", info.get("device"))
            if info and uuid is not None:
                place = fields(info["placement"])
                found[info["id"]] = ComputeInstanceState(
                    id=info["id"],
                    uuid=renamed(uuid),
                    profile=info["profileId"],
                    slices=place["size"],
                    start=place["start"],
                    index=indices.get(uuid, len(indices) + len(found)),
                    recorded=info["device"]["handle"],
                )
    return list(found.values())


def _indices(answers: Answers, gpu: str) -> Iterator[tuple[str, int]]:
    """UUIDs of MIG devices with the index by which NVML lists each."""
    for call in answers.of("nvmlDeviceGetMigDeviceHandleByIndex", handle(gpu)):
        uuid = answers.result("nvmlDeviceGetUUID", call.result)
        if uuid is not None:
            yield uuid, call.args[1]


def _listed(call: Any) -> list[Any]:
    """Handles in the array of a call that fills one: the count is the last argument, the array the one before."""
    return items(call.out[2])[: call.out[3]["value"]] if {2, 3} <= call.out.keys() else []


def instance_handles(answers: Answers, gpu: str) -> dict[int, str]:
    """For each profile that the GPU had instances of, the handle of one: what can be in those is asked of it."""
    found: dict[int, str] = {}
    for call in answers.of("nvmlDeviceGetGpuInstances", handle(gpu)):
        for item in _listed(call):
            found.setdefault(call.args[1], item["handle"])
    return found
