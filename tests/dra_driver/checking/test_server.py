"""`check` and the API server agree about the form of objects: each is the oracle of the other.

The server is the simulated one, which tests/contracts/ hold to the behavior of a real one.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from dra_driver.api.documents import read_documents
from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    JsonObject,
)
from dra_driver.checking.check import check
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import Finding
from dra_driver.checking.knowledge import Knowledge, Sites
from dra_driver.errors import Rejected
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from tests.dra_driver.checking.test_shipped import mutated

KINDS = {kind.kind: kind for kind in (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, PODS)}
FORM = {"missing-field", "invalid-value", "too-much", "duplicate", "wrong-type", "selector"}
NOTHING = Knowledge(36, Sites((), 0), {})


def changed_objects(count: int) -> list[JsonObject]:
    """Examples with something done to their specs."""
    objects: list[JsonObject] = []

    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(mutated())
    def collect(obj: Any) -> None:
        kind = KINDS.get(str(obj.get("kind"))) if isinstance(obj, dict) else None
        if kind is not None and obj.get("apiVersion") == kind.api_version:
            metadata = {"name": "x", **({"namespace": "default"} if kind.namespaced else {})}
            objects.append(json.loads(json.dumps({**obj, "metadata": metadata})))

    collect()
    return objects


async def refusal(kube: Kube, obj: JsonObject) -> str | None:
    kind = KINDS[obj["kind"]]
    try:
        created = await kube.create(kind, obj)
    except Rejected as error:
        return str(error)
    await kube.delete(kind, "x", namespace=created["metadata"].get("namespace"))
    return None


def is_stricter_on_purpose(finding: Finding) -> bool:
    """The server takes a claim without a spec, and an empty entry of a list for an empty string; nobody means that."""
    return finding.field in ("spec", "spec.spec") or finding.message == "is empty"


async def test_the_server_refuses_exactly_what_has_an_error_of_form(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path
) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await kube.merge_patch(NAMESPACES, "default", label)
    objects = await asyncio.to_thread(changed_objects, 400)
    refused = 0
    for obj in objects:
        text = json.dumps(obj)
        errors = [
            finding for finding in check(read_documents(text, "f"), NOTHING) if finding.severity is Severity.ERROR
        ]
        answer = await refusal(kube, obj)
        refused += answer is not None
        if answer is not None:
            assert errors, (answer, text)
        else:
            form = [finding for finding in errors if finding.code in FORM and not is_stricter_on_purpose(finding)]
            assert form == [], text
    assert refused > len(objects) / 10
