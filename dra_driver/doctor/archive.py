"""A bundle: a .tar.gz with what was observed. Writes it, redacted, and reads it again.

Objects and lines go to a temporary folder first, so that a large cluster need not fit into memory. Logs and
metrics of the driver's pods are limited; of a long log, its end is kept.
"""

import asyncio
import gzip
import io
import json
import os
import tarfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO

from dra_driver.api.core import Pod
from dra_driver.api.meta import JsonObject
from dra_driver.doctor.cluster import ClusterFacts, facts_from
from dra_driver.doctor.kinds import ALL_KINDS, DecodedObjects, ObservedKind
from dra_driver.doctor.reading import metrics_path
from dra_driver.doctor.redaction import Anonymity, LineRedactor, redacted, redacted_text
from dra_driver.errors import ClusterError, InvalidInput, NodeNotReady, UnreadableFile
from dra_driver.kube.client import Kube

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


_KINDS = {kind.file: kind for kind in ALL_KINDS}


class Bundle:
    """A bundle that is being made in `folder`, which is empty and temporary. With `anonymity`, names are replaced."""

    def __init__(self, folder: Path, anonymity: Anonymity | None = None) -> None:
        self._folder = folder
        self._anonymity = anonymity
        self._paths: dict[str, Path] = {}
        self._objects: dict[str, IO[str]] = {}
        self.errors: list[str] = []

    def add(self, kind: ObservedKind, obj: JsonObject) -> None:
        """Adds an object to the file of its kind, on a line of its own."""
        clean = redacted(obj)
        if self._anonymity is not None:
            self._anonymity.learn_object(clean)
        file = self._objects.get(kind.file)
        begin = ",\n" if file is not None else "[\n"
        file = self._objects.setdefault(kind.file, file or self._path(kind.file).open("w", encoding="utf-8"))
        file.write(begin + json.dumps(clean, separators=(",", ":"), sort_keys=True))

    def data(self, name: str, value: JsonObject) -> None:
        """Adds a JSON object as a file."""
        self._write(name, [json.dumps(redacted(value), indent=1, sort_keys=True)])

    def text(self, name: str, lines: Iterable[str]) -> None:
        """Adds a file of lines, redacted."""
        redactor = LineRedactor()
        self._write(name, (shown for line in lines if (shown := redactor.line(line)) is not None))

    def content(self, name: str, content: bytes) -> None:
        """Adds a file that is packed unchanged."""
        self._path(name).write_bytes(content)

    def error(self, what: str, why: object) -> None:
        """Notes what could not be read."""
        self.errors.append(redacted_text(" ".join(f"{what}: {why}".split())))

    def _path(self, name: str) -> Path:
        return self._paths.setdefault(name, self._folder / f"{len(self._paths):06d}")

    def _write(self, name: str, lines: Iterable[str]) -> None:
        with self._path(name).open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in lines)

    def pack(self, out: Path, *, release: str, time: datetime) -> None:
        """Writes the archive, which only its owner can read. Raises NodeNotReady; does not replace an existing file."""
        for file in self._objects.values():
            file.write("\n]\n")
            file.close()
        anonymous = self._anonymity is not None
        about = {"format": FORMAT, "release": release, "time": time.isoformat(), "anonymous": anonymous}
        self.data(DESCRIPTION, about)
        self._write(ERRORS, sorted(self.errors) or ["everything could be read"])
        self._write("README.txt", _README.splitlines())
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
                for name in sorted(self._paths):
                    self._pack(tar, name, time)
        except OSError as error:
            out.unlink(missing_ok=True)
            raise NodeNotReady(f"cannot be written: {error.strerror or error}", about=f"file {out}") from error

    def _pack(self, tar: tarfile.TarFile, name: str, time: datetime) -> None:
        path, anonymity = self._paths[name], self._anonymity
        if anonymity is not None and not name.endswith((".gz", "README.txt")):
            path = path.with_suffix(".anonymous")
            with self._paths[name].open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as file:
                file.writelines(_anonymous(name, lines, anonymity))
            name = anonymity.text(name)
        info = tarfile.TarInfo(f"{ROOT}/{name}")
        info.size, info.mtime, info.mode = path.stat().st_size, int(time.timestamp()), 0o600
        with path.open("rb") as content:
            tar.addfile(info, content)
        path.unlink()


def _anonymous(name: str, lines: Iterable[str], anonymity: Anonymity) -> Iterator[str]:
    if name in _KINDS:
        for line in lines:
            obj, end = line.rstrip(",\n"), ",\n" if line.endswith(",\n") else "\n"
            yield f"{json.dumps(anonymity.value(json.loads(obj))) if obj.startswith('{') else obj}{end}"
    elif name.endswith(".json"):
        yield json.dumps(anonymity.value(json.loads("".join(lines))), indent=1) + "\n"
    else:
        yield from map(anonymity.text, lines)


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
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix(f"{ROOT}/")
                file = tar.extractfile(member) if member.isfile() and member.size <= _MOST_MEMBER_BYTES else None
                if file is None:
                    continue
                if name in _KINDS:
                    for line in io.TextIOWrapper(file, encoding="utf-8"):
                        if (text := line.strip().rstrip(",")).startswith("{"):
                            objects.add(_KINDS[name], json.loads(text))
                elif name in (FACTS, NODE_FACTS, DESCRIPTION):
                    data[name] = json.load(file)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UnreadableFile(f"cannot be read: {error.strerror}", about=f"file {path}") from error
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"is not a bundle of `dractl bundle`, or is damaged: {error}", about=f"file {path}"
        ) from error
    description: object = data.get(DESCRIPTION)
    if description is None:
        raise InvalidInput("is not a bundle of `dractl bundle`: it has no description of one", about=f"file {path}")
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InvalidInput(
            f"is not a bundle of format {FORMAT}; use the dractl of the release that made it", about=f"file {path}"
        )
    facts = facts_from(data[FACTS]) if FACTS in data else None
    return Stored(objects, facts, data.get(NODE_FACTS), bool(description.get("anonymous")))


# -- logs and metrics

_AT_ONCE = 8
_MOST_READ_BYTES = 64 * 2**20
_MOST_METRICS_BYTES = 8 * 2**20


@dataclass
class Logs:
    """`lines` are the last of each log, `most_bytes` the limit of each log, `left_bytes` that of all."""

    kube: Kube
    bundle: Bundle
    lines: int
    most_bytes: int = 4 * 2**20
    left_bytes: int = 256 * 2**20
    _turn: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _AT_ONCE))

    async def read(self, pods: tuple[Pod, ...]) -> None:
        """Unhealthy pods first, because all logs may be too long."""
        ordered = sorted(pods, key=lambda pod: (pod.ready and not pod.restarts, pod.key))
        await asyncio.gather(*(self._pod(pod) for pod in ordered))

    async def _pod(self, pod: Pod) -> None:
        restarted = {status.name for status in pod.status.container_statuses if status.restart_count}
        async with self._turn:
            for container in pod.spec.containers:
                await self._log(pod, container.name, previous=False)
                if container.name in restarted:
                    await self._log(pod, container.name, previous=True)
            await self._metrics(pod)

    async def _log(self, pod: Pod, container: str, *, previous: bool) -> None:
        name = f"logs/{pod}/{container}{'.previous' if previous else ''}.log"
        if self.left_bytes <= 0:
            self.bundle.error(name, "left out: all logs together are too long")
            return
        query = {"container": container, "tailLines": str(self.lines), "timestamps": "true"}
        query |= {"previous": "true"} if previous else {}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
        # Other logs are read at the same time; what this one does not need is given back.
        reserved = min(self.most_bytes, self.left_bytes)
        self.left_bytes -= reserved
        end = _End(reserved)
        try:
            lines = self.kube.lines(path, most_bytes=_MOST_READ_BYTES, **query)
            async with aclosing(lines):
                async for line in lines:
                    end.add(line)
        except ClusterError as error:
            self.bundle.error(name, error.message)
        self.left_bytes += 0 if end.cut else max(0, reserved - end.size)
        if end.size:
            self.bundle.text(name, end.lines())

    async def _metrics(self, pod: Pod) -> None:
        path = metrics_path(pod)
        if path is None:
            return
        name = f"metrics/{pod}.txt"
        try:
            lines = self.kube.lines(path, most_bytes=_MOST_METRICS_BYTES)
            async with aclosing(lines):
                self.bundle.text(name, [line.decode(errors="replace") async for line in lines])
        except ClusterError as error:
            self.bundle.error(name, error.message)


class _End:
    """As many of the last lines of a text as fit."""

    def __init__(self, most_bytes: int) -> None:
        self.size = 0
        self.cut = False
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        self.size += len(line) + 1
        while self.size > self._most_bytes and len(self._lines) > 1:
            self.size -= len(self._lines.popleft()) + 1
            self.cut = True

    def lines(self) -> Iterator[str]:
        if self.cut:
            yield "(earlier lines are left out: the log is too long)"
        for line in self._lines:
            yield line.decode(errors="replace")
