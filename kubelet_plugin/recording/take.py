"""Looks at this node once, as the plugin does, and puts the answers into a record. Changes nothing.

Discovery itself runs, on adapters that write down every answer; then more is asked (`questions`, `files`). A
separate thread asks NVML: a call that never returns ends the questions to NVML and is recorded as hung, and everything
else is still recorded.
"""

import ctypes
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from math import inf
from typing import Any

from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import DriverError
from kubelet_plugin.facts.container_files import container_files_of
from kubelet_plugin.facts.hardware import Hardware, NvmlSource, OpenNvml, installed_nvml, simulated_nvml
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.hardware.vfio import users
from kubelet_plugin.recording.files import Capture, RecordingFiles, further_places
from kubelet_plugin.recording.names import anonymous, without_secrets
from kubelet_plugin.recording.questions import ProgramsOfNode, Progress, ask_nvml
from kubelet_plugin.simulation.recorded.format import About, File, NvmlCall, ProgramAnswer, Record
from kubelet_plugin.simulation.recorded.values import encoded, is_handle, pointed, shape

_TIMEOUT = 10
"""NVML's code."""


class CallLog:
    """Every call, equal ones together, in the order of the first. For two threads: who calls, and who watches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, NvmlCall] = {}
        self._open: tuple[NvmlCall, float] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def begin(self, call: NvmlCall) -> None:
        with self._lock:
            self._open = call, self._clock()

    def end(self, call: NvmlCall) -> None:
        """The call that is open came back; `call` has its answer."""
        with self._lock:
            if self._closed or self._open is None:
                return
            call.ms = self._milliseconds(self._open[1])
            self._open = None
            key = json.dumps(call.model_dump(exclude={"ms", "times"}), sort_keys=True)
            known = self._calls.setdefault(key, call)
            if known is not call:
                known.times += 1
                known.ms = max(known.ms, call.ms)

    def open_for_s(self) -> float:
        """How long the call under way has been; 0 when there is none."""
        with self._lock:
            return self._clock() - self._open[1] if self._open is not None else 0.0

    def close(self) -> tuple[NvmlCall, ...]:
        """All of them, with the one that is under way as hung. What comes later is not recorded."""
        with self._lock:
            self._closed = True
            calls = tuple(self._calls.values())
            if self._open is None:
                return calls
            call, started = self._open
            return (*calls, call.model_copy(update={"hung": True, "ms": self._milliseconds(started)}))

    @property
    def closed(self) -> bool:
        return self._closed

    def _milliseconds(self, started: float) -> float:
        return round(1000 * (self._clock() - started), 3)


class RecordingNvml:
    """`library` is shaped like module `pynvml`. Constants and structures are the library's own."""

    def __init__(self, library: Any, log: CallLog) -> None:
        self._library = library
        self._log = log
        self._names: dict[tuple[str, int], str] = {}
        self._counts: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._library, name)
        if not name.startswith("nvml") or not callable(attribute) or isinstance(attribute, type):
            return attribute

        def recorded(*args: Any) -> Any:
            return self._call(name, attribute, args)

        return recorded

    def _call(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._log.closed:
            raise self._library.NVMLError(_TIMEOUT)  # the recording ended while a call hung
        call = NvmlCall(function=name, args=[shape(arg, self._named) for arg in args])
        self._log.begin(call)
        try:
            result = function(*args)
        except self._library.NVMLError as error:
            call.code = int(getattr(error, "value", 999))
            self._end(call, args)
            raise
        except Exception as error:
            call.problem = f"{type(error).__name__}: {error}"
            self._end(call, args)
            raise
        if name.startswith("nvmlDeviceGetHandleByIndex"):
            self._names[_identity(result)] = f"gpu{args[0]}"
        call.result = encoded(result, self._named)
        self._end(call, args)
        return result

    def _end(self, call: NvmlCall, args: tuple[Any, ...]) -> None:
        call.out = {
            place: encoded(arg, self._named)
            for place, arg in enumerate(args)
            if isinstance(call.args[place], dict) and not is_handle(pointed(arg))
        }
        self._log.end(call)

    def _named(self, handle: Any) -> str:
        identity = _identity(handle)
        if identity not in self._names:
            kind = identity[0].removeprefix("struct_c_nvml").removesuffix("_t")
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[identity] = f"{kind}{number}"
        return self._names[identity]


def _identity(handle: Any) -> tuple[str, int]:
    return type(handle)._type_.__name__, ctypes.cast(handle, ctypes.c_void_p).value or 0


CALL_PATIENCE_S = 20.0
"""A single call of NVML that takes longer hangs; a cold start of the driver takes about 10 s."""
NVML_PATIENCE_S = 180.0
"""All of them together."""
_LOOK_EVERY_S = 0.1


class NodeRecorder:
    """One node, recorded once. `call_patience_s` is how long a call of NVML may take before it counts as hung."""

    def __init__(
        self,
        places: NodePlaces,
        progress: Progress = lambda _: None,
        *,
        call_patience_s: float = CALL_PATIENCE_S,
        ask_programs: bool = True,
    ) -> None:
        self._places = places
        self._progress = progress
        self._ask_programs = ask_programs
        self._call_patience_s = call_patience_s
        self._log = CallLog()
        self._looked: set[str] = set()
        self._notes: list[str] = []
        """What could not be read."""
        self._files = RecordingFiles(places.host_root, self._looked)
        self._installation = DriverInstallation(self._files, configured_root=places.driver_root)
        self._source: NvmlSource | None = None
        self._find = self._open()

    def record(self, *, release: str, keep_names: bool) -> Record:
        """Everything. Raises NodeNotReady only when the kernel does not even report its boot id."""
        self._files.boot_id()
        self._ask_nvml()
        calls = self._log.close()
        answers = tuple(self._answers()) if self._ask_programs else ()
        files = self._captured(answers)
        root, library = self._driver()
        about = About(
            release=release,
            names_kept=keep_names,
            driver_root=root,
            library=library,
            notes=self._notes,
        )
        record = without_secrets(Record(about, calls, files, answers))
        return record if keep_names else anonymous(record, socket.gethostname())

    def _note(self, what: str, why: object) -> None:
        line = " ".join(f"{what}: {why}".split())
        if not any(known.startswith(line) for known in self._notes):
            self._notes.append(line)

    def _answers(self) -> Iterator[ProgramAnswer]:
        host = HostFiles(self._places.host_root)
        programs = DriverPrograms(host, self._installation.root)
        return ProgramsOfNode(host, programs).answers(self._progress)

    def _ask_nvml(self) -> None:
        """In a thread, with a limit on the wait for it."""
        thread = threading.Thread(target=self._look, name="recorded NVML", daemon=True)
        started = time.monotonic()
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_EVERY_S)
            if self._log.open_for_s() > self._call_patience_s:
                self._note("NVML", f"a call has not returned in {self._call_patience_s:g} s; nothing more was asked")
                return
            if time.monotonic() - started > NVML_PATIENCE_S:
                self._note("NVML", f"not all was asked in {NVML_PATIENCE_S:g} s")
                return

    def _look(self) -> None:
        try:
            self._discover()
        except DriverError as error:
            self._note(error.about or "node", error.message)
        except Exception as error:  # noqa: BLE001 - a defect that this node brings to light is why it is recorded
            self._note("defect", repr(error))
        if self._source is not None:
            ask_nvml(self._source.library, self._progress)

    def _discover(self) -> None:
        """As the plugin does, up to what containers need."""
        self._progress("asking NVML and the kernel what discovery asks")
        with closing(Hardware(self._files, self._opened, read_s=inf)) as hardware:
            facts = hardware.look()
            for problem in facts.problems:
                self._note(problem.subject, problem.message)
            container_files_of(self._installation, facts)

    def _open(self) -> OpenNvml:
        """The library to ask. A simulated node that is not there yet is made."""
        if self._places.simulate is None:
            return installed_nvml(self._installation)
        from kubelet_plugin.simulation.host import open_simulated

        return simulated_nvml(open_simulated(self._places.host_root, self._places.simulate))

    def _opened(self) -> NvmlSource:
        source = self._find()
        self._source = NvmlSource(RecordingNvml(source.library, self._log), source.driver_root)
        return self._source

    def _driver(self) -> tuple[str | None, str | None]:
        """Driver root and NVML library, as host paths."""
        try:
            root = self._installation.root()
        except DriverError as error:
            self._note(error.about or "driver", error.message)
            return None, None
        return root.path, f"/{root.nvml_library.relative_to(self._places.host_root)}"

    def _captured(self, answers: Iterable[ProgramAnswer]) -> tuple[File, ...]:
        self._progress("reading the kernel's files and the driver root")
        host = HostFiles(self._places.host_root)
        root, library = self._driver()
        folders = [] if library is None else [library.rpartition("/")[0]]
        capture = Capture(self._places.host_root)
        capture.add(self._looked)
        asked = [answer.path for answer in answers]
        capture.add([*asked, *(str(resolved) for path in asked if (resolved := host.resolve(path)) is not None)])
        capture.add(further_places(host, root, folders))
        for tree in ("/proc/driver/nvidia", "/proc/driver/nvidia-caps", "/proc/driver/nvidia-nvlink"):
            capture.add_tree(tree)
        for gpu in host.nvidia_gpus():
            capture.add_tree(f"/sys/bus/pci/devices/{gpu.address}/iommu_group/devices", depth=1)
        nodes = [name for name in host.names("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
        for node in nodes:
            capture.add_users(node, users(host, {node}))
        return capture.files()
