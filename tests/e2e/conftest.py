"""Fixtures for tests of the chart on a real cluster."""

from collections.abc import Iterator

import pytest
from support.helm import Helm
from support.real_chart import bring_image, room_for_a_release


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of the tree as it is, on the node."""
    bring_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def helm(image: None) -> Iterator[Helm]:
    """Helm, with an empty namespace to install into."""
    with room_for_a_release() as helm:
        yield helm
