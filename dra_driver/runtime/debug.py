"""The debug page of a service: what its tasks and threads are doing now, and whatever else its owner shows.

It is served only where a setting asks for it: it names claims and shows the inside of the process.
"""

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

type Section = Callable[[], Iterable[str]]
"""Lines of text; called for each look at the page, in the event loop."""

_DEEPEST = 8
"""Functions of a stack that are shown, the innermost."""


def debug_page(sections: Mapping[str, Section]) -> str:
    """All sections with their headings, then the stacks. A section that fails says so, and keeps nothing back."""
    text = io.StringIO()
    for title, section in {**sections, "tasks": task_stacks, "threads": thread_stacks}.items():
        text.write(f"== {title}\n")
        try:
            lines = list(section())
        except Exception as error:  # noqa: BLE001 - whatever is wrong is what somebody is looking for
            lines = [f"cannot be shown: {error!r}"]
        text.writelines(f"{line}\n" for line in lines or ["(none)"])
        text.write("\n")
    return text.getvalue()


def task_stacks() -> Iterable[str]:
    """Of all tasks of the event loop, by name: where each waits.

    Not as tasks print themselves: they show the outermost function alone, and fail on those of compiled modules (gRPC),
    which know no line.
    """
    for task in sorted(asyncio.all_tasks(), key=lambda one: one.get_name()):
        yield f"{task.get_name()}:"
        places = [
            traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            for frame in _awaited(task.get_coro())
        ]
        yield from "".join(traceback.format_list(places[-_DEEPEST:])).splitlines()


def _awaited(waits: Any) -> Iterator[FrameType]:
    """From a task's coroutine to the innermost that it awaits, as far as they tell."""
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None)
        if frame is not None:
            yield frame
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None)


def thread_stacks() -> Iterable[str]:
    """Of all threads, by name."""
    frames = sys._current_frames()
    for thread in sorted(threading.enumerate(), key=lambda one: one.name):
        yield f"{thread.name}:"
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            yield from "".join(traceback.format_stack(frame, limit=_DEEPEST)).splitlines()
