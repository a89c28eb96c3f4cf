"""Everything that a migration can have to say: one code for each, how bad it is by default, and whose move it is.

`docs/migration.md` is made of this table. A code never changes its meaning and is never used again for another one.
Source: M001 to M025 are the codes of the reference on migration sources, section 10; those from M026 on are ours.
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """ERROR: the workload would not mean the same. WARNING: it may not. INFO: it does, and this is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return tuple(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding. A finding can be milder or worse than `severity`, where its message says why."""

    name: str
    title: str
    """A few words, for tables."""
    severity: Severity
    means: str
    """One or two sentences."""
    advice: str
    """What to do about it, as a sentence."""


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

DOUBLE_ALLOCATION = Code(
    "M001", "device plugin beside the driver", _ERROR,
    "A device plugin hands out the same GPUs, or extended resources go on under the name that it has: until it is gone "
    "from a node, two that do not know each other could give one GPU to two pods.",
    "Take the device plugin off a node before the driver publishes that node's GPUs; the cut-over plan has the order.",
)  # fmt: skip
MEANING_UNKNOWN = Code(
    "M002", "meaning of a resource unknown", _WARNING,
    "What `nvidia.com/gpu` stands for depends on the nodes: a whole GPU, a MIG device (strategy single), or a share. "
    "Nothing that was given says so.",
    "Give the device plugin's configuration, the ClusterPolicy or a list of nodes, or decide it "
    "(`migStrategy: mixed`, `sharing: time-slicing:4`).",
)  # fmt: skip
SHARES_ABOVE_ONE = Code(
    "M003", "several shares asked for", _WARNING,
    "Several replicas of shared GPUs gave no more compute than one, and may have been of one GPU.",
    "Ask for one share, or for a count of devices when different GPUs were meant.",
)  # fmt: skip
PERCENT_WITHOUT_SIZE = Code(
    "M004", "percentage of a memory whose size is unknown", _WARNING,
    "A share is given in percent of a GPU's memory; a claim asks for memory in bytes.",
    "Say how much memory the GPUs have (`gpuMemory: 80Gi`), or give a list of nodes or ResourceSlices (`--with`).",
)  # fmt: skip
NOT_ENFORCED = Code(
    "M005", "limit was kept by a library", _WARNING,
    "The old system kept programs to their memory or cores by a library that it put into the container, or not at all. "
    "A claim reserves amounts; only MPS makes programs keep to them.",
    "Share these GPUs by MPS in the PublishingPolicy (`strategy: MPS`), or trust the programs.",
)  # fmt: skip
BYPASS = Code(
    "M006", "GPUs outside all accounting", _ERROR,
    "A container reaches GPUs that it did not ask for: by NVIDIA_VISIBLE_DEVICES, as a privileged container, or "
    "through device files of the host.",
    "Ask for the GPUs by a claim, with admin access for what only looks at them, and take the bypass away.",
)  # fmt: skip
MIXED_TERMS = Code(
    "M007", "affinity with alternatives of mixed kind", _WARNING,
    "Node affinity whose alternatives each mix labels of GPUs and other labels cannot be divided between claim and pod "
    "without a change of meaning. It is left as it is, and holds as long as somebody keeps those labels.",
    "Write one workload for each alternative, or keep GPU Feature Discovery running.",
)  # fmt: skip
PREFERENCE_TOO_RICH = Code(
    "M008", "preference that no list can say", _WARNING,
    "Preferred affinity adds weights up; a request has one list of alternatives, the best first, of at most eight.",
    "Write the list by hand (`firstAvailable`), or do without the preference. It is left as it is.",
)  # fmt: skip
NODE_ONLY_LABEL = Code(
    "M009", "label that no device has", _WARNING,
    "A label says something about the node, not about a device, so it stays a node label. Those of GPU Feature "
    "Discovery go stale when it is taken away.",
    "Keep GPU Feature Discovery running, or label the nodes yourself under a name of your own.",
)  # fmt: skip
NO_CLAIMS_HERE = Code(
    "M010", "framework cannot hold claims", _WARNING,
    "The framework drops claims from its pods, has no field for them, or cannot count such ones.",
    "Stay with the extended resource, which a DeviceClass answers to, or use the form that the message names.",
)  # fmt: skip
INFERRED_COUNT = Code(
    "M011", "framework counted GPUs from limits", _INFO,
    "The framework inferred the number of GPUs from the container's limits, where it is no more. "
    "It is written out instead.",
    "Change both when the number changes.",
)  # fmt: skip
IMMUTABLE = Code(
    "M012", "must be deleted and created anew", _INFO,
    "The API server refuses this change on an object that exists.",
    "Delete the object and create it again, when its work may be interrupted.",
)  # fmt: skip
OTHER_SCHEDULER = Code(
    "M013", "another scheduler", _WARNING,
    "The pod names a scheduler that does not know claims, or only with a setting switched on.",
    "See whether that scheduler knows DRA and has it on; else take `schedulerName` away.",
)  # fmt: skip
QUOTA = Code(
    "M014", "quota, limit or policy on the old resource", _WARNING,
    "A quota, a limit, a queue or an admission policy counts the old resource, which claims do not use.",
    "Put limits on the new keys; keep the old ones while pods use the extended resource.",
)  # fmt: skip
TOLERATION = Code(
    "M015", "toleration written out", _INFO,
    "For an extended resource an admission plugin may have added the toleration of a taint of the same name. For "
    "claims nobody does, so it is written into the pod.",
    "Nothing to do.",
)  # fmt: skip
GPU_INIT_CONTAINER = Code(
    "M016", "init container with GPUs", _INFO,
    "Kubelet gave an init container's GPUs to the containers after it. The claim has one request that both name, so "
    "it holds as many GPUs as before.",
    "Look whether the containers see the GPUs that they expect.",
)  # fmt: skip
PINNED_GPU = Code(
    "M017", "one particular GPU", _WARNING,
    "The workload names GPUs by their UUID: it runs nowhere else, and nowhere when that GPU is replaced.",
    "Do without it, or decide that a selector on the UUID is wanted (`pinUuids: true`).",
)  # fmt: skip
TOO_LARGE = Code(
    "M018", "more than a claim holds", _ERROR,
    "A claim has at most 32 devices, a request at most 8 alternatives, and an expression at most 10 KiB.",
    "Divide the workload.",
)  # fmt: skip
UNKNOWN_RESOURCE = Code(
    "M019", "resource that looks like a GPU", _WARNING,
    "The name of a resource looks like one of GPUs, and nobody here knows what it stands for. It is left as it is.",
    "Give the configuration that makes it, or decide what a number of it is (`resources: {NAME: MiB}`); if it is "
    "no NVIDIA GPU, `resources: {NAME: other}`.",
)  # fmt: skip
NOT_EDITABLE = Code(
    "M020", "text that is not edited", _WARNING,
    "The file is a template, a patch, or text inside of text: what it will be is known when it is rendered.",
    "Render it and migrate the result, or make the change that the message names by hand.",
)  # fmt: skip
AUTOSCALER = Code(
    "M021", "autoscaler", _WARNING,
    "An autoscaler makes nodes for what pods ask for, or reads metrics of the old resource.",
    "See whether its version knows claims (Cluster Autoscaler from 1.35 on), and keep its labels.",
)  # fmt: skip
SERVER_TOO_OLD = Code(
    "M023", "API server without the feature", _ERROR,
    "The Kubernetes that is migrated to does not have, or has switched off, what the result needs.",
    "Upgrade, switch the gate on, or decide on the other strategy (`strategy: claims` or `extended`).",
)  # fmt: skip
PAST_THE_SCHEDULER = Code(
    "M024", "pod past the scheduler", _ERROR,
    "With `nodeName`, and in static pods, nobody allocates devices: the pod would wait forever.",
    "Select the node by its host name instead; do not use GPUs in static pods.",
)  # fmt: skip
NO_COUNTERPART = Code(
    "M025", "setting without a counterpart", _WARNING,
    "A setting of the old system has nothing that corresponds to it.",
    "Do without it. It is left as it is where that does no harm.",
)  # fmt: skip

INVALID_AMOUNT = Code(
    "M026", "amount that the API server refuses", _ERROR,
    "An extended resource wants a whole number, and limits equal to requests. The pod was never accepted like this.",
    "Put the manifest right, then migrate it.",
)  # fmt: skip
ZERO = Code(
    "M027", "amount of nothing", _INFO,
    "An amount of 0 asks for nothing; it keeps a LimitRange from putting in its default. It goes where the pod gets "
    "claims, and stays otherwise.",
    "Take the default out of the LimitRange, too.",
)  # fmt: skip
ROUNDED = Code(
    "M028", "memory of a label taken as a floor", _INFO,
    "The memory that a driver reports differs a little from version to version, so equality with a label's number "
    "became `at least`, or `about`.",
    "Write the amount that the program needs instead.",
)  # fmt: skip
REDUNDANT = Code(
    "M029", "label that the claim implies", _INFO,
    "Whatever has the devices of the claim has this label, too. It is taken out.",
    "Nothing to do.",
)  # fmt: skip
CONTRADICTION = Code(
    "M030", "conditions that nothing fulfils", _ERROR,
    "The workload asks for GPUs and, at the same time, for nodes that have none such. The condition on the node stays, "
    "and the pod waits as it did.",
    "Take one of the two away.",
)  # fmt: skip
SETTING_REMOVED = Code(
    "M031", "setting taken out", _INFO,
    "A setting told the NVIDIA container runtime which GPUs to hand in. With claims the device's CDI spec does.",
    "Nothing to do.",
)  # fmt: skip
SETTING_KEPT = Code(
    "M032", "setting of the NVIDIA runtime kept", _INFO,
    "A setting for the NVIDIA container runtime has no effect with claims, or another one, and does no harm.",
    "Take it away when nothing of the old way is left.",
)  # fmt: skip
HAND_MADE_MPS = Code(
    "M033", "MPS by hand", _WARNING,
    "The pod reaches an MPS daemon of the host by its own mounts or environment. The driver starts a daemon for a "
    "claim or for shares, and hands in what programs need.",
    "Take the mounts away (`removeMpsMounts: true`) once the result runs.",
)  # fmt: skip
UNIT_ASSUMED = Code(
    "M034", "unit assumed", _WARNING,
    "The unit of a resource depends on a setting of the old system, and was assumed.",
    "Look whether it is right; if not, decide it (`resources: {NAME: MiB}`).",
)  # fmt: skip
SHARE_OF_MIG = Code(
    "M035", "share as a MIG device", _INFO,
    "The share was asked for as a MIG device: the claim takes one with at least as much memory.",
    "Choose a profile instead, when it must be a certain one.",
)  # fmt: skip
PLUGIN_SETTING = Code(
    "M036", "setting of the device plugin", _WARNING,
    "A setting of the device plugin or GPU Operator is not carried over.",
    "See the message.",
)  # fmt: skip
IGNORED_BY_PLUGIN = Code(
    "M037", "setting that the device plugin ignores", _INFO,
    "The device plugin reads this setting and does not heed it: no node ever behaved like this.",
    "Take it away. If a device plugin of your own heeds it, give nodes that offer these names, or what asks for them.",
)  # fmt: skip
CONFLICTING_NODES = Code(
    "M038", "nodes that differ", _WARNING,
    "Nodes or named configurations give one resource different meanings. A workload that does not choose among them "
    "may have got any.",
    "Let the workload choose its nodes, or migrate the groups of nodes one by one.",
)  # fmt: skip
ALREADY_DRA = Code(
    "M039", "already uses DRA", _INFO,
    "This pod has claims, or this cluster a DRA driver for GPUs. They stay as they are. A pod whose claims are of "
    "something else gets its GPUs migrated besides; where they are of GPUs, or it is not known what they are of, it is "
    "left as it is.",
    "Nothing to do.",
)  # fmt: skip
MIG_LAYOUT = Code(
    "M040", "MIG layout", _INFO,
    "A MIG layout that was made per node: what it holds, and what the driver makes of it.",
    "Take the nodes from the MIG manager where the driver makes MIG devices on demand.",
)  # fmt: skip
SAME_GPU_POSSIBLE = Code(
    "M041", "shares of different GPUs, or of one", _INFO,
    "The old system gave a container shares of different GPUs, or all containers of a pod shares of one GPU. The claim "
    "says so by a constraint.",
    "Take the constraint away where it does not matter which GPUs the shares are of.",
)  # fmt: skip
UNREADABLE = Code(
    "M042", "cannot be read", _ERROR,
    "A file or a field is not what it should be. It is left as it is; everything else is migrated.",
    "Put it right and migrate again.",
)  # fmt: skip
OPERATOR_LABEL = Code(
    "M043", "label of the GPU Operator's own", _WARNING,
    "The workload selects nodes by a label with which the GPU Operator steers itself. It is left as it is.",
    "Select by what the workload needs.",
)  # fmt: skip
CLOUD_LABEL = Code(
    "M044", "label for an autoscaler", _INFO,
    "A label of a cloud tells its autoscaler which nodes to make, which a claim does not. It is kept.",
    "Nothing to do.",
)  # fmt: skip
VIRTUAL_MACHINE = Code(
    "M045", "GPU of a virtual machine", _WARNING,
    "The resource stands for a GPU, or a part of one, that is passed to a virtual machine.",
    "Use claims of the class vfio.gpu.nvidia.com with KubeVirt's own fields for them.",
)  # fmt: skip
ADMIN_ACCESS = Code(
    "M046", "looks at all GPUs", _WARNING,
    "The pod watched all GPUs of its node without asking for one. It gets a claim with admin access, which takes "
    "nothing from anybody; its namespace needs the label `resource.kubernetes.io/admin-access: \"true\"`. On a node "
    "where MIG devices are made on demand Kubernetes gives no new claim all GPUs while any of them, or a part of one, "
    "is in use: counters are checked for admin access, too, and no other claim gets around them. What it got before "
    "it keeps. So where this is known (decision `dynamicMig`, slices) the pod stays as it is.",
    "Set the label, and see which of the pod's privileges it can do without. Where some nodes make MIG devices on "
    "demand and others do not, give each kind a DaemonSet of its own, and migrate the one for the others alone.",
)  # fmt: skip
UNUSED_LABEL = Code(
    "M047", "label of GPUs without a request for them", _INFO,
    "A workload that asks for no GPU selects its nodes by a label of GPUs. It is left as it is.",
    "Keep GPU Feature Discovery running, or label the nodes yourself.",
)  # fmt: skip

TAKES_THE_REST = Code(
    "M049", "share that takes all of what it does not name", _WARNING,
    "Some workloads ask for memory and cores, others for one of them. On GPUs that are offered in both, who does not "
    "say how much of one takes all of it, and shares with nobody.",
    "Say both in all claims, or keep the two apart: nodes with a rule `capacity: [memory]`, and others.",
)  # fmt: skip
WRITTEN_OUT = Code(
    "M050", "alias written out", _INFO,
    "YAML used one map in several places, and they are not the same any more. Where it differs, the alias became a "
    "copy.",
    "Nothing to do.",
)  # fmt: skip
LABEL_STAYS = Code(
    "M051", "label of GPUs that stays with the pod", _INFO,
    "The pod stays as it is, and so do the labels that it asks of its node. Those of GPU Feature Discovery go stale "
    "when it is taken away.",
    "Keep GPU Feature Discovery running, label the nodes yourself, or decide on claims (`strategy: claims`).",
)  # fmt: skip
SHARED_CLAIM = Code(
    "M052", "one claim for several", _INFO,
    "Pods of this workload and of others have the same devices, as decided by `sharedClaims`: they all run on the node "
    "of these devices, at most 256 at a time, and nothing keeps one of them from taking the memory of the others.",
    "Nothing to do. Whoever wants limits asks for shares instead, without `sharedClaims`.",
)  # fmt: skip
NAME_TAKEN = Code(
    "M053", "name that was taken", _WARNING,
    "An object of the name that the new one would have had is there and asks for something else: somebody wrote it, or "
    "changed what an earlier run wrote. It is left as it is, and the new one has another name.",
    "See which of the two the pods are to name.",
)  # fmt: skip
NOT_TAKEN = Code(
    "M054", "configuration that was not taken", _WARNING,
    "Several files say what resources mean, each in its way, or one does that lies among examples and tests. A cluster "
    "has one answer.",
    "Give the one that holds by `--with FILE`, which goes before all others; migrate what is of other clusters apart.",
)  # fmt: skip

CODES: tuple[Code, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Code))
"""All of them, by number."""
