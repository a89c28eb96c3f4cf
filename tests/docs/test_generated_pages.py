"""docs/metrics.md says what both processes tell Prometheus, docs/events.md what the plugin tells as Events."""

import pytest

from docs import generate


@pytest.mark.parametrize("name", generate.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (generate.FOLDER / name).read_text() == generate.PAGES[name](), "run `make generate`"


def test_every_family_has_a_meaning_and_our_prefix_or_that_of_nvidias_driver() -> None:
    for family in (*generate.plugin_families(), *generate.publisher_families()):
        assert family.meaning.endswith("."), family
        assert family.name.startswith(("gpu_dra_", "nvidia_dra_")), family
