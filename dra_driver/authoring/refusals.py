"""What cannot be wanted at once, or not of these GPUs, with the reason. Pure.

What the hardware cannot do is asked of `dra_driver.devices.exclusion`, the one table of it; what the API has no way to
say, and what contradicts itself, is here. `known` are the GPU models that this version knows, one GPU each; of models
that it does not know nothing is claimed.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from dra_driver.api.config import SharingStrategy
from dra_driver.api.inventory import GpuFacts, PassthroughFacts
from dra_driver.apirules.metadata import label_value, qualified_name
from dra_driver.authoring.intent import (
    MIG_PROFILE,
    MODEL,
    Intent,
    ObjectForm,
    Same,
    WorkloadKind,
    is_model,
    quantity,
    spelled,
)
from dra_driver.devices.exclusion import LIMITS, GpuUse, PlannedUse, conflict, unsupported, without_effect
from dra_driver.devices.mig import compute_parts
from dra_driver.devices.model import DeviceKind, Partition
from dra_driver.names import is_dns_subdomain
from dra_driver.quantity import Quantity

MAX_DEVICES = 32
"""Of one claim, network devices included; the API has no room for more."""
MAX_PREFERENCES = 8
"""Of one request."""
_LONGEST_MODEL = 40
_ANY_PARTITION = Partition("1g", 0, 1)


def refusals(intent: Intent, known: Sequence[GpuFacts]) -> tuple[str, ...]:
    """One sentence for each thing that is wrong, options first; none when it can be written."""
    return tuple(dict.fromkeys((*_words(intent), *_together(intent), *_hardware(intent, known))))


def notes(intent: Intent, known: Sequence[GpuFacts]) -> Iterator[str]:
    """What can be written, and may surprise."""
    if intent.kind in (DeviceKind.GPU, DeviceKind.VFIO) and intent.memory is not None:
        yield from _just_missed(quantity(intent.memory, "--memory"), intent, known)
    share = intent.share
    if share is not None and ("cores" in share) is not ("memory" in share):
        given, other = ("cores", "memory") if "cores" in share else ("memory", "cores")
        yield (
            f"on devices that are shared by memory and cores, a claim with {given} alone takes all {other}, and no"
            f" other claim gets a share; add {other}=… to --share"
        )


_NOMINAL = 1.07
"""A GPU of 48 GB reports 45.0 GiB, and one of 16 GB 15.0 GiB."""


def _just_missed(wanted: Quantity, intent: Intent, known: Sequence[GpuFacts]) -> Iterator[str]:
    """GPUs whose nominal size is the amount: they report less, because they reserve some and count in GiB."""
    models = [intent.gpu] if intent.gpu is not None else intent.prefer
    missed = sorted(
        (gpu.memory_bytes, gpu.product_name)
        for gpu in known
        if gpu.memory_bytes is not None
        and gpu.memory_bytes < wanted.value <= gpu.memory_bytes * _NOMINAL
        and (not models or any(is_model(gpu, model) for model in models))
    )
    if missed:
        names = ", ".join(f"{name} ({size / 2**30:.1f}Gi)" for size, name in missed)
        yield (
            f"GPUs with a little less memory than {intent.memory} are left out: {names}; to include them, write"
            f" --memory {missed[0][0] // 2**30}Gi"
        )


# -- single options


def _words(intent: Intent) -> Iterator[str]:
    if intent.name is not None and "=" in intent.name:
        amounts = "" if intent.form is ObjectForm.CLASS else ", amounts of a share with --share"
        yield f"NAME {intent.name!r}: not a name; set MPS limits with --mps-limits{amounts}"
    elif intent.name is not None and not is_dns_subdomain(intent.name, longest=200):
        yield f"NAME {intent.name!r}: lower-case letters, digits, '-' and '.', at most 200"
    for option, words in (("--gpu", [intent.gpu] if intent.gpu is not None else []), ("--prefer", intent.prefer)):
        for word in words:
            if MODEL.fullmatch(word) is None or len(word) > _LONGEST_MODEL:
                yield f"{option} {word!r}: words of a product's name, as h100 or rtx-pro-6000"
    if intent.mig is not None and MIG_PROFILE.fullmatch(intent.mig) is None:
        yield f"--mig {intent.mig!r}: a profile, as 1g.10gb or 3g.40gb"
    for word in intent.tolerate:
        key, _, value = word.partition("=")
        if qualified_name(key) or label_value(value):
            yield f"--tolerate {word!r}: the key of a taint, or KEY=VALUE, as gpu.nvidia.com/xid"
    if not is_dns_subdomain(intent.nic_class):
        yield f"--nic-class {intent.nic_class!r}: the name of a DeviceClass"
    if intent.image is not None and (not intent.image or intent.image != intent.image.strip()):
        yield f"--image {intent.image!r}: the name of a container image"
    if len(set(map(spelled, intent.prefer))) < len(intent.prefer):
        yield "--prefer: the same model twice"
    if len(intent.prefer) > MAX_PREFERENCES:
        yield f"--prefer: at most {MAX_PREFERENCES} alternatives; the API has no room for more"
    most = MAX_DEVICES // 2 if intent.nic else MAX_DEVICES
    if not 1 <= intent.devices <= most:
        yield f"--count {intent.devices}: 1 to {most}{' with a network device each' if intent.nic else ''}"


# -- options together


def _together(intent: Intent) -> Iterator[str]:
    if intent.shows_devices and intent.workload in (WorkloadKind.DEPLOYMENT, WorkloadKind.STATEFUL_SET):
        yield f"--image is missing: a {intent.workload} needs a program that does not end; add --image, or --command"
    if intent.gpu is not None and intent.prefer:
        yield "--gpu with --prefer: --gpu selects one model, --prefer the first available of several; use one of them"
    beside_nic = intent.nic and intent.same in (Same.PCIE, Same.NODE)
    if intent.same is not None and intent.devices == 1 and not beside_nic and not intent.admin:
        yield f"--same {intent.same} with one device: say how many with --count"
    if intent.same is Same.NVLINK and intent.kind is DeviceKind.MIG:
        yield "--same nvlink with --mig: MIG devices cannot use NVLink"
    if intent.same is Same.NVLINK and intent.kind is DeviceKind.VFIO:
        yield "--same nvlink with --vm: GPUs for virtual machines do not say how NVLink connects them"
    if intent.same is Same.GPU and intent.mig is None:
        yield "--same gpu without --mig: only MIG devices are parts of one GPU"
    if intent.same is Same.GPU and intent.nic:
        yield "--same gpu with --with-nic: a network device is not a part of a GPU; --same pcie puts it beside one"
    if intent.same in (Same.NVLINK, Same.NUMA, Same.PCIE) and intent.kind is None:
        yield f"--same {intent.same} with shares: two shares of a claim may be on one GPU, so this has no effect"
    if intent.mig is not None and intent.memory is not None:
        yield f"--memory with --mig: the profile {intent.mig} says how much memory the MIG device has"
    if intent.share is not None and intent.memory is not None:
        yield (
            "--memory with --shared: a claim says how much memory its share has, as --share memory=8Gi"
            if intent.form is ObjectForm.CLASS
            else "--memory with --share: set it in --share, as memory=8Gi"
        )
    if intent.admin and intent.share is not None:
        yield "--share with --admin: admin access takes nothing of a device, so it has no amounts"
    if intent.admin and intent.prefer:
        yield "--prefer with --admin: the API gives admin access to no request with alternatives"
    if intent.admin and (intent.mps is not None or intent.interval is not None):
        yield "--mps or --time-slice with --admin: admin access looks at devices of others and changes nothing on them"
    if intent.admin and intent.same is not None:
        yield "--same with --admin: admin access covers devices anywhere on the node"
    if intent.admin and intent.nic:
        yield "--with-nic with --admin: admin access is for looking at GPUs"
    if intent.isolated and intent.mig is not None and "c." in intent.mig:
        yield f"--isolated with --mig {intent.mig}: parts of one GPU instance share its memory and its engines"
    if intent.isolated and intent.vm:
        yield "--isolated with --vm: a virtual machine always has its GPU exclusively; omit --isolated"
    yield from (f"{options}: {reason}" for options, reason in _exclusions(intent))


def _exclusions(intent: Intent) -> Iterator[tuple[str, str]]:
    """What `devices.exclusion` knows: ways to use one device that are not at once."""
    strategy = intent.strategy
    option = "--mps" if strategy == "MPS" else "--time-slice"
    share = "--shared" if intent.form is ObjectForm.CLASS else "--share"
    if intent.mps is not None and intent.interval is not None:
        yield "--mps with --time-slice", _reason(_use(strategy="MPS"), _use(strategy="TimeSlicing"))
    if intent.share is not None and strategy is not None:
        own, others = _use(strategy=strategy, settings="claim"), _use(strategy=strategy, settings="policy")
        yield f"{option} with {share}", f"{_reason(own, others)}; the administrator's policy says which"
    if intent.vm and intent.mig is not None:
        yield "--vm with --mig", _reason(_use(DeviceKind.VFIO), _use(DeviceKind.MIG))
    if intent.vm and intent.share is not None:
        yield f"--vm with {share}", _reason(_use(DeviceKind.VFIO), _use(strategy="MPS"))
    if intent.vm and strategy is not None:
        yield f"--vm with {option}", _limit(PlannedUse(DeviceKind.VFIO, strategy))


def _use(
    kind: DeviceKind = DeviceKind.GPU, strategy: SharingStrategy | None = None, settings: str | None = None
) -> GpuUse:
    partition = _ANY_PARTITION if kind is DeviceKind.MIG else None
    return GpuUse("", kind, partition, strategy, strategy is not None, settings=settings)


def _reason(use: GpuUse, other: GpuUse) -> str:
    reason = conflict(use, other)
    assert reason is not None, "only asked for uses that exclude each other"
    return reason


def _limit(wish: PlannedUse) -> str:
    return next(row.reason for row in LIMITS if row.wish == "time-slicing or MPS" and row.applies(_NO_GPU, wish))


_NO_GPU = GpuFacts(
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    name="gpu",
    minor=0,
    pci_bus_id="0000:00:00.0",
    product_name="GPU",
    brand="Nvidia",
    architecture="Hopper",
    cuda_compute_capability="9.0",
    passthrough=PassthroughFacts(iommu_group=0),
)
"""Stands for a GPU where it does not matter which."""


# -- hardware


def _hardware(intent: Intent, known: Sequence[GpuFacts]) -> Iterator[str]:
    """Of each model that is asked for, whether it can do what is asked of it."""
    models = (("--gpu", intent.gpu or ""), *(("--prefer", text) for text in intent.prefer))
    for option, model in models:
        if MODEL.fullmatch(model) is None:
            continue
        if matching := [gpu for gpu in known if is_model(gpu, model)]:
            problems = [next(_of_gpu(intent, gpu), None) for gpu in matching]
            if all(problems):
                yield f"{option} {model}: {problems[0]}"
    if intent.interval is not None and intent.kind is DeviceKind.MIG and intent.mps is None and known:
        reason = without_effect(known[0], PlannedUse(DeviceKind.MIG, "TimeSlicing"))
        if reason is not None:
            yield f"--time-slice with --mig: {reason}"
    yield from _known_profile(intent, known)


def _of_gpu(intent: Intent, gpu: GpuFacts) -> Iterator[str]:
    """What this GPU cannot do. Which mode an administrator has put it into is not known."""
    mig = gpu.mig.model_copy(update={"enabled": intent.kind is DeviceKind.MIG}) if gpu.mig is not None else None
    facts = gpu.model_copy(update={"mig": mig, "passthrough": _NO_GPU.passthrough})
    limits = intent.mps is not None and (intent.mps.threads is not None or intent.mps.memory is not None)
    strategy = intent.strategy if intent.kind is not DeviceKind.VFIO else None
    reason = unsupported(facts, PlannedUse(intent.kind or DeviceKind.GPU, strategy, limits=limits))
    if reason is not None:
        yield reason
    elif intent.mig is not None and intent.mig not in (profiles := _profiles(facts)):
        yield f"{gpu.product_name} has no profile {intent.mig}, but {', '.join(profiles)}"
    wanted = intent.memory or (intent.share or {}).get("memory")
    has = Quantity.of_bytes(gpu.memory_bytes or 0)
    if (
        wanted is not None
        and gpu.memory_bytes is not None
        and intent.mig is None
        and quantity(wanted, "--memory") > has
    ):
        yield f"{gpu.product_name} has {gpu.memory_bytes / 2**30:.1f}Gi of memory, less than {wanted}"
    if intent.same is Same.NVLINK and (gpu.nvlink is None or not gpu.nvlink.peers):
        yield f"{gpu.product_name} has no NVLink to other GPUs of its node"


def _profiles(gpu: GpuFacts) -> list[str]:
    profiles = gpu.mig.profiles if gpu.mig is not None else []
    parts = [
        f"{slices}c.{profile.name}"
        for profile in profiles
        for slices in range(1, profile.slices)
        if compute_parts(profile.slices, slices)
    ]
    return [*(profile.name for profile in profiles), *parts]


def _known_profile(intent: Intent, known: Sequence[GpuFacts]) -> Iterator[str]:
    """A profile that no model has is a slip of the pen as long as one looks like it; else it may be of a new model."""
    if intent.mig is None or intent.gpu is not None or MIG_PROFILE.fullmatch(intent.mig) is None:
        return
    profiles = {profile for gpu in known for profile in _profiles(gpu)}
    if intent.mig not in profiles and (close := get_close_matches(intent.mig, sorted(profiles), n=3)):
        yield f"--mig {intent.mig}: no known GPU has this profile; there are {', '.join(close)}"
