"""Something that runs beside a test."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background(*coroutines: Coroutine[Any, Any, Any]) -> AsyncIterator[tuple["asyncio.Task[Any]", ...]]:
    """As tasks, until the block ends; how they end does not matter."""
    tasks = tuple(map(asyncio.create_task, coroutines))
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
