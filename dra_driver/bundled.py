"""Folders of the YAML that ships with the project: DeviceClasses, examples and CRDs. In a checkout they are top-level
folders, in an installed package they are inside it.
"""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def _folder(name: str) -> Path:
    installed = _PACKAGE / "shipped" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


DEVICE_CLASSES_FOLDER = _folder("deviceclasses")
EXAMPLES_FOLDER = _folder("examples")
CRDS_FOLDER = _PACKAGE / "api" / "crds"
