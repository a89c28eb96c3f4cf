"""Names that no device publishes are found before a pod waits for them."""

import pytest

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice
from dra_driver.cel.names import PublishedNames, unknown_names

PUBLISHED = PublishedNames.of(
    CelDevice("gpu.nvidia.com", Device.of({"name": "gpu", "attributes": attributes, "capacity": capacity}))
    for attributes, capacity in [
        ({"type": {"string": "gpu"}, "productName": {"string": "H100"}}, {"memory": {"value": "80Gi"}}),
        ({"type": {"string": "mig"}, "resource.kubernetes.io/pcieRoot": {"string": "pci0"}}, {}),
    ]
)


@pytest.mark.parametrize(
    ("expression", "column", "message"),
    [
        ("device.attributes['gpu.nvida.com'].type == 'gpu'", 19, "did you mean `gpu.nvidia.com`?"),
        ("device.attributes['gpu.nvidia.com'].productname == 'x'", 37, "did you mean `productName`?"),
        ("device.attributes['gpu.nvidia.com']['typ'] == 'x'", 37, "did you mean `type`?"),
        ("has(device.attributes['gpu.nvidia.com'].typ)", 41, "did you mean `type`?"),
        ("device.attributes['gpu.nvidia.com'].?typ.hasValue()", 38, "did you mean `type`?"),
        ("'typ' in device.attributes['gpu.nvidia.com']", 1, "no device has an attribute `gpu.nvidia.com/typ`"),
        ("device.capacity['gpu.nvidia.com'].memori != null", 35, "no device has a capacity `gpu.nvidia.com/memori`"),
        ("device.attributes['gpu.nvidia.com'].memory == 1", 37, "`memory` is in device.capacity"),
        ("cel.bind(a, device.attributes['gpu.nvidia.com'], a.typ == 'gpu')", 52, "did you mean `type`?"),
        ("cel.bind(a, device.capacity['resource.kubernetes.io'], a.x != null)", 29, "no device has capacity of"),
    ],
)
def test_a_name_that_no_device_has_is_found_at_its_place(expression: str, column: int, message: str) -> None:
    (found,) = unknown_names(expression, PUBLISHED)
    assert message in found.message
    assert found.column == column
    assert "^" in found.excerpt


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes['gpu.nvidia.com'].type == device.attributes['resource.kubernetes.io'].pcieRoot",
        "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('1Gi'))",
        "device.attributes[device.driver].anything == 1",
        "{'a': 1}.b == 1 && [1].all(type, type == 1)",
        "cel.bind(device, {'attributes': {'b': 1}}, device.attributes['b'] == 1)",
        "cel.bind(a, device.attributes['gpu.nvidia.com'], [{'x': 1}].all(a, a.x == 1))",
    ],
)
def test_other_names_are_nothing_to_speak_of(expression: str) -> None:
    assert unknown_names(expression, PUBLISHED) == ()


def test_all_names_are_found_in_the_order_of_the_text() -> None:
    expression = "device.attributes['gpu.nvidia.com'].b == 1 || device.attributes['x.y'].a == 1"
    assert [one.column for one in unknown_names(expression, PUBLISHED)] == [37, 65]
