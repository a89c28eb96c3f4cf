"""Keeps out of memory what libraries import and a process never uses. Programs import this module before anything else.

structlog imports rich, if it is installed, for colored tracebacks: 8 MB in every plugin, because the image contains
`dractl` and therefore rich. This module imports structlog while rich appears to be missing. pydantic searches the
metadata of all installed packages for plugins, and imports Python's modules for that, and for archives and mail. It is
imported while a stand-in takes their place. Everyone else can import all of them afterwards.
"""

import sys
from importlib import import_module
from types import ModuleType


class _StandIn(ModuleType):
    """Has every name: each is a class that can be a base of others, and whose objects are empty."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (tuple,), {"__new__": lambda cls, *_, **__: tuple.__new__(cls)})


def import_without(library: str, *unused: str) -> None:
    """Import it while stand-ins take the place of `unused`, unless they have been imported already."""
    stand_ins = {name: _StandIn(name) for name in unused if name not in sys.modules}
    if library in sys.modules or not stand_ins:
        return
    sys.modules.update(stand_ins)
    try:
        import_module(library)
    finally:
        for name in stand_ins:
            del sys.modules[name]


if "rich" not in sys.modules and "structlog" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment] # importing it then fails
    import structlog  # noqa: F401 - detects that rich is missing

    del sys.modules["rich"]

import_without("pydantic.plugin._loader", "importlib.metadata")
