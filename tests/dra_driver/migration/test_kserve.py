"""Configs that services of KServe name, and the services that name them."""

import pytest

from dra_driver.migration.codes import NO_CLAIMS_HERE, Severity
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Migration, Options, Source, StrategyOption, Target

CLAIMS = Options(strategy=StrategyOption.CLAIMS, mig_strategy="none", replicas=1)
AUTO = Options(mig_strategy="none", replicas=1)


def container(gpus: str = "nvidia.com/gpu: 1", name: str = "main") -> str:
    return f"{{name: {name}, resources: {{limits: {{{gpus}}}}}}}"


ONE = f"{{containers: [{container()}]}}"
FOUR = f"{{containers: [{container('nvidia.com/gpu: 4')}]}}"
ON_H100 = f"{{nodeSelector: {{nvidia.com/gpu.family: hopper}}, containers: [{container()}]}}"


def migrated(text: str, options: Options) -> Migration:
    return migrate([Source("a.yaml", text)], options)


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
