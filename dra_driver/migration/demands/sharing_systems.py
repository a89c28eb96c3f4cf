"""Parts of GPUs as sharing systems write them: HAMi, Volcano, Aliyun, Tencent, KAI and Run:ai, and pairs of resources
whose unit a person says. Each becomes a share of devices that others have shares of. Pure.

Source: the reference on migration sources, section 8. All of them kept programs to their part by a library in the
container, or not at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dra_driver.migration.codes import (
    INVALID_AMOUNT,
    NO_COUNTERPART,
    NOT_ENFORCED,
    PERCENT_WITHOUT_SIZE,
    PINNED_GPU,
    SAME_GPU_POSSIBLE,
    SETTING_REMOVED,
    SHARE_OF_MIG,
    UNIT_ASSUMED,
    UNKNOWN_RESOURCE,
    UNREADABLE,
    FindingCode,
    FindingSeverity,
)
from dra_driver.migration.demands.amounts import Amounts
from dra_driver.migration.demands.notes import Ask, Notes
from dra_driver.migration.model import ContainerAt, DeviceShare, Options, Path, PodSpecAt, Remove, Role, Want, What
from dra_driver.migration.understand.labels import quoted
from dra_driver.migration.understand.meaning import Meaning
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE
from dra_driver.quantity import Quantity

_GIBI, _MEBI = "Gi", "Mi"


def parts_of(
    pod: PodSpecAt, amounts: Sequence[tuple[ContainerAt, Amounts]], memory: Quantity | None, meaning: Meaning,
    options: Options, notes: Notes,
) -> list[Ask]:  # fmt: skip
    """`amounts` are of all containers, `memory` that of one GPU where the pod can run, None where it is not known."""
    return _Pod(pod, memory, meaning, options, notes).parts(amounts)


class _Pod:
    def __init__(
        self, pod: PodSpecAt, memory: Quantity | None, meaning: Meaning, options: Options, notes: Notes
    ) -> None:
        self._pod = pod
        self._memory = memory
        self._hami = meaning.hami
        self._options = options
        given = pod.metadata.get("annotations")
        self._annotations: Mapping[str, str] = (
            {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
        )
        self._notes = notes

    def parts(self, amounts: Sequence[tuple[ContainerAt, Amounts]]) -> list[Ask]:
        asks = [part for container, given in amounts for part in self._of_container(container, given)]
        asks += self._fractions(amounts)
        if not asks:
            return []
        asks = self._together([replace(part, want=self._chosen(part.want)) for part in asks])
        shares = [part for part in asks if part.want.share is not None]
        if shares:
            path = shares[0].removes[0] if shares[0].removes else self._pod.path
            self._say(NOT_ENFORCED, path, _enforced(shares[0].resource), with_claims=True)
        self._notes.edits += [Remove(path) for path in self._state(amounts)]
        return asks

    def _say(
        self, code: FindingCode, path: Path, message: str, *, severity: FindingSeverity | None = None,
        with_claims: bool = False, fixed: bool = False,
    ) -> None:  # fmt: skip
        if with_claims:
            self._notes.say_with_claims(code, path, message, severity=severity, fixed=fixed)
        else:
            self._notes.say(code, path, message, severity=severity)

    # -- resources

    def _of_container(self, container: ContainerAt, given: Amounts) -> Iterator[Ask]:
        for read in (self._hami_part, self._volcano, self._volcano_older, self._aliyun, self._tencent, self._units):
            part = read(container, given)
            if part is not None:
                yield part

    def _hami_part(self, container: ContainerAt, given: Amounts) -> Ask | None:
        hami = self._hami
        amounts = (hami.memory, hami.memory_percentage, hami.cores)
        asked = any(given.number(name) for name in amounts)
        if not asked and not (self._is_hami(given) and given.number(hami.count)):
            return None
        if given.number(hami.priority) is not None:
            path = given.paths(hami.priority)[0]
            self._say(NO_COUNTERPART, path, f"{hami.priority}: a claim has no priority among those that share a GPU")
        memory, percent = given.number(hami.memory), given.number(hami.memory_percentage)
        if not memory and not percent:
            memory = hami.default_memory
        share = DeviceShare(
            memory=self._mebibytes((memory or 0) * hami.memory_factor),
            memory_percent=percent or None,
            cores=given.number(hami.cores) or hami.default_cores or None,
        )
        count = given.number(hami.count) or 1
        removes = given.paths(hami.count, *amounts, hami.priority)
        return self._part(container, count, self._alone(share, removes), removes, hami.count, "nvidia.com/vgpu-mode")

    def _is_hami(self, given: Amounts) -> bool:
        """Whether the pod is HAMi's, though it asks for nothing but a number of GPUs."""
        names = (
            "nvidia.com/use-gpu",
            "nvidia.com/nouse-gpu",
            "nvidia.com/vgpu-mode",
            "nvidia.com/numa-bind",
            "hami.io/",
        )
        annotated = any(key.startswith(names) for key in self._annotations)
        return self._hami.installed or annotated or self._hami.priority in given or self._scheduler == "hami-scheduler"

    @property
    def _scheduler(self) -> str:
        return str(self._pod.spec.get("schedulerName") or "")

    def _volcano(self, container: ContainerAt, given: Amounts) -> Ask | None:
        names = [f"volcano.sh/vgpu-{name}" for name in ("number", "memory", "memory-percentage", "cores")]
        number, memory, percent, cores = (given.number(name) for name in names)
        if not any((number, memory, percent, cores)):
            return None
        share = DeviceShare(memory=self._mebibytes(memory or 0), memory_percent=percent or None, cores=cores or None)
        removes = given.paths(*names)
        return self._part(
            container, number or 1, self._alone(share, removes), removes, names[0], "volcano.sh/vgpu-mode"
        )

    def _volcano_older(self, container: ContainerAt, given: Amounts) -> Ask | None:
        memory, number = given.number("volcano.sh/gpu-memory"), given.number("volcano.sh/gpu-number")
        removes = given.paths("volcano.sh/gpu-memory", "volcano.sh/gpu-number")
        if memory:
            share = DeviceShare(memory=self._mebibytes(memory))
            return Ask(container, Want(What.GPU, 1, share=share), removes, "volcano.sh/gpu-memory")
        return Ask(container, Want(What.GPU, number), removes, "volcano.sh/gpu-number") if number else None

    def _aliyun(self, container: ContainerAt, given: Amounts) -> Ask | None:
        key, count_key, core_key = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"
        memory, cores = given.number(key), given.number(core_key)
        removes = given.paths(key, count_key, core_key)
        self._several_of_aliyun(count_key, bool(memory or cores))
        if memory:
            share = DeviceShare(memory=self._of_aliyun(memory, given.paths(key)[0]), cores=cores or None)
            return Ask(container, Want(What.GPU, 1, share=share), removes, key)
        if cores:
            return Ask(container, Want(What.GPU, 1, share=DeviceShare(cores=cores)), removes, core_key)
        if given.number(count_key):
            self._unknown(given.paths(count_key)[0], count_key)
        return None

    def _together(self, parts: Sequence[Ask]) -> list[Ask]:
        """What all containers of a pod asked for was of one GPU: Aliyun's and Volcano's older scheduler added it up."""
        of_one = [part for part in parts if part.resource in _OF_ONE_GPU]
        if len(of_one) < 2:
            return list(parts)
        names = ", ".join(part.container.name for part in of_one)
        message = f"the shares of {names} are of one GPU, by a constraint"
        self._say(SAME_GPU_POSSIBLE, of_one[0].removes[0], message, with_claims=True, fixed=True)
        return [
            replace(part, want=replace(part.want, together=True)) if part.resource in _OF_ONE_GPU else part
            for part in parts
        ]

    def _several_of_aliyun(self, label: str, asks: bool) -> None:
        """By a label of the pod the scheduler of ACK takes several GPUs for it; how they are divided is not known."""
        labels = self._pod.metadata.get("labels")
        number = str(labels.get(label, "1")) if isinstance(labels, dict) else "1"
        if asks and number != "1":
            message = f"label {label}: {number} has its parts be of several GPUs, and it is not known how"
            self._wrong((*self._pod.metadata_path, "labels", label), message, UNKNOWN_RESOURCE)

    def _of_aliyun(self, number: int, path: Path) -> Quantity:
        unit = self._options.resource_units.get("aliyun.com/gpu-mem")
        if unit is None:
            # The plugin's setting; no GPU has a thousand GiB.
            unit = "MiB" if number > 1024 else "GiB"
            severity = FindingSeverity.WARNING if unit == "MiB" else FindingSeverity.INFO
            self._say(
                UNIT_ASSUMED, path, f"aliyun.com/gpu-mem: {number} is taken as {number} {unit}", severity=severity
            )
        return Quantity.parse(f"{number}{_GIBI if unit == 'GiB' else _MEBI}")

    def _tencent(self, container: ContainerAt, given: Amounts) -> Ask | None:
        cores, units = given.number("tencent.com/vcuda-core"), given.number("tencent.com/vcuda-memory")
        removes = given.paths("tencent.com/vcuda-core", "tencent.com/vcuda-memory")
        if cores and cores % 100 == 0:
            return Ask(container, Want(What.GPU, cores // 100), removes, "tencent.com/vcuda-core")
        if cores and cores > 100:
            self._wrong(removes[0], f"tencent.com/vcuda-core: {cores} is neither a part of a GPU nor a number of GPUs")
            return None
        if not cores and not units:
            return None
        share = DeviceShare(memory=self._mebibytes(256 * (units or 0)), cores=cores or None)
        return Ask(container, Want(What.GPU, 1, share=share), removes, "tencent.com/vcuda-core")

    def _units(self, container: ContainerAt, given: Amounts) -> Ask | None:
        """Resources of which a person said the unit; a name with `mem` is of memory, others are of cores."""
        units = {
            name: unit for name, unit in self._options.resource_units.items() if not name.startswith("aliyun.com/")
        }
        asked = {name: given.number(name) for name in units if given.number(name)}
        if not asked:
            return None
        share = DeviceShare()
        for name, number in sorted(asked.items()):
            if units[name] in ("MiB", "GiB"):
                share = replace(share, memory=Quantity.parse(f"{number}{units[name][:2]}"))
            elif "mem" in name.rpartition("/")[2]:
                share = replace(share, memory_percent=number)
            else:
                share = replace(share, cores=number)
        count = given.number(self._hami.count) or 1
        return self._part(container, count, share, given.paths(self._hami.count, *asked), sorted(asked)[0], "")

    # -- what a part is

    def _alone(self, share: DeviceShare, removes: tuple[Path, ...]) -> DeviceShare:
        """HAMi and Volcano give all memory to who does not say how much, so nobody else gets on that GPU.

        Cores were limited even so; alone on a GPU there is nobody to limit them for.
        """
        if share.memory is not None or share.memory_percent not in (None, 100):
            return share
        if share.cores is not None and share.cores < 100:
            message = f"without an amount of memory it had all of it, so the GPU alone; its limit of {share.cores} "
            self._say(NO_COUNTERPART, removes[0], f"{message}percent of the cores is gone", with_claims=True)
        return DeviceShare()

    def _part(
        self,
        container: ContainerAt,
        count: int,
        share: DeviceShare,
        removes: tuple[Path, ...],
        resource: str,
        mode_key: str,
    ) -> Ask:
        if self._annotations.get(mode_key) == "mig":
            return Ask(container, self._as_mig(count, share, removes), removes, resource)
        if share == DeviceShare() or (share.memory, share.memory_percent, share.cores) == (None, 100, None):
            return Ask(container, Want(What.GPU, count), removes, resource)
        share = self._sized(share, removes)
        return Ask(container, Want(What.GPU, count, share=share, distinct=count > 1), removes, resource)

    def _as_mig(self, count: int, share: DeviceShare, removes: tuple[Path, ...]) -> Want:
        """The sharing system chose a profile with enough memory."""
        if share.cores is not None:
            message = "cores of a MIG device are what its profile has; the number is dropped"
            self._say(NO_COUNTERPART, removes[0], message, with_claims=True)
        share = self._sized(share, removes)
        memory = f"device.capacity[{quoted(self._options.driver)}].memory"
        floor = f"has({memory}) && {memory}.compareTo(quantity({quoted(str(share.memory))})) >= 0"
        self._say(
            SHARE_OF_MIG, removes[0], f"a MIG device with at least {share.memory or 'any'} memory", with_claims=True
        )
        return Want(What.MIG, count, selectors=(floor,) if share.memory is not None else ())

    def _sized(self, share: DeviceShare, removes: tuple[Path, ...]) -> DeviceShare:
        """With an amount for percent, where the size of the GPU is known."""
        if share.memory_percent is None or share.memory is not None:
            return replace(share, memory_percent=None)
        if not 1 <= share.memory_percent <= 100:
            self._wrong(removes[0], f"{share.memory_percent} percent of a GPU's memory is no part of it")
        if self._memory is None:
            message = (
                f"{share.memory_percent} percent of a memory of which the size is not known, or differs among nodes"
            )
            self._say(PERCENT_WITHOUT_SIZE, removes[0], message)
            return share
        mebibytes = int(self._memory.value) * share.memory_percent // 100 // 2**20
        self._say(
            PERCENT_WITHOUT_SIZE, removes[0], f"{share.memory_percent} percent of {self._memory} is {mebibytes}Mi",
            severity=FindingSeverity.INFO, with_claims=True, fixed=True,
        )  # fmt: skip
        return replace(share, memory=Quantity.parse(f"{mebibytes}Mi"), memory_percent=None)

    @staticmethod
    def _mebibytes(number: int) -> Quantity | None:
        return Quantity.parse(f"{number}Mi") if number else None

    def _wrong(self, path: Path, message: str, code: FindingCode = UNREADABLE) -> None:
        self._say(code, path, message)
        self._notes.leave.append(message)

    def _unknown(self, path: Path, resource: str) -> None:
        self._say(UNKNOWN_RESOURCE, path, f"{resource} alone does not say what is wanted")
        self._notes.leave.append(f"the meaning of {resource} is not known")

    # -- which devices

    def _chosen(self, want: Want) -> Want:
        """What annotations say of the GPU model and of single GPUs."""
        own = f"device.attributes[{quoted(self._options.driver)}]"
        results = list(want.selectors)
        for key, negated in (("nvidia.com/use-gputype", False), ("nvidia.com/nouse-gputype", True)):
            words = [word.strip() for word in self._annotations.get(key, "").split(",") if word.strip()]
            if words:
                any_of = " || ".join(_has_word(f"{own}.productName", word) for word in words)
                results.append(f"!({any_of})" if negated else any_of)
        for key in ("nvidia.com/{}use-gpuuuid", "volcano.sh/vgpu-{}use-gpuuuid"):
            for negated in (False, True):
                results += self._uuids(key.format("no" if negated else ""), negated, own)
        return replace(want, selectors=tuple(results))

    def _uuids(self, key: str, negated: bool, own: str) -> Iterator[str]:
        uuids = [text.strip() for text in self._annotations.get(key, "").split(",") if text.strip()]
        if not uuids:
            return
        path = (*self._pod.metadata_path, "annotations", key)
        listed = f"has({own}.uuid) && {own}.uuid in [{', '.join(map(quoted, uuids))}]"
        yield f"!({listed})" if negated else listed
        severity = FindingSeverity.INFO if negated else None
        self._say(PINNED_GPU, path, f"{key} became a selector", severity=severity, with_claims=True, fixed=True)

    # -- fractions in annotations (KAI, Run:ai)

    def _fractions(self, amounts: Sequence[tuple[ContainerAt, Amounts]]) -> Iterator[Ask]:
        fraction, memory = self._annotations.get("gpu-fraction"), self._annotations.get("gpu-memory")
        if fraction is None and memory is None:
            return
        key = "gpu-memory" if fraction is None else "gpu-fraction"
        path: Path = (*self._pod.metadata_path, "annotations", key)
        container = self._fraction_container([container_at for container_at, _ in amounts], path)
        share = self._fraction(fraction, memory, path)
        count = self._annotations.get("gpu-fraction-num-devices", "1")
        if not count.isdigit() or count == "0":
            self._wrong(path, f"gpu-fraction-num-devices: {count!r} is not a number of devices")
            return
        if container is None or share is None:
            return
        if fraction is not None and memory is not None:
            self._wrong(path, "gpu-fraction and gpu-memory are both there, and KAI refuses such a pod", INVALID_AMOUNT)
        whole = next((paths[0] for _, given in amounts if (paths := given.paths(GPU_RESOURCE))), None)
        if whole is not None:
            message = f"{key} stands beside {GPU_RESOURCE}, and KAI refuses a pod with both"
            self._wrong(whole, message, INVALID_AMOUNT)
        share = self._sized(share, (path,))
        want = Want(What.GPU, int(count), share=share, distinct=int(count) > 1)
        yield Ask(container, want, (path,), "")

    def _fraction_container(self, containers: Sequence[ContainerAt], path: Path) -> ContainerAt | None:
        wanted = self._annotations.get("gpu-fraction-container-name")
        for container in containers:
            if container.name == wanted or (wanted is None and container.role is Role.APP):
                return container
        self._wrong(path, f"there is no container {wanted}" if wanted else "there is no container")
        return None

    def _fraction(self, fraction: str | None, memory: str | None, path: Path) -> DeviceShare | None:
        if fraction is None:
            if memory is not None and memory.isdigit() and int(memory) > 0:
                return DeviceShare(memory=self._mebibytes(int(memory)))
            self._wrong(path, f"gpu-memory: {memory!r} is not a number of MiB")
            return None
        try:
            percent = int(Quantity.parse(fraction).value * 100)
        except ValueError:
            percent = 0
        if not 1 <= percent < 100:
            self._wrong(path, f"gpu-fraction: {fraction!r} is not a part of a GPU")
            return None
        return DeviceShare(memory_percent=percent)

    # -- what is left over

    def _state(self, amounts: Sequence[tuple[ContainerAt, Amounts]]) -> Iterator[Path]:
        """Annotations and variables that meant something to the sharing system only."""
        for key in self._annotations:
            path = (*self._pod.metadata_path, "annotations", key)
            if key in _SETTINGS:
                self._say(NO_COUNTERPART, path, f"{key}: {_SETTINGS[key]}")
            elif key.startswith(_STATE) or key in _READ:
                message = f"{key} {_READ.get(key, 'was written by the sharing system, for itself')}"
                self._say(SETTING_REMOVED, path, message, with_claims=True, fixed=True)
                yield path
        for container, _ in amounts:
            env = container.obj.get("env")
            for index, item in enumerate(env if isinstance(env, list) else ()):
                if isinstance(item, dict) and str(item.get("name", "")).startswith("ALIYUN_COM_GPU_MEM_"):
                    path = (*container.path, "env", index)
                    message = f"{item['name']} was written by the sharing system"
                    self._say(SETTING_REMOVED, path, message, with_claims=True, fixed=True)
                    yield path


_READ: Mapping[str, str] = {
    "nvidia.com/use-gputype": "became a selector on the product",
    "nvidia.com/nouse-gputype": "became a selector on the product",
    "nvidia.com/use-gpuuuid": "became a selector on the UUID",
    "nvidia.com/nouse-gpuuuid": "became a selector on the UUID",
    "volcano.sh/vgpu-use-gpuuuid": "became a selector on the UUID",
    "volcano.sh/vgpu-nouse-gpuuuid": "became a selector on the UUID",
    "nvidia.com/vgpu-mode": "is in the kind of device that the claim asks for",
    "volcano.sh/vgpu-mode": "is in the kind of device that the claim asks for",
    "gpu-fraction-num-devices": "became a number of requests",
    "gpu-fraction-container-name": "is in the claims of that container",
}
"""What becomes of settings that are read here."""
_STATE = (
    "hami.io/vgpu-",
    "hami.io/bind-",
    "hami.io/node-handshake",
    "ALIYUN_COM_GPU_MEM_",
    "volcano.sh/gpu-index",
    "received-resource-type",
    "runai/shared-gpu-configmap",
)
_OF_ONE_GPU = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "volcano.sh/gpu-memory")
"""Source: gpushare-scheduler-extender, pkg/cache/nodeinfo.go; Volcano, pkg/scheduler/api/devices/nvidia/gpushare."""
_SETTINGS: Mapping[str, str] = {
    "hami.io/gpu-scheduler-policy": "which GPU of a node is taken first cannot be said in a claim",
    "hami.io/node-scheduler-policy": "how pods are spread over nodes is the scheduler's own setting",
    "hami.io/device-scoring-weights": "devices are not weighed against each other",
    "nvidia.com/numa-bind": "GPUs of one NUMA node are asked for by a constraint, which is not written",
    "volcano.sh/vgpu-podgroup-policy": "which GPU of a node is taken first cannot be said in a claim",
    "mps": "whether shares are kept apart by MPS is for the PublishingPolicy to say",
}


def _enforced(resource: str) -> str:
    """What kept programs to their part; `resource` is empty for annotations of KAI and Run:ai."""
    if not resource or resource in ("aliyun.com/gpu-mem", "volcano.sh/gpu-memory"):
        return "programs kept to their part of the memory by themselves; a claim reserves it"
    if resource == GPU_RESOURCE or resource.startswith(("volcano.sh/", "tencent.com/", "aliyun.com/")):
        return "a library in the container kept programs to their part; a claim reserves it"
    return "a claim reserves the part; it does not limit programs"


def _has_word(value: str, word: str) -> str:
    """HAMi looks for a part of the model's name, in whatever case; names of models are in capitals anyhow.

    It had registered the GPU as `NVIDIA-` and the name that NVML gives, which begins with NVIDIA for new models only.
    """
    if word.upper().startswith("NVIDIA"):
        return f"('NVIDIA-' + {value}).upperAscii().contains({quoted(word.upper())})"
    if word.isascii() and word == word.upper() and any(char.isdigit() for char in word):
        return f"{value}.contains({quoted(word)})"
    return f"{value}.upperAscii().contains({quoted(word.upper())})"
