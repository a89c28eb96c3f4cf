"""Claims that KServe makes itself."""

from typing import Any

import pytest

from dra_driver.api.documents import read_documents
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Migration, Options, Source, StrategyOption, Target
from dra_driver.migration.undo import undo

MANAGED = Options(
    strategy=StrategyOption.CLAIMS, mig_strategy="none", replicas=1, kserve_managed_claims=True, kubernetes_minor=37
)
ANNOTATION = "serving.kserve.io/exp-dra-"


def container(gpus: str = "nvidia.com/gpu: 1", name: str = "main") -> str:
    return f"{{name: {name}, resources: {{limits: {{{gpus}}}}}}}"


def service(**pods: str) -> str:
    spec = ", ".join(f"{key}: {value}" for key, value in pods.items())
    return (
        "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata: {name: chat}\n"
        f"spec: {{model: {{uri: 'hf://a/b'}}, {spec}}}\n"
    )


def migrated(text: str, options: Options = MANAGED) -> Migration:
    return migrate([Source("a.yaml", text)], options)


def after(found: Migration) -> Any:
    return read_documents(found.files[0].after, "a.yaml").documents[-1].obj


def said(found: Migration) -> dict[str, str]:
    annotations = after(found)["metadata"].get("annotations", {})
    return {key.removeprefix(ANNOTATION): one for key, one in annotations.items() if key.startswith(ANNOTATION)}


ONE = f"{{containers: [{container()}]}}"
FOUR = f"{{containers: [{container('nvidia.com/gpu: 4')}]}}"
ON_H100 = f"{{nodeSelector: {{nvidia.com/gpu.family: hopper}}, containers: [{container()}]}}"
SECOND = f"{{containers: [{{name: proxy}}, {container()}]}}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (service(template=ONE), {}),
        (service(template=FOUR, worker=FOUR), {"device-count": "4"}),
        (
            service(template=ON_H100, prefill=f"{{template: {ON_H100}}}"),
            {"cel-selector": "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"},
        ),
        (service(template=SECOND, worker=SECOND), {"container-name": "main"}),
    ],
    ids=["one", "workers", "selector", "second-container"],
)
def test_annotations_say_what_one_request_can(text: str, wanted: dict[str, str]) -> None:
    found = migrated(text)
    assert said(found) == {"device-class": "gpu.nvidia.com", **wanted}
    assert found.objects == ()
    assert "resourceClaims" not in str(after(found)["spec"])
    assert "nvidia.com/gpu" not in str(after(found)["spec"]).replace("'key': 'nvidia.com/gpu'", "")
    assert {one.choice.target for one in found.workloads} == {Target.CLAIMS}
    assert "KServe 0.20 or newer" in next(one.advice for one in found.findings if one.code.name == "M010")
    again = migrated(found.files[0].after)
    assert not again.changed
    back = undo([Source("a.yaml", found.files[0].after)]).files[0].after
    assert read_documents(back, "a").documents[0].obj == read_documents(text, "a").documents[0].obj


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (service(template=ONE, worker=FOUR), "its pods ask for different devices"),
        (
            service(template=ONE, worker="{containers: [{name: main}]}"),
            "every pod of the service would get the devices, also those that ask for none",
        ),
        (
            service(template=f"{{containers: [{container()}, {container(name='other')}]}}"),
            "it takes several requests, a constraint or a config",
        ),
        (service(template=SECOND, worker=ONE), "in each pod another container has the devices"),
    ],
    ids=["different", "without", "two", "containers"],
)
def test_whatever_needs_more_has_claims_of_its_own_pods(text: str, why: str) -> None:
    found = migrated(text)
    assert said(found) == {}
    assert found.objects
    (message,) = [one.message for one in found.findings if one.code.name == "M010"]
    assert message == f"KServe's annotations cannot say this, so its pods name claims: {why}"


def test_shares_are_no_business_of_annotations() -> None:
    text = service(template=f"{{containers: [{container('nvidia.com/gpu.shared: 1')}]}}")
    (message,) = [one.message for one in migrated(text).findings if one.code.name == "M010"]
    assert message.endswith("a request takes more than class, count and selectors")


def test_pods_name_claims_unless_kserve_is_said_to_make_them() -> None:
    found = migrated(service(template=ONE), Options(strategy=StrategyOption.CLAIMS, mig_strategy="none", replicas=1))
    assert said(found) == {}
    assert found.objects
