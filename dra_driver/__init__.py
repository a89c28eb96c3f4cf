"""The shared domain of the driver: values, API objects, decisions, and the effects both services use.

For other programs there is `dra_driver.library` (docs/library.md). `dra_driver.__version__` is the release.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """The version is read when it is asked for: each process of the driver imports this package."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version("gpu-dra-driver")
