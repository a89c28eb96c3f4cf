"""Lists as tables, the form in which `kubectl get` asks for them: printer columns of built-in and custom types."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column of a custom type."""

    name: str
    type: str
    json_path: str
    priority: int = 0
    description: str = ""
    format: str = ""
