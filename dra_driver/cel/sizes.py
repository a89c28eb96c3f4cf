"""How large texts, lists and maps can be, as the API server assumes it: from nothing to 2**64 - 1.

What the device can be at most is declared (`device_size`); everything else whose size nothing is known about is taken
to be infinitely large. Source: k8s.io/dynamic-resource-allocation, and cel-go's checker.
"""

import math
from dataclasses import dataclass

INFINITE = 2**64 - 1

type Path = tuple[str, ...]
"""A variable and the way from it; `@items`, `@keys`, `@values` are what is in lists and maps."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long a text, list or map can be."""

    least: int
    most: int

    def __add__(self, other: "Size") -> "Size":
        return Size(within(self.least + other.least), within(self.most + other.most))

    def __mul__(self, other: "Size") -> "Size":
        return Size(within(self.least * other.least), within(self.most * other.most))

    def __or__(self, other: "Size") -> "Size":
        return Size(min(self.least, other.least), max(self.most, other.most))


UNKNOWN, NONE = Size(0, INFINITE), Size(0, 0)


def fixed(length: int) -> Size:
    return Size(length, length)


def device_size(path: Path) -> Size | None:
    """How large a part of `device` can be; None for what is not part of it or has no declared size."""
    match path:
        case ("device", "driver"):
            return Size(0, 63)
        case ("device", "allowMultipleAllocations"):
            return Size(0, 1)
        case ("device", "attributes" | "capacity") | ("device", "attributes" | "capacity", "@values"):
            return Size(0, 32)
        case ("device", "attributes" | "capacity", "@keys"):
            return Size(0, 63)
        case ("device", "attributes" | "capacity", "@values", "@keys"):
            return Size(0, 32)
        case ("device", "capacity", "@values", "@values"):
            return NONE
        case ("device", "attributes", "@values", name) if not name.startswith("@") or name == "@values":
            return Size(0, 64)
    return None


def within(amount: int) -> int:
    """No more than infinite."""
    return min(amount, INFINITE)


def part(amount: int, factor: float) -> int:
    """`factor` of an amount, rounded up."""
    return within(math.ceil(float(amount) * factor))


@dataclass(frozen=True, slots=True)
class Inside:
    """The sizes of what is in a list or map; keys of a list are its indices."""

    keys: Size
    items: Size

    def __or__(self, other: "Inside") -> "Inside":
        return Inside(self.keys | other.keys, self.items | other.items)
