"""Fixtures that every test may ask for."""

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

# A slow machine is no failure of the product. HYPOTHESIS_PROFILE=thorough tries four times as much.
settings.register_profile("repository", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repository"))

pytest_plugins = ["support.cluster", "support.processes"]


@pytest.fixture(autouse=True)
def logging_of_its_own() -> Iterator[None]:
    """A command that a test runs in this process logs to the test's streams, which are closed afterwards."""
    yield
    structlog.reset_defaults()
