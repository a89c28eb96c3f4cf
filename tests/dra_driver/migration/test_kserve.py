"""Claims that KServe makes itself."""

from typing import Any

import pytest

from dra_driver.api.documents import read_documents
from dra_driver.migration.codes import NO_CLAIMS_HERE, Severity
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


# -- configs that services name

CLAIMS = Options(strategy=StrategyOption.CLAIMS, mig_strategy="none", replicas=1)
AUTO = Options(mig_strategy="none", replicas=1)


def config(template: str = ONE, namespace: str = "kserve", name: str = "h100") -> str:
    metadata = f"{{name: {name}{f', namespace: {namespace}' if namespace else ''}}}"
    head = "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceServiceConfig\n"
    return f"{head}metadata: {metadata}\nspec: {{template: {template}}}\n---\n"


def user(namespace: str, spec: str = "", name: str = "h100") -> str:
    head = "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\n"
    metadata = f"{{name: chat, namespace: {namespace}}}"
    return f"{head}metadata: {metadata}\nspec: {{baseRefs: [{{name: {name}}}]{spec}}}\n---\n"


def told(text: str, options: Options = CLAIMS) -> list[tuple[Severity, str]]:
    found = migrated(text, options).findings
    return [(one.severity, one.message) for one in found if one.code is NO_CLAIMS_HERE]


def test_a_template_must_be_where_the_services_are_that_name_the_config() -> None:
    ((severity, message),) = told(config() + user("b") + user("a") + user("kserve"))
    assert severity is Severity.WARNING
    assert message.startswith("services in a, b name this config; the template h100-gpu-")
    # Wherever KServe runs.
    ((_, message),) = told(config(namespace="models") + user("a"))
    assert message.startswith("services in a name")


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (config(), Severity.WARNING),
        (config(namespace=""), Severity.INFO),
        (config() + user("a", name="other"), Severity.WARNING),
        (config() + config(namespace="a") + user("a"), Severity.WARNING),
    ],
)
def test_a_config_of_kserves_own_namespace_is_for_all(text: str, severity: Severity) -> None:
    ((found, message),) = told(text)
    assert found is severity
    assert "for the services of all namespaces" in message


def test_a_config_beside_its_services_needs_nothing_elsewhere() -> None:
    assert told(config(namespace="a") + user("a")) == []
    assert told(config(namespace="a")) == []
    # What stays names no template.
    assert told(config() + user("a"), AUTO) == []


@pytest.mark.parametrize(
    "template", [FOUR, f"{{containers: [{container(name='side')}]}}", ON_H100], ids=["count", "container", "labels"]
)
@pytest.mark.parametrize("options", [AUTO, CLAIMS])
def test_a_service_that_asks_for_something_else_than_its_config_goes_on_in_the_old_way(
    template: str, options: Options
) -> None:
    """Claims of one would take the place of the other's, with what they say of models; limits and labels are merged."""
    result = migrated(config(ONE, "a") + user("a", f", template: {template}"), options)
    assert [one.choice.target for one in result.workloads] == [Target.EXTENDED] * 2
    assert all("do not ask for the same GPUs" in one.choice.reason for one in result.workloads)
    apart = migrated(config(ONE, "a", "other") + user("a", f", template: {template}"), CLAIMS)
    assert {one.choice.target for one in apart.workloads} == {Target.CLAIMS}


def test_a_service_that_asks_for_what_its_config_does_or_for_another_pod_gets_claims_with_it() -> None:
    for spec in (f", template: {ONE}", f", worker: {FOUR}"):
        result = migrated(config(namespace="a") + user("a", spec), CLAIMS)
        assert {one.choice.target for one in result.workloads} == {Target.CLAIMS}


def test_kserve_makes_no_claims_besides_those_of_a_config() -> None:
    result = migrated(config(namespace="a") + user("a", f", template: {ONE}"))
    assert "serving.kserve.io/exp-dra-" not in result.files[0].after
