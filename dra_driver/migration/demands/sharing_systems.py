"""Parts of GPUs as sharing systems write them: HAMi, Volcano, Aliyun, KAI and Run:ai. Each becomes a share of a
device. Pure.

Source: the reference on migration sources, section 8. These systems limited programs with a library in the container,
or not at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dra_driver.api.untyped import Path, map_in
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.demands.resources import Amounts, Ask, PodNotes
from dra_driver.migration.model import ContainerAt, DeviceShare, Remove, Role, Want, What
from dra_driver.migration.understand.labels import quoted
from dra_driver.migration.understand.meaning import ALIYUN, SYSTEMS, SharingSystem
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE
from dra_driver.quantity import Quantity, whole_number


def parts_of(notes: PodNotes, amounts: Sequence[tuple[ContainerAt, Amounts]]) -> list[Ask]:
    """`amounts` are of all containers."""
    asks = [part for container, given in amounts for part in _of_container(notes, container, given)]
    asks += _fractions(notes, amounts)
    if not asks:
        return []
    asks = _together(notes, [replace(part, want=_chosen(notes, part.want)) for part in asks])
    shares = [part for part in asks if part.want.share is not None]
    if shares:
        path = shares[0].removes[0] if shares[0].removes else notes.pod.path
        message = "only a library in the container, or the program itself, kept to the share; a claim reserves it"
        notes.say_with_claims(codes.NOT_ENFORCED, path, message, fixed=False)
    _settings(notes)
    return asks


# -- resources


def _of_container(notes: PodNotes, container: ContainerAt, given: Amounts) -> Iterator[Ask]:
    hami = notes.meaning.hami
    parts = (hami.memory, hami.memory_percentage, hami.cores)
    if any(map(given.number, parts)) or (_is_hami(notes, given) and given.number(hami.count)):
        yield from _ask(notes, container, given, hami.system)
    for system in SYSTEMS:
        if any(given.number(name) for name in system.resources):
            yield from _ask(notes, container, given, system)


def _is_hami(notes: PodNotes, given: Amounts) -> bool:
    """Whether the pod is HAMi's, though it asks for nothing but a number of GPUs."""
    hami = notes.meaning.hami
    annotated = any(key.startswith(_OF_HAMI) for key in notes.annotations)
    scheduler = notes.pod.spec.get("schedulerName") == "hami-scheduler"
    return hami.installed or annotated or hami.priority in given or scheduler


def _ask(notes: PodNotes, container: ContainerAt, given: Amounts, system: SharingSystem) -> Iterator[Ask]:
    hami = notes.meaning.hami
    removes = given.paths(*system.resources)
    memory, percent = given.number(system.memory), given.number(system.percent)
    cores, count = given.number(system.cores), given.number(system.count) or 1
    names = (system.count, system.memory, system.percent, system.cores)
    resource = system.count if system.without_memory_alone else next(filter(given.number, names), "")
    amount = _mebibytes((memory or 0) * system.memory_mib)
    if system.count == hami.count:
        if not memory and not percent:
            amount = _mebibytes(hami.default_memory * system.memory_mib)
        cores = cores or hami.default_cores
        for path in given.paths(hami.priority):
            message = f"{hami.priority}: a claim has no priority among those that share a GPU"
            notes.say(codes.NO_COUNTERPART, path, message)
    elif system is ALIYUN:
        _count_of_aliyun(notes, given, bool(memory or cores))
        if not (memory or cores):
            return
        if memory:
            amount = _amount_of_aliyun(notes, memory, given.paths(system.memory)[0])
    share = DeviceShare(memory=amount, memory_percent=percent or None, cores=cores or None)
    if system.without_memory_alone:
        share = _alone(notes, share, removes)
    for key in _MIG_MODES:
        if notes.annotations.get(key) == "mig":
            message = f"{key}: mig took a MIG device with enough memory; a claim needs its profile"
            notes.say(codes.NO_COUNTERPART, (*notes.pod.metadata_path, "annotations", key), message)
            notes.leave.append(f"{message}: write one with `dractl new template --mig PROFILE`")
    if share == DeviceShare() or (share.memory, share.memory_percent, share.cores) == (None, 100, None):
        yield Ask(container, Want(What.GPU, count), removes, resource)
    else:
        share = _sized(notes, share, removes)
        yield Ask(container, Want(What.GPU, count, share=share, distinct=count > 1), removes, resource)


def _count_of_aliyun(notes: PodNotes, given: Amounts, has_amounts: bool) -> None:
    """A number of GPUs, of a container or in a label of the pod: how the shares are divided is not known."""
    name = "aliyun.com/gpu-count"
    number = str(map_in(notes.pod.metadata.get("labels")).get(name, "1"))
    if has_amounts and number != "1":
        path: Path = (*notes.pod.metadata_path, "labels", name)
        message = f"label {name}: {number} divides its shares among several GPUs, and it is not known how"
        notes.refuse(codes.UNKNOWN_RESOURCE, path, message)
    elif not has_amounts and given.number(name):
        message = f"{name} alone does not say what is wanted"
        notes.refuse(codes.UNKNOWN_RESOURCE, given.paths(name)[0], message)


def _amount_of_aliyun(notes: PodNotes, number: int, path: Path) -> Quantity:
    """The unit is a setting of the device plugin; a share of so many GiB is on no GPU."""
    unit = "Mi" if number >= 256 else "Gi"
    severity = Severity.WARNING if unit == "Mi" else Severity.INFO
    message = f"{ALIYUN.memory}: {number} is taken as {number} {unit}B"
    notes.say(codes.UNIT_ASSUMED, path, message, severity=severity)
    return Quantity.parse(f"{number}{unit}")


def _together(notes: PodNotes, parts: Sequence[Ask]) -> list[Ask]:
    """Of systems that took all shares of a pod from one GPU."""
    names = {name for system in SYSTEMS if system.one_gpu for name in system.resources}
    of_one = [part for part in parts if part.resource in names and part.want.share is not None]
    if len(of_one) < 2:
        return list(parts)
    message = f"the shares of {', '.join(part.container.name for part in of_one)} are of one GPU, by a constraint"
    notes.say_with_claims(codes.SAME_GPU_POSSIBLE, of_one[0].removes[0], message)
    return [replace(part, want=replace(part.want, together=True)) if part in of_one else part for part in parts]


# -- what a part is


def _alone(notes: PodNotes, share: DeviceShare, removes: tuple[Path, ...]) -> DeviceShare:
    """Cores were limited even so; alone on a GPU there is nothing to limit them for."""
    if share.memory is not None or share.memory_percent not in (None, 100):
        return share
    if share.cores is not None and share.cores < 100:
        message = (
            "without an amount of memory it had all of it, so the GPU alone; its limit of "
            f"{share.cores} percent of the cores is gone"
        )
        notes.say_with_claims(codes.NO_COUNTERPART, removes[0], message, fixed=False)
    return DeviceShare()


def _sized(notes: PodNotes, share: DeviceShare, removes: tuple[Path, ...]) -> DeviceShare:
    """With an amount for percent, if the size of the GPU is known."""
    percent = share.memory_percent
    if percent is None or share.memory is not None:
        return replace(share, memory_percent=None)
    if not 1 <= percent <= 100:
        notes.refuse(codes.UNREADABLE, removes[0], f"{percent} percent of a GPU's memory is no part of it")
    if (memory := notes.gpu_memory) is None:
        message = f"{percent} percent of a memory of which the size is not known, or differs among nodes"
        notes.say(codes.PERCENT_WITHOUT_SIZE, removes[0], message)
        return share
    amount = Quantity.parse(f"{int(memory.value) * percent // 100 // 2**20}Mi")
    message = f"{percent} percent of {memory} is {amount}"
    notes.say_with_claims(codes.PERCENT_WITHOUT_SIZE, removes[0], message, severity=Severity.INFO)
    return replace(share, memory=amount, memory_percent=None)


# -- which devices


def _chosen(notes: PodNotes, want: Want) -> Want:
    """With what annotations say of the GPU model and of single GPUs."""
    attributes = notes.options.attributes
    selectors = list(want.selectors)
    for key, (by_uuid, negated) in _CHOICES.items():
        words = [word.strip() for word in notes.annotations.get(key, "").split(",") if word.strip()]
        if not words:
            continue
        if by_uuid:
            uuid = f"{attributes}.uuid"
            expression = f"has({uuid}) && {uuid} in [{', '.join(map(quoted, words))}]"
            path = (*notes.pod.metadata_path, "annotations", key)
            severity = Severity.INFO if negated else None
            notes.say_with_claims(codes.PINNED_GPU, path, f"{key} became a selector", severity=severity)
        else:
            expression = " || ".join(_has_word(f"{attributes}.productName", word) for word in words)
        selectors.append(f"!({expression})" if negated else expression)
    return replace(want, selectors=tuple(selectors))


# -- fractions in annotations (KAI, Run:ai)


def _fractions(notes: PodNotes, amounts: Sequence[tuple[ContainerAt, Amounts]]) -> Iterator[Ask]:
    fraction, memory = notes.annotations.get("gpu-fraction"), notes.annotations.get("gpu-memory")
    if fraction is None and memory is None:
        return
    key = "gpu-memory" if fraction is None else "gpu-fraction"
    path: Path = (*notes.pod.metadata_path, "annotations", key)
    count_text = notes.annotations.get("gpu-fraction-num-devices", "1")
    count = whole_number(count_text)
    wanted = notes.annotations.get("gpu-fraction-container-name")
    named = (at for at, _ in amounts if at.name == wanted or (wanted is None and at.role is Role.APP))
    container = next(named, None)
    share = _fraction(fraction, memory)
    if share is None:
        notes.refuse(codes.UNREADABLE, path, f"{key}: {notes.annotations[key]!r} is not a part of a GPU")
    elif container is None:
        notes.refuse(codes.UNREADABLE, path, f"there is no container {wanted or ''}".rstrip())
    elif not count:
        message = f"gpu-fraction-num-devices: {count_text!r} is not a number of devices"
        notes.refuse(codes.UNREADABLE, path, message)
    else:
        if fraction is not None and memory is not None:
            message = "gpu-fraction and gpu-memory are both there, and KAI refuses such a pod"
            notes.refuse(codes.INVALID_AMOUNT, path, message)
        whole = next((paths[0] for _, given in amounts if (paths := given.paths(GPU_RESOURCE))), None)
        if whole is not None:
            message = f"{key} stands beside {GPU_RESOURCE}, and KAI refuses a pod with both"
            notes.refuse(codes.INVALID_AMOUNT, whole, message)
        want = Want(What.GPU, count, share=_sized(notes, share, (path,)), distinct=count > 1)
        yield Ask(container, want, (path,), "")


# -- other settings


def _settings(notes: PodNotes) -> None:
    """Annotations: those that the claim replaces go, others are reported."""
    for key in notes.annotations:
        path = (*notes.pod.metadata_path, "annotations", key)
        if key in _REPLACED:
            notes.say_with_claims(codes.SETTING_REMOVED, path, f"{key} is replaced by the claim")
            notes.edits.append(Remove(path))
        elif key in _UNKNOWN_TO_CLAIMS:
            notes.say(codes.NO_COUNTERPART, path, f"{key}: {_UNKNOWN_TO_CLAIMS[key]}")


_OF_HAMI = (
    "hami.io/",
    "nvidia.com/use-gpu",
    "nvidia.com/nouse-gpu",
    "nvidia.com/vgpu-mode",
    "nvidia.com/numa-bind",
)
_MIG_MODES = ("nvidia.com/vgpu-mode", "volcano.sh/vgpu-mode")
_CHOICES = {
    "nvidia.com/use-gputype": (False, False),
    "nvidia.com/nouse-gputype": (False, True),
    "nvidia.com/use-gpuuuid": (True, False),
    "nvidia.com/nouse-gpuuuid": (True, True),
    "volcano.sh/vgpu-use-gpuuuid": (True, False),
    "volcano.sh/vgpu-nouse-gpuuuid": (True, True),
}
"""Annotations that choose GPUs: whether by UUID, else by a word of the model's name; and whether they exclude."""
_REPLACED = (*_CHOICES, *_MIG_MODES, "gpu-fraction-num-devices", "gpu-fraction-container-name")
_UNKNOWN_TO_CLAIMS: Mapping[str, str] = {
    "hami.io/gpu-scheduler-policy": "a claim cannot say which GPU of a node is taken first",
    "hami.io/node-scheduler-policy": "how pods are spread over nodes is a setting of the scheduler",
    "hami.io/device-scoring-weights": "devices are not weighed against each other",
    "nvidia.com/numa-bind": "a constraint can ask for GPUs of one NUMA node; it is not written",
    "volcano.sh/vgpu-podgroup-policy": "a claim cannot say which GPU of a node is taken first",
    "mps": "the PublishingPolicy says whether MPS separates shares",
}


def _mebibytes(number: int) -> Quantity | None:
    return Quantity.parse(f"{number}Mi") if number else None


def _fraction(fraction: str | None, memory: str | None) -> DeviceShare | None:
    """None: it is no part of a GPU."""
    if fraction is None:
        mebibytes = whole_number(memory)
        return DeviceShare(memory=_mebibytes(mebibytes)) if mebibytes else None
    part = Quantity.read(fraction)
    return (
        DeviceShare(memory_percent=int(part.value * 100)) if part is not None and 1 <= part.value * 100 < 100 else None
    )


def _has_word(value: str, word: str) -> str:
    """HAMi looks for a part of the model's name, in upper or lower case.

    It registers a GPU as `NVIDIA-` and the name that NVML gives, which begins with NVIDIA only for new models.
    """
    if word.upper().startswith("NVIDIA"):
        return f"('NVIDIA-' + {value}).upperAscii().contains({quoted(word.upper())})"
    if word.isascii() and word == word.upper() and any(char.isdigit() for char in word):
        return f"{value}.contains({quoted(word)})"
    return f"{value}.upperAscii().contains({quoted(word.upper())})"
