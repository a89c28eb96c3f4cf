"""Addresses of the pods of a simulated cluster, at which their processes really listen and find each other.

They are loopback addresses, of which Linux has 16 million that need no setup. Each cluster holds a part of
them for itself, so two clusters on one machine do not meet. A system that has 127.0.0.1 alone gives it to every pod:
pods that do not listen still work, and of IMEX daemons only one finds its port free.
"""

import random
import socket
from types import TracebackType
from typing import Self

_GUARD_PORT = 50000
"""Taken at the last address of a part by the cluster that has it."""
_ATTEMPTS = 100


class PodAddresses:
    """Hands out addresses, each once. Enter it before, and leave it after the last process has ended."""

    def __init__(self) -> None:
        self._part: int | None = None
        self._next = 0
        self._guard: socket.socket | None = None

    def __enter__(self) -> Self:
        for _ in range(_ATTEMPTS):
            part = random.randint(16, 254)
            guard = socket.socket()
            try:
                guard.bind((f"127.{part}.255.254", _GUARD_PORT))
            except OSError:
                guard.close()
                continue
            self._part, self._guard = part, guard
            break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._guard is not None:
            self._guard.close()

    def new(self) -> str:
        if self._part is None:
            return "127.0.0.1"
        self._next += 1
        return f"127.{self._part}.{self._next // 250 % 255}.{self._next % 250 + 1}"
