"""What a connection to an API server needs: its address, whom to trust, and what to say who we are."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import Unreachable


def _no_token() -> str | None:
    return None


@dataclass(frozen=True)
class Endpoint:
    """`token` answers the Authorization header's value, or None; it is asked for every request, for tokens expire.

    `tls` is None for plain HTTP.
    """

    server: str
    tls: ssl.SSLContext | None = None
    token: Callable[[], str | None] = _no_token


def trusting(authorities: str | None) -> ssl.SSLContext:
    """A context that trusts the certificates in `authorities` (PEM), or those of the system."""
    context = ssl.create_default_context(cadata=authorities)
    # Python 3.13 refuses certificate authorities without key usage or key identifiers, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class TokenFile:
    """A bound service account token; kubelet replaces the file before it expires (hourly)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._header = ""

    def __call__(self) -> str:
        """Raises Unreachable when there is no token to be read."""
        try:
            stat = self._path.stat()
            if (seen := (stat.st_mtime_ns, stat.st_ino)) != self._seen:
                self._header = f"Bearer {self._path.read_text().strip()}"
                self._seen = seen
        except OSError as error:
            raise Unreachable(f"cannot read the token: {error}", about="API server") from error
        return self._header
