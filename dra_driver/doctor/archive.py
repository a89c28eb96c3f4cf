"""A bundle: a .tar.gz with what was observed. Writes it, redacted, and reads it again.

Objects and lines go to a temporary folder first, so that a large cluster does not have to fit into memory.
"""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from dra_driver.api.meta import JsonObject
from dra_driver.doctor.anonymity import Anonymity
from dra_driver.doctor.cluster import ClusterFacts, facts_from
from dra_driver.doctor.kinds import ALL_KINDS, DecodedObjects, ObservedKind
from dra_driver.doctor.redaction import LineRedactor, redacted, redacted_text
from dra_driver.errors import InvalidInput, NodeNotReady

ROOT = "gpu-dra-bundle"
"""The folder in the archive."""

FACTS, NODE_FACTS, DESCRIPTION, ERRORS = "cluster/facts.json", "node/facts.json", "bundle.json", "errors.txt"
FORMAT = 1
_MOST_MEMBER_BYTES = 2 * 2**30
_README = """What `dractl bundle` read. It has no data of Secrets. Values of environment variables, of annotations that
are not this driver's or Kubernetes', and everything that looks like a credential are replaced by <redacted>. Review it
before you share it.

bundle.json   release, time, and whether names were replaced
errors.txt    what could not be read, and why
doctor.txt    the results of `dractl doctor`; doctor.json is for programs
cluster/      objects, one on each line; facts.json has versions, feature gates and permissions
logs/         the driver's pods: NAMESPACE/POD/CONTAINER.log, and .previous.log of the run before
metrics/      the Prometheus metrics of the driver's pods
node/         the machine that it was made on; record.tar.gz, without names, is for `dractl inventory --host`

`dractl doctor --from FILE` checks it again.
"""


@dataclass(frozen=True, slots=True)
class _Staged:
    """`objects`: a JSON object on each line, an array in the archive. `ready`: packed unchanged. Else lines of text."""

    path: Path
    objects: bool
    ready: bool = False


class Bundle:
    """A bundle that is being made in `folder`, which is empty and temporary. With `anonymity`, names are replaced."""

    def __init__(self, folder: Path, anonymity: Anonymity | None = None) -> None:
        self._folder = folder
        self._anonymity = anonymity
        self._staged: dict[str, _Staged] = {}
        self._open: dict[str, IO[str]] = {}
        self.errors: list[str] = []

    def add(self, kind: ObservedKind, obj: JsonObject) -> None:
        """Adds an object to the file of its kind."""
        clean = redacted(obj)
        if self._anonymity is not None:
            self._anonymity.learn_object(clean)
        file = self._open.get(kind.file) or self._begin(kind.file, objects=True)
        file.write(json.dumps(clean, separators=(",", ":"), sort_keys=True) + "\n")

    def data(self, name: str, value: JsonObject) -> None:
        """Adds a JSON object as a file."""
        self._whole(name, json.dumps(redacted(value), indent=1, sort_keys=True).splitlines())

    def text(self, name: str, lines: Iterable[str]) -> None:
        """Adds a file of lines, redacted."""
        redactor = LineRedactor()
        self._whole(name, (shown for line in lines if (shown := redactor.line(line)) is not None))

    def content(self, name: str, content: bytes) -> None:
        """Adds a file that is packed unchanged."""
        path = self._folder / f"{len(self._staged):06d}"
        path.write_bytes(content)
        self._staged[name] = _Staged(path, objects=False, ready=True)

    def error(self, what: str, why: object) -> None:
        """Notes what could not be read."""
        self.errors.append(redacted_text(" ".join(f"{what}: {why}".split())))

    def _begin(self, name: str, *, objects: bool) -> IO[str]:
        path = self._folder / f"{len(self._staged):06d}"
        self._staged[name] = _Staged(path, objects)
        self._open[name] = file = path.open("w", encoding="utf-8", errors="replace")
        return file

    def _whole(self, name: str, lines: Iterable[str]) -> None:
        with self._begin(name, objects=False) as file:
            file.writelines(f"{line}\n" for line in lines)
        del self._open[name]

    def pack(self, out: Path, *, release: str, time: datetime) -> None:
        """Writes the archive, which only its owner can read. Raises NodeNotReady; does not replace an existing file."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        about = {
            "format": FORMAT,
            "release": release,
            "time": time.isoformat(),
            "anonymous": self._anonymity is not None,
        }
        self.data(DESCRIPTION, about)
        self._whole(ERRORS, sorted(self.errors) or ["everything could be read"])
        self._whole("README.txt", _README.splitlines())
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise NodeNotReady(f"cannot be created: {error.strerror or error}", about=f"file {out}") from error
        try:
            with (
                os.fdopen(descriptor, "wb") as raw,
                gzip.GzipFile("", "wb", mtime=time.timestamp(), fileobj=raw) as packed,
                tarfile.open(fileobj=packed, mode="w") as tar,
            ):
                for name in sorted(self._staged):
                    self._add(tar, name, self._staged[name], time)
        except OSError as error:
            out.unlink(missing_ok=True)
            raise NodeNotReady(f"cannot be written: {error.strerror or error}", about=f"file {out}") from error

    def _add(self, tar: tarfile.TarFile, name: str, staged: _Staged, time: datetime) -> None:
        ready = staged.path
        if not staged.ready:
            ready = staged.path.with_suffix(".ready")
            with staged.path.open(encoding="utf-8") as lines, ready.open("w", encoding="utf-8") as file:
                file.writelines(self._content(name, staged, lines))
        shown = name if self._anonymity is None else self._anonymity.text(name)
        info = tarfile.TarInfo(f"{ROOT}/{shown}")
        info.size, info.mtime, info.mode = ready.stat().st_size, int(time.timestamp()), 0o600
        with ready.open("rb") as content:
            tar.addfile(info, content)
        ready.unlink()

    def _content(self, name: str, staged: _Staged, lines: Iterable[str]) -> Iterator[str]:
        if staged.objects:
            yield "["
            for number, line in enumerate(lines):
                shown = line if self._anonymity is None else json.dumps(self._anonymity.value(json.loads(line)))
                yield f"{',' if number else ''}\n{shown.strip()}"
            yield "\n]\n"
        elif self._anonymity is None or name == "README.txt":
            yield from lines
        elif name.endswith(".json"):
            yield json.dumps(self._anonymity.value(json.loads("".join(lines))), indent=1) + "\n"
        else:
            yield from map(self._anonymity.text, lines)


@dataclass(frozen=True, slots=True)
class Stored:
    """What of a bundle can be checked again. `facts` is None for a bundle of a node, `node` for one of a cluster."""

    objects: DecodedObjects
    facts: ClusterFacts | None
    node: JsonObject | None
    anonymous: bool


def stored(path: Path) -> Stored:
    """Raises InvalidInput: not a bundle, damaged, or of a release that writes another format."""
    objects, data = DecodedObjects(), dict[str, JsonObject]()
    kinds = {kind.file: kind for kind in ALL_KINDS}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix(f"{ROOT}/")
                file = tar.extractfile(member) if member.isfile() and member.size <= _MOST_MEMBER_BYTES else None
                if file is None:
                    continue
                if name in kinds:
                    _read_objects(file, kinds[name], objects)
                elif name in (FACTS, NODE_FACTS, DESCRIPTION):
                    data[name] = json.load(file)
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"is not a bundle of `dractl bundle`, or is damaged: {error}", about=f"file {path}"
        ) from error
    description = data.get(DESCRIPTION)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InvalidInput(
            f"is not a bundle of format {FORMAT}; use the dractl of the release that made it", about=f"file {path}"
        )
    facts = facts_from(data[FACTS]) if FACTS in data else None
    return Stored(objects, facts, data.get(NODE_FACTS), bool(description.get("anonymous")))


def _read_objects(file: IO[bytes], kind: ObservedKind, objects: DecodedObjects) -> None:
    for line in io.TextIOWrapper(file, encoding="utf-8"):
        text = line.strip().rstrip(",")
        if text.startswith("{"):
            objects.add(kind, json.loads(text))
