"""Amounts of counters and capacities, and what a request takes of a capacity under its policy. Pure.

Source: CapacityRequestPolicy of resource.k8s.io/v1; consumable capacity of the structured allocator.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

from dra_driver.allocation.behavior import Behavior
from dra_driver.api.resource import Capacity
from dra_driver.quantity import Quantity

type Amount = int | Fraction
"""A quantity's value; an int whenever it is whole, because most are and ints are quick."""


@lru_cache(maxsize=65536)
def amount(text: str) -> Amount:
    """Raises ValueError for text that is no quantity; the API server stores none."""
    return amount_of(Quantity.parse(text))


def amount_of(quantity: Quantity) -> Amount:
    return int(quantity.value) if quantity.value.denominator == 1 else quantity.value


def consumed(requested: str | None, capacity: Capacity, behavior: Behavior) -> Quantity | None:
    """What a share takes of a capacity; None when the policy has no value that is large enough.

    `requested` None is a claim that does not name the capacity: it takes the default, or everything.
    """
    policy = capacity.request_policy or {}
    if requested is None:
        return Quantity.parse(policy.get("default") or capacity.value)
    if valid := policy.get("validRange"):
        return _in_range(Quantity.parse(requested), valid, behavior)
    if values := policy.get("validValues"):
        return next((item for item in map(Quantity.parse, values) if item >= Quantity.parse(requested)), None)
    return Quantity.parse(requested)


def most(capacity: Capacity) -> str:
    """The largest amount that the policy gives to one claim; all of it without a policy."""
    policy = capacity.request_policy or {}
    highest = (policy.get("validRange") or {}).get("max")
    given: list[str] = [*(policy.get("validValues") or ()), *([highest] if highest else [])]
    return min(capacity.value, max(given, key=Quantity.parse), key=Quantity.parse) if given else capacity.value


def _in_range(requested: Quantity, valid: Mapping[str, Any], behavior: Behavior) -> Quantity | None:
    """Up to the next step from the minimum; None beyond the maximum."""
    amount, least = requested, Quantity.parse(valid["min"])
    if requested < least:
        amount = least
    elif step := valid.get("step"):
        amount = _stepped(requested, least, Quantity.parse(step), behavior)
    return None if "max" in valid and amount > Quantity.parse(valid["max"]) else amount


def _stepped(requested: Quantity, least: Quantity, step: Quantity, behavior: Behavior) -> Quantity:
    wanted, first, each = amount_of(requested), amount_of(least), amount_of(step)
    if not behavior.fractional_steps:
        # Whole numbers, rounded up: that is how the scheduler reads them.
        wanted, first, each = ceil(wanted), ceil(first), ceil(each)
    return Quantity(Fraction(first - each * ((first - wanted) // each)), "BinarySI")
