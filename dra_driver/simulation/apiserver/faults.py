"""Failures on demand, and records of writes and of permissions used: what tests and benchmarks ask the server for."""

import re
from dataclasses import dataclass

from dra_driver.apirules.status import ApiError


@dataclass(frozen=True, slots=True)
class Write:
    """One write request that reached the server. `verb` is Kubernetes' word (create, update, patch, delete)."""

    method: str
    path: str
    user_agent: str
    verb: str
    resource: str
    """Plural, with `/subresource` when one was addressed."""
    status: int


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody did to some type: what RBAC would have had to allow. `verb` is one of RBAC's."""

    user_agent: str
    verb: str
    group: str
    resource: str
    """Plural, with `/subresource` when one was addressed."""
    namespace: str | None
    """None for types without namespaces, and for all namespaces at once."""
    name: str | None
    """None where the request named no object: for all of them at once, and for one that is created."""


@dataclass
class Fault:
    """The next `times` requests that match are answered with `status` instead of being handled."""

    method: str
    path: re.Pattern[str]
    status: int
    times: int
    message: str
    retry_after_s: int | None

    def error(self) -> ApiError:
        details = {} if self.retry_after_s is None else {"retryAfterSeconds": self.retry_after_s}
        return ApiError(self.status, self.message or "injected failure", details=details)


class Faults:
    """Open faults, oldest first."""

    def __init__(self) -> None:
        self._open: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._open.append(fault)

    def clear(self) -> None:
        self._open.clear()

    def take(self, method: str, path: str) -> Fault | None:
        """The first fault that matches, used up by one."""
        for fault in self._open:
            if fault.method in ("*", method) and fault.path.search(path):
                fault.times -= 1
                if fault.times <= 0:
                    self._open.remove(fault)
                return fault
        return None
