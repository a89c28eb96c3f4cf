"""Keeps out of a service's memory what its libraries import and a service never uses: 3 MB in every plugin. The
services' `main` imports this module before anything else.

prometheus_client has HTTP servers and a client of its own, for which it imports Python's. pydantic searches the
metadata of all installed packages for plugins. This module imports both while stand-ins take the place of these
modules of Python, which everyone else can import afterwards.
"""

import sys
from importlib import import_module
from types import ModuleType

import dra_driver.runtime.lean  # noqa: F401 - also of a service

_UNUSED = {
    "prometheus_client": (
        "http.server",
        "socketserver",
        "urllib.error",
        "urllib.request",
        "wsgiref.simple_server",
    ),
    "pydantic.plugin._loader": ("importlib.metadata",),
}
"""What each library imports and does not use in a service."""


class _StandIn(ModuleType):
    """Has every name: each is a class that can be a base of others, and whose objects are empty."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (tuple,), {"__new__": lambda cls, *_, **__: tuple.__new__(cls)})


def _import_without(library: str, unused: tuple[str, ...]) -> None:
    stand_ins = {name: _StandIn(name) for name in unused if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        import_module(library)
    finally:
        for name in stand_ins:
            del sys.modules[name]


for _library, _modules in _UNUSED.items():
    if _library not in sys.modules:
        _import_without(_library, _modules)
