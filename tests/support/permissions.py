"""Permissions of a release, object by object, and what programs did: one compared with the other.

A simulated API server allows everything and remembers it. What was done and is not allowed is missing; what is allowed
and was not done is too much; and so is a permission that names no object, or reaches all namespaces, where all that was
done was done to objects whose names, and in a namespace that, the chart knows.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.observed_api import Access

type Object = Mapping[str, Any]
type Permission = tuple[str, str, str]
"""Verb, group, resource."""

_NAMELESS = ("create", "deletecollection")
"""Requests of which RBAC does not see a name."""


@dataclass(frozen=True, order=True)
class Grant:
    """One thing that is allowed. Empty `name`: of any object; empty `namespace`: in all of them."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"

    @property
    def permission(self) -> Permission:
        return self.verb, self.group, self.resource

    def covers(self, access: Access) -> bool:
        same = self.permission == (access.verb, access.group, access.resource)
        return same and self.namespace in ("", access.namespace) and self.name in ("", access.name)


def grants(objects: Iterable[Object], account: str) -> frozenset[Grant]:
    """By all roles among the objects that are bound to the account."""
    roles = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects if obj["kind"].endswith("Role")}
    granted: set[Grant] = set()
    for binding in (obj for obj in objects if obj["kind"].endswith("RoleBinding")):
        if account in {subject["name"] for subject in binding["subjects"]}:
            role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            granted |= set(_of_rules(role["rules"], binding["metadata"].get("namespace", "")))
    return frozenset(granted)


def _of_rules(rules: Sequence[Object], namespace: str) -> Iterator[Grant]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames") or [""]:
                        yield Grant(verb, group, resource, namespace, name)


def faults(
    allowed: Collection[Grant], done: Collection[Access], *, names: Collection[str], namespace: str
) -> list[str]:
    """Sentences about permissions that are missing, or more than was done; `names` and `namespace` the chart knows."""
    sentences = [
        f"missing: {_grant_text(access)}" for access in done if not any(grant.covers(access) for grant in allowed)
    ]
    for grant in sorted(allowed):
        uses = [access for access in done if grant.covers(access)]
        if not uses:
            sentences.append(f"not used: {grant}")
            continue
        used_names = {access.name for access in uses}
        if not grant.name and grant.verb not in _NAMELESS and used_names <= set(names):
            sentences.append(f"could name {', '.join(sorted(map(str, used_names)))}: {grant}")
        if not grant.namespace and {access.namespace for access in uses} == {namespace}:
            sentences.append(f"is used in {namespace} alone: {grant}")
    return sorted(sentences)


def _grant_text(access: Access) -> str:
    return str(Grant(access.verb, access.group, access.resource, access.namespace or "", access.name or ""))
