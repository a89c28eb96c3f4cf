"""The operators of selectors, for labels of nodes, fields of nodes and policies. Pure.

Source: core/v1 NodeSelectorRequirement and meta/v1 LabelSelectorRequirement.
"""

import re
from collections.abc import Iterable

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


def requirement_holds(operator: str, value: str | None, wanted: Iterable[str]) -> bool:
    """`value` None: the label is missing. An unknown operator, or a bound that is not a number, selects nothing."""
    values = tuple(wanted)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and len(values) == 1:
            if not (_WHOLE_NUMBER.fullmatch(value) and _WHOLE_NUMBER.fullmatch(values[0])):
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False
