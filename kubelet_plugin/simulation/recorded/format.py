"""The archive that `dractl record` writes and `--simulate FILE` reads: all that was read of one node.

A record is a `.tar.gz` with JSON members below `gpu-dra-record/`:

- `record.json` (`About`): format number, release, whether names were replaced, where the driver lies.
- `nvml.json`: a list of `NvmlCall`. Each is one function of `pynvml` with its arguments, and its result, or the error
  `code` that NVML returned, or `hung`; `kubelet_plugin.simulation.recorded.values` writes arguments and results.
- `files.json`: a list of `File`: sysfs and /proc with their text, device nodes with their numbers, the driver root
  with names, links, sizes and ELF headers. A file without `text` was not read.
- `programs.json`: a list of `ProgramAnswer`: a program, the words it was started with, exit status, and output.

A record may be written by hand: everything missing is "not in the record". `read_record` trusts nothing: no archive can
make it write outside the folder of the simulated host. The same record always gives the same bytes.
"""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dra_driver.errors import InvalidInput, NodeNotReady, UnreadableFile

FORMAT = 1
FOLDER = "gpu-dra-record"
_IN_BUNDLE = "gpu-dra-bundle/node/record.tar.gz"
_ABOUT, _NVML, _FILES, _PROGRAMS = "record.json", "nvml.json", "files.json", "programs.json"
_MOST_MEMBERS = 32
_MOST_BYTES = 256 * 2**20
"""Of all members together, unpacked. A node of eight GPUs has some 2 MiB."""
_MOST_FILES = 200_000
_MOST_FILE_BYTES = 64 * 2**30
"""Of one file of the driver root; it becomes a sparse file."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid")


class About(_Data):
    """`names_kept`: nothing was replaced. `driver_root` and `library` (libnvidia-ml) are host paths, None where there
    was no driver; `notes` say what could not be read."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[1] = 1
    release: str = ""
    names_kept: bool = False
    driver_root: str | None = None
    library: str | None = None
    notes: list[str] = Field(default_factory=list)


class NvmlCall(_Data):
    """One function of NVML. `out` has the by-reference arguments as they were afterwards, by position from 0.

    `code`: NVML's error; None when the call succeeded. `problem`: the binding could not read the answer. `hung`: the
    call had not returned when the recording ended. `ms` is the longest of `times` equal calls.
    """

    function: str
    args: list[Any] = Field(default_factory=list)
    result: Any = None
    out: dict[int, Any] = Field(default_factory=dict)
    code: int | None = None
    problem: str | None = None
    hung: bool = False
    ms: float = 0.0
    times: int = 1


class Elf(_Data):
    """Class in bits, and machine as ELF numbers it: 62 is x86_64, 183 aarch64."""

    bits: Literal[32, 64] = 64
    machine: int = 62


class File(_Data):
    """Something at a host path. `mode` are permission bits; `major` and `minor` are of device nodes."""

    path: str
    kind: Literal["file", "folder", "link", "char", "block", "socket", "other"]
    target: str | None = None
    text: str | None = None
    size: int = Field(default=0, ge=0, le=_MOST_FILE_BYTES)
    mode: int | None = None
    gid: int = 0
    major: int = 0
    minor: int = 0
    elf: Elf | None = None


class ProgramAnswer(_Data):
    """What a program answered. `path` is the host's. `status` None: it did not start or did not end, see `problem`."""

    path: str
    words: list[str] = Field(default_factory=list)
    status: int | None = None
    output: str = ""
    ms: float = 0.0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """All of it."""

    about: About
    calls: tuple[NvmlCall, ...] = ()
    files: tuple[File, ...] = ()
    programs: tuple[ProgramAnswer, ...] = ()


_CALLS = TypeAdapter(tuple[NvmlCall, ...])
_ENTRIES = TypeAdapter(tuple[File, ...])
_ANSWERS = TypeAdapter(tuple[ProgramAnswer, ...])


def write_record(record: Record, out: Path) -> None:
    """Make the archive, readable by its owner alone. Raises NodeNotReady; a file that exists is not replaced."""
    data = packed(record)
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise NodeNotReady(
            f"cannot be made: {error.strerror or error}; name another one with --archive", about=f"file {out}"
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        out.unlink(missing_ok=True)
        raise NodeNotReady(
            f"cannot be written: {error.strerror or error}; name a file elsewhere with --archive", about=f"file {out}"
        ) from error


def packed(record: Record) -> bytes:
    """The archive's bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", compresslevel=6, mtime=0, fileobj=buffer) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, text in sorted(members_of(record).items()):
            content = text.encode()
            info = tarfile.TarInfo(f"{FOLDER}/{name}")
            info.size, info.mode = len(content), 0o600
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def members_of(record: Record) -> dict[str, str]:
    """The texts of the archive's members, by name."""
    files = sorted(record.files, key=lambda file: file.path)
    return {
        _ABOUT: record.about.model_dump_json(indent=1) + "\n",
        _NVML: _listed(record.calls),
        _FILES: _listed(files),
        _PROGRAMS: _listed(record.programs),
    }


def _listed(items: Any) -> str:
    """One item in a line: readable, and easy to compare."""
    lines = (item.model_dump_json(exclude_defaults=True) for item in items)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def read_record(path: Path) -> Record:
    """The record in the archive at `path`. Raises InvalidInput: no record, damaged, too large, of another format."""
    try:
        with tarfile.open(path, "r:gz") as tar:
            members = dict(_read(tar, path))
    except FileNotFoundError as error:
        message = "does not exist; make one on a node with `dractl record`"
        raise UnreadableFile(message, about=f"record {path}") from error
    except PermissionError as error:
        message = "may not be read by you; run this as its owner or as root"
        raise UnreadableFile(message, about=f"record {path}") from error
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        raise _refused(path, f"is not a file of `dractl record`, or is damaged ({error}); record it again") from error
    try:
        return record_of(members)
    except KeyError as error:
        raise _refused(path, f"has no {error.args[0]}; record the node again with `dractl record`") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _refused(path, f"does not have the form of a record: {where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise _refused(path, str(error)) from error


def _refused(path: Path, message: str) -> InvalidInput:
    return InvalidInput(message, about=f"record {path}")


def _read(tar: tarfile.TarFile, path: Path) -> Iterator[tuple[str, str]]:
    left = _MOST_BYTES
    for number, member in enumerate(tar):
        name = member.name.removeprefix(f"{FOLDER}/")
        if member.name.startswith("gpu-dra-bundle/"):
            raise _refused(path, f"is a bundle; its record is a file in it: tar xzf {path} {_IN_BUNDLE}")
        if number >= _MOST_MEMBERS or not member.isfile() or "/" in name or not name.endswith(".json"):
            raise _refused(path, f"has a member that no record has: {member.name!r}; record the node again")
        left -= member.size
        if left < 0:
            raise _refused(path, f"has more than {_MOST_BYTES >> 20} MiB; no node has as much to read")
        file = tar.extractfile(member)
        assert file is not None
        yield name, file.read().decode()


def record_of(members: Mapping[str, str]) -> Record:
    """The record with these members, as `members_of` gives them. Raises KeyError with the name of one that is missing,
    ValidationError for one of another form, and ValueError."""
    about = json.loads(members[_ABOUT])
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"is not of format {FORMAT}, which this release reads; use the release that wrote it")
    files = _ENTRIES.validate_json(members[_FILES])
    check_tree(files)
    return Record(
        About.model_validate(about),
        _CALLS.validate_json(members[_NVML]),
        files,
        _ANSWERS.validate_json(members[_PROGRAMS]),
    )


def check_tree(files: tuple[File, ...]) -> None:
    """Paths are absolute and plain, each is there once, and nothing lies below a link. Raises ValueError."""
    if len(files) > _MOST_FILES:
        raise ValueError(f"lists {len(files)} files; {_MOST_FILES} is the most")
    kinds: dict[str, str] = {}
    for file in files:
        parts = file.path.split("/")
        if parts[0] or len(parts) < 2 or "\0" in file.path or any(part in ("", ".", "..") for part in parts[1:]):
            raise ValueError(f"lists {file.path!r}, which is not a plain absolute path")
        if file.path in kinds:
            raise ValueError(f"lists {file.path!r} twice")
        if (file.kind == "link") != bool(file.target) or "\0" in (file.target or ""):
            raise ValueError(f"lists {file.path!r}, whose kind and link target do not agree")
        kinds[file.path] = file.kind
    for path in kinds:
        for folder in map(str, PurePosixPath(path).parents):
            if kinds.get(folder, "folder") != "folder":
                raise ValueError(f"lists {path!r} below {folder!r}, which is not a folder")
