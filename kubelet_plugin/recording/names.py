"""A record without names: UUIDs, serial numbers, host name and addresses are replaced, the same one by the same. Pure.

Which rules replace names in a text is `dra_driver.doctor.redaction`'s; here is where in a record names are.
"""

import re
from typing import Any
from uuid import UUID

from dra_driver.doctor.redaction import Anonymity, redacted_text
from kubelet_plugin.simulation.recorded.format import File, NvmlCall, ProgramAnswer, Record

_SERIALS = frozenset({"nvmlDeviceGetSerial"})
_PROGRAM_NAMES = frozenset({"nvmlSystemGetProcessName"})
_LABELED = re.compile(
    r"^[^:\n]*(?:Serial Number|GUID|PDI|Asset Tag)[^:\n]*:[ \t]*(?P<name>[^\s\[\]]{6,})[ \t]*$", re.MULTILINE
)
"""Lines of `nvidia-smi -q` that identify a board or a chassis."""
_PROGRAM_PATH = re.compile(r"^(?P<label>\s+Name\s*:\s*)/\S*/", re.MULTILINE)
_CLUSTER = "clusterUuid"


def without_secrets(record: Record) -> Record:
    """Outputs of programs without credentials, and names of other programs without their folders."""
    calls = tuple(
        call.model_copy(update={"result": str(call.result).rpartition("/")[2]})
        if call.function in _PROGRAM_NAMES and isinstance(call.result, str)
        else call
        for call in record.calls
    )
    programs = tuple(program.model_copy(update={"output": _clean(program.output)}) for program in record.programs)
    return Record(record.about, calls, record.files, programs)


def _clean(output: str) -> str:
    return redacted_text(_PROGRAM_PATH.sub(lambda match: match["label"], output))


def anonymous(record: Record, node: str) -> Record:
    """`node` is this machine's name."""
    names = Anonymity()
    for call in record.calls:
        if call.function in _SERIALS and isinstance(call.result, str):
            names.learn("serial", call.result)
    for answer in record.programs:
        for match in _LABELED.finditer(answer.output):
            names.learn("serial", match["name"])
    calls = tuple(_call(names, call) for call in record.calls)
    files = tuple(_file(names, file) for file in record.files)
    # Only from here on: a machine may be called `nvidia`, and the kernel's words must stay what they are.
    names.learn("node", node)
    return Record(
        record.about.model_copy(update={"notes": [names.text(note) for note in record.about.notes]}),
        calls,
        files,
        tuple(_answer(names, answer) for answer in record.programs),
    )


def _call(names: Anonymity, call: NvmlCall) -> NvmlCall:
    changes = {name: _value(names, getattr(call, name)) for name in ("args", "result", "out")}
    return call.model_copy(update=changes)


def _value(names: Anonymity, value: Any) -> Any:
    """Versions of the driver look like addresses and stay: only texts with a name in them are of interest."""
    match value:
        case str():
            return names.text(value)
        case list():
            return [_value(names, item) for item in value]
        case {"struct": _, "fields": dict(fields)}:
            return {**value, "fields": {name: _field(names, name, item) for name, item in fields.items()}}
        case dict():
            return {name: _value(names, item) for name, item in value.items()}
    return value


def _field(names: Anonymity, name: str, value: Any) -> Any:
    if name == _CLUSTER and isinstance(value, dict) and int(value.get("bytes") or "0", 16):
        return {"bytes": UUID(names.text(str(UUID(value["bytes"])))).hex}
    return _value(names, value)


def _file(names: Anonymity, file: File) -> File:
    return file.model_copy(update={"text": names.text(file.text)}) if file.text is not None else file


def _answer(names: Anonymity, answer: ProgramAnswer) -> ProgramAnswer:
    return answer.model_copy(update={"output": names.text(answer.output)})
