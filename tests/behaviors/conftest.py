"""A folder for the tests of this one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plugin import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for unix sockets."""
    with short_folder() as path:
        yield path
