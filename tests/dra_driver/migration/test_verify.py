"""The allocator's word on a result: what is right is found to be, and each way to get it wrong is found out.

Results are tampered with here as a defect of the migration would: the old manifest stays, the new one says something
else.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.rows import rows

from dra_driver import bundled
from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.cli.reading.files import read_files
from dra_driver.errors import InvalidInput
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import FileResult, ManifestText, Migration, NewObject, Options, StrategyOption
from dra_driver.migration.report.markdown import tried
from dra_driver.migration.verify.ground import Ground, ground_of_cluster, ground_of_models
from dra_driver.migration.verify.trial import TrialResult, TrialVerdict, Verification, verify

MANIFESTS = Path(__file__).parent / "manifests"
CLAIMS = Options(strategy=StrategyOption.CLAIMS)


@cache
def classes() -> Mapping[str, DeviceClass]:
    documents = read_files([str(bundled.DEVICE_CLASSES_FOLDER)]).documents
    return {document.name: DeviceClass.of(document.obj) for document in documents}


def migrated(file: str, options: Options = CLAIMS) -> Migration:
    return migrate([ManifestText(file, (MANIFESTS / file).read_text())], options)


def checked(migration: Migration, ground: Ground | None = None) -> TrialResult:
    verification = verify(migration, ground or ground_of_models((), migration.policy, 36), classes())
    return verification.checked[0]


def tampered(migration: Migration, old: str, new: str) -> Migration:
    """With `old` replaced in what was written, wherever it is."""
    (result,) = migration.files
    assert old in result.after
    after = result.after.replace(old, new)
    objects = tuple(replace(claim_template, obj=_reread(after, claim_template)) for claim_template in migration.objects)
    return replace(migration, files=(FileResult(result.file, result.before, after),), objects=objects)


def _reread(text: str, new: NewObject) -> JsonObject:
    """The object as the tampered text has it."""
    name = new.obj["metadata"]["name"]
    return next(document.obj for document in read_documents(text, "").documents if document.name == name)


@rows("file, old, new, says",
    [
        ("workloads/pod-vector-add.yaml", "count: 1", "count: 2", "did not ask for"),
        ("workloads/job-finetune-h100.yaml", "count: 8", "count: 4", "asked for 8 x GPU"),
        ("workloads/pod-vector-add.yaml", "gpu.nvidia.com\n", "mig.nvidia.com\n", "of another kind"),
        ("workloads/statefulset-embedder-mig.yaml", "'1g.5gb'", "'2g.10gb'", "of another profile"),
        ("workloads/two-containers-one-gpu-each.yaml", ": gpu-rank", ": gpu-encode", "separate devices"),
        ("sharing/hami-pod.yaml", "memory: 3000Mi", "memory: 1000Mi", "with less memory"),
        ("sharing/hami-pod.yaml", "cores: '30'", "cores: '20'", "with fewer cores"),
        ("sharing/hami-pod.yaml", "              cores: '30'\n", "", "with more cores"),
        ("sharing/aliyun-gpushare.yaml", "memory: 3Gi", "cores: '30'", "with more memory"),
        ("workloads/two-containers-one-gpu-each.yaml", "            request: gpu-rank\n", "", "did not ask for"),
    ],
)  # fmt: skip
def test_what_is_not_what_was_meant_is_found_out(file: str, old: str, new: str, says: str) -> None:
    right = migrated(file)
    assert checked(right).verdict is TrialVerdict.SAME
    wrong = checked(tampered(right, old, new), ground_of_models((), right.policy, 36))
    assert wrong.verdict is TrialVerdict.DIFFERS
    assert any(says in why for why in wrong.why), wrong.why


def test_a_claim_that_no_model_has_fits_nowhere_and_says_why() -> None:
    job = migrated("workloads/job-finetune-h100.yaml")
    trial = checked(job, ground_of_models(("t4",), None, 36))
    assert trial.verdict is TrialVerdict.NOWHERE
    assert "needs 8 devices" in trial.why[0]
    assert checked(job, ground_of_models(("dgx-h100",), None, 36)).verdict is TrialVerdict.SAME


def test_what_needs_a_policy_says_which() -> None:
    assert checked(migrated("workloads/statefulset-embedder-mig.yaml")).needs == {"mig": [{"mode": "Dynamic"}]}
    assert checked(migrated("workloads/pod-vector-add.yaml")).needs is None


def test_whole_gpus_beside_a_policy_that_shares_all_need_gpus_without_a_rule() -> None:
    shared = "{renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}"
    config = f"version: v1\nsharing: {{timeSlicing: {shared}}}\n"
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
    pod += "  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]\n"
    result = migrate([ManifestText("p.yaml", pod)], CLAIMS, [ManifestText("side.yaml", config)])
    (trial,) = verify(result, ground_of_models((), result.policy, 36), classes()).checked
    assert (trial.verdict, trial.needs) == (TrialVerdict.SAME, {})
    assert any(
        "Only on GPUs for which the policy above has no rule" in line
        for line in tried(Verification("nodes", True, (trial,)))
    )


def test_an_unchanged_pod_is_tried_with_its_extended_resource() -> None:
    stays = migrated("workloads/deployment-translator.yaml", Options())
    trial = checked(stays)
    assert (trial.verdict, [piece.container for piece in trial.got]) == (TrialVerdict.SAME, ["server"])
    without = replace(stays)
    bare = {
        name: device_class
        for name, device_class in classes().items()
        if device_class.spec.extended_resource_name is None
    }
    assert verify(without, ground_of_models((), None, 36), bare).checked[0].verdict is TrialVerdict.NOWHERE


def test_what_extended_resources_lack_is_said_without_the_name_of_a_claim() -> None:
    """The scheduler would make one, and there is none yet."""
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: big}\nspec:\n  containers:\n  - name: c\n"
    pod += "    image: registry.example.com/c:1\n    resources: {limits: {nvidia.com/gpu: 20}}\n"
    given = Options(strategy=StrategyOption.EXTENDED, kubernetes_minor=36)
    tried = checked(migrate([ManifestText("a.yaml", pod)], given), ground_of_models(("t4",), None, 36))
    assert any(
        'request "container-0-request-0" of the extended resources needs 20' in sentence for sentence in tried.why
    )


def test_on_a_cluster_labels_and_taints_of_its_nodes_count() -> None:
    device = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA L40S"}}}
    slice_ = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }
    node: JsonObject = {"metadata": {"name": "n", "labels": {}}, "spec": {}, "status": {}}
    pod = migrated("placement/zone-and-model.yaml", replace(CLAIMS))
    assert checked(pod, ground_of_cluster([node], [slice_], 36)).verdict is TrialVerdict.NOWHERE
    plain = migrated("workloads/pod-vector-add.yaml")
    assert checked(plain, ground_of_cluster([node], [slice_], 36)).node == "n"
    taint = {"taints": [{"key": "other", "effect": "NoSchedule"}]}
    assert checked(plain, ground_of_cluster([{**node, "spec": taint}], [slice_], 36)).why == ("n: tainted other",)


def test_a_model_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInput, match="abacus"):
        ground_of_models(("abacus",), None, 36)


def test_each_sharing_rule_counts_on_nodes_of_its_own() -> None:
    """Two configurations of a device plugin, for the nodes that have their labels."""
    side = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data:
  a: |
    version: v1
    sharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}
  b: |
    version: v1
    sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}
---
apiVersion: v1
kind: Node
metadata: {name: a, labels: {nvidia.com/device-plugin.config: a}}
---
apiVersion: v1
kind: Node
metadata: {name: b, labels: {nvidia.com/device-plugin.config: b}}
"""
    pod = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  nodeSelector: {nvidia.com/device-plugin.config: a}\n"
    )
    pod += "  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu.shared: 1}}}]\n"
    result = migrate([ManifestText("p.yaml", pod)], CLAIMS, [ManifestText("side.yaml", side)])
    assert len((result.policy or {})["sharing"]) == 2
    (checked,) = verify(result, ground_of_models(["l40s"], result.policy, 36), classes()).checked
    assert (checked.verdict, checked.needs) == (TrialVerdict.SAME, None)


@pytest.mark.parametrize(
    "beside",
    [
        '{"metadata": 389, "kind": 110, "spec": 166}',
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: 5\nspec: []\n",
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: 5}\nspec: 7\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: [n]}\n"
        "spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}\n",
    ],
    ids=["words of a model", "a template", "a class", "a namespace that is a list"],
)
def test_what_is_no_object_beside_a_workload_does_not_end_the_trial(beside: str) -> None:
    file = "workloads/daemonset-gpu-exporter.yaml"
    sources = [ManifestText(file, (MANIFESTS / file).read_text()), ManifestText("beside.yaml", beside)]
    trial, alone = checked(migrate(sources, CLAIMS)), checked(migrated(file))
    assert (trial.verdict, trial.got) == (alone.verdict, alone.got)
