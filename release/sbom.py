"""The list of what is in the image, as CycloneDX 1.6 (ECMA-424): Debian's packages and Python's, with package URLs."""

from collections.abc import Iterable, Mapping
from typing import Any

from release.debian import SUITE, Package
from release.programs import PythonPackage

type Json = dict[str, Any]

_DISTRIBUTION = f"debian-{SUITE}"


def bill_of_materials(
    name: str, version: str, debian: Mapping[str, Iterable[Package]], python: Iterable[PythonPackage]
) -> Json:
    """One document for all architectures. `debian` has the packages by architecture; Python's are the same on all."""
    components = {
        str(part["bom-ref"]): part
        for part in (
            *(_debian(package) for packages in debian.values() for package in packages),
            *(_python(package) for package in python if package.name != name),
        )
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": name, "name": name, "version": version}},
        "components": [components[reference] for reference in sorted(components)],
    }


def _debian(package: Package) -> Json:
    # An epoch's colon and a plus stand for something else in a package URL.
    name, version = (text.replace("+", "%2B").replace(":", "%3A") for text in (package.name, package.version))
    qualifiers = f"arch={package.architecture}&distro={_DISTRIBUTION}"
    return _component(package.name, package.version, f"pkg:deb/debian/{name}@{version}?{qualifiers}")


def _python(package: PythonPackage) -> Json:
    return _component(
        package.name, package.version, f"pkg:pypi/{package.name.lower().replace('_', '-')}@{package.version}"
    )


def _component(name: str, version: str, url: str) -> Json:
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
