"""Things by what they have in common. Pure."""

from collections.abc import Callable, Iterable


def grouped[T, K](items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """By key; keys and items stay in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
