"""Reads, checks and issues certificates of the webhook. Pure except for the randomness of new keys; time is a
parameter.

All certificates have the same form: three PEM texts, `tls.crt`, `tls.key` and `ca.crt`, as cert-manager writes them
into a Secret. If the controller issues them, every certificate has its own authority, whose key is discarded at once,
so that nothing can sign another certificate that the API server would trust.
"""

import base64
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import value_at
from dra_driver.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, DNSName, IPAddress, KeyUsage

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"

_CLOCKS_DIFFER = timedelta(minutes=5)
"""A certificate is valid from a little before its creation, because clocks of nodes differ."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """`whole`: the validity of a certificate. `renewed_after`: its age when it is renewed."""

    whole: timedelta = timedelta(days=90)
    renewed_after: timedelta = timedelta(days=60)


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate with its matching key. `authority` is one or more certificates, PEM."""

    chain: str
    key: str
    authority: tuple[str, ...]
    names: frozenset[str]
    """Its DNS names and addresses."""
    since: datetime
    until: datetime

    def problem(self, names: Iterable[str], now: datetime) -> str | None:
        """Why the API server would not accept it for all of these names, or None."""
        missing = sorted(set(names) - self.names)
        if missing:
            return f"the certificate is not for {', '.join(missing)}"
        if now < self.since:
            return f"the certificate is valid from {self.since:%Y-%m-%d %H:%M} on"  # issued while a clock was ahead
        if now >= self.until:
            return f"the certificate has expired at {self.until:%Y-%m-%d %H:%M}"
        return None


def certificate_in(secret: Mapping[str, object], about: str) -> ServingCertificate | None:
    """The content of a Secret; None if it is empty, as the chart creates it. Raises InvalidInput if it is damaged."""
    texts = {key: _decoded(secret, key, about) for key in (CERTIFICATE, KEY, AUTHORITY)}
    if not any(texts.values()):
        return None
    for key, text in texts.items():
        if not text:
            why = "; the issuer must provide its authority" if key == AUTHORITY else ""
            raise InvalidInput(f"there is no {key}{why}", about=about)
    return _checked(texts[CERTIFICATE], texts[KEY], texts[AUTHORITY], about)


def _decoded(secret: Mapping[str, object], key: str, about: str) -> str:
    value = value_at(secret, ("data", key))
    try:
        return base64.b64decode(value, validate=True).decode("ascii") if isinstance(value, str) else ""
    except ValueError as error:
        raise InvalidInput(f"{key} is not PEM", about=about) from error


def _checked(chain: str, key: str, authority: str, about: str) -> ServingCertificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        leaf, *_ = x509.load_pem_x509_certificates(chain.encode())
        private = load_pem_private_key(key.encode(), password=None)
        authorities = tuple(pem_blocks(authority))
        for item in authorities:
            x509.load_pem_x509_certificate(item.encode())
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"certificate or key cannot be read: {error}", about=about) from error
    if private.public_key() != leaf.public_key():
        raise InvalidInput("the key does not match the certificate", about=about)
    if not authorities:
        raise InvalidInput(f"there is no certificate in {AUTHORITY}", about=about)
    return ServingCertificate(
        chain, key, authorities, _names_of(leaf), leaf.not_valid_before_utc, leaf.not_valid_after_utc
    )


def _names_of(leaf: "Certificate") -> frozenset[str]:
    from cryptography import x509

    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return frozenset((*names.get_values_for_type(x509.DNSName), *addresses))


def secret_data(certificate: ServingCertificate) -> JsonObject:
    """The `data` of its Secret."""
    authority = "\n".join(certificate.authority) + "\n"
    texts = {CERTIFICATE: certificate.chain, KEY: certificate.key, AUTHORITY: authority}
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


def is_due(certificate: ServingCertificate | None, names: Iterable[str], now: datetime, times: Lifetimes) -> bool:
    """Whether to issue a new one: there is none, it is not valid for the names, or it is due for renewal."""
    if certificate is None or certificate.problem(names, now) is not None:
        return True
    return now >= certificate.since + times.renewed_after


def new_certificate(names: Sequence[str], now: datetime, times: Lifetimes) -> ServingCertificate:
    """With its own authority. `names` are DNS names or addresses; the first one is the subject. Takes some
    milliseconds."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    since, until = (now - _CLOCKS_DIFFER).replace(microsecond=0), (now + times.whole).replace(microsecond=0)
    signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # A unique number, because nothing else distinguishes two authorities with the same name and different keys.
    serial = x509.random_serial_number()
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpu-dra webhook authority {serial:x}"[:64])])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    authority = (
        x509.CertificateBuilder(issuer, issuer, signer.public_key(), serial, since, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    leaf = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), since, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative, names))), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    chain, trusted = (item.public_bytes(Encoding.PEM).decode() for item in (leaf, authority))
    return ServingCertificate(chain, secret, (trusted.strip(),), frozenset(names), since, until)


def _alternative(name: str) -> "DNSName | IPAddress":
    from cryptography.x509 import DNSName, IPAddress

    try:
        return IPAddress(ip_address(name))
    except ValueError:
        return DNSName(name)


def _usage(*, signs: bool) -> "KeyUsage":
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


# -- authorities


def pem_blocks(text: str) -> list[str]:
    """The certificates in a text, one PEM text each."""
    return [match[0] for match in _PEM.finditer(text)]


def has_expired(pem: str, now: datetime) -> bool:
    """Whether an authority has expired or is not a certificate."""
    from cryptography import x509

    try:
        return now >= x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    except ValueError:
        return True


# -- which certificate a replica serves: the newest one that the API server is known to trust. A new one can exist
# before the API server trusts its authority, because another replica or cert-manager may have created it. Until then
# the replica serves the previous one; a replica without any is not ready.


@dataclass(frozen=True, slots=True)
class Served:
    """`current` is served to connections; None if there is none. `waiting` is the next one. `trusted_since`: when its
    authority was written to the configuration, in seconds of a monotonic clock; None if it was not yet."""

    current: ServingCertificate | None = None
    waiting: ServingCertificate | None = None
    trusted_since: float | None = None

    def seen(
        self, offered: ServingCertificate | None, trusted: Collection[str] | None, clock: float, settle_s: float
    ) -> "Served":
        """The state after a read of the Secret and the configuration. `trusted` are the authorities in the
        configuration; None: the API server does not call the webhook for all objects yet. `settle_s`: how long API
        servers' own watches take to receive a change."""
        if offered is None or offered == self.current:
            return Served(self.current)
        if trusted is None:
            return Served(offered)
        if not set(offered.authority) <= set(trusted):
            return Served(self.current, offered)
        trusted_since = self.trusted_since if offered == self.waiting and self.trusted_since is not None else clock
        return Served(offered) if clock - trusted_since >= settle_s else Served(self.current, offered, trusted_since)

    def wait_s(self, clock: float, settle_s: float) -> float | None:
        """Time until another call can change the state; None: only a change of the objects can."""
        return None if self.trusted_since is None else max(0.0, self.trusted_since + settle_s - clock)

    def problem(self) -> str | None:
        """Why this replica cannot serve the API server, or None."""
        if self.current is not None:
            return None
        if self.waiting is not None:
            return "the API server does not trust the certificate yet"
        return "there is no certificate yet"
