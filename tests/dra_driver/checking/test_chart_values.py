"""What Helm cannot judge of a values file is judged before it is installed, at its lines."""

from pathlib import Path

from support.shipped import classes

from dra_driver.api.documents import read_documents
from dra_driver.checking.check import check, policies_in
from dra_driver.checking.findings import Finding
from dra_driver.checking.knowledge import Knowledge, Sites
from dra_driver.checking.manifests import with_chart_values

KNOWN = Knowledge(36, Sites((), 0), classes())

VALUES = """\
image: {repository: registry.example/gpu-dra-driver}
deviceClasses:
  extra:
  - name: fine
    labels: {team: a}
    spec:
      selectors:
      - cel: {expression: "device.driver == 'gpu.nvidia.com'"}
  - name: wrong
    spec:
      selectors:
      - cel:
          expression: device.drivr == 'gpu.nvidia.com'
      config:
      - opaque:
          driver: gpu.nvidia.com
          parameters:
            apiVersion: resource.nvidia.com/v1beta1
            kind: GpuConfig
            sharing: {strategy: Both}
policy:
  mig:
  - mode: dynamic
"""


def findings_in(text: str) -> list[Finding]:
    return list(check(with_chart_values(read_documents(text, "values.yaml")), KNOWN))


def test_classes_and_policy_of_values_are_judged_where_they_are_written() -> None:
    assert [(finding.line, finding.code) for finding in findings_in(VALUES)] == [
        (13, "selector"),
        (20, "config"),
        (23, "policy"),
    ]


def test_values_that_are_right_say_nothing() -> None:
    right = VALUES.replace("drivr", "driver").replace("Both", "MPS").replace("dynamic", "Dynamic")
    assert findings_in(right) == []


def test_a_class_that_is_none_is_told_and_ends_nothing() -> None:
    for text, codes in (
        ("deviceClasses: {extra: [{name: Wrong Name, spec: {}}]}", ["invalid-value"]),
        ("deviceClasses: {extra: [{spec: {}}]}", ["missing-field"]),
        ("deviceClasses: {extra: [{name: [1], spec: 7}]}", ["wrong-type", "wrong-type"]),
        ("deviceClasses: {extra: [7]}", []),
        ("deviceClasses: {extra: none}", []),
        ("deviceClasses: [1]", []),
    ):
        assert [finding.code for finding in findings_in(text)] == codes, text


def test_devices_are_published_as_the_policy_of_the_values_says() -> None:
    reading = with_chart_values(read_documents("policy: {mig: [{mode: Dynamic}]}", "values.yaml"))
    (policy,) = policies_in(reading.documents)
    assert policy.mig[0].mode == "Dynamic"


def test_values_of_other_charts_and_objects_are_left_alone() -> None:
    assert findings_in("policy: {enabled: true, attributes: [a]}\nresources: {}\n") == []
    kind = "apiVersion: example.com/v1\nkind: Settings\nmetadata: {name: a}\n"
    assert findings_in(kind + "deviceClasses: {extra: [{name: Wrong Name}]}\n") == []


def test_the_defaults_are_right() -> None:
    chart = Path(__file__).parents[3] / "charts" / "gpu-dra-driver"
    assert findings_in((chart / "values.yaml").read_text()) == []
