"""Claims that an object's definition has no field for are not written."""

from typing import Any

import pytest
import yaml

from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, MigrationTarget, Options, StrategyOption

CLAIMS = Options(strategy=StrategyOption.CLAIMS, mig_strategy="none", replicas=1)
RAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: tuning}
spec:
  workerGroupSpecs:
  - groupName: gpu
    template:
      spec:
        containers:
        - name: worker
          image: registry.example.com/ray:2
          resources: {limits: {nvidia.com/gpu: 1}}
"""
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def of(kind: str, group: str, spec: Any, version: str = "v1") -> str:
    """A definition with a schema for `spec`."""
    schema = {"type": "object", "properties": {"spec": spec}}
    obj = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}s.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": f"{kind.lower()}s"},
            "scope": "Namespaced",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
    return yaml.safe_dump(obj)


def map_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def list_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT = {"type": "string"}
TODAY = list_of(map_of(name=TEXT, resourceClaimTemplateName=TEXT))
BEFORE = list_of(map_of(name=TEXT, source=map_of(resourceClaimTemplateName=TEXT)))
USES = list_of(map_of(name=TEXT, request=TEXT))


def pod(claims: Any, uses: Any) -> dict[str, Any]:
    resources = map_of(limits=OPEN, **({"claims": uses} if uses else {}))
    containers = list_of(map_of(name=TEXT, image=TEXT, resources=resources))
    return map_of(containers=containers, **({"resourceClaims": claims} if claims else {}))


def ray(claims: Any, uses: Any, version: str = "v1") -> str:
    group = map_of(groupName=TEXT, template=map_of(spec=pod(claims, uses)))
    return of("RayCluster", "ray.io", map_of(workerGroupSpecs=list_of(group)), version)


def migrated(text: str, *definitions: str) -> Migration:
    return migrate([ManifestText("a.yaml", text)], CLAIMS, [ManifestText("crds.yaml", "---\n".join(definitions))])


WORKER = "spec.workerGroupSpecs[0].template.spec"


@pytest.mark.parametrize(
    ("definition", "missing"),
    [
        (ray(None, USES), f"{WORKER}.resourceClaims[0].resourceClaimTemplateName"),
        (ray(BEFORE, USES), f"{WORKER}.resourceClaims[0].resourceClaimTemplateName"),
        (ray(TODAY, None), f"{WORKER}.containers[0].resources.claims[0].request"),
    ],
    ids=["no-claims-of-pods", "claims-of-kubernetes-1.30", "no-claims-of-containers"],
)
def test_what_a_definition_has_no_field_for_is_not_written(definition: str, missing: str) -> None:
    found = migrated(RAY, definition)
    (workload,) = found.workloads
    assert workload.choice.target is MigrationTarget.EXTENDED
    assert workload.choice.reason == (
        f"the definition of RayCluster in ray.io/v1 has no field {missing}, so the API server drops it"
    )
    assert not found.changed
    assert [one.code.name for one in found.findings] == ["M010"]


@pytest.mark.parametrize("definition", [ray(TODAY, USES), of("RayCluster", "ray.io", OPEN)], ids=["fields", "open"])
def test_a_definition_with_the_fields_is_taken_at_its_word(definition: str) -> None:
    found = migrated(RAY, definition)
    assert [one.choice.target for one in found.workloads] == [MigrationTarget.CLAIMS]
    assert "M010" not in [one.code.name for one in found.findings]


def test_without_the_definition_releases_are_told() -> None:
    found = migrated(RAY, ray(None, None, version="v1alpha1"))
    assert [one.choice.target for one in found.workloads] == [MigrationTarget.CLAIMS]
    (said,) = [one for one in found.findings if one.code.name == "M010"]
    assert said.message == "releases of KubeRay before 1.4 have no fields for claims, and the API server drops them"
    assert "KubeRay 1.4 or newer" in said.advice


def test_an_object_in_another_is_asked_by_its_own_definition() -> None:
    inner = RAY.strip().replace("\n", "\n      ")
    text = (
        "apiVersion: workload.codeflare.dev/v1beta2\nkind: AppWrapper\nmetadata: {name: wrapped}\n"
        f"spec:\n  components:\n  - template:\n      {inner}\n"
    )
    wrapper = of("AppWrapper", "workload.codeflare.dev", map_of(components=list_of(OPEN)), "v1beta2")
    dropped = migrated(text, wrapper, ray(BEFORE, USES))
    assert [one.choice.target for one in dropped.workloads] == [MigrationTarget.EXTENDED]
    assert [one.choice.target for one in migrated(text, wrapper, ray(TODAY, USES)).workloads] == [
        MigrationTarget.CLAIMS
    ]


def test_the_nim_operator_has_a_field_of_its_own() -> None:
    text = """
apiVersion: apps.nvidia.com/v1alpha1
kind: NIMService
metadata: {name: chat}
spec: {image: {repository: a}, resources: {limits: {nvidia.com/gpu: 1}}}
"""
    names = list_of(map_of(resourceClaimTemplateName=TEXT))
    new = of("NIMService", "apps.nvidia.com", map_of(draResources=names), "v1alpha1")
    old = of("NIMService", "apps.nvidia.com", map_of(resources=OPEN), "v1alpha1")
    assert [one.choice.target for one in migrated(text, new).workloads] == [MigrationTarget.CLAIMS]
    assert [one.choice.target for one in migrated(text, old).workloads] == [MigrationTarget.EXTENDED]


def test_a_definition_is_no_policy_on_gpus() -> None:
    words = {"type": "string", "description": "such as nvidia.com/gpu"}
    assert migrated(RAY, of("Other", "example.com", map_of(a=words)), ray(TODAY, USES)).findings[0].code.name != "M014"
