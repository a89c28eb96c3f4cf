"""Which certificate a replica serves: the newest one that the API server is known to trust. Pure; time is given.

A certificate can be there before the API server has been told of its authority, for another replica may have made it,
or cert-manager. Until then the one before is served on, and a replica that has none yet does not count as ready.
"""

from collections.abc import Collection
from dataclasses import dataclass

from controller.webhook.certificates import ServingCertificate


@dataclass(frozen=True, slots=True)
class Told:
    """What the API server was told, as this replica sees it. `armed`: it asks about everybody's objects."""

    armed: bool
    trusted: Collection[str]


@dataclass(frozen=True, slots=True)
class Served:
    """`current` is what connections get, None while there is nothing. `waiting` is the next one, which the API server
    was told of at `told_at`, in seconds of a monotonic clock; None while it was not."""

    current: ServingCertificate | None = None
    waiting: ServingCertificate | None = None
    told_at: float | None = None

    def seen(self, offered: ServingCertificate | None, told: Told, clock: float, settle_s: float) -> "Served":
        """After a look at the Secret and the configuration. `settle_s` is how long API servers take to hear of what was
        written, by their own watches."""
        if offered is None or offered == self.current:
            return Served(self.current)
        if not told.armed:
            return Served(offered)
        if not set(offered.authority) <= set(told.trusted):
            return Served(self.current, offered)
        told_at = self.told_at if offered == self.waiting and self.told_at is not None else clock
        return Served(offered) if clock - told_at >= settle_s else Served(self.current, offered, told_at)

    def wait_s(self, clock: float, settle_s: float) -> float | None:
        """Until another look changes something by itself; None: only news can."""
        return None if self.told_at is None else max(0.0, self.told_at + settle_s - clock)

    def problem(self) -> str | None:
        """Why the API server cannot be answered, or None."""
        if self.current is not None:
            return None
        if self.waiting is not None:
            return "the API server does not trust the certificate yet"
        return "there is no certificate yet"
