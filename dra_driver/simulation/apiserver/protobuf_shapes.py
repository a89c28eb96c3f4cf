"""Which fields messages have in Kubernetes' protobuf form: field number to name and form.

Forms: str, text (a str that is there also when empty), int, count (an int that is not there when 0), bool, time, raw
(any JSON), map (of strings), bytes (map of bytes), quantities (map of them), a nested message, Inline (its fields are
the outer object's in JSON), and a list of one form for what is repeated. The numbers are those of the published
`generated.proto` files of k8s.io/api and k8s.io/apimachinery.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

type Shape = Mapping[int, tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Inline:
    """A message without a name of its own in JSON."""

    shape: Shape


_OWNER: Shape = {
    1: ("kind", "str"),
    3: ("name", "str"),
    4: ("uid", "str"),
    5: ("apiVersion", "str"),
    6: ("controller", "bool"),
    7: ("blockOwnerDeletion", "bool"),
}
_META: Shape = {
    1: ("name", "str"),
    2: ("generateName", "str"),
    3: ("namespace", "str"),
    4: ("selfLink", "str"),
    5: ("uid", "str"),
    6: ("resourceVersion", "str"),
    7: ("generation", "count"),
    8: ("creationTimestamp", "time"),
    9: ("deletionTimestamp", "time"),
    10: ("deletionGracePeriodSeconds", "int"),
    11: ("labels", "map"),
    12: ("annotations", "map"),
    13: ("ownerReferences", [_OWNER]),
    14: ("finalizers", ["str"]),
}
_DELETE_OPTIONS: Shape = {
    1: ("gracePeriodSeconds", "int"),
    2: ("preconditions", {1: ("uid", "str"), 2: ("resourceVersion", "str")}),
    3: ("orphanDependents", "bool"),
    4: ("propagationPolicy", "str"),
    5: ("dryRun", ["str"]),
}
_ACCESS: Shape = {
    1: (
        "resourceAttributes",
        {
            1: ("namespace", "str"),
            2: ("verb", "str"),
            3: ("group", "str"),
            4: ("version", "str"),
            5: ("resource", "str"),
            6: ("subresource", "str"),
            7: ("name", "str"),
        },
    ),
    2: ("nonResourceAttributes", {1: ("path", "str"), 2: ("verb", "str")}),
}

_TOLERATION: Shape = {
    1: ("key", "str"),
    2: ("operator", "str"),
    3: ("value", "str"),
    4: ("effect", "str"),
    5: ("tolerationSeconds", "int"),
}
_SELECTOR: Shape = {1: ("cel", {1: ("expression", "str")})}
_CAPACITY: Shape = {1: ("requests", "quantities")}
_EXACTLY: Shape = {
    1: ("deviceClassName", "str"),
    2: ("selectors", [_SELECTOR]),
    3: ("allocationMode", "str"),
    4: ("count", "count"),
    5: ("adminAccess", "bool"),
    6: ("tolerations", [_TOLERATION]),
    7: ("capacity", _CAPACITY),
}
_ALTERNATIVE: Shape = {
    1: ("name", "str"),
    2: ("deviceClassName", "str"),
    3: ("selectors", [_SELECTOR]),
    4: ("allocationMode", "str"),
    5: ("count", "count"),
    6: ("tolerations", [_TOLERATION]),
    7: ("capacity", _CAPACITY),
}
_REQUEST: Shape = {1: ("name", "str"), 2: ("exactly", _EXACTLY), 3: ("firstAvailable", [_ALTERNATIVE])}
_CONSTRAINT: Shape = {1: ("requests", ["str"]), 2: ("matchAttribute", "str"), 3: ("distinctAttribute", "str")}
_CONFIGURATION = Inline({1: ("opaque", {1: ("driver", "str"), 2: ("parameters", "raw")})})
_SPEC: Shape = {
    1: (
        "devices",
        {
            1: ("requests", [_REQUEST]),
            2: ("constraints", [_CONSTRAINT]),
            3: ("config", [{1: ("requests", ["str"]), 2: ("", _CONFIGURATION)}]),
        },
    )
}
_RESULT: Shape = {
    1: ("request", "str"),
    2: ("driver", "str"),
    3: ("pool", "str"),
    4: ("device", "str"),
    5: ("adminAccess", "bool"),
    6: ("tolerations", [_TOLERATION]),
    7: ("bindingConditions", ["str"]),
    8: ("bindingFailureConditions", ["str"]),
    9: ("shareID", "str"),
    10: ("consumedCapacity", "quantities"),
}
_REQUIREMENT: Shape = {1: ("key", "str"), 2: ("operator", "str"), 3: ("values", ["str"])}
_TERM: Shape = {1: ("matchExpressions", [_REQUIREMENT]), 2: ("matchFields", [_REQUIREMENT])}
_ALLOCATION: Shape = {
    1: (
        "devices",
        {
            1: ("results", [_RESULT]),
            2: ("config", [{1: ("source", "str"), 2: ("requests", ["str"]), 3: ("", _CONFIGURATION)}]),
        },
    ),
    3: ("nodeSelector", {1: ("nodeSelectorTerms", [_TERM])}),
    5: ("allocationTimestamp", "time"),
}
_CONSUMER: Shape = {1: ("apiGroup", "str"), 3: ("resource", "str"), 4: ("name", "str"), 5: ("uid", "str")}
_CONDITION: Shape = {
    1: ("type", "str"),
    2: ("status", "str"),
    3: ("observedGeneration", "count"),
    4: ("lastTransitionTime", "time"),
    5: ("reason", "str"),
    6: ("message", "text"),
}
_DEVICE_STATUS: Shape = {
    1: ("driver", "str"),
    2: ("pool", "str"),
    3: ("device", "str"),
    4: ("conditions", [_CONDITION]),
    5: ("data", "raw"),
    6: ("networkData", {1: ("interfaceName", "str"), 2: ("ips", ["str"]), 3: ("hardwareAddress", "str")}),
    7: ("shareID", "str"),
}
CLAIM: Shape = {
    1: ("metadata", _META),
    2: ("spec", _SPEC),
    3: (
        "status",
        {1: ("allocation", _ALLOCATION), 2: ("reservedFor", [_CONSUMER]), 4: ("devices", [_DEVICE_STATUS])},
    ),
}

KINDS: Mapping[str, Shape] = {
    "Namespace": {1: ("metadata", _META), 2: ("spec", {1: ("finalizers", ["str"])})},
    "ConfigMap": {1: ("metadata", _META), 2: ("data", "map"), 3: ("binaryData", "bytes"), 4: ("immutable", "bool")},
    "Secret": {
        1: ("metadata", _META),
        2: ("data", "bytes"),
        3: ("type", "str"),
        4: ("stringData", "map"),
        5: ("immutable", "bool"),
    },
    "ServiceAccount": {1: ("metadata", _META)},
    "DeleteOptions": _DELETE_OPTIONS,
    "Eviction": {1: ("metadata", _META), 2: ("deleteOptions", _DELETE_OPTIONS)},
    "SelfSubjectAccessReview": {1: ("metadata", _META), 2: ("spec", _ACCESS)},
    "SelfSubjectRulesReview": {1: ("metadata", _META), 2: ("spec", {1: ("namespace", "str")})},
    "SelfSubjectReview": {1: ("metadata", _META)},
    "ResourceClaim": CLAIM,
}
