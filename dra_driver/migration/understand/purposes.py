"""What the claims that pods have already are for: GPUs, or something else. Pure.

A pod that has a ComputeDomain's channel or a NIC keeps it, and its GPUs are migrated. A pod that has GPUs by a claim
and also asks for GPUs with limits would hold both: it was migrated halfway, and only its owner knows which of them is
meant. If the purpose of a claim is unknown, nothing is guessed.

The requests of a claim say its purpose: each names a DeviceClass, and class and request select devices. A request is
for GPUs if they name a driver of GPUs, and for something else if no device of such a driver can satisfy them.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.placement import IMPLICIT_PREFIX
from dra_driver.api.documents import Document
from dra_driver.api.untyped import Path, list_in, map_in, maps_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration.codes import ALREADY_DRA
from dra_driver.migration.model import ClaimForm, Held, MigrationFinding, Options, PodSpecAt, Purpose, finding
from dra_driver.names import CONFIG_GROUP, GPU_DRIVER

_TEMPLATE, _CLAIM = "ResourceClaimTemplate", "ResourceClaim"
_GPU_CLASSES = frozenset(
    ("gpu.nvidia.com", "mig.nvidia.com", "shared.gpu.nvidia.com", "isolated.gpu.nvidia.com", "vfio.gpu.nvidia.com")
)
_CLASS_OF_A_PROFILE = ".mig.nvidia.com"
_OF_OTHER_DRIVERS = re.compile(
    r"\s*device\.driver\s*(?:==\s*['\"][^'\"]+['\"]|in\s*\[[^]]+\])\s*(?:&&[^|?]*)?"
    r"|\s*device\.(?:attributes|capacity)\[['\"](?!resource\.kubernetes\.io|[^'\"]*nvidia\.com)[^'\"]+['\"]\](?!\.\?)[^|?!]*"
)
"""An expression that only devices of these drivers satisfy: for others it is false, or an error."""
_DOMAIN_CLASSES = "compute-domain-"
"""How the classes of ComputeDomains begin, in this driver's chart and in NVIDIA's."""


type _Verdict = tuple[Purpose, str]
"""With why, as in `Held`."""


@dataclass(frozen=True, slots=True)
class Purposes:
    """What was given that says what claims are for."""

    specs: Mapping[tuple[str, str], tuple[tuple[str | None, Any], ...]] = field(default_factory=dict, repr=False)
    """Of claims and templates by kind and name: the namespace, where it is said, and the spec."""
    classes: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict, repr=False)
    """The selectors of DeviceClasses by name; several where files differ."""
    channels: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict, repr=False)
    """Templates that controllers make for ComputeDomains, by name: the namespaces."""

    @classmethod
    def of(cls, documents: Iterable[Document]) -> "Purposes":
        specs: dict[tuple[str, str], tuple[tuple[str | None, Any], ...]] = defaultdict(tuple)
        classes: dict[str, tuple[tuple[str, ...], ...]] = defaultdict(tuple)
        channels: dict[str, tuple[str | None, ...]] = defaultdict(tuple)
        for document in documents:
            if document.kind in (_TEMPLATE, _CLAIM):
                spec = value_at(document.obj, ("spec", "spec") if document.kind == _TEMPLATE else ("spec",))
                specs[document.kind, document.name] += ((document.namespace or None, spec),)
            elif document.kind == "DeviceClass":
                classes[document.name] += (_expressions(document.obj.get("spec")),)
            elif document.kind == "ComputeDomain" and document.api_version.startswith(f"{CONFIG_GROUP}/"):
                name = value_at(document.obj, ("spec", "channel", "resourceClaimTemplate", "name"))
                if isinstance(name, str):
                    channels[name] += (document.namespace or None,)
        return cls(dict(specs), dict(classes), dict(channels))

    def held(self, pod: PodSpecAt, options: Options) -> tuple[Held, ...]:
        """All claims that the pod names, whether or not a container uses them."""
        looking = _Looking(self, pod.document.namespace or None, options)
        return tuple(Held(name, path, *verdict) for name, path, verdict in looking.entries(pod))


# -- one pod


@dataclass(frozen=True, slots=True)
class _Looking:
    known: Purposes
    namespace: str | None
    options: Options

    def entries(self, pod: PodSpecAt) -> Iterator[tuple[str, Path, _Verdict]]:
        for name, path, entry in _listed(pod):
            yield name, path, self._entry(entry)
        for container in pod.containers:
            for name in map_in(container.resources.get("limits")):
                if str(name).startswith(IMPLICIT_PREFIX):
                    request = {"deviceClassName": str(name).removeprefix(IMPLICIT_PREFIX)}
                    yield str(name), (*container.resources_path, "limits", str(name)), self._request(request)

    def _entry(self, entry: Mapping[str, Any]) -> _Verdict:
        for kind, key in ((_TEMPLATE, "resourceClaimTemplateName"), (_CLAIM, "resourceClaimName")):
            name = entry.get(key)
            if isinstance(name, str):
                return self._named(kind, name)
        return Purpose.UNKNOWN, "it names neither a ResourceClaimTemplate nor a ResourceClaim"

    def _named(self, kind: str, name: str) -> _Verdict:
        if kind == _TEMPLATE and self._here(self.known.channels.get(name, ()), lambda text: text):
            return Purpose.OTHERS, "the channel of a ComputeDomain"
        specs = self._here(self.known.specs.get((kind, name), ()), lambda item: item[0])
        if not specs:
            elsewhere = (kind, name) in self.known.specs or name in self.known.channels
            where = f" of namespace {self.namespace}" if elsewhere else ""
            return Purpose.UNKNOWN, f"{kind} {name}{where} was not given"
        return _worst([self._spec(spec) for _, spec in specs])

    def _here[T](self, results: Sequence[T], namespace_of: Callable[[T], str | None]) -> list[T]:
        """Those of the pod's namespace; where files do not say one, all that may be."""
        same = [item for item in results if self.namespace and namespace_of(item) == self.namespace]
        return same or [item for item in results if not self.namespace or namespace_of(item) is None]

    def _spec(self, spec: object) -> _Verdict:
        verdicts = []
        for request in maps_in(value_at(spec, ("devices", "requests"))):
            wanted = (request.get("exactly"), *list_in(request.get("firstAvailable")), request)
            named = [each for each in wanted if isinstance(each, dict) and "deviceClassName" in each]
            verdicts += [self._request(each) for each in named] or [_UNREADABLE]
        return _worst(verdicts)

    def _request(self, request: Mapping[str, Any]) -> _Verdict:
        name = str(request["deviceClassName"])
        own = _expressions(request)
        known = self.known.classes.get(name)
        if known is not None:
            return _worst([self._selected(name, (*of_class, *own)) for of_class in known])
        options = self.options
        own_classes = (options.gpu_class, options.mig_class, options.shared_class, options.vfio_class)
        if name in _GPU_CLASSES or name.endswith(_CLASS_OF_A_PROFILE) or name in own_classes:
            return Purpose.GPUS, f"of class {name}"
        if name.startswith(_DOMAIN_CLASSES):
            return Purpose.OTHERS, f"of class {name}"
        purpose, why = self._selected(name, own)
        return purpose, f"DeviceClass {name} was not given" if purpose is Purpose.UNKNOWN else why

    def _selected(self, name: str, expressions: Sequence[str]) -> _Verdict:
        drivers = (self.options.driver, GPU_DRIVER)
        if any(driver in expression for expression in expressions for driver in drivers):
            return Purpose.GPUS, f"of class {name}"
        if any(_OF_OTHER_DRIVERS.fullmatch(expression) for expression in expressions):
            return Purpose.OTHERS, f"of class {name}"
        return Purpose.UNKNOWN, f"the selectors of DeviceClass {name} do not name a driver"


_UNREADABLE: _Verdict = (Purpose.UNKNOWN, "it has no request that can be read")
_ORDER = (Purpose.GPUS, Purpose.UNKNOWN, Purpose.OTHERS)


def _worst(verdicts: Sequence[_Verdict]) -> _Verdict:
    """What is of GPUs by one request is of GPUs."""
    return min(verdicts, key=lambda verdict: _ORDER.index(verdict[0]), default=_UNREADABLE)


def _listed(pod: PodSpecAt) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
    """Entries with the name by which containers use them, and where they are."""
    field_ = "draResources" if pod.form is ClaimForm.NIM else "resourceClaims"
    path = (*pod.path, field_)
    for index, map_ in enumerate(maps_in(pod.spec.get(field_))):
        yield str(map_.get("name", f"claim-{index}")), (*path, index), map_


def _expressions(value: object) -> tuple[str, ...]:
    """Of a class's spec, or of a request."""
    expressions = (value_at(map_, ("cel", "expression")) for map_ in maps_in(value_at(value, ("selectors",))))
    return tuple(text for text in expressions if isinstance(text, str))


# -- what is said of it


def hindrances(held: Iterable[Held], document: Document) -> Iterator[MigrationFinding]:
    """Of a pod that asks for GPUs in the old way, too."""
    for item in held:
        if item.purpose is Purpose.GPUS:
            message = f"claim {item.name} ({item.why}) is for GPUs, and the pod also asks for GPUs with limits"
            yield finding(ALREADY_DRA, document, item.path, message, advice=_ONE_OF_BOTH, severity=Severity.ERROR)
        elif item.purpose is Purpose.UNKNOWN:
            message = f"it is unknown whether claim {item.name} is for GPUs: {item.why}"
            yield finding(ALREADY_DRA, document, item.path, message, advice=_SAY_WHAT, severity=Severity.ERROR)


def remaining_claims(held: Iterable[Held], document: Document) -> tuple[MigrationFinding, ...]:
    """Of a pod that is migrated."""
    why = "is not for GPUs: it stays unchanged, and the pod's GPUs are migrated"
    messages = ((item, f"claim {item.name} ({item.why}) {why}") for item in held)
    return tuple(finding(ALREADY_DRA, document, item.path, message, advice="") for item, message in messages)


_ONE_OF_BOTH = (
    "The pod would hold both. Remove the limits if the claim replaces them, else the claim. If both are meant, ask for "
    "all of these GPUs with the claim."
)
_SAY_WHAT = (
    "Add what is missing to the files or with `--with`: the ResourceClaimTemplate or ResourceClaim, or the "
    "ComputeDomain that creates it, and the DeviceClass; or ask the cluster with `--cluster`. If all are there, name "
    "the driver in a selector: `device.driver == 'DRIVER'`. If the claim is for GPUs, remove the limits."
)


def why_left(held: Held) -> str | None:
    """Why the pod is not migrated, as a sentence; None: this claim is no hindrance."""
    if held.purpose is Purpose.GPUS:
        return f"it has GPUs by claim {held.name} already; only its owner knows which of both is meant"
    if held.purpose is Purpose.UNKNOWN:
        return f"it is unknown whether it has GPUs by claim {held.name}: {held.why}"
    return None
