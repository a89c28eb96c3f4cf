"""Real plugin processes for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plugin import short_folder
from support.plugin_process import PluginForks


@pytest.fixture(scope="session")
def forks() -> Iterator[PluginForks]:
    with PluginForks() as started:
        yield started


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for unix sockets."""
    with short_folder() as path:
        yield path
