"""What `dractl check` says of ComputeDomains."""

import pytest
from support.rows import rows
from support.shipped import classes

from dra_driver.api.documents import read_documents
from dra_driver.checking.check import check
from dra_driver.checking.findings import sentence
from dra_driver.checking.knowledge import Knowledge

CERTAIN = Knowledge(classes=classes())

SENTENCES = {
    "{channel: {resourceClaimTemplate: {name: train}}}": [],
    "{numNodes: 2, channel: {resourceClaimTemplate: {name: train}}}": [
        "spec.numNodes: `numNodes` is deprecated by NVIDIA; it only decides when the domain is Ready"
        " (leave it out, unless the NVIDIA driver is older than 570.158.01)"
    ],
    "{channel: {allocationMode: All, resourceClaimTemplate: {name: train.channel}}}": [],
    "{numNodes: two, channel: {resourceClaimTemplate: {name: train}}}": [
        "spec.numNodes: is the string 'two'; must be a whole number"
    ],
    "{numNodes: -1, channel: {resourceClaimTemplate: {name: train}}}": [
        "spec.numNodes: Invalid value: -1: should be greater than or equal to 0"
    ],
    "{channel: {allocationMode: all, resourceClaimTemplate: {name: train}}}": [
        "spec.channel.allocationMode: is 'all'; must be one of `Single`, `All`; did you mean `All`?"
    ],
    "{chanel: {resourceClaimTemplate: {name: train}}}": [
        "spec.chanel: there is no field `chanel` here; did you mean `channel`?"
    ],
    "{channel: {resourceClaimTemplate: {}}}": ["spec.channel.resourceClaimTemplate.name: `name` is missing"],
    "{channel: {resourceClaimTemplate: {name: Train}}}": [
        'spec.channel.resourceClaimTemplate.name: Invalid value: "Train": a lowercase RFC 1123 subdomain consists of'
        " lower case letters, digits, '-' or '.', alphanumeric at both ends of each part"
    ],
    "[]": ["spec: is a list; must be a map"],
}


@rows("spec, sentences", SENTENCES.items())
def test_the_form_and_the_name_of_the_template_are_checked(spec: str, sentences: list[str]) -> None:
    text = f"apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata: {{name: train}}\nspec: {spec}\n"
    assert [sentence(finding) for finding in check(read_documents(text, "f"), Knowledge())] == sentences


def test_a_domain_without_a_spec_or_with_a_name_that_is_none_is_refused() -> None:
    text = "apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata: {name: Train_it}\n"
    fields = {finding.field: finding.code for finding in check(read_documents(text, "f"), Knowledge())}
    assert fields == {"spec": "missing-field", "metadata.name": "invalid-value"}


def domain(name: str, template: str) -> str:
    head = f"apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata: {{name: {name}}}\n"
    return f"{head}spec: {{channel: {{resourceClaimTemplate: {{name: {template}}}}}}}\n"


POD = """apiVersion: v1
kind: Pod
metadata: {name: worker}
spec:
  resourceClaims: [{name: channel, resourceClaimTemplateName: channel}]
  containers: [{name: main, image: x, resources: {claims: [{name: channel}]}}]
"""
TEMPLATE = """apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: channel}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
"""


def codes(*texts: str) -> list[str]:
    return [finding.code for finding in check(read_documents("---\n".join(texts), "f"), CERTAIN)]


def test_a_pod_can_name_the_template_that_a_domain_of_the_files_will_have() -> None:
    assert codes(POD, domain("train", "channel")) == []
    assert codes(POD, domain("train", "other")) == ["not-found"]


def test_a_name_that_another_template_has_is_an_error_at_the_domain() -> None:
    findings = check(read_documents("---\n".join((domain("train", "channel"), TEMPLATE)), "f"), CERTAIN)
    (taken,) = findings
    assert (taken.code, taken.line) == ("template-name-taken", 4)
    assert "ResourceClaimTemplate channel in f:6 has this name" in taken.message
    assert codes(domain("train", "channel"), domain("serve", "channel")) == ["template-name-taken"]
    assert codes(domain("train", "one"), domain("serve", "two")) == []


@pytest.mark.parametrize("metadata", ["5", "{name: train, labels: 5}", "{name: 5}", "null"])
def test_a_domain_whose_metadata_is_none_stops_nothing(metadata: str) -> None:
    check(read_documents(domain("train", "channel").replace("{name: train}", metadata), "f"), CERTAIN)
