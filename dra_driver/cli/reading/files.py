"""Manifests as arguments: files, folders and `-`, read here and turned into documents by `dra_driver.api.documents`."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dra_driver import bundled
from dra_driver.api.documents import Document, ReadDocuments, read_documents, together
from dra_driver.api.resource import DeviceClass
from dra_driver.errors import InvalidInput, UnreadableFile

STDIN = "-"
_ENDINGS = frozenset((".yaml", ".yml", ".json"))


def read_files(paths: Sequence[str]) -> ReadDocuments:
    """The documents of all `paths`, in their order; what is no YAML is among the problems.

    A folder stands for its YAML and JSON files, at any depth, in order of their names; hidden ones are passed over.
    Raises UnreadableFile for the first path that cannot be read.
    """
    return together(read_documents(read_bytes(name), name) for name in named_files(paths))


def shipped_classes() -> tuple[Document, ...]:
    """The DeviceClasses that come with the driver."""
    return read_files([str(bundled.DEVICE_CLASSES_FOLDER)]).raise_problems()


def known_classes() -> dict[str, DeviceClass]:
    """The same by name."""
    return {document.name: DeviceClass.of(document.obj) for document in shipped_classes()}


def named_files(paths: Iterable[str]) -> Iterator[str]:
    """Folders become their files. Raises InvalidInput for an empty name, as of a shell's variable that is not set: the
    files of the current folder are not meant."""
    for path in paths:
        if not path:
            raise InvalidInput("the name of a file or folder is empty; write . for the current folder")
        if path != STDIN and Path(path).is_dir():
            yield from sorted(_files_below(Path(path)))
        else:
            yield path


def _files_below(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in _ENDINGS and not hidden and path.is_file():
            yield str(path)


def read_bytes(name: str) -> bytes:
    """Raises UnreadableFile."""
    if name == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror}", about=name) from error
