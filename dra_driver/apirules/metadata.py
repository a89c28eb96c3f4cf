"""Rules of object metadata, and the name formats that many fields share."""

import re
from collections.abc import Callable, Mapping

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import FieldProblem, forbidden, invalid, required, too_long

type NameRule = Callable[[str], str | None]
"""Returns what is wrong with a name, or None."""

_QUALIFIED_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_STANDARD_FINALIZERS = ("foregroundDeletion", "kubernetes", "orphan")
_ANNOTATIONS_LIMIT = 256 * 1024


def _format(pattern: str, longest: int, why: str) -> NameRule:
    """A rule for text of at most `longest` characters; `why` says what the others do wrong."""
    matches = re.compile(pattern).fullmatch

    def rule(text: str) -> str | None:
        if len(text) > longest:
            return f"must be no more than {longest} characters"
        return None if matches(text) else why

    return rule


dns_label = _format(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    63,
    "a lowercase RFC 1123 label consists of lower case letters, digits or '-', alphanumeric at both ends",
)
service_name = _format(
    r"[a-z]([-a-z0-9]*[a-z0-9])?",
    63,
    "a DNS-1035 label starts with a lower case letter, then letters, digits or '-'",
)
dns_subdomain = _format(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    253,
    "a lowercase RFC 1123 subdomain consists of lower case letters, digits, '-' or '.', alphanumeric at both ends of"
    " each part",
)
label_value = _format(
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
    63,
    "a valid label is empty or consists of letters, digits, '-', '_' or '.', alphanumeric at both ends",
)


def path_segment(text: str) -> str | None:
    """Names of RBAC objects: anything that can be one segment of a path."""
    if text in (".", ".."):
        return f"may not be '{text}'"
    return next((f"may not contain '{char}'" for char in "/%" if char in text), None)


def qualified_name(text: str) -> str | None:
    """Keys of labels: an optional DNS subdomain and `/`, then at most 63 characters."""
    prefix, slash, name = text.rpartition("/")
    if slash and (not prefix or dns_subdomain(prefix)):
        return "prefix part must be a lowercase RFC 1123 subdomain"
    if not name or len(name) > 63:
        return "name part must be non-empty and no more than 63 characters"
    if _QUALIFIED_PART.fullmatch(name) is None:
        return "name part consists of letters, digits, '-', '_' or '.', alphanumeric at both ends"
    return None


_NAME_RULES: Mapping[tuple[str, str], NameRule] = {
    ("", "namespaces"): dns_label,
    ("", "services"): service_name,
    ("rbac.authorization.k8s.io", "clusterroles"): path_segment,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): path_segment,
    ("rbac.authorization.k8s.io", "roles"): path_segment,
    ("rbac.authorization.k8s.io", "rolebindings"): path_segment,
}


def problems_of_metadata(key: tuple[str, str], metadata: JsonObject) -> list[FieldProblem]:
    """Checks for creations and updates."""
    problems = _problems_of_name(_NAME_RULES.get(key, dns_subdomain), metadata)
    for name, value in (metadata.get("labels") or {}).items():
        if why := qualified_name(name):
            problems.append(invalid("metadata.labels", name, why))
        if why := label_value(value):
            problems.append(invalid("metadata.labels", value, why))
    problems += _problems_of_annotations(metadata.get("annotations") or {})
    problems += _problems_of_owners(metadata.get("ownerReferences") or [])
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        if why := qualified_name(finalizer):
            problems.append(invalid(f"metadata.finalizers[{index}]", finalizer, why))
        elif "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            problems.append(invalid(f"metadata.finalizers[{index}]", finalizer, why))
    return problems


def template_problems(metadata: JsonObject) -> list[FieldProblem]:
    """Labels and annotations of the metadata inside a ResourceClaimTemplate."""
    problems = problems_of_metadata(("", ""), {**metadata, "name": "template"})
    return [
        FieldProblem(problem.field.replace("metadata", "spec.metadata", 1), problem.reason, problem.message)
        for problem in problems
    ]


def _problems_of_name(rule: NameRule, metadata: JsonObject) -> list[FieldProblem]:
    problems = []
    base = metadata.get("generateName")
    if base and (why := rule(f"{base[:-1]}a" if base.endswith("-") else base)):
        problems.append(invalid("metadata.generateName", base, why))
    name = metadata.get("name")
    if not name:
        problems.append(required("metadata.name", "name or generateName is required"))
    elif why := rule(name):
        problems.append(invalid("metadata.name", name, why))
    return problems


def _problems_of_annotations(annotations: JsonObject) -> list[FieldProblem]:
    problems = [
        invalid("metadata.annotations", name, why) for name in annotations if (why := qualified_name(name.lower()))
    ]
    size = sum(len(name.encode()) + len(value.encode()) for name, value in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        problems.append(too_long("metadata.annotations", _ANNOTATIONS_LIMIT))
    return problems


def _problems_of_owners(owners: list[JsonObject]) -> list[FieldProblem]:
    problems = []
    for owner in owners:
        path = "metadata.ownerReferences"
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                problems.append(invalid(f"{path}.{name}", owner.get(name, ""), "must not be empty"))
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        named = ", ".join(f"{controller.get('kind')}/{controller.get('name')}" for controller in controllers)
        why = "only one reference can have controller set to true"
        problems.append(invalid("metadata.ownerReferences", named, why))
    return problems


def problems_of_metadata_change(metadata: JsonObject, old: JsonObject) -> list[FieldProblem]:
    """Fields that cannot change after creation."""
    problems = []
    if old.get("deletionTimestamp"):
        before = old.get("finalizers") or []
        added = [item for item in metadata.get("finalizers") or [] if item not in before]
        if added:
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
            problems.append(forbidden("metadata.finalizers", why))
    for name in ("name", "uid"):
        if metadata.get(name) != old.get(name):
            problems.append(invalid(f"metadata.{name}", metadata.get(name), "field is immutable"))
    return problems
