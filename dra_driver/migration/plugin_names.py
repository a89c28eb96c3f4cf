"""Whether the device plugin heeds the names that its configuration chooses: released ones do not, builds of one's own
may.

What nodes offer shows it; where no nodes are known, whether anybody asks for such a name. `surroundings` enters here,
before configurations are read. Pure.
"""

from collections.abc import Collection, Iterator, Sequence

from dra_driver.api.documents import Document
from dra_driver.migration.model import title_of, value_at

_ASKED = ("", "requests.", "limits.")


def heeded(names: Collection[str], nodes: Sequence[Document], others: Sequence[Document]) -> str:
    """What shows that they are, as a sentence; empty: they are not. `others` are documents that may ask for them."""
    if not names:
        return ""
    offering = [(node, set(_offered(node))) for node in nodes]
    if any(offered for _, offered in offering):
        found = ((title_of(node), sorted(offered & set(names))) for node, offered in offering)
        return next((f"{title} has {asked[0]}" for title, asked in found if asked), "")
    keys = {f"{prefix}{name}": name for name in sorted(names) for prefix in _ASKED}
    for document in others:
        asked = next((keys[key] for text in _texts(document.obj) for key in _keys(text, keys)), None)
        if asked is not None:
            return f"{title_of(document)} asks for {asked}"
    return ""


def _keys(text: str, keys: Collection[str]) -> Iterator[str]:
    """Manifests may be in manifests as text, and what was migrated remembers in an annotation what it asked for."""
    if text in keys:
        yield text
    elif "\n" in text or text.startswith("["):
        yield from (key for key in keys if key in text)


def _offered(node: Document) -> Iterator[str]:
    allocatable = value_at(node.obj, ("status", "allocatable"))
    yield from (str(name) for name in allocatable or () if str(name).startswith("nvidia.com/"))


def _texts(value: object) -> Iterator[str]:
    """Keys and strings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
