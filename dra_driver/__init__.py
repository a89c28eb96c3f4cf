"""The shared domain of the driver: values, API objects, decisions, and the effects both services use.

For other programs there is `dra_driver.library` (docs/library.md). `dra_driver.__version__` is the release.
"""

__version__ = "0.1.0"
