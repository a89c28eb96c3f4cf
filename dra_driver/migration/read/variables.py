"""Environment variables of containers, and the one by which the NVIDIA runtime hands in GPUs. Pure."""

from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import ContainerAt, Path

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NONE_VISIBLE = ("none", "void", "")


@dataclass(frozen=True, slots=True)
class Variable:
    """`value` None: it comes from elsewhere."""

    value: str | None
    path: Path


def variables(container: ContainerAt) -> dict[str, Variable]:
    env = container.obj.get("env")
    found = {}
    for index, one in enumerate(env if isinstance(env, list) else ()):
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            value = one.get("value")
            text = None if "valueFrom" in one else "" if value is None else str(value)
            found[one["name"]] = Variable(text, (*container.path, "env", index))
    return found


def sees_all(container: ContainerAt) -> bool:
    """Whether the NVIDIA runtime hands in GPUs that nobody accounts for."""
    variable = variables(container).get(VISIBLE)
    return variable is not None and variable.value not in (None, *NONE_VISIBLE)


def items(value: object) -> list[JsonObject]:
    """Of a list of objects; what is none is empty, so that positions stay."""
    return [one if isinstance(one, dict) else {} for one in value] if isinstance(value, list) else []
