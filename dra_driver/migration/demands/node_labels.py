"""The labels of GPUs that are known: what each says, what becomes of it, and how. Pure.

A label describes a node, an attribute a device. On a node whose GPUs are alike the two agree; a test shows it for every
simulated GPU model. What no device has stays a label. Conditions are true or false for every device of the driver and
never an error, because an error would keep the pod from being scheduled.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.migration import codes
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.model import What
from dra_driver.migration.understand.labels import (
    PROFILE,
    SHARING_WORDS,
    Fate,
    LabelVerdict,
    Product,
    RequestedDevices,
    Requirement,
    quoted,
    restored_profile,
    whole_number_in,
)
from dra_driver.quantity import Quantity


@dataclass(frozen=True, slots=True)
class AskedLabel(Requirement):
    subject: RequestedDevices = field(kw_only=True)
    match: re.Match[str] = field(kw_only=True)
    """Of the row's pattern, with the key."""

    __str__ = Requirement.__str__

    @property
    def integers(self) -> list[int]:
        """Values that are no numbers are left out: no label has them."""
        return sorted({number for value in self.values if (number := whole_number_in(value)) is not None})


def _on_device(expression: str) -> LabelVerdict:
    return LabelVerdict(Fate.ON_DEVICE, expression)


def _implied(why: str) -> LabelVerdict:
    return LabelVerdict(Fate.IMPLIED, code=codes.REDUNDANT, message=why)


def _stays(why: str, code: FindingCode = codes.NODE_ONLY_LABEL) -> LabelVerdict:
    return LabelVerdict(Fate.KEPT, code=code, message=why)


def _never(why: str) -> LabelVerdict:
    return LabelVerdict(Fate.NEVER, code=codes.CONTRADICTION, message=why)


def _all_of(*parts: str) -> str:
    return " && ".join(part for part in parts if part)


def _not(expression: str) -> str:
    """Of anything but an expression that is a single comparison already in brackets."""
    return f"!({expression})"


def _one_of(expressions: Sequence[str]) -> str:
    """Any of them; what is only one is not put into brackets."""
    if len(expressions) == 1:
        return expressions[0]
    return " || ".join(f"({expression})" if "&&" in expression else expression for expression in expressions)


def _equals(value: str, literals: Sequence[str]) -> str:
    return f"{value} == {literals[0]}" if len(literals) == 1 else f"{value} in [{', '.join(literals)}]"


def _always_there(asked: AskedLabel) -> LabelVerdict | None:
    """Of a label that every node with such devices has: what Exists and DoesNotExist come to."""
    if asked.operator == "Exists":
        return _implied(f"every node with the devices has the label {asked.key}")
    if asked.operator == "DoesNotExist":
        return _never(f"every node with such devices has the label {asked.key}")
    return None


def _chosen(asked: AskedLabel, guard: str, test: Callable[[Sequence[str]], str], values: Sequence[str]) -> LabelVerdict:
    """In and NotIn; `values` are those that a device can have, `test` is true of devices with one of some values.

    `guard` says that the device has it at all; a node without the label is selected by NotIn.
    """
    if asked.operator not in ("In", "NotIn"):
        return _unknown_operator(asked)
    included = asked.operator == "In"
    if not values:
        if included:
            return _never(f"no device has {asked}")
        return _implied(f"no device has any of these values: {asked}")
    expression = test(values)
    expression = _all_of(guard, f"({expression})" if guard and "||" in expression else expression)
    return _on_device(expression if included else _not(expression))


def _unknown_operator(asked: AskedLabel) -> LabelVerdict:
    return _stays(f"{asked} no attribute of a device answers this")


def _whole_number(asked: AskedLabel, value: str, guard: str = "") -> LabelVerdict:
    """Of a label that is a number, as `value`, an int of CEL, is."""
    if asked.operator in ("Gt", "Lt"):
        return _compared(asked, guard, lambda sign, bound: f"{value} {sign} {bound}")
    numbers = [str(integer) for integer in asked.integers]
    return _always_there(asked) or _chosen(asked, guard, lambda results: _equals(value, results), numbers)


def _compared(asked: AskedLabel, guard: str, test: Callable[[str, int], str]) -> LabelVerdict:
    if len(asked.values) != 1 or not asked.integers:
        return _stays(f"{asked}: needs one whole number")
    return _on_device(_all_of(guard, test(">" if asked.operator == "Gt" else "<", asked.integers[0])))


# -- the labels


type Judge = Callable[[AskedLabel], LabelVerdict]


def of_gpus(judge: Judge) -> Judge:
    """Of labels that say how whole GPUs are shared, which MIG devices beside them do not say."""

    def judged(asked: AskedLabel) -> LabelVerdict:
        if asked.subject.want.what is What.MIG and not asked.subject.single:
            return _stays(f"{asked.key} is about whole GPUs, and the pod asks for MIG devices")
        return judge(asked)

    return judged


def of_product(asked: AskedLabel) -> LabelVerdict:
    """Of the GPU; under the strategy `single`, of its MIG devices."""

    def judge(asked: AskedLabel) -> LabelVerdict:
        return _product_of(asked, asked.subject.single and asked.subject.want.what is What.MIG)

    return (of_gpus(judge) if any(value.endswith("-SHARED") for value in asked.values) else judge)(asked)


def _product_of(asked: AskedLabel, mig_device: bool) -> LabelVerdict:
    """Products of MIG devices have the profile for a suffix, those of GPUs do not; others are on no such node."""
    products = [product for product in map(Product.of, asked.values) if (product.profile is not None) == mig_device]
    kinds = sorted({(product.profile, product.shared) for product in products}, key=str)
    return _always_there(asked) or _chosen(
        asked,
        "",
        lambda _: _one_of([_of_kind(asked, products, *kind) for kind in kinds]),
        [product.name for product in products],
    )


def _of_kind(asked: AskedLabel, products: Sequence[Product], profile: str | None, shared: bool) -> str:
    """Of the products that have the same suffixes. A product alone does not distinguish shared devices from others."""
    attributes = asked.subject.attributes
    names = [quoted(product.name) for product in products if (product.profile, product.shared) == (profile, shared)]
    parts = [_equals(f"{attributes}.productName.replace(' ', '-')", list(dict.fromkeys(names)))]
    if profile is not None and profile != asked.subject.want.profile:
        guard = "" if asked.subject.want.share is None else f"has({attributes}.profile)"
        parts.append(_all_of(guard, f"{attributes}.profile == {quoted(profile)}"))
    if shared:
        parts.append(f"{attributes}.sharing != 'exclusive'")
    return _all_of(*parts)


FAMILIES: Mapping[str, str] = {
    "kepler": "Kepler", "maxwell": "Maxwell", "pascal": "Pascal", "volta": "Volta", "turing": "Turing",
    "ampere": "Ampere", "ada-lovelace": "Ada Lovelace", "hopper": "Hopper", "blackwell": "Blackwell", "rubin": "Rubin",
}  # fmt: skip
"""Architecture by the value of `gpu.family`."""


def of_family(asked: AskedLabel) -> LabelVerdict:
    results = [quoted(FAMILIES[value]) for value in asked.values if value in FAMILIES]
    if len(results) < len(asked.values):
        return _stays(f"{asked}: not every value is a known architecture")
    attribute = f"{asked.subject.attributes}.architecture"
    return _always_there(asked) or _chosen(asked, "", lambda values: _equals(attribute, values), results)


_TOLERANCE = 50
"""Two percent: how far the memory that drivers report for one GPU model differs from version to version."""


def of_memory(asked: AskedLabel) -> LabelVerdict:
    """Of the GPU; under the strategy `single`, of its MIG devices."""
    if asked.subject.want.what is What.MIG and not asked.subject.single:
        return _stays(f"{asked.key} is the memory of the whole GPU, which MIG devices do not publish")
    return _memory_of(asked)


def _memory_of(asked: AskedLabel) -> LabelVerdict:
    memory = f"{asked.subject.capacity}.memory"
    guard = f"has({memory})"
    if asked.operator == "Exists":
        return _on_device(guard)
    if asked.operator == "DoesNotExist":
        return _on_device(_not(guard))
    if asked.operator in ("Gt", "Lt"):
        words = {">": "isGreaterThan", "<": "isLessThan"}
        return _compared(asked, guard, lambda sign, bound: f"{memory}.{words[sign]}({_mebibytes(bound)})")
    if not asked.integers or asked.operator != "In":
        return _unknown_operator(asked)
    floor = asked.integers[0] - asked.integers[0] // _TOLERANCE
    expression = _all_of(guard, f"{memory}.compareTo({_mebibytes(floor)}) >= 0")
    message = f"{asked} became at least {floor}Mi: GPUs with more memory fit, too"
    return LabelVerdict(Fate.ON_DEVICE, expression, codes.ROUNDED, message)


def _mebibytes(count: int) -> str:
    return f"quantity('{Quantity.parse(f'{count}Mi')}')" if count % 1024 == 0 else f"quantity('{count}Mi')"


def of_compute(asked: AskedLabel) -> LabelVerdict:
    return _whole_number(asked, f"{asked.subject.attributes}.cudaComputeCapability.{asked.match[1]}()")


_PARTS = {"major": "major", "minor": "minor", "rev": "patch", "revision": "patch"}


def of_version(attribute: str) -> Judge:
    def judge(asked: AskedLabel) -> LabelVerdict:
        value = f"{asked.subject.attributes}.{attribute}"
        return _whole_number(asked, f"{value}.{_PARTS[asked.match[1]]}()", f"has({value})")

    return judge


def of_count(asked: AskedLabel) -> LabelVerdict:
    """Of GPUs on the node, which no device says."""
    subject = asked.subject
    if subject.want.what is What.GPU and not subject.single and subject.want.share is None:
        if asked.operator == "Exists":
            return _implied("every node with GPUs has this label")
        if asked.operator == "In" and asked.integers == [subject.total]:
            return _implied(f"the pod asks for {subject.total} GPUs, which is all that such a node has")
        if asked.operator == "Gt" and asked.integers and subject.total > asked.integers[0]:
            return _implied(f"the pod asks for {subject.total} GPUs of one node")
    return _stays(f"{asked}: the number of GPUs of a node is no attribute of a device")


def of_sharing(asked: AskedLabel) -> LabelVerdict:
    results = [quoted(SHARING_WORDS[value]) for value in asked.values if value in SHARING_WORDS]
    attribute = f"{asked.subject.attributes}.sharing"
    return _always_there(asked) or _chosen(asked, "", lambda values: _equals(attribute, values), results)


def _flag(asked: AskedLabel) -> bool | None:
    """What a label whose values are `true` and `false` is asked to be. None: anything, or nothing."""
    if asked.operator in ("In", "NotIn") and len(asked.values) == 1 and asked.values[0] in ("true", "false"):
        return (asked.values[0] == "true") == (asked.operator == "In")
    return None


def _flagged(asked: AskedLabel, true: LabelVerdict, false: LabelVerdict) -> LabelVerdict:
    """Of a label that every node with such devices has, and whose values are these two."""
    wanted = _flag(asked)
    if wanted is None:
        return _always_there(asked) or _unknown_operator(asked)
    return true if wanted else false


def of_mig_capable(asked: AskedLabel) -> LabelVerdict:
    capable = f"{asked.subject.attributes}.migCapable"
    if asked.subject.want.what is What.MIG:
        why = "only GPUs that can be partitioned have MIG devices"
        return _flagged(asked, _implied(why), _never(why))
    expression = f"has({capable}) && {capable}"
    return _flagged(asked, _on_device(expression), _on_device(_not(expression)))


def of_mig_strategy(asked: AskedLabel) -> LabelVerdict:
    if asked.operator == "In" and len(asked.values) == 1:
        return _implied("the claim says whether it wants a whole GPU or a MIG device")
    return _stays(f"{asked}: says how resources are named, not what devices are")


def of_mig_config(asked: AskedLabel) -> LabelVerdict:
    """The layout that the MIG manager keeps on the node."""
    subject = asked.subject
    uniform = re.fullmatch(rf"all-({PROFILE})", asked.values[0]) if len(asked.values) == 1 else None
    profile = restored_profile(uniform[1]) if uniform is not None else None
    if asked.operator == "In" and profile is not None and profile == subject.want.profile:
        return _implied("the claim says the profile")
    if asked.operator == "In" and asked.values == ("all-disabled",) and subject.want.what is What.GPU:
        return _implied("the claim asks for a whole GPU")
    return _stays(f"{asked}: a layout of the MIG manager, which is gone when the driver partitions GPUs")


def of_mps_capable(asked: AskedLabel) -> LabelVerdict:
    sharing = f"{asked.subject.attributes}.sharing"
    return _flagged(asked, _on_device(f"{sharing} == 'mps'"), _on_device(f"{sharing} != 'mps'"))


def of_clique(asked: AskedLabel) -> LabelVerdict:
    """Also a topology key, for which the label must stay."""
    clique = f"{asked.subject.attributes}.clique"
    if asked.subject.want.what is not What.GPU:
        return _stays(f"{asked}: only whole GPUs publish their clique")
    if asked.operator in ("Exists", "DoesNotExist"):
        return _on_device(f"has({clique})" if asked.operator == "Exists" else f"!has({clique})")
    values = [quoted(value) for value in asked.values]
    return _chosen(asked, f"has({clique})", lambda results: _equals(clique, results), values)


def of_present(asked: AskedLabel) -> LabelVerdict:
    """Says that the node has a GPU."""
    if asked.operator == "Exists" or _flag(asked) is True:
        return _implied("the claim is only ever on a node that has GPUs")
    if asked.operator == "DoesNotExist" or _flag(asked) is False:
        return _never("the claim is only ever on a node that has GPUs")
    return _unknown_operator(asked)


def of_profile(asked: AskedLabel) -> LabelVerdict:
    """`nvidia.com/mig-1g.5gb.memory` and the like, under the strategy `mixed`."""
    profile, part = restored_profile(asked.match[1]), asked.match[2]
    want = asked.subject.want
    if want.what is not What.MIG or want.profile != profile:
        return _stays(f"{asked.key} is about MIG devices that the pod does not ask for")
    if part == "memory":
        return _memory_of(asked)
    if part == "product":
        return _product_of(asked, True)
    if part == "sharing-strategy":
        return of_sharing(asked)
    return _stays(f"{asked}: a claim asks for MIG devices by their profile")


def node_only(why: str, code: FindingCode = codes.NODE_ONLY_LABEL) -> Judge:
    return lambda asked: _stays(f"{asked.key}: {why}", code)


@dataclass(frozen=True, slots=True)
class Row:
    """One label, or a family of them; `key`, `means` and `becomes` are for the docs."""

    key: str
    means: str
    becomes: str
    pattern: re.Pattern[str]
    judge: Judge


def _row(key: str, means: str, becomes: str, judge: Judge, pattern: str = "") -> Row:
    return Row(key, means, becomes, re.compile(pattern or re.escape(key)), judge)


_MIG_PARTS = r"count|product|memory|multiprocessors|slices\.[gc]i|engines\.[a-z]+|replicas|sharing-strategy"
_PARTS_OF_GPUS = r"nvidia\.com/gpu\.(multiprocessors|slices\.[gc]i|engines\.[a-z]+)"

ROWS: tuple[Row, ...] = (
    _row("nvidia.com/gpu.product", "product", "`productName`; `-MIG-…`: the profile; `-SHARED`: `sharing`", of_product),
    _row("nvidia.com/gpu.family", "architecture", "`architecture`", of_family),
    _row("nvidia.com/gpu.memory", "memory in MiB", "capacity `memory`; equality becomes `at least`", of_memory),
    _row(
        "nvidia.com/gpu.compute.{major,minor}", "compute capability", "`cudaComputeCapability`", of_compute,
        r"nvidia\.com/gpu\.compute\.(major|minor)",
    ),
    _row(
        "nvidia.com/cuda.driver-version.{major,minor,revision}, cuda.driver.{major,minor,rev}",
        "version of the driver", "`driverVersion`", of_version("driverVersion"),
        r"nvidia\.com/cuda\.(?:driver\.(?=major|minor|rev\Z)|driver-version\.(?!rev\Z))(major|minor|revision|rev)",
    ),
    _row(
        "nvidia.com/cuda.runtime-version.{major,minor}, cuda.runtime.{major,minor}",
        "newest CUDA of the driver", "`cudaDriverVersion`", of_version("cudaDriverVersion"),
        r"nvidia\.com/cuda\.runtime(?:-version)?\.(major|minor)",
    ),
    _row("nvidia.com/gpu.count", "GPUs of the node", "implied by as many devices, else a label of the node", of_count),
    _row(
        "nvidia.com/gpu.replicas, cuda.*-version.full", "shares of a GPU; versions", "stays",
        node_only("a claim asks for shares, and compares parts of versions"),
        r"nvidia\.com/(?:gpu\.replicas|cuda\.(?:driver|runtime)-version\.full)",
    ),
    _row("nvidia.com/gpu.sharing-strategy", "how GPUs are shared", "`sharing`", of_gpus(of_sharing)),
    _row("nvidia.com/gpu.clique", "NVLink clique", "`clique`; as a topology key it stays", of_clique),
    _row("nvidia.com/mig.capable", "can be partitioned", "`migCapable`; implied by MIG devices", of_mig_capable),
    _row("nvidia.com/mig.strategy", "how resources are named", "implied by the claim", of_mig_strategy),
    _row("nvidia.com/mig.config", "layout that was ordered", "implied by the profile, else a label", of_mig_config),
    _row(
        "nvidia.com/mig.config.state", "state of the MIG manager", "stays",
        node_only("the state of the MIG manager, which no device has"),
    ),
    _row(
        "nvidia.com/mig-<profile>.*", "MIG devices under `mixed`", "memory, product, sharing; else stays", of_profile,
        rf"nvidia\.com/mig-({PROFILE}?)\.({_MIG_PARTS})",
    ),
    _row(
        "nvidia.com/gpu.{multiprocessors,slices.*,engines.*}", "MIG devices under `single`", "stays",
        node_only("a claim asks for MIG devices by their profile"), _PARTS_OF_GPUS,
    ),
    _row("nvidia.com/mps.capable", "MPS daemon on the node", "`sharing == 'mps'`", of_gpus(of_mps_capable)),
    _row("nvidia.com/gpu.present", "has a GPU", "implied", of_present),
    _row(
        "feature.node.kubernetes.io/pci-*10de*.present", "has a PCI device of NVIDIA", "implied", of_present,
        r"feature\.node\.kubernetes\.io/pci-(?:[0-9a-f]{4}_)?10de(?:[_0-9a-f]*)\.present",
    ),
    _row(
        "nvidia.com/gpu.{machine,mode}, vgpu.*, gpu.imex-domain, gfd.timestamp", "the node", "stays",
        node_only("says something about the node that no device has"),
        r"nvidia\.com/(?:gpu\.(?:machine|mode|imex-domain)|vgpu\.(?:present|host-driver-.*)|gfd\.timestamp)",
    ),
    _row(
        "nvidia.com/gpu.deploy.*, gpu.workload.config, gpu-driver-upgrade-state, device-plugin.config, vgpu.config",
        "plumbing of the GPU Operator", "stays",
        node_only("controls the GPU Operator and is not for workloads", codes.OPERATOR_LABEL),
        r"nvidia\.com/(?:gpu\.deploy\..*|gpu\.workload\.config|gpu-driver-upgrade-state|device-plugin\.config"
        r"|vgpu\.config(?:\..*)?)",
    ),
    _row(
        "nvidia.com/*", "anything else", "stays", node_only("is an unknown label"), r"nvidia\.com/.+",
    ),
    _row(
        "cloud.google.com/gke-accelerator, karpenter.k8s.aws/instance-gpu-*, …", "pools of an autoscaler", "stays",
        node_only("selects the nodes that an autoscaler creates", codes.CLOUD_LABEL),
        r"cloud\.google\.com/gke-(?:accelerator|gpu-).*|karpenter\.k8s\.aws/instance-gpu-.*"
        r"|eks\.amazonaws\.com/instance-gpu-.*|k8s\.amazonaws\.com/accelerator|kubernetes\.azure\.com/accelerator",
    ),
)  # fmt: skip
"""The first one whose pattern fits the key decides."""


def verdict_on(requirement: Requirement, subject: RequestedDevices) -> LabelVerdict | None:
    """None: the label has nothing to do with GPUs, and stays."""
    for row in ROWS:
        match = row.pattern.fullmatch(requirement.key)
        if match is not None:
            return row.judge(
                AskedLabel(requirement.key, requirement.operator, requirement.values, subject=subject, match=match)
            )
    return None


def is_gpu_label(key: str) -> bool:
    return any(row.pattern.fullmatch(key) for row in ROWS)
