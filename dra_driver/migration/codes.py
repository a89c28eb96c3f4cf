"""All findings of a migration: one code for each, its default severity, and what to do.

`docs/migration.md` is generated from this table. A code never changes its meaning and is never used again.
Source: M001 to M025 are the codes of the reference on migration sources, section 10; the others are this project's.
"""

from dataclasses import dataclass

from dra_driver.checking.codes import Severity


@dataclass(frozen=True, slots=True)
class FindingCode:
    """One kind of finding. A finding can have another severity than its code."""

    name: str
    title: str
    """A few words, for tables."""
    severity: Severity
    means: str
    """One or two sentences."""
    advice: str = "Nothing to do."
    """What to do, as a sentence."""


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

DOUBLE_ALLOCATION = FindingCode(
    "M001", "device plugin beside the driver", _ERROR,
    "A device plugin offers the same GPUs, or its extended resources keep their names. Until it is gone from "
    "a node, both could give one GPU to two pods.",
    "Remove the device plugin from a node before the driver publishes that node's GPUs; the cut-over plan has "
    "the order.",
)  # fmt: skip
MEANING_UNKNOWN = FindingCode(
    "M002", "meaning of a resource unknown", _WARNING,
    "`nvidia.com/gpu` can mean a whole GPU, a MIG device (strategy single), or a share. That depends on the "
    "nodes, and no input says it.",
    "Give the device plugin's configuration, the ClusterPolicy or a list of nodes with `--with`, or decide it "
    "(`migStrategy: mixed`, `sharing: time-slicing:4`).",
)  # fmt: skip
SHARES_ABOVE_ONE = FindingCode(
    "M003", "several shares requested", _WARNING,
    "Several replicas of shared GPUs gave no more compute than one, and may have been on one GPU.",
    "Ask for one share, or for a number of devices if different GPUs are meant.",
)  # fmt: skip
PERCENT_WITHOUT_SIZE = FindingCode(
    "M004", "percentage of an unknown memory size", _WARNING,
    "A share is a percentage of a GPU's memory, but a claim asks for memory in bytes.",
    "Set the memory of the GPUs (`gpuMemory: 80Gi`), or give a list of nodes or ResourceSlices (`--with`).",
)  # fmt: skip
NOT_ENFORCED = FindingCode(
    "M005", "limit was enforced by a library", _WARNING,
    "The old system enforced memory or cores with a library in the container, or not at all. A claim reserves "
    "amounts; only MPS enforces them.",
    "Share these GPUs with MPS in a GpuPolicy (`strategy: MPS`), or trust the programs.",
)  # fmt: skip
BYPASS = FindingCode(
    "M006", "GPUs outside all accounting", _ERROR,
    "A container reaches GPUs that it did not request: with NVIDIA_VISIBLE_DEVICES, as a privileged "
    "container, or through device files of the host.",
    "Request the GPUs with a claim, with admin access for monitoring, and remove the bypass.",
)  # fmt: skip
MIXED_TERMS = FindingCode(
    "M007", "affinity with alternatives", _WARNING,
    "Node affinity has alternative terms with labels of GPUs. They stay conditions on nodes, and need those labels.",
    "Put the alternatives into one expression (`operator: In`), or keep GPU Feature Discovery running.",
)  # fmt: skip
PREFERENCE_STAYS = FindingCode(
    "M008", "preference for GPUs stays with the pod", _INFO,
    "Preferred node affinity names labels of GPUs. The scheduler still prefers such nodes while they have the labels.",
    "Keep GPU Feature Discovery running, or write a request with alternatives (`firstAvailable`).",
)  # fmt: skip
NODE_ONLY_LABEL = FindingCode(
    "M009", "label that no device has", _WARNING,
    "A label describes the node, not a device, so it stays a node label. Labels of GPU Feature Discovery "
    "become stale when it is removed.",
    "Keep GPU Feature Discovery running, or label the nodes yourself.",
)  # fmt: skip
NO_CLAIMS_HERE = FindingCode(
    "M010", "framework does not keep claims", _WARNING,
    "The framework drops claims from its pods, has no field for them, or cannot count them.",
    "Keep the extended resource, which a DeviceClass answers, or use the form that the message names.",
)  # fmt: skip
INFERRED_COUNT = FindingCode(
    "M011", "framework counted GPUs from limits", _INFO,
    "The framework read the number of GPUs from the container's limits, where it no longer is. It is now "
    "written explicitly.",
    "Change both when the number changes.",
)  # fmt: skip
IMMUTABLE = FindingCode(
    "M012", "must be deleted and created again", _INFO,
    "The API server refuses this change on an existing object.",
    "Delete the object and create it again when its work may be interrupted.",
)  # fmt: skip
OTHER_SCHEDULER = FindingCode(
    "M013", "another scheduler", _WARNING,
    "The pod names a scheduler that does not support claims, or only with a setting.",
    "Check that the scheduler supports DRA and has it enabled; otherwise remove `schedulerName`.",
)  # fmt: skip
QUOTA = FindingCode(
    "M014", "quota, limit or policy on the old resource", _WARNING,
    "A quota, a limit, a queue or an admission policy counts the old resource, which claims do not use.",
    "Put limits on the new keys; keep the old ones while pods use the extended resource.",
)  # fmt: skip
TOLERATION = FindingCode(
    "M015", "toleration added", _INFO,
    "For an extended resource an admission plugin can add the toleration for the taint of the same name. For "
    "claims it does not, so the pod gets it explicitly.",
)  # fmt: skip
GPU_INIT_CONTAINER = FindingCode(
    "M016", "init container with GPUs", _INFO,
    "The kubelet gave an init container's GPUs to the containers after it. The claim has one request that "
    "both name, so it holds as many GPUs as before.",
    "Check that the containers see the GPUs that they expect.",
)  # fmt: skip
PINNED_GPU = FindingCode(
    "M017", "one particular GPU", _WARNING,
    "The workload names GPUs by UUID, and its claim has a selector for them: the pod runs on no other GPU, "
    "and nowhere when that GPU is replaced.",
    "Remove the selector, unless the workload needs exactly this GPU.",
)  # fmt: skip
TOO_LARGE = FindingCode(
    "M018", "more than a claim holds", _ERROR,
    "A claim has at most 32 devices, and an expression at most 10 KiB.",
    "Divide the workload.",
)  # fmt: skip
UNKNOWN_RESOURCE = FindingCode(
    "M019", "resource that looks like a GPU", _WARNING,
    "The name of a resource looks like a GPU, but its meaning is unknown. It is left unchanged.",
    "Give the configuration that makes it, or write its claim with `dractl new template`. If it is no NVIDIA GPU, "
    "decide `otherResources: [NAME]`.",
)  # fmt: skip
NOT_EDITABLE = FindingCode(
    "M020", "text that is not edited", _WARNING,
    "The file is a template, a patch, or a text inside a text: its content is known only after rendering.",
    "Render it and migrate the result, or make the change in the message by hand.",
)  # fmt: skip
AUTOSCALER = FindingCode(
    "M021", "autoscaler", _WARNING,
    "An autoscaler creates nodes for what pods request, or reads metrics of the old resource.",
    "Check whether its version supports claims (Cluster Autoscaler 1.35 and newer), and keep its labels.",
)  # fmt: skip
SERVER_TOO_OLD = FindingCode(
    "M023", "API server without the feature", _ERROR,
    "The target Kubernetes version does not have what the result needs, or it is disabled.",
    "Upgrade, enable the feature gate, or decide on the other strategy (`strategy: claims` or `extended`).",
)  # fmt: skip
PAST_THE_SCHEDULER = FindingCode(
    "M024", "pod that bypasses the scheduler", _ERROR,
    "For pods with `nodeName` and for static pods no scheduler allocates devices: the pod would wait forever.",
    "Select the node by its host name instead; do not use GPUs in static pods.",
)  # fmt: skip
NO_COUNTERPART = FindingCode(
    "M025", "setting without a counterpart", _WARNING,
    "A setting of the old system has no equivalent.",
    "Do without it. It stays if it does no harm.",
)  # fmt: skip
INVALID_AMOUNT = FindingCode(
    "M026", "amount that the API server refuses", _ERROR,
    "An extended resource needs a whole number, and limits equal to requests. The API server never accepted this pod.",
    "Fix the manifest, then migrate it.",
)  # fmt: skip
ZERO = FindingCode(
    "M027", "amount of zero", _INFO,
    "An amount of 0 requests nothing; it prevents the default of a LimitRange. It is removed if the pod gets claims.",
    "Also remove the default from the LimitRange.",
)  # fmt: skip
ROUNDED = FindingCode(
    "M028", "memory of a label became a minimum", _INFO,
    "The memory that a driver reports differs slightly between versions, so equality with a label's number "
    "became `at least`, or `about`.",
    "Write the amount that the program needs instead.",
)  # fmt: skip
REDUNDANT = FindingCode(
    "M029", "label that the claim implies", _INFO,
    "Every node with the devices of the claim has this label. It is removed.",
)  # fmt: skip
CONTRADICTION = FindingCode(
    "M030", "conditions that no node satisfies", _ERROR,
    "The workload asks for GPUs and also for nodes that have none of them. The node condition stays, and the "
    "pod waits as before.",
    "Remove one of the two.",
)  # fmt: skip
SETTING_REMOVED = FindingCode(
    "M031", "setting removed", _INFO,
    "A setting defined which GPUs the NVIDIA container runtime injects. With claims the CDI spec of the device "
    "does this.",
)  # fmt: skip
SETTING_KEPT = FindingCode(
    "M032", "setting of the NVIDIA runtime kept", _INFO,
    "A setting for the NVIDIA container runtime has no effect with claims, or another one, and does no harm.",
    "Remove it when no pod uses the device plugin.",
)  # fmt: skip
HAND_MADE_MPS = FindingCode(
    "M033", "MPS daemon of the host", _WARNING,
    "The pod uses an MPS daemon of the host with its own mounts or variables. The driver starts a daemon for "
    "a claim or for shares, and injects what programs need.",
    "Remove the mounts and variables, and use a share by MPS or `mpsConfig` in the claim (docs/sharing.md).",
)  # fmt: skip
UNIT_ASSUMED = FindingCode(
    "M034", "unit assumed", _WARNING,
    "The unit of a resource depends on a setting of the old system, and was assumed.",
    "Check the amount in the claim.",
)  # fmt: skip
PLUGIN_SETTING = FindingCode(
    "M036", "setting of the device plugin", _WARNING,
    "A setting of the device plugin or GPU Operator is not carried over.",
    "See the message.",
)  # fmt: skip
IGNORED_BY_PLUGIN = FindingCode(
    "M037", "setting that the device plugin ignores", _INFO,
    "The device plugin reads this setting and ignores it.",
    "Remove it. If your own device plugin uses it, give nodes that offer these names.",
)  # fmt: skip
CONFLICTING_NODES = FindingCode(
    "M038", "nodes that differ", _WARNING,
    "Nodes or named configurations give one resource different meanings. A workload that does not select "
    "among them may have got any.",
    "Let the workload select its nodes, or migrate the groups of nodes one by one.",
)  # fmt: skip
ALREADY_DRA = FindingCode(
    "M039", "already uses DRA", _INFO,
    "This pod has claims, or this cluster has a DRA driver for GPUs. They stay. If the claims are for other devices,"
    " the pod's GPUs are migrated; if they are for GPUs, or their purpose is unknown, the pod is left unchanged.",
)  # fmt: skip
MIG_LAYOUT = FindingCode(
    "M040", "MIG layout", _INFO,
    "A MIG layout per node: what it holds, and what the driver makes of it.",
    "Remove the nodes from the MIG manager if the driver creates MIG devices on demand.",
)  # fmt: skip
SAME_GPU_POSSIBLE = FindingCode(
    "M041", "shares of different GPUs, or of one", _INFO,
    "The old system gave a container shares of different GPUs, or all containers of a pod shares of one GPU. "
    "The claim has a constraint for this.",
    "Remove the constraint if it does not matter.",
)  # fmt: skip
UNREADABLE = FindingCode(
    "M042", "cannot be read", _ERROR,
    "A file or a field is invalid. It is left unchanged; everything else is migrated.",
    "Fix it and migrate again.",
)  # fmt: skip
OPERATOR_LABEL = FindingCode(
    "M043", "label of the GPU Operator", _WARNING,
    "The workload selects nodes by a label that the GPU Operator uses for itself. It is left unchanged.",
    "Select by what the workload needs.",
)  # fmt: skip
CLOUD_LABEL = FindingCode(
    "M044", "label for an autoscaler", _INFO,
    "A label of a cloud selects the nodes that its autoscaler creates, which a claim does not. It stays.",
)  # fmt: skip
VIRTUAL_MACHINE = FindingCode(
    "M045", "GPU of a virtual machine", _WARNING,
    "The resource is a GPU, or a part of one, that is passed to a virtual machine.",
    "Use claims of the class vfio.gpu.nvidia.com with KubeVirt's own fields for them.",
)  # fmt: skip
ADMIN_ACCESS = FindingCode(
    "M046", "monitors all GPUs", _WARNING,
    "The pod monitored all GPUs of its node without a request. It gets a claim with admin access, which takes "
    "no device from other pods; its namespace needs the label `resource.kubernetes.io/admin-access: \"true\"`. "
    "On a node with MIG devices on demand, Kubernetes gives a new claim all GPUs only while none of them is "
    "in use, because counters apply to admin access, too. If this is known (decision `dynamicMig`, slices), "
    "the pod is left unchanged.",
    "Set the label, and remove privileges that the pod does not need. If only some nodes create MIG devices "
    "on demand, use one DaemonSet for each kind of node, and migrate the one for the others.",
)  # fmt: skip
UNUSED_LABEL = FindingCode(
    "M047", "label of GPUs without a request for them", _INFO,
    "A workload that asks for no GPU selects its nodes by a label of GPUs. It is left unchanged.",
    "Keep GPU Feature Discovery running, or label the nodes yourself.",
)  # fmt: skip
TAKES_THE_REST = FindingCode(
    "M049", "share that takes all of an amount", _WARNING,
    "Some workloads request memory and cores, others only one of them. On GPUs that offer both, a claim "
    "without an amount takes all of it, and shares the GPU with no other claim.",
    "Name both amounts in all claims, or use separate nodes: some with a rule `capacity: [memory]`.",
)  # fmt: skip
LABEL_STAYS = FindingCode(
    "M051", "label of GPUs that stays with the pod", _INFO,
    "The pod is left unchanged, and so are the node labels that it requires. Labels of GPU Feature Discovery "
    "become stale when it is removed.",
    "Keep GPU Feature Discovery running, label the nodes yourself, or decide on claims (`strategy: claims`).",
)  # fmt: skip
SHARED_CLAIM = FindingCode(
    "M052", "one claim for several workloads", _INFO,
    "Pods of this workload and of others have the same devices, as decided by `sharedClaims`. They run on one "
    "node, at most 256 at a time, and nothing limits the memory of each.",
    "Nothing to do. For limits, request shares instead.",
)  # fmt: skip
NOT_TAKEN = FindingCode(
    "M054", "configuration that was not used", _WARNING,
    "Several files define what resources mean, in different ways. A cluster has one answer.",
    "Give the right file with `--with FILE`, which takes precedence; migrate other clusters separately.",
)  # fmt: skip

CODES: tuple[FindingCode, ...] = tuple(value for value in list(globals().values()) if isinstance(value, FindingCode))
"""All codes, by number."""
