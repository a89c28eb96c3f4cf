"""Which certificate a replica serves: the newest one that the API server is known to trust. Pure; time is a parameter.

A new certificate can exist before the API server trusts its authority, because another replica or cert-manager may have
created it. Until then the replica serves the previous one; a replica without any is not ready.
"""

from collections.abc import Collection
from dataclasses import dataclass

from controller.webhook.certificates import ServingCertificate


@dataclass(frozen=True, slots=True)
class ServerTrust:
    """The webhook configuration as this replica sees it. `armed`: the API server calls the webhook for all objects."""

    armed: bool
    trusted: Collection[str]


@dataclass(frozen=True, slots=True)
class Served:
    """`current` is served to connections; None if there is none. `waiting` is the next one. `told_at`: when its
    authority was written to the configuration, in seconds of a monotonic clock; None if it was not yet."""

    current: ServingCertificate | None = None
    waiting: ServingCertificate | None = None
    told_at: float | None = None

    def seen(
        self, offered: ServingCertificate | None, server_trust: ServerTrust, clock: float, settle_s: float
    ) -> "Served":
        """The state after a read of the Secret and the configuration. `settle_s`: how long API servers' own watches
        take to receive a change."""
        if offered is None or offered == self.current:
            return Served(self.current)
        if not server_trust.armed:
            return Served(offered)
        if not set(offered.authority) <= set(server_trust.trusted):
            return Served(self.current, offered)
        told_at = self.told_at if offered == self.waiting and self.told_at is not None else clock
        return Served(offered) if clock - told_at >= settle_s else Served(self.current, offered, told_at)

    def wait_s(self, clock: float, settle_s: float) -> float | None:
        """Time until another call can change the state; None: only a change of the objects can."""
        return None if self.told_at is None else max(0.0, self.told_at + settle_s - clock)

    def problem(self) -> str | None:
        """Why this replica cannot serve the API server, or None."""
        if self.current is not None:
            return None
        if self.waiting is not None:
            return "the API server does not trust the certificate yet"
        return "there is no certificate yet"
