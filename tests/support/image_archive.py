"""An image of an installed tree, without a registry: what a container runtime imports (an OCI image layout in a tar).

The virtual environment lies where the Dockerfile puts it. The interpreter it was made with, and the shared libraries
that any of them is linked with, lie where they lie on this machine; the Dockerfile's base image has them elsewhere.
"""

import os
import platform
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from support.image import Installed

from release.oci import add_file, compressed, image, write_archive

PLACE = Path("/opt/gpu-dra")
"""Of the virtual environment. Not where it was made: pods have volumes of their own at /tmp."""

_NOT_NEEDED = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "site-packages", "lib2to3"}
_SHELL = ("/bin/sh", "/bin/cat", "/bin/ls", "/bin/sleep", "/usr/bin/env")
"""What a slim base image has, and tests look into containers with."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(tree: Installed, name: str, target: Path) -> Path:
    """The archive of an image `name` (`localhost/gpu-dra-driver:test`) that runs what the tree has."""
    layer = target.with_suffix(".layer")
    _write_layer(tree, layer)
    environment = [f"PATH={PLACE}/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"]
    return _pack(layer, name, target, {"Env": environment, "User": "65532:65532", "Cmd": ["dractl", "--help"]})


def write_program(program: Path, name: str, target: Path) -> Path:
    """The archive of an image `name` that runs one program of this machine, with the libraries it is linked with."""
    layer = target.with_suffix(".layer")
    place = Path("/usr/bin") / program.name
    files = {file: file for copied in (*_libraries([program]), *map(Path, _SHELL)) for file in _with_targets(copied)}
    files |= {file: file for file in _libraries(map(Path, _SHELL))}
    _write_files({**files, place: program}, layer)
    return _pack(layer, name, target, {"Env": ["PATH=/usr/bin:/bin"], "Entrypoint": [str(place)]})


def _pack(layer: Path, name: str, target: Path, runs: dict[str, Any]) -> Path:
    """`runs` is the part `config` of the image's configuration. The layer is gone afterwards."""
    packed = compressed(layer)
    write_archive(image([packed], runs, _MACHINES[platform.machine()]), name, target)
    layer.with_suffix(".gz").unlink()
    return target


def _write_layer(tree: Installed, target: Path) -> None:
    shell = {file for name in _SHELL for file in _with_targets(Path(name))}
    files = {_placed(file, tree): file for file in {*_files(tree), *shell}}
    _write_files(files, target, replaced=tree.folder)


def _write_files(files: Mapping[Path, Path], target: Path, replaced: Path | None = None) -> None:
    """`files` by place. In scripts of the environment its folder `replaced` becomes the place where it lies."""
    folders = {parent for place in files for parent in place.parents}
    folders |= {Path(f"/{name}") for name in ("proc", "sys", "dev")}
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as layer:
        for folder in sorted(folders - {Path("/")}):
            _add_folder(layer, folder)
        _add_folder(layer, Path("/tmp"), mode=0o1777)
        for place, file in sorted(files.items()):
            if replaced is not None and place.parent == PLACE / "bin" and not file.is_symlink():
                # Its first line names the interpreter of the environment.
                content = file.read_bytes().replace(str(replaced).encode(), str(PLACE).encode())
                add_file(layer, str(place)[1:], content, mode=0o755)
            else:
                layer.add(file, str(place)[1:], recursive=False, filter=_readable)


def _placed(file: Path, tree: Installed) -> Path:
    return PLACE / file.relative_to(tree.folder) if file.is_relative_to(tree.folder) else file


def _files(tree: Installed) -> Iterator[Path]:
    """The environment, the interpreter's own, and the libraries of both; links with what they lead to."""
    base = Path(sys.base_prefix)
    library = base / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    files = {*_below(tree.folder), *_below(library, without=_NOT_NEEDED), Path(sys.executable).resolve()}
    linked = [file for file in files if ".so" in file.name or file.parent.name == "bin"]
    files |= set(_libraries([*linked, *map(Path, _SHELL)]))
    for file in sorted(files):
        yield from _with_targets(file)


def _below(folder: Path, without: Iterable[str] = ()) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in set(without)]
        yield from (Path(here) / name for name in files)
        yield from (Path(here) / name for name in folders if (Path(here) / name).is_symlink())


def _libraries(programs: Iterable[Path]) -> set[Path]:
    output = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", output)}


def _with_targets(file: Path) -> Iterator[Path]:
    """A link, each link behind it, and the file at the end. Folders that are links are followed by name."""
    while True:
        yield file
        if not file.is_symlink():
            return
        file = Path(os.path.normpath(file.parent / file.readlink()))
        if file.is_dir():
            yield from _below(file)
            return


def _readable(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Like in a real image: root's, and readable for everybody."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode |= 0o555 if info.mode & 0o111 else 0o444
    return info


def _add_folder(archive: tarfile.TarFile, folder: Path, mode: int = 0o755) -> None:
    info = tarfile.TarInfo(str(folder)[1:])
    info.type, info.mode = tarfile.DIRTYPE, mode
    archive.addfile(info)
