"""Unpacks the image of `make image`, and writes FOLDER/python, a program that runs its Python with its packages.

    make image && python benchmarks/image_python.py build/image.tar FOLDER
    GPU_DRA_BENCH_PYTHON=FOLDER/python python benchmarks/against.py …

Measurements then start the driver as nodes run it. Other builds of Python differ: without profile-guided optimization,
the same program can need half as much processor time again.
"""

import argparse
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

_PROGRAM = """#!/bin/sh
export PYTHONHOME={root}/usr PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{packages}"
exec {loader} --library-path {libraries} --argv0 "$0" {python} "$@"
"""


def unpack(image: Path, root: Path) -> None:
    """The files of the image for this machine's architecture."""
    with tarfile.open(image) as archive:

        def file(name: str) -> Any:
            return archive.extractfile(name)

        def blob(digest: str) -> Any:
            return file(f"blobs/sha256/{digest.removeprefix('sha256:')}")

        def manifest(index: Any) -> Any:
            for entry in index["manifests"]:
                inner = json.load(blob(entry["digest"]))
                if "manifests" in inner:
                    return manifest(inner)
                if entry["platform"]["architecture"] == _ARCHITECTURES[platform.machine()]:
                    return inner
            raise SystemExit(f"{image} has no image for {platform.machine()}")

        for layer in manifest(json.load(file("index.json")))["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"])) as files:
                files.extractall(root, filter="tar")


def write_program(root: Path, program: Path) -> None:
    (python,) = root.glob("usr/bin/python3.*[0-9]")
    (loader,) = root.glob("usr/lib*/ld-linux-*.so.*")
    (libraries,) = root.glob("usr/lib/*-linux-gnu")
    (packages,) = root.glob("opt/gpu-dra/lib/python3.*/site-packages")
    text = _PROGRAM.format(root=root, packages=packages, loader=loader, libraries=libraries, python=python)
    program.write_text(text)
    program.chmod(0o755)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    root = options.folder.absolute() / "root"
    unpack(options.image, root)
    write_program(root, options.folder.absolute() / "python")


if __name__ == "__main__":
    main()
