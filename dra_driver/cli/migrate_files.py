"""Files of `dractl migrate`: texts as they are, and results beside them, in their place, or as a diff.

A text keeps its line ends, encoding and byte order mark, so files are never opened as text.
"""

import contextlib
import difflib
import os
import re
import secrets
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from dra_driver.cli.encodings import UTF_8, encoding_of, title
from dra_driver.cli.files import STDIN, UnreadableFile, named_files
from dra_driver.errors import InvalidInput
from dra_driver.migration.model import ManifestText, Migration
from dra_driver.migration.report.outcome import UnreadInput

MANIFESTS = "manifests"
"""Folder below that of `-o`, so that `kubectl apply -f` meets nothing but manifests there."""

NO_ENCODINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReadFiles:
    sources: tuple[ManifestText, ...]
    unreadable: tuple[UnreadInput, ...]
    """Files."""
    links: tuple[tuple[str, str], ...] = ()
    """Other names of files that are read, and the name by which they are."""
    encodings: Mapping[str, str] = field(default_factory=dict)
    """Of files that are not UTF-8."""


def read_sources(paths: Sequence[str]) -> ReadFiles:
    """All files of `paths`, folders with their YAML and JSON files; who cannot read one reads the others. Raises
    UnreadableFile for what is not there."""
    sources: list[ManifestText] = []
    encodings: dict[str, str] = {}
    bad: list[UnreadInput] = []
    names = list(dict.fromkeys(named_files(paths)))
    # Read twice, a file would be written twice, and the second time without what the first had put into it.
    first = {_file(name): name for name in sorted(names, key=lambda name: not Path(name).is_symlink())}
    links = [(name, first[_file(name)]) for name in names if first[_file(name)] != name]
    for name in (name for name in names if first[_file(name)] == name):
        try:
            content = _content(name)
            encoding = encoding_of(content)
            sources.append(ManifestText(name, content.decode(encoding)))
            if encoding != UTF_8:
                encodings[name] = encoding
        except UnicodeDecodeError as error:
            bad.append(UnreadInput(name, f"is not {title(encoding)} text (byte {error.start})"))
        except FileNotFoundError as error:
            raise UnreadableFile(f"cannot be read: {error.strerror}", about=name) from error
        except OSError as error:
            bad.append(UnreadInput(name, f"cannot be read: {error.strerror}"))
    return ReadFiles(tuple(sources), tuple(bad), tuple(links), encodings)


def _file(name: str) -> str:
    """The same for all names of a file."""
    return name if name == STDIN else os.path.realpath(name)


def _content(name: str) -> bytes:
    if name == STDIN:
        return sys.stdin.buffer.read()
    return Path(name).read_bytes()


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


def write_in_place(migration: Migration, encodings: Mapping[str, str] = NO_ENCODINGS) -> list[str]:
    """Only files that change, each whole or not at all; one of which nothing is left goes. `encodings` are those of
    files that are not UTF-8. Returns what was done to which, for people. Raises UnreadableFile."""
    if any(file_result.file == STDIN and file_result.before != file_result.after for file_result in migration.files):
        raise InvalidInput("standard input has no place; use -o", about="--in-place")
    # What others name comes before them: whoever is interrupted and begins again must not meet pods whose claims were
    # never written. What goes, goes last.
    changed = [(source.file, source.text) for source in migration.new_files]
    changed += [
        (file_result.file, file_result.after)
        for file_result in migration.files
        if file_result.before != file_result.after
    ]
    changed.sort(key=lambda item: not item[1])
    _write_all([(Path(file), text.encode(encodings.get(file, UTF_8))) for file, text in changed if text])
    for file, text in changed:
        if not text:
            _remove(Path(file))
    return [f"{'written' if text else 'removed'}: {file}" for file, text in changed]


def write_beside(
    migration: Migration,
    folder: Path,
    places: dict[str, str],
    *,
    only_changed: bool,
    links: Sequence[tuple[str, str]] = (),
    encodings: Mapping[str, str] = NO_ENCODINGS,
) -> None:
    """Results below `folder`, at their `places`; unchanged files, too, unless `only_changed`. `links` become copies.
    `encodings` are those of files that are not UTF-8. Raises UnreadableFile."""
    sources = {Path(file_result.file).resolve() for file_result in migration.files if file_result.file != STDIN}
    # Of a file that had something and has nothing any more, nothing is left.
    written = {
        file_result.file: file_result.after
        for file_result in migration.files
        if (file_result.before != file_result.after or not only_changed)
        and (file_result.after or not file_result.before)
    }
    written |= {source.file: source.text for source in migration.new_files}
    written |= {link: written[file] for link, file in links if file in written}
    of_files = dict(links)
    for file, text in written.items():
        target = folder / places[file]
        if target.resolve() in sources:
            raise InvalidInput(f"would write over {target}, which is read; use --in-place for that", about="-o")
        _write(target, text.encode(encodings.get(of_files.get(file, file), UTF_8)))


def write_extra(folder: Path, name: str, text: str) -> None:
    """A report or the like. Raises UnreadableFile."""
    _write(folder / name, text.encode(UTF_8))


def places_below(files: Iterable[str]) -> dict[str, str]:
    """For each file where it goes: as it lies below what all of them have in common."""
    names = [name for name in files if name != STDIN]
    absolute = {name: Path(os.path.abspath(name)) for name in names}  # noqa: PTH100 - links stay what they are
    common = Path(os.path.commonpath([path.parent for path in absolute.values()])) if absolute else Path()
    found = {name: str(Path(MANIFESTS, path.relative_to(common))) for name, path in absolute.items()}
    return {**found, STDIN: str(Path(MANIFESTS, "stdin.yaml"))}


def _write(path: Path, content: bytes) -> None:
    _write_all([(path, content)])


def _write_all(files: Iterable[tuple[Path, bytes]]) -> None:
    """Each whole or not at all, with the mode of the file that was there. All are written before the first is put in
    its place: where one cannot be written, none is changed. What waits goes when the program is ended by a signal."""
    waiting: list[tuple[Path, Path]] = []
    about = Path()
    with _ending_in_order():
        try:
            for about, content in files:
                target = about.resolve()
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.parent / f".dractl-{secrets.token_hex(4)}"
                waiting.append((temporary, target))
                _write_beside(temporary, target, content)
            for temporary, about in tuple(waiting):
                temporary.replace(about)
                del waiting[0]
        except OSError as error:
            raise UnreadableFile(f"cannot be written: {error.strerror}", about=str(about)) from error
        finally:
            for temporary, _ in waiting:
                with contextlib.suppress(OSError):
                    temporary.unlink()


def _write_beside(temporary: Path, target: Path, content: bytes) -> None:
    """Hidden, with what the file is to have."""
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
    with temporary.open("xb") as file:
        file.write(content)
    temporary.chmod(mode)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Signals that end a program at once end this like Ctrl-C."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # Nobody else may say what signals do.
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove(path: Path) -> None:
    """A file of which nothing is left, such as one of claims only on the way back."""
    try:
        path.unlink()
    except OSError as error:
        raise UnreadableFile(f"cannot be removed: {error.strerror}", about=str(path)) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
