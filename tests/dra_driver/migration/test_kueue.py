"""Kueue: what its queues count claims by, which configuration maps classes to that, and where it is written."""

from typing import Any

import pytest
import yaml
from support.counting import CLAIMS, EXTENDED, MIG, PLAIN, done, queued, workload
from support.migration import GPU, codes, documents_of, meaning_of

from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Options, Put, Source, StrategyOption, Target, Workload
from dra_driver.migration.quotas import QuotaResult, rewrite
from dra_driver.migration.undo import undo

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


def counted(obj: JsonObject) -> list[JsonObject]:
    (group,) = obj["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert group["coveredResources"] == [one["name"] for one in flavor["resources"]], "Kueue wants both in one order"
    return list(flavor["resources"][1:])


def mappings(result: QuotaResult) -> list[JsonObject]:
    """Of the document that is written where no configuration was found."""
    if not result.settings:
        return []
    (one,) = result.settings
    return list(yaml.safe_load(one.text)["resources"]["deviceClassMappings"])


# -- queues


@pytest.mark.parametrize("kind", ["ClusterQueue", "Cohort"])
def test_a_queue_of_claims_alone_counts_them_under_a_name_of_their_own(kind: str) -> None:
    after, result = done(queue(gpus(borrowingLimit=8), kind=kind), CLAIMS)
    assert counted(after) == [gpus(name="dra.gpu/gpu", borrowingLimit=8)]
    assert mappings(result) == [CLASSES]
    assert [("kueue-configuration.yaml" in one.advice) for one in result.findings] == [False, True]
    assert done(after, CLAIMS)[0] == after


@pytest.mark.parametrize("targets", [[CLAIMS, EXTENDED], [CLAIMS, Target.LEAVE], []])
def test_a_queue_of_both_counts_both_with_as_much(targets: list[Target]) -> None:
    after, result = done(queue(gpus(lendingLimit=2)), *targets)
    assert counted(after) == [gpus(lendingLimit=2), gpus(name="dra.gpu/gpu", lendingLimit=2)]
    said = next(one for one in result.findings if one.fixed)
    assert (said.severity, "0.19" in said.advice) == ("warning", True)
    assert done(after, *targets)[0] == after


def test_a_queue_of_extended_resources_stays() -> None:
    after, result = done(queue(gpus()), EXTENDED)
    assert (after, [one.severity for one in result.findings]) == (queue(gpus()), ["info"])
    assert result.settings == ()


def test_profiles_have_one_class_and_so_one_amount() -> None:
    asking = [workload(CLAIMS, {MIG: 1}), workload(CLAIMS, {OTHER_MIG: 1})]
    before = queue(gpus(14, MIG, borrowingLimit=4), gpus(3, OTHER_MIG))
    after, result = done(before, *asking)
    assert counted(after) == [gpus(17, "dra.gpu/mig")], "the other one may borrow without limit"
    assert mappings(result) == [{"name": "dra.gpu/mig", "deviceClassNames": ["mig.nvidia.com"]}]


def test_profiles_that_are_made_on_demand_are_counted_by_their_memory() -> None:
    asking = [workload(CLAIMS, {MIG: 1}), workload(CLAIMS, {OTHER_MIG: 1})]
    after, result = done(queue(gpus(14, MIG), gpus(3, OTHER_MIG)), *asking, options=Options(dynamic_mig=True))
    (mapping,) = mappings(result)
    assert counted(after) == [gpus("100Gi", "dra.gpu/mig-memory")]
    source = mapping["sources"][0]["counter"]
    assert (source["name"], source["driver"]) == ("memory", "gpu.nvidia.com")


@pytest.mark.parametrize(("number", "capacity"), [(1, None), (2, "shares")])
def test_shares_are_counted_as_devices_while_nobody_asks_for_several(number: int, capacity: str | None) -> None:
    shared = f"{GPU}.shared"
    asking = workload(CLAIMS, {shared: number}, meaning=SHARED)
    after, result = done(queue(gpus(16, shared)), asking, meaning=SHARED)
    assert counted(after) == [gpus(16, "dra.gpu/shared")]
    (mapping,) = mappings(result)
    assert mapping["deviceClassNames"] == ["shared.gpu.nvidia.com"]
    assert mapping.get("sources", [{}])[0].get("capacity", {}).get("name") == capacity
    gates = yaml.safe_load(result.settings[0].text).get("featureGates")
    assert gates == ({"KueueDRAIntegrationConsumableCapacity": True} if capacity else None)


def test_memory_is_counted_where_it_is_all_that_the_queue_says_of_gpus() -> None:
    asking = workload(CLAIMS, {GPU: 1, "nvidia.com/gpumem": 3000})
    after, result = done(queue(gpus("100000", "nvidia.com/gpumem")), asking)
    assert counted(after) == [gpus("100000Mi", "dra.gpu/shared-memory")]
    assert mappings(result)[0]["sources"][0]["capacity"]["name"] == "memory"


def test_kueue_counts_one_amount_of_a_class_and_the_others_are_told() -> None:
    asking = workload(CLAIMS, {GPU: 1, "nvidia.com/gpumem": 3000})
    after, result = done(queue(gpus(), gpus("100000", "nvidia.com/gpumem")), asking)
    assert [one["name"] for one in counted(after)] == ["dra.gpu/shared", "nvidia.com/gpumem"]
    assert any("one amount of a class" in one.message for one in result.findings)


def test_a_flavor_without_the_resource_keeps_the_queue_as_it_is() -> None:
    before = queue(gpus())
    before["spec"]["resourceGroups"][0]["flavors"].append({"name": "b", "resources": []})
    after, result = done(before, CLAIMS)
    assert after == before
    assert any("not each flavor" in one.message for one in result.findings)


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


def test_claims_that_kueue_does_not_take_are_said() -> None:
    one = queued(workload(CLAIMS, affinity=PREFERRED))
    assert codes(rewrite([], [one], PLAIN, Options()).findings) == ["M010", "M014"]
    assert rewrite([], [workload(CLAIMS, affinity=PREFERRED)], PLAIN, Options()).findings == ()


@pytest.mark.parametrize(("image", "takes"), [("kueue:v0.17.8", False), ("kueue:v0.18.0", True), ("other:1", True)])
def test_selectors_are_taken_from_a_release_on(image: str, takes: bool) -> None:
    container = {"name": "manager", "image": f"registry.k8s.io/kueue/{image}"}
    manager = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "k"},
               "spec": {"template": {"spec": {"containers": [container]}}}}  # fmt: skip
    one = queued(workload(CLAIMS, {MIG: 1}))
    found = rewrite(documents_of(manager), [one], PLAIN, Options()).findings
    assert [two.code.name for two in found if "selectors" in two.message] == ([] if takes else ["M010"])


def test_a_class_without_a_quota_is_mapped_and_its_queue_is_told() -> None:
    result = rewrite([], [queued(workload(CLAIMS))], PLAIN, Options())
    assert mappings(result) == [CLASSES]
    assert ["under dra.gpu/gpu" in one.message for one in result.findings] == [True]


# -- the configuration


def configuration(version: str = "v1beta2", **more: Any) -> JsonObject:
    return {"apiVersion": f"config.kueue.x-k8s.io/{version}", "kind": "Configuration", **more}


def configured(obj: JsonObject, *targets: Target | Workload, others: list[JsonObject] | None = None) -> QuotaResult:
    """With a queue that counts GPUs. The document with the configuration is the first."""
    asking = [workload(one) if isinstance(one, Target) else one for one in targets or (CLAIMS,)]
    return rewrite(documents_of(obj, queue(gpus()), *(others or [])), asking, PLAIN, Options())


def edits_of(result: QuotaResult) -> list[Any]:
    return [edit for one in result.edits if one.document.file == "f0.yaml" for edit in one.edits]


def test_a_configuration_gets_the_classes_of_its_queues() -> None:
    result = configured(configuration(resources={"transformations": [{"input": MIG, "outputs": {}}]}))
    assert edits_of(result) == [Put(("resources", "deviceClassMappings", 0), CLASSES)]
    assert any("transformation" in one.message for one in result.findings)
    assert result.settings == ()


def test_a_name_that_an_administrator_gave_is_kept() -> None:
    given = {"name": "whole-gpus", "deviceClassNames": ["gpu.nvidia.com"]}
    result = configured(configuration(resources={"deviceClassMappings": [given]}))
    assert edits_of(result) == []
    (queue_edits,) = [one.edits for one in result.edits]
    assert Put(("spec", "resourceGroups", 0, "coveredResources", 1), "whole-gpus") in queue_edits


@pytest.mark.parametrize(("minor", "gates"), [(16, {"DynamicResourceAllocation": True}), (18, {}), (19, {})])
def test_old_releases_get_their_feature_gate(minor: int, gates: JsonObject) -> None:
    labels = {"helm.sh/chart": f"kueue-0.{minor}.1"}
    labelled = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "labels": labels}}
    result = configured(configuration("v1beta1"), others=[labelled])
    assert {one.path[-1]: one.value for one in edits_of(result) if one.path[0] == "featureGates"} == gates


def test_sources_need_a_newer_configuration() -> None:
    shared = f"{GPU}.shared"
    asking = workload(CLAIMS, {shared: 2}, meaning=SHARED)
    documents = documents_of(configuration("v1beta1"), queue(gpus(16, shared)))
    result = rewrite(documents, [asking], SHARED, Options())
    assert edits_of(result) == []
    assert "M023" in codes(result.findings)


TEXT = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health:
  healthProbeBindAddress: :8081   # probes
#pprofBindAddress: :8083
integrations:
  frameworks:
  - "batch/job"
#  - "kubeflow.org/paddlejob"
#resources:
#  excludeResourcePrefixes: []
"""
MAPPED = """\
resources:
  deviceClassMappings:
  - name: dra.gpu/gpu
    deviceClassNames:
    - gpu.nvidia.com
"""


def indented(text: str, by: int) -> str:
    return "".join(" " * by + line for line in text.splitlines(keepends=True))


HOLDERS = {
    "document": ("{}", 0),
    "config-map": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kueue-manager-config}}  # ours\ndata:\n"
        "  controller_manager_config.yaml: |\n{}", 4,
    ),
    "values": ("# values\nmanagerConfig:\n  controllerManagerConfigYaml: |-\n{}metrics: {{}}\n", 4),
    "helm-release": (
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {{name: kueue}}\nspec:\n  values:\n"
        "    managerConfig:\n      controllerManagerConfigYaml: |\n{}", 8,
    ),
}  # fmt: skip
STRATEGY = Options(strategy=StrategyOption.CLAIMS)


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_text_is_edited_where_it_is_and_nothing_else_changes(holder: str) -> None:
    frame, indent = HOLDERS[holder]
    before = Source("kueue.yaml", frame.format(indented(TEXT, indent)))
    others = Source("queue.yaml", yaml.safe_dump(queue(gpus())))
    first = migrate([before, others], STRATEGY)
    lines = first.files[0].after.splitlines(keepends=True)
    added = indented(MAPPED, indent).splitlines(keepends=True)
    at = lines.index(added[0])
    assert lines[at : at + len(added)] == added
    assert "".join(lines[:at] + lines[at + len(added) :]) == before.text
    assert (first.settings, first.new_files) == ((), ())

    again = migrate([Source(one.file, one.after) for one in first.files], STRATEGY)
    assert [one.after for one in again.files] == [one.after for one in first.files]
    assert again.settings == ()
    back = undo([Source(one.file, one.after) for one in first.files]).files
    assert [read_documents(one.after, "").documents[0].obj for one in back] == [
        read_documents(one.text, "").documents[0].obj for one in (before, others)
    ]


def test_values_that_a_chart_is_tested_with_are_not_edited() -> None:
    suite = {"suite": "names", "tests": [{"it": "has a name", "set": {"managerConfig": TEXT}}]}
    assert edits_of(configured(suite)) == []
    assert edits_of(configured({"managerConfig": TEXT})) != []


def test_gates_of_the_chart_are_where_its_other_gates_are() -> None:
    values = {
        "controllerManager": {
            "manager": {"image": {"tag": "v0.17.1"}},
            "featureGates": [{"name": "A", "enabled": True}],
        },
        "managerConfig": {"controllerManagerConfigYaml": TEXT},
    }
    (gate, _) = edits_of(configured(values))
    assert gate == Put(("controllerManager", "featureGates", 1), {"name": "DynamicResourceAllocation", "enabled": True})


def test_a_text_that_cannot_be_read_is_told_what_to_become() -> None:
    data = {"a.yaml": "{{ x }}\n" + TEXT}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}
    told = [one for one in configured(config_map).findings if one.code.name == "M020"]
    assert [(one.place.path, "dra.gpu/gpu" in one.advice) for one in told] == [("data[a.yaml]", True)]


def test_the_configuration_of_a_cluster_is_written_as_it_is_to_be() -> None:
    metadata = {"name": "kueue-manager-config", "namespace": "kueue-system", "uid": "5", "labels": {"a": "b"}}
    side = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"c.yaml": TEXT}}
    with_it = [Source("the cluster", yaml.safe_dump(side))]
    sources = [Source("queue.yaml", yaml.safe_dump(queue(gpus())))]
    first = migrate(sources, STRATEGY, with_it)
    (new,) = first.new_files
    written = yaml.safe_load(new.text)
    assert written["metadata"] == {"name": "kueue-manager-config", "namespace": "kueue-system", "labels": {"a": "b"}}
    assert yaml.safe_load(written["data"]["c.yaml"])["resources"] == {"deviceClassMappings": [CLASSES]}
    after = [*(Source(one.file, one.after) for one in first.files), new]
    assert migrate(after, STRATEGY, with_it).new_files == ()
