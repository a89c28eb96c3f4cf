"""Fixture for tests with real plugin processes: one process that forks them, for the whole run."""

from collections.abc import Iterator

import pytest
from support.plugin_process import PluginForks


@pytest.fixture(scope="session")
def forks() -> Iterator[PluginForks]:
    with PluginForks() as started:
        yield started
