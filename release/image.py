"""`make image`: the image without a container engine, for amd64 and arm64, with the list of what is in it.

    build/image.tar        an OCI archive: `skopeo copy --all oci-archive:…`, `ctr images import`, `podman load`
    build/image.cdx.json   what is in it, as CycloneDX

The Dockerfile makes the same programs on another base, and its nvidia-cdi-hook. Here `HOOKS` may name a folder with
`amd64/nvidia-cdi-hook` and `arm64/nvidia-cdi-hook`.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dra_driver import __version__
from release.debian import ARCHITECTURES, PYTHON, CannotBuild, Package, mirrors, write_base
from release.oci import Artifact, image, index, write_archive, write_layer
from release.programs import PLACE, PythonPackage, build_wheel, compile_modules, write_hook, write_programs
from release.sbom import bill_of_materials

REPOSITORY = Path(__file__).parents[1]
NAME = "gpu-dra-driver"

RUNS = {
    "Env": [
        f"PATH=/{PLACE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONUNBUFFERED=1",
    ],
    # The plugin's pod asks for root.
    "User": "65532:65532",
    "Cmd": ["dractl", "--help"],
    "Labels": {
        "org.opencontainers.image.title": NAME,
        "org.opencontainers.image.description": "A Dynamic Resource Allocation driver for NVIDIA GPUs on Kubernetes",
        "org.opencontainers.image.licenses": "Apache-2.0",
    },
}
"""As in the Dockerfile; a test compares them."""

_HERE = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Trees:
    """The folders of one architecture's image, each of which becomes a layer, and what is in them."""

    base: Path
    programs: Path
    debian: tuple[Package, ...]
    python: tuple[PythonPackage, ...]


def write_trees(folder: Path, architecture: str, wheel: Path, from_mirrors: tuple[str, str]) -> Trees:
    base, programs = folder / "base", folder / "programs"
    for root in (base, programs):
        root.mkdir(parents=True)
    debian = write_base(base, architecture, from_mirrors, folder / "apt")
    python = write_programs(programs, architecture, wheel, REPOSITORY)
    return Trees(base, programs, debian, python)


def compile_trees(trees: Sequence[Trees], here: Trees, architecture: str) -> None:
    """With the Python of the tree whose architecture is this machine's."""
    folders = [(tree.base, Path("usr/lib") / f"python{PYTHON}") for tree in trees]
    folders += [(tree.programs, PLACE / "lib") for tree in trees]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda where: compile_modules(here.base, where[0], where[1], architecture), folders))


def build(work: Path, target: Path, *, mirror: str | None, hooks: Path | None, name: str) -> Path:
    """Writes both files into the folder `target`; answers the archive."""
    here = _HERE[platform.machine()]
    programs = {architecture: _hook(hooks, architecture) for architecture in ARCHITECTURES}
    from_mirrors = mirrors(mirror)
    wheel = build_wheel(REPOSITORY, work)
    trees = {
        architecture: write_trees(work / architecture, architecture, wheel, from_mirrors)
        for architecture in ARCHITECTURES
    }
    compile_trees(list(trees.values()), trees[here], here)
    for architecture, program in programs.items():
        if program is not None:
            write_hook(trees[architecture].programs, program)
    images = {architecture: _image(tree, work / architecture, architecture) for architecture, tree in trees.items()}
    target.mkdir(parents=True, exist_ok=True)
    bill = bill_of_materials(
        NAME, __version__, {architecture: tree.debian for architecture, tree in trees.items()}, trees[here].python
    )
    (target / "image.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    return write_archive(index(images), name, target / "image.tar")


def _image(tree: Trees, folder: Path, architecture: str) -> Artifact:
    layers = [write_layer(tree.base, folder / "base.tar"), write_layer(tree.programs, folder / "programs.tar")]
    return image(layers, RUNS, architecture)


def _hook(hooks: Path | None, architecture: str) -> Path | None:
    """None: the image has none, and nodes use their own."""
    if hooks is None:
        return None
    program = hooks / architecture / "nvidia-cdi-hook"
    if not program.is_file():
        raise CannotBuild(
            f"{program} is missing: HOOKS must have nvidia-cdi-hook for each of {', '.join(ARCHITECTURES)}"
        )
    return program


def main() -> None:
    parser = argparse.ArgumentParser(prog="make image")
    parser.add_argument("--mirror", help="URL of a Debian mirror; default: that of this machine's apt")
    parser.add_argument("--hooks", type=Path, help="folder with ARCHITECTURE/nvidia-cdi-hook")
    parser.add_argument("--name", default=f"localhost/{NAME}:{__version__}", help="what runtimes import it as")
    parser.add_argument("--target", type=Path, default=REPOSITORY / "build")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu-dra-image-") as work:
        try:
            archive = build(Path(work), options.target, mirror=options.mirror, hooks=options.hooks, name=options.name)
        except CannotBuild as error:
            sys.exit(f"make image: {error}")
    print(f"{archive} ({archive.stat().st_size / 2**20:.0f} MiB), {options.name}")
    if options.hooks is None:
        print('without nvidia-cdi-hook: nodes use their own; docs/install.md, "Hook programs", says how to add it')


if __name__ == "__main__":
    main()
