"""Fixtures that every test may ask for."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

# A slow machine is no failure of the product.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")

pytest_plugins = ["support.cluster", "support.processes"]


@pytest.fixture(autouse=True)
def logging_of_its_own() -> Iterator[None]:
    """A command that a test runs in this process logs to the test's streams, which are closed afterwards."""
    yield
    structlog.reset_defaults()
