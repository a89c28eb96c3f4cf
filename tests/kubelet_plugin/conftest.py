"""Fixtures of the tests of the node plugin."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plugin import short_folder
from support.prepared import Bench


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for unix sockets."""
    with short_folder() as path:
        yield path


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
