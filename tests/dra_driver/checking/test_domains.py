"""What `dractl check` says of ComputeDomains."""

import pytest

from dra_driver.api.documents import read_documents
from dra_driver.checking.check import check
from dra_driver.checking.formats import sentence
from dra_driver.checking.knowledge import Knowledge

SAID = {
    "{numNodes: 2, channel: {resourceClaimTemplate: {name: train}}}": [],
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


@pytest.mark.parametrize(("spec", "said"), SAID.items())
def test_the_form_and_the_name_of_the_template_are_checked(spec: str, said: list[str]) -> None:
    text = f"apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata: {{name: train}}\nspec: {spec}\n"
    assert [sentence(one) for one in check(read_documents(text, "f"), Knowledge())] == said


def test_a_domain_without_a_spec_or_with_a_name_that_is_none_is_refused() -> None:
    text = "apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata: {name: Train_it}\n"
    fields = {one.field: one.code for one in check(read_documents(text, "f"), Knowledge())}
    assert fields == {"spec": "missing-field", "metadata.name": "invalid-value"}
