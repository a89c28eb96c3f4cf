"""Values of this driver's chart, as documents: what Helm makes objects of, where the values file has it.

Helm knows no expressions and no configs: what is wrong in a class of `deviceClasses.extra` would be found by an API
server, when half of the release is there, or by the node plugin, when a pod waits. Values are known by that list, or by
a `policy` with fields that only a PublishingPolicy has. Pure.
"""

from collections.abc import Iterator

from dra_driver.api.documents import Document, Reading
from dra_driver.api.meta import JsonObject

_POLICY_FIELDS = frozenset(("publish", "withhold", "mig", "sharing", "passthrough", "computeDomains"))
"""Charts of others have a `policy`, too."""


def with_chart_values(reading: Reading) -> Reading:
    """With a document more for each class and policy in values files among the documents."""
    made = [part for document in reading.documents for part in (document, *_made_of(document))]
    return Reading(tuple(made), reading.problems)


def _made_of(document: Document) -> Iterator[Document]:
    if document.kind or document.api_version:
        return
    classes = document.obj.get("deviceClasses")
    extra = classes.get("extra") if isinstance(classes, dict) else None
    for index, one in enumerate(extra if isinstance(extra, list) else ()):
        if isinstance(one, dict):
            yield document.part(f"deviceClasses.extra[{index}]", _class(one))
    policy = document.obj.get("policy")
    if isinstance(policy, dict) and not policy.keys().isdisjoint(_POLICY_FIELDS):
        kind = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy"}
        yield document.part("policy", {**policy, **kind})


def _class(value: JsonObject) -> JsonObject:
    metadata = {"name": value.get("name"), **({"labels": value["labels"]} if "labels" in value else {})}
    spec = {"spec": value["spec"]} if "spec" in value else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, **spec}
