"""GpuPolicies among manifests are judged by the code that the controller reads them with."""

from dataclasses import replace

from support.rows import rows
from support.shipped import classes

from dra_driver.api.documents import read_documents
from dra_driver.checking.check import check
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import Finding
from dra_driver.checking.knowledge import Knowledge, Sites
from dra_driver.features import Gates

KNOWN = Knowledge(36, Sites((), 0), classes())
ATTRIBUTE = "device.attributes['gpu.nvidia.com']"
CLAIM = f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: a}}
spec:
  devices:
    requests:
    - name: a
      exactly:
        deviceClassName: gpu.nvidia.com
        selectors:
        - cel: {{expression: "has({ATTRIBUTE}.rack) && has({ATTRIBUTE}.tier)"}}
"""


def gpu_policy(spec: str, name: str = "ml") -> str:
    return f"apiVersion: dra.gpu/v1alpha1\nkind: GpuPolicy\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"


def findings_in(text: str, knowledge: Knowledge = KNOWN) -> tuple[Finding, ...]:
    return check(read_documents(text, "policy.yaml"), knowledge)


@rows(
    "spec, field",
    [
        ("mig: {mode: dynamic}", "spec.mig.mode"),
        ("mig: {mode: Dynamic}, sharin: []", "spec.sharin"),
        ("priority: high", "spec.priority"),
        ("gpus: {names: [a]}, health: {evict: true}", "spec"),
    ],
)
def test_a_gpu_policy_with_a_mistake_is_found_at_its_field(spec: str, field: str) -> None:
    (only,) = findings_in(gpu_policy(spec))
    assert (only.code, only.severity, only.field) == ("policy", Severity.ERROR, field)


def test_a_gpu_policy_needs_a_name_that_the_api_takes() -> None:
    assert [finding.field for finding in findings_in(gpu_policy("publish: false", "ML!"))] == ["metadata.name"]
    assert [
        finding.field for finding in findings_in("apiVersion: dra.gpu/v1alpha1\nkind: GpuPolicy\nmetadata: 7\n")
    ] == ["metadata"]


def test_another_version_of_the_api_is_named() -> None:
    (only,) = findings_in(gpu_policy("publish: false").replace("v1alpha1", "v1"))
    assert (only.code, only.field, only.fix) == ("api-version", "apiVersion", "write `apiVersion: dra.gpu/v1alpha1`")


def test_what_a_gate_makes_the_driver_ignore_is_a_warning() -> None:
    off = replace(KNOWN, gates=Gates.parse("DynamicMIG=false"))
    (only,) = findings_in(gpu_policy("mig: {mode: Dynamic}"), off)
    assert (only.field, only.severity) == ("spec.mig", Severity.WARNING) and "DynamicMIG" in only.message


def test_attributes_of_several_gpu_policies_are_known_to_selectors() -> None:
    policies = (
        gpu_policy("attributes: {rack: {string: r1}}", "a") + "---\n" + gpu_policy("attributes: {tier: {int: 1}}", "b")
    )
    assert findings_in(policies + "---\n" + CLAIM) == ()
