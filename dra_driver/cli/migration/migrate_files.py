"""Files of `dractl migrate`: texts as they are, and results beside them, in their place, or as a diff.

A text keeps its line ends and byte order mark, so files are never opened as text.
"""

import difflib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dra_driver.cli.reading.files import STDIN, named_files, read_bytes
from dra_driver.errors import InvalidInput, UnreadableFile
from dra_driver.migration.model import ManifestText, Migration
from dra_driver.migration.report.outcome import UnreadInput

MANIFESTS = "manifests"
"""Folder below that of `--to`, so that `kubectl apply -f` finds nothing but manifests there."""
BEFORE = "before"
"""Beside it: the originals of workloads that were not read from files."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read_sources(paths: Sequence[str]) -> tuple[tuple[ManifestText, ...], tuple[UnreadInput, ...]]:
    """All files of `paths`, each once, folders with their YAML and JSON files; and those that cannot be read. Raises
    UnreadableFile for a path that does not exist."""
    sources: list[ManifestText] = []
    unreadable: list[UnreadInput] = []
    # A link and its file are one file: written twice, the second time would lose what the first wrote.
    names = {name if name == STDIN else os.path.realpath(name): name for name in named_files(paths)}
    for name in names.values():
        try:
            content = read_bytes(name)
            sources.append(ManifestText(name, content.decode("utf-8")))
        except UnicodeDecodeError as error:
            wide = "; it looks like UTF-16, so convert it first" * content.startswith(_UTF_16)
            unreadable.append(UnreadInput(name, f"is not UTF-8 text (byte {error.start}){wide}"))
        except UnreadableFile as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise
            unreadable.append(UnreadInput(name, error.message))
    return tuple(sources), tuple(unreadable)


# -- results


def diff(migration: Migration) -> Iterator[str]:
    """In the unified form that `patch -p1` takes, in the folder where one is, or, where a file lies elsewhere, in the
    root of the machine: it goes to no file outside of its folder."""
    texts = [(file_result.file, file_result.before, file_result.after) for file_result in migration.files]
    results = [*texts, *((new.file, None, new.text) for new in migration.new_files)]
    absolute = {file: Path(os.path.abspath(file)) for file, *_ in results if file != STDIN}  # noqa: PTH100 - links stay
    here = Path.cwd()
    base = here if all(path.is_relative_to(here) for path in absolute.values()) else Path("/")
    for file, before, after in results:
        name = "stdin" if file == STDIN else str(absolute[file].relative_to(base))
        yield from _diff(name, before, after)


def _diff(name: str, before: str | None, after: str) -> Iterator[str]:
    old, new = _lines(before or ""), _lines(after)
    source = f"a/{name}" if before is not None else "/dev/null"
    for line in difflib.unified_diff(old, new, source, f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """As `patch` counts them, for which a form feed in a text ends nothing."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def together(migration: Migration) -> str:
    """All of it as one stream of documents, in UTF-8: what is new for the cluster first."""
    texts = [file.text for file in migration.new_files] + [
        file.after.removeprefix("\ufeff") for file in migration.files
    ]
    return "---\n".join(text if text.endswith("\n") else f"{text}\n" for text in texts if text.strip())


def write_in_place(migration: Migration) -> list[str]:
    """Only files that change. Returns what was written, for people. Raises UnreadableFile."""
    if any(result.file == STDIN and result.changed for result in migration.files):
        raise InvalidInput("standard input has no place; use --to", about="--in-place")
    # New objects come before the pods that name them: an interrupted run must not leave pods without their claims.
    changed = [(source.file, source.text) for source in migration.new_files]
    changed += [(result.file, result.after) for result in migration.files if result.changed]
    _write([(Path(file), text) for file, text in changed])
    return [f"written: {file}" for file, _ in changed]


def write_beside(migration: Migration, folder: Path, *, from_files: bool) -> list[str]:
    """Results below `folder`: of files all, of a cluster those that change, with the originals. Returns the files among
    the manifests there that are of an earlier run, or the user's own. Raises UnreadableFile."""
    places, before = places_below(migration), places_below(migration, BEFORE)
    sources = {Path(result.file).resolve() for result in migration.files if result.file != STDIN}
    files = [(Path(folder, places[new.file]), new.text) for new in migration.new_files]
    for result in migration.files:
        if from_files or result.changed:
            files.append((Path(folder, places[result.file]), result.after))
        if result.changed and (not from_files or result.file == STDIN):
            files.append((Path(folder, before[result.file]), result.before))
    for target, _ in files:
        if target.resolve() in sources:
            reason = f"would write over {target}, which is read; name a folder outside of PATHS, or use --in-place"
            raise InvalidInput(reason, about="--to")
    _write(files)
    written = {target.resolve() for target, _ in files}
    return sorted(
        str(path) for path in (folder / MANIFESTS).rglob("*") if path.is_file() and path.resolve() not in written
    )


def write_extra(folder: Path, name: str, text: str) -> None:
    """A report or the like. Raises UnreadableFile."""
    _write([(folder / name, text)])


def places_below(migration: Migration, top: str = MANIFESTS) -> dict[str, str]:
    """For each file where it goes: as it lies below what all of them have in common."""
    files = [*(result.file for result in migration.files), *(new.file for new in migration.new_files)]
    names = [name for name in files if name != STDIN]
    absolute = {name: Path(os.path.abspath(name)) for name in names}  # noqa: PTH100 - links stay what they are
    common = Path(os.path.commonpath([path.parent for path in absolute.values()])) if absolute else Path()
    places = {name: str(Path(top, path.relative_to(common))) for name, path in absolute.items()}
    return {**places, STDIN: str(Path(top, "stdin.yaml"))}


def _write(files: Iterable[tuple[Path, str]]) -> None:
    """All are written beside their places before the first replaces a file: if one cannot be written, none changes."""
    waiting: list[tuple[Path, Path]] = []
    about = Path()
    try:
        for about, text in files:
            target = about.resolve()
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".dractl-{secrets.token_hex(4)}")
            waiting.append((temporary, target))
            # Reports have names of files, which need not be UTF-8.
            temporary.write_bytes(text.encode("utf-8", errors="surrogateescape"))
            if target.exists():
                shutil.copymode(target, temporary)
        for temporary, about in waiting:
            temporary.replace(about)
    except OSError as error:
        raise UnreadableFile(f"cannot be written: {error.strerror}", about=str(about)) from error
    finally:
        for temporary, _ in waiting:
            temporary.unlink(missing_ok=True)
