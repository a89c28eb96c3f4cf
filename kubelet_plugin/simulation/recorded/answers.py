"""What NVML answered in a record, by function and arguments. Pure."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kubelet_plugin.record.format import Call

_FIELDS = "nvmlDeviceGetFieldValues"


class Answers:
    """The first answer counts where NVML gave several."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._calls: dict[str, Call] = {}
        self._fields: dict[tuple[str, int, int], Any] = {}
        self._field_calls: dict[str, Call] = {}
        for call in calls:
            self._calls.setdefault(_key(call.function, call.args), call)
            if call.function == _FIELDS:
                self._add_fields(call)

    def _add_fields(self, call: Call) -> None:
        name = str(_handle(call.args[0]))
        self._field_calls.setdefault(name, call)
        for item in (call.result or {}).get("items", ()):
            fields = item["fields"]
            self._fields.setdefault((name, fields["fieldId"], fields["scopeId"]), item)

    def call(self, function: str, args: Sequence[Any]) -> Call | None:
        """None when the record has no such call. Values of fields are found whatever they were asked with."""
        if function == _FIELDS:
            return self._field_values(args)
        return self._calls.get(_key(function, args))

    def _field_values(self, args: Sequence[Any]) -> Call | None:
        name = str(_handle(args[0]))
        wanted = [one if isinstance(one, list) else [one, 0] for one in args[1]]
        items = [self._fields.get((name, number, scope)) for number, scope in wanted]
        if all(item is not None for item in items):
            return Call(function=_FIELDS, result={"array": "c_nvmlFieldValue_t", "items": items})
        refused = self._field_calls.get(name)
        return refused if refused is not None and refused.result is None else None

    def result(self, function: str, *args: Any) -> Any:
        """The result of a call that succeeded; None otherwise."""
        call = self.call(function, args)
        return call.result if call is not None and call.code is None and not call.hung else None

    def code(self, function: str, *args: Any) -> int | None:
        """The error code of a call that failed."""
        call = self.call(function, args)
        return call.code if call is not None else None

    def of(self, function: str, first: Any) -> Iterator[Call]:
        """All calls of a function with this first argument that succeeded, in their order."""
        for call in self._calls.values():
            if call.function == function and call.args[:1] == [first] and call.code is None and not call.hung:
                yield call


def fields(value: Any) -> dict[str, Any]:
    """The fields of a structure; empty for anything else."""
    found = value.get("fields") if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def items(value: Any) -> list[Any]:
    """Of an array."""
    found = value.get("items") if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def handle(name: str) -> dict[str, str]:
    return {"handle": name}


def _handle(value: Any) -> Any:
    return value.get("handle") if isinstance(value, dict) else value


def _key(function: str, args: Sequence[Any]) -> str:
    return json.dumps([function, *args], sort_keys=True)
