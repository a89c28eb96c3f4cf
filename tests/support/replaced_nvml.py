"""Simulated NVML with single functions replaced, for what a driver does that the simulation does not do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from kubelet_plugin.simulation.nvml import SimulatedNvml


class Library(SimulatedNvml):
    """`library.answers["nvmlDeviceGetBrand"] = function`; `calls` are the names of all that was called, in order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers: dict[str, Callable[..., Any]] = {}
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(getattr(pynvml, name, None)):
            self.calls.append(name)
            if name in self.answers:
                return self.answers[name]
        return super().__getattribute__(name)

    def real(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = super().__getattribute__(name)
        return function
