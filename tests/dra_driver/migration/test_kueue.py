"""Kueue: what its queues count no claims by, the text that makes them count, and what it does not admit."""

from typing import Any

import pytest
import yaml
from support.counting import CLAIMS, EXTENDED, MIG, PLAIN, done, queued, workload
from support.migration import GPU, codes, documents_of, meaning_of

from dra_driver.api.meta import JsonObject
from dra_driver.migration.counts.queues import names_in_kueue
from dra_driver.migration.counts.quotas import rewrite
from dra_driver.migration.model import Finding, Options, Target, Workload

OTHER_MIG = "nvidia.com/mig-2g.10gb"
SHARED = meaning_of(
    "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}\n"
)
CLASSES = {"name": "dra.gpu/gpu", "deviceClassNames": ["gpu.nvidia.com"]}


def queue(*resources: JsonObject, kind: str = "ClusterQueue") -> JsonObject:
    listed = [{"name": "cpu", "nominalQuota": 4}, *resources]
    group = {"coveredResources": [one["name"] for one in listed], "flavors": [{"name": "a", "resources": listed}]}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": "q"},
        "spec": {"resourceGroups": [group]},
    }


def gpus(number: Any = 32, name: str = GPU, **more: Any) -> JsonObject:
    return {"name": name, "nominalQuota": number, **more}


def proposed(obj: JsonObject, *targets: Target | Workload, **more: Any) -> tuple[list[JsonObject], list[JsonObject]]:
    """Quotas and mappings that are to be added. The queue stays as it is."""
    after, result = done(obj, *targets, **more)
    assert after == obj
    texts = [list(yaml.safe_load_all(one.paste)) for one in result.findings if one.paste]
    if not texts:
        return [], []
    ((group, *config),) = texts
    (flavor,) = group["flavors"]
    covered = obj["spec"]["resourceGroups"][0]["coveredResources"]
    assert group["coveredResources"] == [*covered, *(one["name"] for one in flavor["resources"])]
    return flavor["resources"], [one for part in config for one in part["resources"]["deviceClassMappings"]]


@pytest.mark.parametrize("kind", ["ClusterQueue", "Cohort"])
@pytest.mark.parametrize("targets", [[CLAIMS], [CLAIMS, EXTENDED], []])
def test_a_queue_gets_a_name_for_claims_with_as_much(kind: str, targets: list[Target]) -> None:
    added = proposed(queue(gpus(borrowingLimit=8), kind=kind), *targets)
    assert added == ([gpus(name="dra.gpu/gpu", borrowingLimit=8)], [CLASSES])


def test_a_queue_that_counts_claims_or_needs_not_is_left_alone() -> None:
    assert proposed(queue(gpus(), gpus(name="dra.gpu/gpu")), CLAIMS) == ([], [])
    _, result = done(queue(gpus()), EXTENDED)
    assert [(one.severity, one.paste) for one in result.findings] == [("info", "")]


def test_profiles_have_one_class_and_so_one_amount() -> None:
    asking = [workload(CLAIMS, {MIG: 1}), workload(CLAIMS, {OTHER_MIG: 1})]
    before = queue(gpus(14, MIG, borrowingLimit=4), gpus(3, OTHER_MIG))
    added = proposed(before, *asking)
    assert added == ([gpus(17, "dra.gpu/mig")], [{"name": "dra.gpu/mig", "deviceClassNames": ["mig.nvidia.com"]}])


def test_shares_have_the_class_of_shares_and_amounts_are_told() -> None:
    shared = f"{GPU}.shared"
    added, _ = proposed(queue(gpus(16, shared)), workload(CLAIMS, {shared: 1}, meaning=SHARED), meaning=SHARED)
    assert added == [gpus(16, "dra.gpu/shared")]
    _, result = done(queue(gpus(90000, "nvidia.com/gpumem")), workload(CLAIMS, {GPU: 1, "nvidia.com/gpumem": 3000}))
    assert [("an amount of a device" in one.message, one.paste) for one in result.findings] == [(True, "")]


@pytest.mark.parametrize(
    "broken", [{"coveredResources": None}, {"flavors": None}, {"flavors": [None, {"resources": 5}]}]
)
def test_a_queue_that_makes_no_sense_ends_nothing(broken: JsonObject) -> None:
    obj = queue(gpus())
    obj["spec"]["resourceGroups"][0] |= broken
    assert done(obj, CLAIMS)[0] == obj


def test_flavors_keep_their_labels() -> None:
    spec = {"nodeLabels": {"nvidia.com/gpu.product": "x", "zone": "a"}}
    obj = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": spec}
    after, result = done(obj, CLAIMS)
    assert (after, codes(result.findings)) == (obj, ["M009"])


# -- workloads in queues


PREFERRED = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
    "weight": 1,
    "preference": {"matchExpressions": [{"key": "nvidia.com/gpu.family", "operator": "In", "values": ["ampere"]}]},
}]}}  # fmt: skip


def said(*workloads: Workload, names: dict[str, str] | None = None) -> list[Finding]:
    return list(rewrite([], workloads, PLAIN, Options(), names_in_kueue=names).findings)


def test_claims_that_kueue_does_not_admit_are_said() -> None:
    assert codes(said(queued(workload(CLAIMS, affinity=PREFERRED)))) == ["M010", "M014"]
    assert said(workload(CLAIMS, affinity=PREFERRED)) == []
    selected = said(queued(workload(CLAIMS, {MIG: 1})), names={"mig.nvidia.com": "mig"})
    assert [(one.severity, "from 0.18 on" in one.message) for one in selected] == [("info", True)]


def test_a_class_without_a_mapping_is_said_with_the_mapping() -> None:
    (one,) = said(queued(workload(CLAIMS)))
    assert yaml.safe_load(one.paste) == {"resources": {"deviceClassMappings": [CLASSES]}}
    assert said(queued(workload(CLAIMS)), names={"gpu.nvidia.com": "gpus"}) == []


# -- the configuration

TEXT = (
    "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nresources:\n"
    "  deviceClassMappings: [{name: whole, deviceClassNames: [gpu.nvidia.com]}]\n"
)


@pytest.mark.parametrize(
    "obj",
    [
        yaml.safe_load(TEXT),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"c.yaml": TEXT}},
        {"managerConfig": {"controllerManagerConfigYaml": TEXT}},
    ],
)
def test_a_name_that_an_administrator_gave_is_used(obj: JsonObject) -> None:
    documents = documents_of(obj, queue(gpus()))
    names = names_in_kueue(documents)
    assert names == {"gpu.nvidia.com": "whole"}
    (one,) = rewrite(documents, [workload(CLAIMS)], PLAIN, Options(), names_in_kueue=names).findings
    (group,) = yaml.safe_load_all(one.paste)
    assert group["coveredResources"] == ["cpu", GPU, "whole"]


def test_a_configuration_that_is_a_template_is_passed_over() -> None:
    assert names_in_kueue(documents_of({"data": {"c.yaml": "{{ x }}\n" + TEXT}})) == {}
