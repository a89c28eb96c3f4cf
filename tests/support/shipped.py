"""The DeviceClasses that come with the driver, as tests want them."""

from collections.abc import Mapping

from dra_driver.api.meta import DEVICE_CLASSES, JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.bundled import DEVICE_CLASSES_FOLDER, read_documents
from dra_driver.kube.client import Kube


def class_objects() -> tuple[JsonObject, ...]:
    return tuple(
        one for path in sorted(DEVICE_CLASSES_FOLDER.glob("*.yaml")) for one in read_documents(path.read_text())
    )


def classes() -> Mapping[str, DeviceClass]:
    """By name."""
    return {one.metadata.name: one for one in map(DeviceClass.of, class_objects())}


async def create_classes(kube: Kube) -> None:
    for one in class_objects():
        await kube.create(DEVICE_CLASSES, one)
