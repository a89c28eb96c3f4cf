"""What a connection to an API server needs: its address, whom to trust, and what to say who we are."""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from dra_driver.errors import Unreachable

_log = structlog.get_logger(__name__)

type _Signature = tuple[tuple[int, int] | None, ...]


def _no_token() -> str | None:
    return None


@dataclass(frozen=True)
class Endpoint:
    """`token` answers the Authorization header's value, or None; it is asked for every request, for tokens expire.

    `tls` is None for plain HTTP; `TlsFiles` for certificates that may be replaced. `proxy` is the URL of an HTTP proxy.
    `server_name` is the name that the server's certificate must have; None for the host of the address.
    """

    server: str
    tls: "ssl.SSLContext | TlsFiles | None" = None
    token: Callable[[], str | None] = _no_token
    proxy: str | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """What a connection that begins now trusts."""
        return self.tls.context() if isinstance(self.tls, TlsFiles) else self.tls


def trusting(authorities: str | None) -> ssl.SSLContext:
    """A context that trusts the certificates in `authorities` (PEM), or those of the system."""
    context = ssl.create_default_context(cadata=authorities)
    # Python 3.13 refuses certificate authorities without key usage or key identifiers, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class TlsFiles:
    """Certificates in files, read again when one of them is replaced: a cluster may rotate its authority.

    `make` reads them; what it raises, it raises at once. Files that are bad later leave the context as it was.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], ssl.SSLContext]) -> None:
        self._files = tuple(files)
        self._make = make
        self._seen = self._signature()
        self._context = make()

    def context(self) -> ssl.SSLContext:
        if (seen := self._signature()) != self._seen:
            self._seen = seen
            try:
                self._context = self._make()
            except (OSError, ValueError) as error:
                _log.warning(
                    "the certificates of the API server cannot be read again; those read before stay in use",
                    files=[str(file) for file in self._files],
                    error=str(error),
                )
        return self._context

    def _signature(self) -> _Signature:
        return tuple(map(_signature_of, self._files))


def _signature_of(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


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
