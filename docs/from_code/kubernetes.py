"""kubernetes-versions.md: what each Kubernetes version offers, from `dra_driver.kubernetes`."""

from docs.from_code.tables import WRITTEN, page, table
from dra_driver.apirules.dra_slices import SliceLimits
from dra_driver.doctor.server import LOSSES
from dra_driver.kubernetes import GATES, KNOWN, OLDEST, SEEN, SEEN_ON, KubernetesGate


def versions_page() -> str:
    """The whole of kubernetes-versions.md."""
    return page(
        "# Kubernetes versions",
        WRITTEN,
        f"The driver needs Kubernetes 1.{OLDEST} or newer: the first that serves `resource.k8s.io/v1`. Feature gates"
        " decide what it can do there. The driver compares no versions: a dry run at the API server shows which"
        " fields of a ResourceSlice it keeps, and the driver publishes these. A cluster with a gate switched on is"
        " therefore used like a newer one. `dractl doctor` names the gates that are off and what is"
        " missing because of them.",
        "## Feature gates",
        "Defaults of kube-apiserver, kube-scheduler, kube-controller-manager and kubelet.",
        table(("Gate", "What it enables", *map(_head, KNOWN)), map(_row, GATES.items())),
        "## What the driver does if a gate is off",
        table(("Gate", "Without it"), ((f"`{gate}`", loss) for gate, loss in LOSSES.items())),
        "## Other differences",
        table(("Behavior", *(f"1.{minor}" for minor in SEEN)), _BEHAVIORS),
        "## How this was tested",
        "`dractl allocate`, `dractl explain` and the simulated scheduler decide as the scheduler of the cluster's"
        " version does. If that tries pools and slices in any order, they show one of its possible choices: that of"
        " the names. Whether a claim fits does not depend on it.",
        "Do not use shares by amount (DRAConsumableCapacity) in 1.34. When the first device of a slice is full, its"
        " scheduler gives no shares of the others; the examples of shares by amount wait there. `dractl allocate`"
        " does not know this. See [where kube-scheduler decides"
        " differently](explain.md#where-kube-scheduler-decides-differently).",
        "Up to 1.35, counters do not include the shares that claims hold. A scheduler may allocate a MIG device"
        " of a GPU whose shares are in use. The node plugin refuses to prepare it.",
        f"On {SEEN_ON}, these tests ran with the real programs of Kubernetes {_releases()}. Gates were set as"
        " in the newest version, and in some tests to their defaults.",
        table(("What ran", *(version.removeprefix("v") for version in SEEN.values())), _RUNS),
        "For random claims, the real scheduler and the allocator decide about the same nodes, slices and claims."
        " Their decisions were the same, except for 4 in 1.35. There the scheduler keeps counters that it took"
        " while it searched, and this defect explains the differences. The claims for 1.34 have no shares.",
        "The servers' own metrics name the gates, their stages and whether they are on; the table of gates is"
        " compared with them. The column of 1.37 is only from Kubernetes' documentation: it was not checked"
        " against a server of 1.37.",
        "To repeat it, set `KUBEBUILDER_ASSETS` to a folder with the binaries of one version, and run"
        " `pytest tests/contracts tests/charts`. `SIMULATED_KUBERNETES=1.34` runs the same tests on the simulated API"
        " server of that version, which `dractl cluster --kubernetes 1.34` and `dractl demo --kubernetes 1.34`"
        " start.",
    )


def _releases() -> str:
    return ", ".join(version.removeprefix("v") for version in SEEN.values())


def _head(minor: int) -> str:
    return f"1.{minor}" if minor in SEEN else f"1.{minor} (not seen)"


def _row(named: tuple[str, KubernetesGate]) -> tuple[str, ...]:
    name, gate = named
    return (f"`{name}`", gate.means, *(_cell(gate, minor) for minor in KNOWN))


def _cell(gate: KubernetesGate, minor: int) -> str:
    stage = gate.stage(minor)
    return "-" if stage == "absent" else f"{'on' if gate.default(minor) else 'off'} ({stage})"


_ALL = ("yes", "yes", "yes")
_CUT = "one, then what the first alternative still lacks"
_RUNS = (
    ("Contract tests with kube-apiserver and kube-controller-manager", *_ALL),
    ("Contract tests with kube-scheduler and the claim controller", *_ALL),
    ("Random claims, decided by kube-scheduler: pods", "142", "524", "142"),
    ("Chart tests with kube-apiserver", *_ALL),
    ("Examples of whole GPUs with kubelet and containerd", *_ALL),
    (
        "Examples of MIG, shares, MPS and VFIO with kubelet and containerd",
        "yes, except for shares by amount",
        "yes",
        "not on this day",
    ),
)
_LIMITS = [SliceLimits.of(minor) for minor in SEEN]
_BEHAVIORS = (
    (
        "Counter sets have separate slices; otherwise each GPU with counters has one",
        *("yes" if one.counters_apart else "no" for one in _LIMITS),
    ),
    ("Maximum taints of a device", *(str(one.taints) for one in _LIMITS)),
    ("Maximum devices of a slice with taints or counters", *(str(one.advanced_devices) for one in _LIMITS)),
    ("Taints without effect (`None`)", *("yes" if "None" in one.effects else "refused" for one in _LIMITS)),
    ("Tolerations in a claim while DRADeviceTaints is off", "kept, without effect", "dropped", "dropped"),
    ("`distinctAttribute` while DRAConsumableCapacity is off", "kept, without effect", "dropped", "dropped"),
    (
        "Without the chart's admission policies, a plugin's token may change every part of the status of every claim "
        "([security.md](security.md#what-admission-policies-refuse))",
        "yes",
        "yes",
        "no",
    ),
    ("DeviceTaintRules are served in", "v1alpha3", "v1alpha3", "v1beta2"),
    ("With DRADeviceTaints, the scheduler also needs `resource.k8s.io/v1alpha3` to be served", "yes", "no", "no"),
    ("Upper case in a driver's name", "accepted", "warned about", "warned about"),
    ("The scheduler tries pools and their slices", "in any order", "in any order", "by name"),
    ("One request may get several shares of one device", "yes", "yes", "no"),
    ("Shares that other claims hold count against the counters of their pool", "no", "no", "yes"),
    ("Shares of one device consume counters", "each", "the first", "the first"),
    ("A later alternative (`firstAvailable`) that asks for all devices gets", *(_CUT, _CUT), "all"),
    ("An allocation has the tolerations of its request", "no", "yes", "yes"),
    (
        "With ResourceHealthStatus, the status of a pod shows the health of devices of",
        "claims whose entry in the pod has their name",
        "claims made from templates",
        "all claims",
    ),
    ("An init container has its own devices for an extended resource", "yes", "no", "no"),
)
