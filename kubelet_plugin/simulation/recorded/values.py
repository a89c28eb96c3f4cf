"""Arguments and results of NVML calls as JSON, and back: what `nvml.json` of a record has.

| In Python | In the record |
|---|---|
| number, text, None, list or tuple | as they are; a tuple is a list |
| handle | `{"handle": "gpu0"}`: the GPU with that index, or a name for a handle of another kind |
| structure | `{"struct": "nvmlPciInfo_t", "fields": {"busId": "00000000:1B:00.0"}}` |
| union | the same, with its widest number |
| array | `{"array": "c_nvmlGpuInstancePlacement_t", "items": [...]}`; one of bytes is `{"bytes": "00ff"}` |
| C number | `{"c": "c_uint", "value": 3}` |
| pynvml's friendly object | `{"object": {"pid": 4711}}` |

An argument by reference is written as what it points to. Pure but for the memory of the values that `fill` changes.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

type Named = Callable[[Any], str]
"""Names a handle, which is a C pointer."""
type Handle = Callable[[str], Any]
"""The handle with this name."""

_POINTER = type(ctypes.POINTER(ctypes.c_int))
_UNION_FIELD = "ullVal"


def pointed(value: Any) -> Any:
    """What a C argument points to: `byref(x)`, `pointer(x)`; anything else is itself."""
    return value._obj if hasattr(value, "_obj") else value


def is_handle(value: Any) -> bool:
    return isinstance(type(value), _POINTER)


def encoded(value: Any, named: Named) -> Any:
    """`value` as JSON. A kind of value that is not known is its text, so that nothing is lost without a trace."""
    value = pointed(value)
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.decode(errors="replace")
        case list() | tuple():
            return [encoded(item, named) for item in value]
        case ctypes.Structure() | ctypes.Union():
            return {"struct": type(value).__name__, "fields": _fields(value, named)}
        case ctypes.Array():
            return _array(value, named)
        case ctypes._SimpleCData():
            return {"c": type(value).__name__, "value": value.value}
        case pynvml.nvmlFriendlyObject():
            return {"object": {name: encoded(item, named) for name, item in sorted(vars(value).items())}}
    return {"handle": named(value)} if is_handle(value) else {"text": str(value)}


def _fields(value: Any, named: Named) -> dict[str, Any]:
    names = [entry[0] for entry in type(value)._fields_]
    if isinstance(value, ctypes.Union):
        names = [_UNION_FIELD] if _UNION_FIELD in names else names[-1:]
    return {name: encoded(getattr(value, name), named) for name in names}


def _array(value: Any, named: Named) -> Any:
    if value._type_ is ctypes.c_ubyte:
        return {"bytes": bytes(value).hex()}
    return {"array": value._type_.__name__, "items": [encoded(item, named) for item in value]}


def shape(value: Any, named: Named) -> Any:
    """An argument as far as it is a question: of a structure or an array only the kind; its content is the answer."""
    value = pointed(value)
    match value:
        case ctypes.Structure() | ctypes.Union():
            return {"struct": type(value).__name__}
        case ctypes.Array():
            return {"array": value._type_.__name__}
        case ctypes._SimpleCData():
            return {"c": type(value).__name__}
    return encoded(value, named)


def decoded(value: Any, handle: Handle) -> Any:
    """The Python value of what `encoded` wrote. Raises ValueError for what is no such thing."""
    match value:
        case list():
            return [decoded(item, handle) for item in value]
        case {"handle": str(name)}:
            return handle(name)
        case {"struct": str(name), "fields": dict()}:
            made = _structure(name)()
            fill(made, value, handle)
            return made
        case {"array": str(name), "items": list(items)}:
            made = (_c_type(name) * len(items))()
            fill(made, value, handle)
            return made
        case {"bytes": str(text)}:
            return (ctypes.c_ubyte * (len(text) // 2))(*bytes.fromhex(text))
        case {"c": str(name), "value": number}:
            return _c_type(name)(number)
        case {"object": dict(fields)}:
            return pynvml.nvmlFriendlyObject({name: decoded(item, handle) for name, item in fields.items()})
        case {"text": str(text)}:
            return text
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"not a value of NVML: {value!r}")


def fill(target: Any, value: Any, handle: Handle) -> None:
    """Make the C value `target` (what an argument points to) what `value` says. Raises ValueError; an array that is too
    small raises IndexError."""
    match value:
        case {"fields": dict(fields)}:
            kinds = {entry[0]: entry[1] for entry in type(target)._fields_}
            for name, item in fields.items():
                if name not in kinds:
                    raise ValueError(f"{type(target).__name__} has no field {name}")
                _set(target, name, item, handle)
        case {"items": list(items)}:
            for index, item in enumerate(items):
                target[index] = decoded(item, handle)
        case {"bytes": str(text)}:
            target[:] = list(bytes.fromhex(text))
        case {"value": number}:
            target.value = number
        case _:
            raise ValueError(f"not a value of NVML: {value!r}")


def _set(target: Any, name: str, item: Any, handle: Handle) -> None:
    match item:
        case str():
            setattr(target, name, item.encode())
        case {"handle": str()} | None | int() | float():
            setattr(target, name, decoded(item, handle))
        case _:
            fill(getattr(target, name), item, handle)


def _structure(name: str) -> Any:
    structure = getattr(pynvml, name, None)
    if not (isinstance(structure, type) and issubclass(structure, (ctypes.Structure, ctypes.Union))):
        raise ValueError(f"NVML has no structure {name}")
    return structure


def _c_type(name: str) -> Any:
    c_type = getattr(pynvml, name, None) or getattr(ctypes, name, None)
    if not (isinstance(c_type, type) and issubclass(c_type, (ctypes.Structure, ctypes.Union, ctypes._SimpleCData))):
        raise ValueError(f"NVML has no type {name}")
    return c_type
