"""Templates of Argo: what their pods have from the workflow stays theirs when a template gets claims."""

from typing import Any

import yaml

from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, Options, StrategyOption

DEDICATED = {"key": "dedicated", "operator": "Exists"}
OF_GPUS = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
LABEL = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
L40S = "device.attributes['gpu.nvidia.com'].productName.replace(' ', '-') == 'NVIDIA-L40S'"


def template(amount: object = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": "train",
        **more,
        "container": {"image": "i", "resources": {"limits": {"nvidia.com/gpu": amount}}},
    }


def workflow(*templates: dict[str, Any], kind: str = "Workflow", **spec: Any) -> str:
    metadata = {"name": "w"}
    return yaml.safe_dump(
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": kind,
            "metadata": metadata,
            "spec": {"entrypoint": "train", **spec, "templates": list(templates)},
        },
        sort_keys=False,
    )


def migrated(text: str) -> Migration:
    return migrate([ManifestText("w.yaml", text)], Options(strategy=StrategyOption.CLAIMS, argo_resource_claims=True))


def objects(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(migrated(text).files[0].after))


def train(text: str) -> Any:
    *_, last = objects(text)
    return last["spec"]["templates"][0]


def messages(text: str, code: str) -> list[tuple[str, str]]:
    return [
        (str(finding.severity), finding.message) for finding in migrated(text).findings if finding.code.name == code
    ]


def test_a_template_that_gets_a_toleration_keeps_those_of_the_workflow() -> None:
    """Argo gives a template its workflow's tolerations only where it has none of its own."""
    text = workflow(template(), tolerations=[DEDICATED])
    assert train(text)["tolerations"] == [DEDICATED, OF_GPUS]
    ((severity, message),) = messages(text, "M015")
    assert (severity, "inherits" in message) == ("info", True)


def test_tolerations_of_its_own_and_of_the_defaults_are_added_to() -> None:
    """Argo merges the defaults into a template's list, by their keys."""
    own = workflow(template(tolerations=[DEDICATED]), tolerations=[{"key": "other"}])
    assert train(own)["tolerations"] == [DEDICATED, OF_GPUS]
    defaults = workflow(template(), templateDefaults={"tolerations": [DEDICATED]}, tolerations=[{"key": "other"}])
    assert train(defaults)["tolerations"] == [OF_GPUS]


def test_who_calls_a_template_of_another_object_is_told_that_its_tolerations_end() -> None:
    ((severity, message),) = messages(workflow(template(), kind="WorkflowTemplate"), "M015")
    assert (severity, "workflows that use the template" in message) == ("warning", True)
    assert [level for level, _ in messages(workflow(template()), "M015")] == ["info"]


def test_a_label_of_the_workflow_is_said_of_devices_too_and_stays() -> None:
    for spec in ({"nodeSelector": LABEL}, {"templateDefaults": {"nodeSelector": LABEL}}):
        first, *_, after = objects(workflow(template(), **spec))
        assert first["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] == [
            {"cel": {"expression": L40S}}
        ]
        assert {name: after["spec"][name] for name in spec} == spec
        assert "nodeSelector" not in after["spec"]["templates"][0]
    ((severity, message),) = messages(workflow(template(), nodeSelector=LABEL), "M009")
    assert (severity, "comes from elsewhere" in message) == ("warning", True)


def test_a_label_of_shares_in_the_workflow_says_what_an_amount_is() -> None:
    text = workflow(template(), nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED"})
    assert objects(text)[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"].startswith(
        "shared."
    )


def test_a_scheduler_of_the_workflow_that_knows_no_claims_is_an_error() -> None:
    ((severity, message),) = messages(workflow(template(), schedulerName="hami-scheduler"), "M013")
    assert (severity, "is set elsewhere" in message) == ("error", True)


def test_where_a_patch_of_the_pod_is_about_gpus_the_template_stays() -> None:
    """The claim would come to them."""
    patch = '{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}'
    for text in (
        workflow(template(), podSpecPatch=patch),
        workflow(template(podSpecPatch=patch)),
        workflow(template(), templateDefaults={"podSpecPatch": patch}),
    ):
        assert migrated(text).files[0].after == text
        (workload,) = migrated(text).workloads
        assert (workload.choice.target.value, "podSpecPatch" in workload.choice.reason) == ("extended", True)
    other = "containers: [{name: main, resources: {limits: {memory: 1Gi}}}]"
    (workload,) = migrated(workflow(template(), podSpecPatch=other)).workloads
    assert workload.choice.target.value == "claims"


def test_releases_whose_templates_keep_no_claims_keep_the_extended_resource() -> None:
    (workload,) = migrate(
        [ManifestText("w.yaml", workflow(template()))], Options(strategy=StrategyOption.CLAIMS)
    ).workloads
    assert (workload.choice.target.value, "argoResourceClaims" in workload.choice.reason) == ("extended", True)
