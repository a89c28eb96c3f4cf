"""Containers that really run: processes in place of the programs that the simulation knows, with their probes.

Most containers of a simulated cluster never run, because their programs are not here. Those whose command is known run
as a process of this machine, with the environment that the manifest and CDI give them, and with a folder of their own
for what is mounted. Processes belong to the node, not to its kubelet, which may be restarted beside them.
"""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

import structlog

from dra_driver.api.meta import JsonObject
from dra_driver.cdi.inject import ContainerDescription
from dra_driver.kube.watch import Backoff
from dra_driver.runtime.tasks import end_tasks

_log = structlog.get_logger(__name__)

_GRACE_S = 10.0
_PROGRAMS = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/", "/opt/bin/")
DEVICES_VARIABLE = "SIMULATED_DEVICES"
"""Which device nodes the process's container has: paths with colons between."""
MOUNTS_VARIABLE = "SIMULATED_MOUNTS"
"""What is mounted where: JSON, pairs of container path and host path; links that hooks make among them."""
USER_VARIABLE = "SIMULATED_USER"
"""Which user the process would be: every process of the simulation is the user who started that."""
_MESSAGE_FILE = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class ContainerProgram:
    """What runs in place of a container's command, and by which variables it learns where its mounts are.

    `folders` and `files` are by container path: `/imexd` is a folder of the container alone, `/etc/hosts` a file that
    kubelet makes. `environment` is added for all of them.
    """

    command: tuple[str, ...]
    folders: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerStanding:
    """How a container is. `started` is true once its startup probe has succeeded; `exit_code` and `message` are those
    of one that has ended and is not started again."""

    ready: bool = False
    started: bool = False
    restarts: int = 0
    waiting: str | None = None
    """Why it does not run at the moment."""
    exit_code: int | None = None
    message: str = ""


class Containers:
    """Of one node, below `folder`. `programs` are by the first word of a container's command."""

    def __init__(self, folder: Path, programs: Mapping[str, ContainerProgram]) -> None:
        self._folder = folder
        self._programs = programs
        self._running: dict[str, dict[str, _Container]] = {}

    def are_real(self, pod: JsonObject) -> bool:
        """Whether all of the pod's containers can run here."""
        commands = [container.get("command") or [""] for container in pod["spec"]["containers"]]
        return all(words[0] in self._programs for words in commands)

    def start(
        self, pod: JsonObject, described: Mapping[str, ContainerDescription], changed: Callable[[], None]
    ) -> None:
        """Run what does not run yet. `changed` is called whenever a standing is another; it must not block."""
        uid = pod["metadata"]["uid"]
        known = self._running.setdefault(uid, {})
        for container in pod["spec"]["containers"]:
            name = container["name"]
            if name in known:
                known[name].changed = changed
                continue
            place = self._folder / uid / name
            environment = self._environment(pod, container, described[name], place)
            restarted = pod["spec"].get("restartPolicy", "Always") != "Never"
            known[name] = _Container(container, self._command, environment, place, changed, restarted=restarted)

    def standings(self, uid: str) -> dict[str, ContainerStanding]:
        """By container; empty for a pod that does not run here."""
        return {name: container.standing for name, container in self._running.get(uid, {}).items()}

    def log(self, uid: str, container: str) -> str:
        """What it printed; empty when it never ran."""
        path = self._folder / uid / container / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pids(self, uid: str) -> tuple[int, ...]:
        """Of the processes that run now."""
        return tuple(container.pid for container in self._running.get(uid, {}).values() if container.pid is not None)

    async def stop(self, uid: str) -> None:
        """End the pod's containers, and remove what they had."""
        containers = self._running.pop(uid, {})
        await asyncio.gather(*(container.stop() for container in containers.values()))
        if containers:
            await asyncio.to_thread(shutil.rmtree, self._folder / uid, ignore_errors=True)

    async def stop_all(self) -> None:
        await asyncio.gather(*(self.stop(uid) for uid in list(self._running)))

    def _command(self, words: Sequence[str]) -> tuple[str, ...]:
        return (*self._programs[words[0]].command, *words[1:])

    def _environment(
        self, pod: JsonObject, container: JsonObject, described: ContainerDescription, place: Path
    ) -> dict[str, str]:
        """What the process gets: nothing of this process's own environment."""
        program = self._programs[container["command"][0]]
        environment = dict(text.partition("=")[::2] for text in described.env) | dict(program.environment)
        hosts = f"127.0.0.1\tlocalhost\n{(pod.get('status') or {}).get('podIP', '')}\t{container['name']}\n"
        for inside, variable in (program.folders | program.files).items():
            outside = place / _file_name(inside)
            outside.parent.mkdir(parents=True, exist_ok=True)
            if inside in program.folders:
                outside.mkdir(exist_ok=True)
            else:
                outside.write_text("" if inside == _MESSAGE_FILE else hosts)
            environment[variable] = str(outside)
        environment[DEVICES_VARIABLE] = ":".join(node.path for node in described.device_nodes)
        environment[MOUNTS_VARIABLE] = json.dumps(sorted(mounted(described).items()))
        environment[USER_VARIABLE] = str(_user(pod, container))
        environment["PATH"] = str(self._mounted_programs(described, place / "bin"))
        return environment

    def _mounted_programs(self, described: ContainerDescription, folder: Path) -> Path:
        """A folder with the programs that CDI mounts from the node into the container."""
        folder.mkdir(parents=True, exist_ok=True)
        for mount in described.mounts:
            if mount.container_path.startswith(_PROGRAMS):
                link = folder / Path(mount.container_path).name
                link.unlink(missing_ok=True)
                link.symlink_to(mount.host_path)
        return folder


class _Container:
    """A process that is started again when it ends, and asked by its probes meanwhile."""

    def __init__(
        self,
        spec: JsonObject,
        command: Callable[[Sequence[str]], tuple[str, ...]],
        environment: Mapping[str, str],
        place: Path,
        changed: Callable[[], None],
        *,
        restarted: bool,
    ) -> None:
        self.standing = ContainerStanding(waiting="ContainerCreating")
        self.changed = changed
        self._spec = spec
        self._command = command
        self._environment = environment
        self._log = place / "log"
        self._message = place / _file_name(_MESSAGE_FILE)
        self._restarted = restarted
        self._process: asyncio.subprocess.Process | None = None
        self._backoff = Backoff(first_s=0.2, longest_s=5.0)
        self._task = asyncio.create_task(self._live())

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def stop(self) -> None:
        await end_tasks(self._task)
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE_S)
        await self._kill(process)

    async def _live(self) -> None:
        words = [*self._spec["command"], *(self._spec.get("args") or ())]
        while True:
            process = self._process = await self._spawn(words)
            self._now(waiting=None)
            probing = asyncio.create_task(self._probe())
            try:
                await process.wait()
            finally:
                await end_tasks(probing)
            # What it started goes with it, as with the first process of a container.
            await self._kill(process)
            _log.info("a container ended", container=self._spec["name"], status=process.returncode)
            if not self._restarted:
                message = self._message.read_text(errors="replace") if self._message.exists() else ""
                self._now(ready=False, started=False, exit_code=process.returncode, message=message)
                return
            restarts = self.standing.restarts + 1
            self._now(ready=False, started=False, restarts=restarts, waiting="CrashLoopBackOff")
            await asyncio.sleep(self._backoff.next_s())

    async def _spawn(self, words: Sequence[str]) -> asyncio.subprocess.Process:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                *self._command(words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(self._environment),
                start_new_session=True,
            )

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _now(self, **changes: Any) -> None:
        after = replace(self.standing, **changes)
        if after != self.standing:
            self.standing = after
            self.changed()

    async def _probe(self) -> None:
        """Startup first, then readiness and liveness beside each other."""
        async for well, failed in self._asked("startupProbe"):
            if well:
                break
            if failed:
                await self._end("its startup probe failed")
        self._now(started=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_readiness())
            tasks.create_task(self._follow_liveness())

    async def _follow_readiness(self) -> None:
        async for well, failed in self._asked("readinessProbe"):
            if well or failed:
                self._now(ready=well)

    async def _follow_liveness(self) -> None:
        async for _, failed in self._asked("livenessProbe"):
            if failed:
                await self._end("its liveness probe failed")

    async def _asked(self, kind: str) -> AsyncIterator[tuple[bool, bool]]:
        """After each question of a probe that executes a command: whether the answer was good, and whether too many in
        a row were not. Without such a probe, a container is well, once and for all."""
        probe = self._spec.get(kind) or {}
        command, failures = (probe.get("exec") or {}).get("command"), 0
        if not command:
            yield True, False
            return
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            well = await self._ask(command, probe.get("timeoutSeconds", 1))
            failures = 0 if well else failures + 1
            yield well, failures >= probe.get("failureThreshold", 3)
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _ask(self, command: Sequence[str], timeout_s: float) -> bool:
        process = await self._spawn(command)
        try:
            return await asyncio.wait_for(process.wait(), timeout_s) == 0
        except TimeoutError:
            return False
        finally:
            await self._kill(process)

    async def _end(self, why: str) -> None:
        _log.warning("a container is ended", container=self._spec["name"], reason=why)
        if self._process is not None:
            await self._kill(self._process)


def mounted(described: ContainerDescription) -> dict[str, str]:
    """Host paths by container path, with the links to mounted files that hooks make."""
    host_paths = {mount.container_path: mount.host_path for mount in described.mounts}
    for hook in described.hooks:
        words = list(hook.args)
        for link in (words[number + 1] for number, word in enumerate(words[:-1]) if word == "--link"):
            target, _, path = link.partition("::")
            source = host_paths.get(normpath(join(dirname(path), target)))
            if source is not None:
                host_paths[path] = source
    return host_paths


def _user(pod: JsonObject, container: JsonObject) -> int:
    contexts = [item.get("securityContext") or {} for item in (container, pod["spec"])]
    return next((int(context["runAsUser"]) for context in contexts if "runAsUser" in context), 0)


def _file_name(inside: str) -> str:
    return inside.strip("/").replace("/", "-")
