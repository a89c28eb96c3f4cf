"""What the image is made of is named file by file: as pyproject.toml asks for it, with nothing of any machine."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FILES = ("requirements.txt", "requirements-build.txt")
EXTRAS = ("cli", "otel", "webhook")

_PIN = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>[^\s;]+)(?P<marker> ; [^\\\n]+)?"
    r"(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
    r"(?P<via>(    #.*\n)*)",
    re.MULTILINE,
)


def pins(file: str) -> list[re.Match[str]]:
    return list(_PIN.finditer((ROOT / file).read_text()))


def asked_for(file: str) -> list[Requirement]:
    project, build = PYPROJECT["project"], PYPROJECT["build-system"]["requires"]
    runtime = [
        *project["dependencies"],
        *(dependency for extra in EXTRAS for dependency in project["optional-dependencies"][extra]),
    ]
    return [Requirement(dependency) for dependency in (runtime if file == "requirements.txt" else build)]


@pytest.mark.parametrize("file", FILES)
def test_every_line_is_a_version_and_its_hashes(file: str) -> None:
    """So that no index, and no machine, is named."""
    text = "".join(line for line in (ROOT / file).read_text().splitlines(keepends=True) if not line.startswith("#"))
    assert _PIN.sub("", text) == ""
    names = [pin["name"] for pin in pins(file)]
    assert len(set(names)) == len(names) > 3


@pytest.mark.parametrize("file", FILES)
def test_what_the_project_asks_for_is_pinned_to_a_version_that_it_allows(file: str) -> None:
    """`make lock` does it; one that pyproject.toml no longer asks for is taken out by it, too."""
    versions = {pin["name"]: pin["version"] for pin in pins(file)}
    for wanted in asked_for(file):
        name = canonicalize_name(wanted.name)
        assert name in versions and wanted.specifier.contains(versions[name], prereleases=True), wanted
    asked = {str(canonicalize_name(requirement.name)) for requirement in asked_for(file)}
    assert {pin["name"] for pin in pins(file) if not pin["via"] or "gpu-dra-driver" in pin["via"]} == asked


def test_all_extras_of_the_image_are_among_them() -> None:
    assert set(EXTRAS) == set(PYPROJECT["project"]["optional-dependencies"])
    words = (ROOT / "Makefile").read_text()
    assert re.findall(r"--extra ([a-z]+)", words) == list(EXTRAS)
