"""The YAML that ships with the project: folders of DeviceClasses, examples and CRDs, and a fast way to read it.

In a checkout the folders are top-level folders, in an installed package they are inside it.
"""

from pathlib import Path
from typing import Any

import yaml

_PACKAGE = Path(__file__).parent


def _folder(name: str) -> Path:
    installed = _PACKAGE / "shipped" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


DEVICE_CLASSES_FOLDER = _folder("deviceclasses")
_EXAMPLES_FOLDER = _folder("examples")
FEATURES_FOLDER = _EXAMPLES_FOLDER / "features"
"""An example for each thing that the driver can do, with the nodes of the demo."""
APPS_FOLDER = _EXAMPLES_FOLDER / "apps"
"""Applications that people run, with real images."""
CRDS_FOLDER = _PACKAGE / "api" / "crds"

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""libyaml is ten times as fast as PyYAML itself. Its messages are less exact, so files of users are read without it."""


def read_yaml(text: str) -> Any:
    """The one document of a text that ships with the project."""
    return yaml.load(text, _LOADER)


def read_documents(text: str) -> list[Any]:
    """All documents of such a text, without empty ones."""
    return [document for document in yaml.load_all(text, _LOADER) if document]
