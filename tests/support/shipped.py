"""The definitions and DeviceClasses that come with the driver, as tests want them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dra_driver.api.meta import CRDS, DEVICE_CLASSES, JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.bundled import CRDS_FOLDER, DEVICE_CLASSES_FOLDER, read_documents, read_yaml
from dra_driver.kube.client import Kube


def class_objects() -> tuple[JsonObject, ...]:
    return tuple(
        document
        for path in sorted(DEVICE_CLASSES_FOLDER.glob("*.yaml"))
        for document in read_documents(path.read_text())
    )


def classes() -> Mapping[str, DeviceClass]:
    """By name."""
    return {device_class.metadata.name: device_class for device_class in map(DeviceClass.of, class_objects())}


async def create_classes(kube: Kube) -> None:
    for obj in class_objects():
        await kube.create(DEVICE_CLASSES, obj)


@cache
def definition(file: Path) -> JsonObject:
    """Not to be changed."""
    crd: JsonObject = read_yaml(file.read_text())
    return crd


async def create_definitions(kube: Kube, *files: Path) -> None:
    """All of them if none is named."""
    for file in files or sorted(CRDS_FOLDER.glob("*.yaml")):
        await kube.create(CRDS, definition(file))
