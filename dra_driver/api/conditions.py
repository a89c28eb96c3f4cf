"""Conditions of the driver's custom objects, in the form of Kubernetes' own."""

from collections.abc import Iterable
from typing import Literal

from dra_driver.api.meta import Model


class Condition(Model):
    """One statement about an object."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: str
    """RFC 3339, UTC, seconds: when `status` last changed."""
    observed_generation: int | None = None


def dated(condition: Condition, before: Iterable[Condition]) -> Condition:
    """With the transition time of the condition of this type in `before`, if its status is the same."""
    known = next((old for old in before if old.type == condition.type and old.status == condition.status), None)
    return (
        condition
        if known is None
        else condition.model_copy(update={"last_transition_time": known.last_transition_time})
    )
