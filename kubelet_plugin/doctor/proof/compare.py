"""Whether NVML and nvidia-smi say the same of a node. Pure; the answers are differences, in words."""

from collections.abc import Iterator, Sequence

from dra_driver.api.inventory import GpuFacts, MigProfileFacts
from kubelet_plugin.doctor.proof.smi_text import GpuList, ListedPlacements, ListedProfile

_HUNDREDTH = 0.0101


def list_differences(gpus: Sequence[GpuFacts], listed: GpuList) -> tuple[str, ...]:
    """`gpus` are as NVML has them, with what claims made of them."""
    return tuple(_list_differences(gpus, listed))


def _list_differences(gpus: Sequence[GpuFacts], listed: GpuList) -> Iterator[str]:
    yield from (f"unknown line of nvidia-smi: {line}" for line in listed.strange)
    by_uuid = {gpu.uuid: gpu for gpu in listed.gpus}
    for gpu in gpus:
        other = by_uuid.pop(gpu.uuid, None)
        if other is None:
            yield f"nvidia-smi does not list {gpu.uuid}"
            continue
        if other.name != gpu.product_name:
            yield f"{gpu.uuid} is {gpu.product_name!r} in NVML and {other.name!r} in nvidia-smi"
        devices = {device.uuid for device in other.devices}
        yield from (f"nvidia-smi does not list {uuid}" for uuid in sorted(set(mig_uuids(gpu)) - devices))
        yield from (f"NVML does not list {uuid}" for uuid in sorted(devices - set(mig_uuids(gpu))))
    yield from (f"NVML does not list {uuid}" for uuid in by_uuid)


def mig_uuids(gpu: GpuFacts) -> tuple[str, ...]:
    instances = gpu.mig.instances if gpu.mig is not None else ()
    return tuple(device.uuid for instance in instances for device in instance.compute_instances)


def table_differences(
    gpus: Sequence[GpuFacts],
    listed: GpuList,
    profiles: Sequence[ListedProfile],
    placements: Sequence[ListedPlacements],
) -> tuple[str, ...]:
    """Of the GPUs that the two listings speak of; those in MIG mode must be among them."""
    return tuple(_table_differences(gpus, listed, profiles, placements))


def _table_differences(
    gpus: Sequence[GpuFacts],
    listed: GpuList,
    profiles: Sequence[ListedProfile],
    placements: Sequence[ListedPlacements],
) -> Iterator[str]:
    uuids = {gpu.index: gpu.uuid for gpu in listed.gpus}
    told = {row.gpu for row in profiles} | {row.gpu for row in placements}
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for index in sorted(told - {number for number, uuid in uuids.items() if uuid in by_uuid}):
        yield f"GPU {index} has profiles in nvidia-smi, but NVML does not list it"
    for index, uuid in sorted(uuids.items()):
        gpu = by_uuid.get(uuid)
        if gpu is None or gpu.mig is None or not (gpu.mig.enabled or index in told):
            continue
        rows = [row for row in profiles if row.gpu == index]
        yield from (f"GPU {index}: {words}" for words in _profile_differences(gpu.mig.profiles, rows))
        places = [row for row in placements if row.gpu == index]
        yield from (f"GPU {index}: {words}" for words in _placement_differences(gpu.mig.profiles, places))


def _profile_differences(known: Sequence[MigProfileFacts], rows: Sequence[ListedProfile]) -> Iterator[str]:
    by_id = {row.id: row for row in rows}
    for profile in known:
        row = by_id.pop(profile.id, None)
        if row is None:
            yield f"nvidia-smi mig -lgip has no profile {profile.name} (ID {profile.id})"
            continue
        pairs = {
            "name": (profile.name, row.name),
            "instances": (profile.max_instances, row.total),
            "SM": (profile.multiprocessors, row.multiprocessors),
            "CE": (profile.copy_engines, row.copy_engines),
            "DEC": (profile.decoders, row.decoders),
            "ENC": (profile.encoders, row.encoders),
            "JPEG": (profile.jpeg_engines, row.jpeg_engines),
            "OFA": (profile.ofa_engines, row.ofa_engines),
        }
        gib = profile.memory_bytes / 2**30
        if abs(gib - row.gib) > _HUNDREDTH:
            pairs["GiB"] = (f"{gib:.2f}", f"{row.gib:.2f}")
        for what, (ours, theirs) in pairs.items():
            if ours != theirs:
                yield f"{what} of profile {profile.name} is {ours} in NVML and {theirs} in nvidia-smi"
    yield from (f"profile {row.name} (ID {row.id}) is in nvidia-smi but not in NVML" for row in by_id.values())


def _placement_differences(known: Sequence[MigProfileFacts], rows: Sequence[ListedPlacements]) -> Iterator[str]:
    by_id = {row.id: (row.starts, row.size) for row in rows}
    for profile in known:
        ours, theirs = (tuple(sorted(profile.starts)), profile.size), by_id.get(profile.id)
        if theirs is None:
            yield f"nvidia-smi mig -lgipp has no profile {profile.name} (ID {profile.id})"
        elif ours != theirs:
            both = f"{_places(*ours)} in NVML and {_places(*theirs)} in nvidia-smi"
            yield f"placements of profile {profile.name} are {both}"


def _places(starts: Sequence[int], size: int) -> str:
    return f"{{{','.join(map(str, starts))}}}:{size}"
