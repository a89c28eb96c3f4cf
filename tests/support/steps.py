"""Work counted, not timed: how often something is called, of ours, of a library or of C, and how often a loop goes
round. The same on every machine."""

import sys
from collections.abc import Callable
from typing import Any

_EVENTS = sys.monitoring.events
_COUNTED = (_EVENTS.CALL, _EVENTS.PY_RESUME, _EVENTS.JUMP)


def steps(work: Callable[[], object]) -> int:
    """Also each step of a generator and of a comprehension. Loops of C are not counted."""
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1

    tool = sys.monitoring.PROFILER_ID
    sys.monitoring.use_tool_id(tool, "steps")
    try:
        for event in _COUNTED:
            sys.monitoring.register_callback(tool, event, counted)
        sys.monitoring.set_events(tool, sum(_COUNTED))
        work()
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    return count
