"""What `dractl check` finds: codes, which never change, with their severities and meanings."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """ERROR: it will not work, or not as before. WARNING: it may not do what was meant. INFO: no action is needed."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def noun(self) -> str:
        """For counts, and the level of SARIF."""
        return "note" if self is Severity.INFO else self.value


@dataclass(frozen=True, slots=True)
class Code:
    name: str
    severity: Severity
    means: str
    """For the docs and SARIF: one or two sentences."""
    otherwise: str = ""
    """When it is of another severity, for the docs."""


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

UNREADABLE = Code(
    "unreadable", _ERROR, "A document is not YAML or JSON, or not an object. The others are still checked."
)
API_VERSION = Code(
    "api-version",
    _ERROR,
    "No Kubernetes serves this `kind` under this `apiVersion`, or not the version that is checked for.",
)
DEPRECATED = Code(
    "deprecated-api",
    _WARNING,
    "A beta version of `resource.k8s.io`: off by default, and removed in a later Kubernetes.",
)
UNKNOWN_FIELD = Code("unknown-field", _ERROR, "The API has no such field here. It would be dropped or refused.")
WRONG_TYPE = Code(
    "wrong-type", _ERROR, "A value of another type than the field has: a number for a string, a map for a list."
)
MISSING_FIELD = Code("missing-field", _ERROR, "A required field is missing.")
INVALID = Code("invalid-value", _ERROR, "The API server does not accept this value.")
TOO_MANY = Code("too-much", _ERROR, "More entries, or longer, than the API allows.")
DUPLICATE = Code("duplicate", _ERROR, "Something that must be unique occurs twice.")
TWICE = Code("defined-twice", _WARNING, "Two documents define the same object; the one that is applied last wins.")
TEMPLATE_TAKEN = Code(
    "template-name-taken",
    _ERROR,
    "A ComputeDomain's template would have the name of another one. It is never overwritten, and the domain does not "
    "become ready.",
)
DEPRECATED_FIELD = Code(
    "deprecated-field", _INFO, "A deprecated field. It still works, but manifests should not use it."
)
NEEDS_GATE = Code(
    "needs-gate",
    _WARNING,
    "The Kubernetes that is checked for silently drops this field, or does nothing with it, unless a feature gate is "
    "switched on.",
)
TOO_NEW = Code("too-new", _ERROR, "The field came with a later Kubernetes than the one that is checked for.")
UNKNOWN_REQUEST = Code(
    "unknown-request", _ERROR, "A constraint, a config or a container names a request that its claim does not have."
)
UNUSED_REQUEST = Code(
    "unused-request", _WARNING, "Containers name requests of a claim one by one, and none of them names this one."
)
CLAIMS_DROPPED = Code(
    "claims-dropped",
    _WARNING,
    "An InferenceService in KServe's default mode, Knative, in which pods have no claims. An installation can have "
    "another default.",
    "an error if the service itself names this mode",
)
UNKNOWN_CLAIM = Code(
    "unknown-claim", _ERROR, "A container uses a claim that its pod does not list in `spec.resourceClaims`."
)
UNUSED_CLAIM = Code(
    "unused-claim",
    _WARNING,
    "A pod lists a claim that none of its containers uses: devices are allocated, but not visible.",
)
NOT_FOUND = Code(
    "not-found",
    _INFO,
    "A named class, template or claim is neither in the files nor among those that come with the driver. "
    "It may be in the cluster.",
    "an error with `--live`, when it is not in the cluster either",
)
MISNAMED = Code(
    "misnamed",
    _WARNING,
    "A named class, template or claim does not exist, but one with a similar name does.",
    "an error where it is clearly misspelled, of the wrong kind, in another namespace, or with `--live`",
)
SELECTOR = Code(
    "selector",
    _ERROR,
    "The CEL expression of a selector cannot be compiled, could run too long, or its result is not true or false.",
)
NOT_JUDGED = Code(
    "not-judged",
    _WARNING,
    "The CEL expression of a selector has a part that this program does not know: times, unsigned numbers, bytes, URLs,"
    " named formats, sorted or other new lists and maps, or very large regular expressions. An API server may accept"
    " it: ask one with `kubectl apply --dry-run=server`.",
)
SELECTOR_FAILS = Code(
    "selector-fails",
    _WARNING,
    "The selector fails with an error on some devices. The scheduler then gives up on the whole"
    " pod, even where other devices would fit.",
    "info where it happens on some of the known GPU models only; with `--profiles` and `--live` that is a warning, too",
)
UNKNOWN_ATTRIBUTE = Code(
    "unknown-attribute",
    _WARNING,
    "No known device has this attribute or capacity, unless a GpuPolicy adds it. A selector that reads it "
    "fails, a constraint on it is never met.",
    "an error where the name of a known one is misspelled",
)
CONFIG = Code("config", _ERROR, "The parameters of a config are invalid. The node plugin would refuse the claim.")
CONFIG_KIND = Code(
    "config-kind", _ERROR, "A config is for other devices (GPU, MIG, VFIO) than those that its requests can get."
)
UNKNOWN_DRIVER = Code(
    "unknown-driver",
    _WARNING,
    "The driver name is similar to that of a known driver. The config would be ignored.",
    "an error where the name of a known one is misspelled",
)
NEVER_FITS = Code(
    "never-fits",
    _WARNING,
    "No node of the known GPU models has devices for this request or claim, even when nothing on it is in use.",
    "an error with `--profiles` and `--live`, where it is known which nodes there are",
)
FABRIC_PARTITION = Code(
    "fabric-partition",
    _WARNING,
    "A claim for GPUs behind NVSwitches is not one fabric partition: the node plugin would refuse it, or a virtual"
    " machine would have no CUDA or no NVLink. What nodes lack is only known with `--profiles` and `--live`.",
)
ADMIN_ACCESS = Code(
    "admin-access",
    _ERROR,
    "The request asks for admin access, and the files have its namespace without the label that allows it.",
)
EXTENDED_RESOURCE = Code(
    "extended-resource", _WARNING, "A container requests devices by a resource name that no DeviceClass provides."
)
POLICY = Code(
    "policy",
    _ERROR,
    "An invalid GpuPolicy or PublishingPolicy, which the driver would not follow.",
    "a warning where a field needs a feature gate that is off, or a product name is misspelled",
)
POLICY_FILE = Code(
    "policy-file",
    _WARNING,
    "A PublishingPolicy is a file of the chart and of dractl. `kubectl apply` needs GpuPolicies:"
    " `dractl policy convert FILE` prints them.",
)

CODES = tuple(code for code in vars().values() if isinstance(code, Code))
"""In the order of this page."""
