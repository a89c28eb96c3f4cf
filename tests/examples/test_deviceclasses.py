"""The shipped DeviceClasses select what NVIDIA's classes of the same names select, and shares by what they promise."""

from support.rows import rows
from support.shipped import classes

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector

GPU, DOMAIN = "gpu.nvidia.com", "compute-domain.nvidia.com"
CLASSES = list(classes().values())

OWN = {"sharing": "exclusive", "isolation": "hardware"}
SLICED = {"sharing": "time-slicing", "isolation": "none"}
LIMITED = {"sharing": "mps", "isolation": "limits"}


def device(driver: str, **attributes: str | int) -> CelDevice:
    wire = {name: {"int": value} if isinstance(value, int) else {"string": value} for name, value in attributes.items()}
    return CelDevice(driver, Device.of({"name": "d", "attributes": wire}))


@rows(
    "cel_device, classes",
    [
        (device(GPU, type="gpu", **OWN), ["gpu.nvidia.com", "isolated.gpu.nvidia.com"]),
        (device(GPU, type="mig", **OWN), ["isolated.gpu.nvidia.com", "mig.nvidia.com"]),
        (device(GPU, type="gpu", **SLICED), ["gpu.nvidia.com", "shared.gpu.nvidia.com"]),
        (device(GPU, type="mig", **SLICED), ["mig.nvidia.com", "shared.gpu.nvidia.com"]),
        (device(GPU, type="gpu", **LIMITED), ["gpu.nvidia.com", "isolated.gpu.nvidia.com", "shared.gpu.nvidia.com"]),
        (device(GPU, type="vfio"), ["vfio.gpu.nvidia.com"]),
        (device(DOMAIN, type="daemon", id=0), ["compute-domain-daemon.nvidia.com"]),
        (
            device(DOMAIN, type="channel", id=0),
            ["compute-domain-channel.nvidia.com", "compute-domain-default-channel.nvidia.com"],
        ),
        (device(DOMAIN, type="channel", id=1), ["compute-domain-channel.nvidia.com"]),
        (device(DOMAIN, type="gpu"), []),
        (device("nic.example.com", type="gpu"), []),
        (device("nic.example.com"), []),
    ],
)
def test_a_device_is_of_the_class_of_its_driver_and_type_and_fails_no_selector(
    cel_device: CelDevice, classes: list[str]
) -> None:
    selected = [
        device_class.metadata.name
        for device_class in CLASSES
        if all(
            compile_selector(selector.cel.expression).matches(cel_device)
            for selector in device_class.spec.selectors
            if selector.cel
        )
    ]
    assert selected == classes


def test_nvidia_s_five_classes_and_three_of_ours_are_shipped_one_for_the_device_plugin_s_resource() -> None:
    assert {device_class.metadata.name: device_class.spec.extended_resource_name for device_class in CLASSES} == {
        "gpu.nvidia.com": "nvidia.com/gpu",
        "mig.nvidia.com": None,
        "vfio.gpu.nvidia.com": None,
        "isolated.gpu.nvidia.com": None,
        "shared.gpu.nvidia.com": None,
        "compute-domain-daemon.nvidia.com": None,
        "compute-domain-channel.nvidia.com": None,
        "compute-domain-default-channel.nvidia.com": None,
    }
