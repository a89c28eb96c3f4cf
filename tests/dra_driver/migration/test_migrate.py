"""From texts to texts: what is converted, and what is left."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from dra_driver.api.documents import read_documents
from dra_driver.api.untyped import value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration.codes import (
    INFERRED_COUNT,
    NO_CLAIMS_HERE,
    NOT_EDITABLE,
    SERVER_TOO_OLD,
    VIRTUAL_MACHINE,
)
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, MigrationTarget, Options, StrategyOption
from dra_driver.migration.text.edited import same

CLAIMS = Options(strategy=StrategyOption.CLAIMS)
QUIET = Options(strategy=StrategyOption.CLAIMS, argo_resource_claims=True)


def deployment(name: str = "web", count: int = 1, spec: str = "", namespace: str = "") -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}{f"{chr(10)}  namespace: {namespace}" if namespace else ""}
spec:
  template:
    spec:
      containers:
      - name: main
        image: x:1
        resources:
          limits:
            nvidia.com/gpu: {count}
{spec}"""


def migrated(*texts: str, options: Options = QUIET) -> Migration:
    return migrate([ManifestText(f"{number}.yaml", text) for number, text in enumerate(texts)], options)


def objects(text: str) -> list[Any]:
    return [document.obj for document in read_documents(text, "").raise_problems()]


def targets(result: Migration) -> list[MigrationTarget]:
    return [workload.choice.target for workload in result.workloads]


def again(result: Migration) -> list[ManifestText]:
    return [*(ManifestText(file.file, file.after) for file in result.files), *result.new_files]


def test_templates_are_named_by_their_content() -> None:
    original, same_again, other = (migrated(deployment(count=count)) for count in (1, 1, 2))
    assert original.workloads[0].templates == same_again.workloads[0].templates != other.workloads[0].templates


def test_a_template_is_written_once_for_each_file_that_names_it() -> None:
    """Files of a folder may be alternatives, each applied alone."""
    web = deployment()
    other = deployment(namespace="team-b")
    result = migrate(
        [
            ManifestText("a/1.yaml", f"{web}---\n{other}---\n{web}"),
            ManifestText("a/2.yaml", web),
            ManifestText("b/1.yaml", web),
        ],
        QUIET,
    )
    assert [new.beside for new in result.objects] == ["a/1.yaml", "a/1.yaml", "a/2.yaml", "b/1.yaml"]


def test_counts_that_differ_are_not_guessed() -> None:
    pod = "{template: {spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: %d}}}]}}}"
    text = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: t}\nspec:\n  nprocPerNode: gpu\n"
        f"  pytorchReplicaSpecs:\n    Master: {pod % 1}\n    Worker: {pod % 2}\n"
    )
    result = migrated(text)
    assert objects(result.files[0].after)[-1]["spec"]["nprocPerNode"] == "gpu"
    assert [finding.fixed for finding in result.findings if finding.code is INFERRED_COUNT] == [False]


def test_json_stays_json_and_its_template_has_a_file_of_its_own() -> None:
    before = json.dumps(objects(deployment())[0], indent=4) + "\n"
    result = migrate([ManifestText("dir/web.json", before)], CLAIMS)
    assert json.loads(result.files[0].after)["spec"]["template"]["spec"]["resourceClaims"]
    assert [file.file for file in result.new_files] == ["dir/web-claims.yaml"]


RUNTIME = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch}
spec:
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          spec:
            template:
              spec: {containers: [{name: node, image: i, resources: {limits: {nvidia.com/gpu: 2}}}]}
"""
TRAIN_JOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: job}
spec: {runtimeRef: {name: torch}, trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: 4}}}}
"""


def test_a_runtime_gets_no_claims_beside_the_amount_of_a_job() -> None:
    """The job's four GPUs and the claim's two would be six."""
    assert targets(migrated(RUNTIME, TRAIN_JOB, options=CLAIMS)) == [MigrationTarget.EXTENDED] * 2
    other = TRAIN_JOB.replace("name: torch", "name: other")
    assert targets(migrated(RUNTIME, other, options=CLAIMS)) == [MigrationTarget.CLAIMS, MigrationTarget.EXTENDED]
    alone = migrated(RUNTIME, options=CLAIMS)
    assert any("resourcesPerNode" in finding.message for finding in alone.findings)


def test_an_inference_service_gets_no_claims_beside_the_amount_of_its_runtime() -> None:
    service = """apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llm, annotations: {serving.kserve.io/deploymentMode: Standard}}
spec: {predictor: {model: {modelFormat: {name: x}, resources: {limits: {nvidia.com/gpu: 1}}}}}
"""
    runtime = """apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: vllm}
spec:
  supportedModelFormats: [{name: y, autoSelect: true}, {name: x, version: "2", autoSelect: true}]
  containers: [{name: kserve-container, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
    assert targets(migrated(service, runtime, options=CLAIMS)) == [MigrationTarget.EXTENDED] * 2
    named = service.replace("model: {", "model: {runtime: other, ")
    assert targets(migrated(named, runtime, options=CLAIMS)) == [MigrationTarget.CLAIMS, MigrationTarget.EXTENDED]
    (choice, _) = (workload.choice for workload in migrated(service, runtime, options=CLAIMS).workloads)
    assert "ServingRuntime vllm asks for GPUs, too" in choice.reason
    same = runtime.replace("{name: vllm}", "{name: other}")
    assert targets(migrated(named, same, options=CLAIMS)) == [MigrationTarget.EXTENDED] * 2
    plain = runtime.replace("nvidia.com/gpu", "cpu")
    assert targets(migrated(service, plain, options=CLAIMS)) == [MigrationTarget.CLAIMS]


def test_labels_keep_nobody_from_staying_where_claims_cannot_be() -> None:
    text = """apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: s}
spec:
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}
      containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
    result = migrated(text)
    assert targets(result) == [MigrationTarget.EXTENDED]
    assert "M051" in {finding.code.name for finding in result.findings}
    assert all(finding.severity is not Severity.ERROR for finding in result.findings)


def test_a_patch_without_its_kustomization_is_left_to_be_rendered() -> None:
    result = migrate([ManifestText("over/more.yaml", deployment().replace("        image: x:1\n", ""))], CLAIMS)
    assert (result.changed, targets(result)) == (False, [])
    (finding,) = [finding for finding in result.findings if finding.code is NOT_EDITABLE]
    assert "kubectl kustomize" in finding.advice


@pytest.mark.parametrize(
    ("header", "about"),
    [
        ("# Copyright of somebody.\n# All rights kept.\n\n", "# The pod.\n"),
        ("\n# Copyright of somebody.\n\n\n", ""),
        ("# One.\n\n# Two.\n \n", ""),
        ("", "# The pod.\n"),
    ],
)
def test_the_header_of_a_file_stays_at_its_top(header: str, about: str) -> None:
    text = header + about + deployment()
    result = migrated(text, options=CLAIMS)
    after = result.files[0].after
    assert after.startswith(f"{header}# What Deployment web asks for.\n")
    assert f"---\n{about}apiVersion: apps/v1\n" in after
    assert not migrate(again(result), CLAIMS).changed


def test_templates_are_in_the_namespace_of_the_pod() -> None:
    pod = "{containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}"
    inner = f"{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: inner}}, spec: {pod}}}"
    text = "apiVersion: workload.codeflare.dev/v1beta2\nkind: AppWrapper\nmetadata: {name: w, namespace: outer}\n"
    result = migrated(f"{text}spec: {{components: [{{template: {inner}}}]}}\n")
    assert [new.obj["metadata"]["namespace"] for new in result.objects] == ["inner"]
    assert [workload.templates[0].namespace for workload in result.workloads] == ["inner"]


def test_objects_of_the_cluster_need_templates_in_each_namespace() -> None:
    template = "{name: t, container: {image: i, resources: {limits: {nvidia.com/gpu: 1}}}}"
    text = "apiVersion: argoproj.io/v1alpha1\nkind: ClusterWorkflowTemplate\nmetadata: {name: w}\n"
    result = migrated(f"{text}spec: {{templates: [{template}]}}\n")
    assert any(finding.code is NO_CLAIMS_HERE and "each of them" in finding.message for finding in result.findings)


def test_a_daemon_set_keeps_the_labels_that_choose_its_nodes() -> None:
    """Its pods are made for nodes by labels, before anybody looks for devices: without them CPU nodes get some, too."""
    text = deployment(
        spec="      nodeSelector: {nvidia.com/gpu.present: 'true', nvidia.com/gpu.product: NVIDIA-L40S}\n"
    )
    result = migrated(text.replace("kind: Deployment", "kind: DaemonSet"))
    template, daemon_set = objects(result.files[0].after)
    assert pod_of(daemon_set)["nodeSelector"] == objects(text)[0]["spec"]["template"]["spec"]["nodeSelector"]
    assert len(template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"]) == 1
    codes = [finding.code.name for finding in result.findings]
    assert (codes.count("M009"), "M029" in codes) == (2, False)
    assert "nodeSelector" not in pod_of(objects(migrated(text).files[0].after)[1])


def test_numbers_that_are_filled_in_later_are_left() -> None:
    for number in ("'{{inputs.parameters.gpus}}'", "${trialParameters.gpus}", "$(GPUS)"):
        result = migrated(deployment().replace("gpu: 1", f"gpu: {number}"))
        assert not result.changed
        assert [(finding.code, finding.severity) for finding in result.findings] == [(NOT_EDITABLE, Severity.WARNING)]


def test_defaults_of_argo_get_no_claims_because_they_are_for_all_templates() -> None:
    gpu = "{image: i, resources: {limits: {nvidia.com/gpu: 1}}}"
    text = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: w}\n"
    spec = f"spec: {{templateDefaults: {{container: {gpu}}}, templates: [{{name: a, container: {{image: i}}}}]}}\n"
    (workload,) = migrated(text + spec).workloads
    assert (workload.choice.target, "templateDefaults" in workload.choice.reason) == (MigrationTarget.EXTENDED, True)


def test_what_kserve_makes_claims_for_gets_no_others() -> None:
    text = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: l, annotations: {serving.kserve.io/dra-device-class: gpu.nvidia.com}}
spec: {template: {containers: [{name: main, image: i, resources: {limits: {nvidia.com/gpu: 2}}}]}}
"""
    result = migrated(text)
    assert (result.changed, targets(result)) == (False, [MigrationTarget.LEAVE])
    assert "M039" in {finding.code.name for finding in result.findings if finding.severity is Severity.ERROR}


def test_findings_stand_where_something_is_written() -> None:
    spec = "{executor: {gpu: {name: nvidia.com/gpu, quantity: 0.5}}}"
    text = f"apiVersion: sparkoperator.k8s.io/v1beta2\nkind: SparkApplication\nmetadata: {{name: s}}\nspec: {spec}\n"
    assert {finding.place.path for finding in migrated(text).findings} == {"spec.executor.gpu"}


def test_a_manifest_in_a_text_is_reported_with_its_place() -> None:
    inner = "".join(f"          {line}\n" for line in deployment("inner").splitlines())
    text = f"""\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {{name: flow}}
spec:
  templates:
  - name: apply
    resource:
      action: create
      manifest: |
{inner}"""
    result = migrated(text)
    assert not result.changed
    assert [finding.place.path for finding in result.findings] == ["spec.templates[0].resource.manifest"]
    assert "migrate the manifest" in result.findings[0].advice


@pytest.mark.parametrize(
    "line",
    ["name: {{ .Values.name }}", "name: '{{ .Release.Name }}'", 'name: x\n{{- include "x.labels" . | nindent 4 }}'],
)
def test_helm_templates_are_refused_with_what_to_do(line: str) -> None:
    text = f"{deployment('fine')}---\napiVersion: v1\nkind: Pod\nmetadata:\n  {line}\n"
    result = migrated(text)
    assert not result.changed and not result.workloads
    (finding,) = [finding for finding in result.findings if finding.code is NOT_EDITABLE]
    assert "helm template" in finding.advice
    assert "nvidia.com/gpu" in text.splitlines()[finding.place.line - 1]


def test_braces_of_others_are_no_template() -> None:
    text = deployment(spec="      terminationGracePeriodSeconds: 1\n").replace("x:1", "'{{workflow.parameters.image}}'")
    assert targets(migrated(text)) == [MigrationTarget.CLAIMS]


def test_what_others_make_is_left_to_them() -> None:
    owner = "{kind: Deployment, name: web, controller: true, apiVersion: apps/v1, uid: u}"
    text = deployment().replace("Deployment", "ReplicaSet").replace("  name: web", f"  ownerReferences: [{owner}]")
    result = migrated(text)
    assert not result.changed and not result.workloads
    assert [(finding.code, finding.severity) for finding in result.findings] == [(NOT_EDITABLE, Severity.INFO)]


def test_a_text_that_cannot_be_edited_is_left_as_a_whole() -> None:
    text = deployment().replace(
        "          limits:\n            nvidia.com/gpu: 1", "          ? limits\n          : nvidia.com/gpu: 1"
    )
    result = migrated(text, deployment("other"))
    assert targets(result) == [MigrationTarget.LEAVE, MigrationTarget.CLAIMS]
    assert result.files[0].after == text
    assert [new.beside for new in result.objects] == ["1.yaml"]
    assert any(finding.code is NOT_EDITABLE and finding.place.file == "0.yaml" for finding in result.findings)


def test_one_bad_document_does_not_keep_the_others() -> None:
    result = migrated(f"{deployment()}---\na: [\n---\n{deployment('other')}")
    assert targets(result) == [MigrationTarget.CLAIMS, MigrationTarget.CLAIMS]
    assert "---\na: [\n---\n" in result.files[0].after


@rows(
    "options, target",
    [
        (Options(), MigrationTarget.EXTENDED),
        (Options(kubernetes_minor=36), MigrationTarget.EXTENDED),
        (Options(kubernetes_minor=35), MigrationTarget.CLAIMS),
        (Options(kubernetes_minor=35, extended_resource_gate=True), MigrationTarget.EXTENDED),
        (Options(kubernetes_minor=36, extended_resource_gate=False), MigrationTarget.CLAIMS),
        (Options(strategy=StrategyOption.CLAIMS), MigrationTarget.CLAIMS),
        (Options(strategy=StrategyOption.EXTENDED, kubernetes_minor=35), MigrationTarget.EXTENDED),
        (Options(strategy=StrategyOption.EXTENDED, kubernetes_minor=33), MigrationTarget.LEAVE),
        (Options(strategy=StrategyOption.CLAIMS, kubernetes_minor=33), MigrationTarget.LEAVE),
    ],
)
def test_the_strategy_follows_the_cluster_and_says_why(options: Options, target: MigrationTarget) -> None:
    result = migrated(deployment(), options=options)
    assert targets(result) == [target]
    assert result.changed is (target is MigrationTarget.CLAIMS)
    assert result.workloads[0].choice.reason
    needs_more = target is not MigrationTarget.CLAIMS and (options.kubernetes_minor or 36) < 36
    needs_more = needs_more and options.extended_resource_gate is None
    assert any(finding.code is SERVER_TOO_OLD for finding in result.findings) is needs_more


def test_kinds_without_claims_stay_with_extended_resources() -> None:
    text = deployment().replace("apps/v1", "serving.knative.dev/v1").replace("Deployment", "Service")
    result = migrated(text)
    assert targets(result) == [MigrationTarget.EXTENDED]
    assert [finding.severity for finding in result.findings if finding.code is NO_CLAIMS_HERE] == [Severity.INFO]
    old = migrated(text, options=Options(kubernetes_minor=35))
    assert targets(old) == [MigrationTarget.LEAVE]
    assert {SERVER_TOO_OLD, NO_CLAIMS_HERE} <= {finding.code for finding in old.findings}


def test_virtual_machines_are_told() -> None:
    devices = "{gpus: [{name: g, deviceName: nvidia.com/GA102GL_A10}], hostDevices: [{deviceName: example.com/x}]}"
    text = f"apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nspec: {{domain: {{devices: {devices}}}}}\n"
    paths = [finding.place.path for finding in migrated(text).findings if finding.code is VIRTUAL_MACHINE]
    assert paths == ["spec.domain.devices.gpus[0].deviceName"]


# -- by law

AMOUNTS = st.sampled_from(
    [{}, {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": "2"}, {"nvidia.com/mig-1g.5gb": 1}, {"cpu": 1}]
)


@st.composite
def containers(draw: st.DrawFn, names: list[str]) -> list[Any]:
    made = []
    for name in names:
        limits = {**draw(AMOUNTS), **draw(AMOUNTS)}
        container: Any = {"name": name, "image": "x"}
        if limits or draw(st.booleans()):
            container["resources"] = {"limits": limits} if limits else {}
            if draw(st.booleans()) and limits:
                container["resources"]["requests"] = {**limits, "memory": "1Gi"}
        made.append(container)
    return made


@st.composite
def workloads(draw: st.DrawFn) -> Any:
    names = draw(st.lists(st.sampled_from(["a", "b", "main", "side"]), min_size=1, max_size=3, unique=True))
    spec: Any = {"containers": draw(containers(names))}
    if draw(st.booleans()):
        spec["tolerations"] = draw(
            st.sampled_from([[], [{"key": "x"}], [{"key": "nvidia.com/gpu", "operator": "Exists"}]])
        )
    if draw(st.booleans()):
        spec["nodeSelector"] = draw(
            st.sampled_from(
                [{"a": "b"}, {"nvidia.com/gpu.product": "NVIDIA-L40S"}, {"nvidia.com/gpu.family": "ada-lovelace"}]
            )
        )
    if draw(st.booleans()):
        spec["initContainers"] = draw(containers(["first"]))
    kind = draw(st.sampled_from(["apps/v1 Deployment", "batch/v1 Job", "v1 Pod", "batch/v1 CronJob"]))
    version, name = kind.split()
    wrapped = {"Pod": spec, "CronJob": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}}
    obj = wrapped.get(name, {"template": {"metadata": {"labels": {"x": "y"}}, "spec": spec}})
    return {"apiVersion": version, "kind": name, "metadata": {"name": "w"}, "spec": obj}


def without_gpus(value: Any) -> Any:
    """Without anything that asks for GPUs in either way, and without what is empty after that."""
    if isinstance(value, dict):
        remaining = {
            key: without_gpus(inner)
            for key, inner in value.items()
            if not key.startswith("nvidia.com/") and key not in ("claims", "resourceClaims", "tolerations")
        }
        return {key: inner for key, inner in remaining.items() if inner not in ({}, [])}
    return [without_gpus(inner) for inner in value] if isinstance(value, list) else value


def gpus_of(container: Any) -> dict[str, int]:
    limits = value_at(container, ("resources", "limits")) or {}
    return {name: int(amount) for name, amount in limits.items() if name.startswith("nvidia.com/")}


def pod_of(obj: Any) -> Any:
    for path in (("spec", "jobTemplate", "spec", "template", "spec"), ("spec", "template", "spec"), ("spec",)):
        if value_at(obj, (*path, "containers")):
            return value_at(obj, path)
    raise AssertionError("no pod")


@given(st.lists(workloads(), min_size=1, max_size=3), st.sampled_from(["block", "flow", "json"]))
def test_nothing_but_the_asking_changes(some: list[Any], form: str) -> None:
    for number, obj in enumerate(some):
        obj["metadata"]["name"] = f"w{number}"
    if form == "json":
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": some}, indent=2)
    else:
        text = yaml.safe_dump_all(some, default_flow_style=form == "flow", sort_keys=False)
    result = migrate([ManifestText("f", text)], CLAIMS)
    after = [obj for obj in objects(result.files[0].after) if obj["kind"] != "ResourceClaimTemplate"]
    assert same([without_gpus(obj) for obj in after], [without_gpus(obj) for obj in objects(text)])
    templates = {new.obj["metadata"]["name"]: new.obj["spec"]["spec"]["devices"] for new in result.objects}
    for before, now in zip(objects(text), after, strict=True):
        assert_asks_for_the_same(pod_of(before), pod_of(now), templates)
    assert not migrate(again(result), CLAIMS).changed


def assert_asks_for_the_same(before: Any, now: Any, templates: dict[str, Any]) -> None:
    """Each container sees as many devices of each kind as it asked for, and none is of another container, too."""
    if not any(gpus_of(container) for field in ("containers", "initContainers") for container in before.get(field, ())):
        assert same(before, now)
        return
    (entry,) = now["resourceClaims"]
    requests = {
        request["name"]: request["exactly"] for request in templates[entry["resourceClaimTemplateName"]]["requests"]
    }
    users: dict[str, list[str]] = {name: [] for name in requests}
    pairs = [
        (field, old, new)
        for field in ("containers", "initContainers")
        for old, new in zip(before.get(field, ()), now.get(field, ()), strict=True)
    ]
    for field, old, new in pairs:
        assert not gpus_of(new)
        uses = value_at(new, ("resources", "claims")) or []
        assert all(use["name"] == entry["name"] for use in uses)
        named = [use["request"] for use in uses if "request" in use] or (list(requests) if uses else [])
        for name in named:
            users[name].append(field)
        by_class: dict[str, int] = {}
        for name in named:
            request = requests[name]
            by_class[request["deviceClassName"]] = by_class.get(request["deviceClassName"], 0) + request["count"]
        wanted = gpus_of(old)
        assert by_class.get("gpu.nvidia.com", 0) == wanted.get("nvidia.com/gpu", 0)
        assert by_class.get("mig.nvidia.com", 0) == wanted.get("nvidia.com/mig-1g.5gb", 0)
    # An init container has ended before the others start, so it may have had what one of them has now.
    assert all(names and names.count("containers") <= 1 for names in users.values()), users


def test_what_a_quota_was_to_get_is_not_called_done_where_its_file_cannot_be_edited() -> None:
    text = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q, namespace: team}\nspec:\n  hard:\n"
    text += '    ? requests.nvidia.com/gpu\n    : "8"\n'
    result = migrated(text)
    assert result.files[0].after == text
    finding = next(finding for finding in result.findings if "devices: 8" in finding.message)
    assert (finding.fixed, finding.severity, "by hand" in finding.advice) == (False, "warning", True)
