"""Configs that services of KServe name, and the services that name them."""

import pytest

from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, MigrationTarget, Options, StrategyOption

CLAIMS = Options(strategy=StrategyOption.CLAIMS, mig_strategy="none", replicas=1)
AUTO = Options(mig_strategy="none", replicas=1)


def container(gpus: str = "nvidia.com/gpu: 1", name: str = "main") -> str:
    return f"{{name: {name}, resources: {{limits: {{{gpus}}}}}}}"


ONE = f"{{containers: [{container()}]}}"
FOUR = f"{{containers: [{container('nvidia.com/gpu: 4')}]}}"


def migrated(text: str, options: Options) -> Migration:
    return migrate([ManifestText("a.yaml", text)], options)


def config(template: str = ONE, namespace: str = "kserve", name: str = "h100") -> str:
    metadata = f"{{name: {name}{f', namespace: {namespace}' if namespace else ''}}}"
    head = "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceServiceConfig\n"
    return f"{head}metadata: {metadata}\nspec: {{template: {template}}}\n---\n"


def user(namespace: str, spec: str = "", name: str = "h100") -> str:
    head = "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\n"
    metadata = f"{{name: chat, namespace: {namespace}}}"
    return f"{head}metadata: {metadata}\nspec: {{baseRefs: [{{name: {name}}}]{spec}}}\n---\n"


def targets(text: str, options: Options = CLAIMS) -> list[MigrationTarget]:
    return [workload.choice.target for workload in migrated(text, options).workloads]


@pytest.mark.parametrize("options", [AUTO, CLAIMS])
def test_a_config_keeps_the_extended_resource_and_so_does_a_service_that_adds_to_it(options: Options) -> None:
    """Its template would have to be in the namespace of each service that names it."""
    assert targets(config(), options) == [MigrationTarget.EXTENDED]
    assert targets(config(namespace="a") + user("a", f", template: {FOUR}"), options) == [MigrationTarget.EXTENDED] * 2


def test_a_service_that_names_another_config_gets_claims() -> None:
    text = config(namespace="a", name="other") + user("a", f", template: {FOUR}")
    assert targets(text) == [MigrationTarget.EXTENDED, MigrationTarget.CLAIMS]
    assert "services of all namespaces" in migrated(text, CLAIMS).workloads[0].choice.reason
