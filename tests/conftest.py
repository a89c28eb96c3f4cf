"""Fixtures that every test may ask for."""

import gc
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest
import structlog
import structlog.dev
from hypothesis import Phase, settings
from support import places

# Also for the programs that tests start. Whoever names a folder means it.
os.environ.setdefault("TMPDIR", places.SHORT)
tempfile.tempdir = None

# Where Helm's library keeps which kinds an API server has; without such a folder it asks for them fifty times in an
# install. From here it reaches workers of a parallel run: the library looks at what its process was started with.
os.environ.setdefault("KUBECACHEDIR", f"{places.SHORT}/gpu-dra-tests-kube-cache")

# A slow machine is no failure of the product. By default every run tries the same, so that a change is judged by what
# it changes, and shows a failing case as it was found: making it smaller can take longer than all tests together.
# `make test-all` tries more (`nightly`); HYPOTHESIS_PROFILE=thorough tries most, something else each time, and makes
# failing cases small.
for name, most in (("repository", 15), ("nightly", 25)):
    settings.register_profile(
        name, deadline=None, max_examples=most, derandomize=True, phases=(Phase.explicit, Phase.generate)
    )
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repository"))

# Thousands of tests are made first, and none goes before the end: nothing to collect meanwhile, nor in them later.
gc.disable()

pytest_plugins = ["support.cluster", "support.processes"]


def pytest_collection_finish() -> None:
    gc.freeze()
    # Every 2,000 objects, as Python has it, is a twentieth of all processor time.
    gc.set_threshold(200_000, 10, 10)
    gc.enable()


# What nobody configured shows each exception in frames and colors, which takes longer than the test.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


@pytest.fixture(autouse=True)
def logging_of_its_own() -> Iterator[None]:
    """A command that a test runs in this process logs to the test's streams, which are closed afterwards."""
    yield
    if structlog.is_configured():
        for module in tuple(sys.modules.values()):
            logger = getattr(module, "_log", None)
            if isinstance(logger, structlog._config.BoundLoggerLazyProxy):
                vars(logger).pop("bind", None)  # what it remembers of the configuration
    structlog.reset_defaults()
