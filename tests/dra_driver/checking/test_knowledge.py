"""What manifests are judged against where it is not as usual: another driver name, policies in force, few sites."""

from dataclasses import replace

from docs.from_code.attributes import CAPACITIES
from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import DeviceClass
from dra_driver.checking.check import check
from dra_driver.checking.findings import Finding
from dra_driver.checking.knowledge import Knowledge, sites_of_kinds
from dra_driver.checking.selectors import KnownNames
from dra_driver.names import GPU_DRIVER

OTHER = "gpu.example.com"


def a_class(driver: str) -> DeviceClass:
    expression = f"device.driver == '{driver}' && device.attributes['{driver}'].type == 'gpu'"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return DeviceClass.of({"metadata": {"name": driver}, "spec": spec})


KNOWN = Knowledge(36, sites_of_kinds(36, OTHER), {OTHER: a_class(OTHER)}, driver=OTHER)


def claim(driver: str, kind: str = "GpuConfig", expression: str = "true") -> str:
    parameters = f"{{apiVersion: resource.nvidia.com/v1beta1, kind: {kind}, sharing: {{strategy: Sharing}}}}"
    return f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: train}}
spec:
  devices:
    requests:
    - {{name: gpu, exactly: {{deviceClassName: {OTHER}, selectors: [{{cel: {{expression: "{expression}"}}}}]}}}}
    config: [{{requests: [gpu], opaque: {{driver: {driver}, parameters: {parameters}}}}}]
"""


def findings_in(text: str, knowledge: Knowledge = KNOWN) -> list[tuple[str, str]]:
    findings: tuple[Finding, ...] = check(read_documents(text, "f.yaml"), knowledge)
    return [(finding.code, finding.field) for finding in findings]


CONFIG = "spec.devices.config[0].opaque"
EXPRESSION = "spec.devices.requests[0].exactly.selectors[0].cel.expression"


def test_a_driver_of_another_name_is_ours_and_the_usual_one_is_not() -> None:
    assert findings_in(claim(OTHER)) == [("config", f"{CONFIG}.parameters.sharing.strategy")]
    assert findings_in(claim("gpu.nvidia.com")) == []
    right = claim(OTHER, kind="MigDeviceConfig").replace("Sharing", "MPS")
    assert findings_in(right) == [("config-kind", f"{CONFIG}.parameters.kind")], "the class has whole GPUs only"


def test_attributes_are_those_of_a_driver_of_another_name() -> None:
    reads = f"device.attributes['{OTHER}'].productNam == 'x'"
    assert ("unknown-attribute", EXPRESSION) in findings_in(claim("other.example", expression=reads))


def test_attributes_that_a_policy_in_force_adds_are_known() -> None:
    reads = f"has(device.attributes['{OTHER}'].rack) && device.attributes['{OTHER}'].rack == 'r1'"
    text = claim("other.example", expression=reads)
    rule: JsonObject = {"attributes": [{"values": {"rack": "r1"}}]}
    policy = PublishingPolicy.of({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **rule})
    assert findings_in(text) == [("unknown-attribute", EXPRESSION)]
    assert findings_in(text, replace(KNOWN, policies=(policy,))) == []


def test_sites_that_are_not_complete_do_not_tell_what_fits_nowhere() -> None:
    never = claim("other.example", expression=f"device.attributes['{OTHER}'].productName == 'nothing'")
    assert findings_in(never) == []
    failing = claim("other.example", expression=f"device.attributes['{OTHER}'].profile == '1g.10gb'")
    assert findings_in(failing) == [("selector-fails", EXPRESSION)]


def test_every_capacity_of_the_documentation_is_known() -> None:
    """Also those of devices for virtual machines, and the place of a MIG device."""
    published = {name.replace("SliceN", "Slice7") for name in CAPACITIES}
    assert published <= {*KnownNames.of_driver().capacity[GPU_DRIVER]}
