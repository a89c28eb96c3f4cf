"""The debug page of a service: what its tasks and threads are doing now, and whatever else its owner shows.

It is served only where a setting asks for it: it names claims and shows the inside of the process.
"""

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping

type Section = Callable[[], Iterable[str]]
"""Lines of text; called for each look at the page, in the event loop."""


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
    """Of all tasks of the event loop, by name: where each waits."""
    for task in sorted(asyncio.all_tasks(), key=lambda one: one.get_name()):
        written = io.StringIO()
        task.print_stack(limit=8, file=written)
        yield from written.getvalue().splitlines()


def thread_stacks() -> Iterable[str]:
    """Of all threads, by name."""
    frames = sys._current_frames()
    for thread in sorted(threading.enumerate(), key=lambda one: one.name):
        yield f"{thread.name}:"
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            yield from "".join(traceback.format_stack(frame, limit=8)).splitlines()
