"""What cert-manager does to a Secret: certificates of an authority, in the encodings and with the marks that it uses.

cert-manager itself is not here. It applies the whole Secret at once, keeps the authority while leaves are renewed, and
when the authority is renewed, leaves stay as they are until their own time comes.
"""

import base64
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

type _Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

_DAY = timedelta(days=1)


class Issuer:
    """An authority: `root`, and with `intermediate` one below it that signs the leaves."""

    def __init__(self, name: str, *, intermediate: bool = False, rsa_leaves: bool = False) -> None:
        self._rsa = rsa_leaves
        self._root_key = ec.generate_private_key(ec.SECP256R1())
        self.root = _signed(name, name, self._root_key, self._root_key, authority=True)
        self._signer, self._signer_name, self._chain = self._root_key, name, []
        if intermediate:
            self._signer, self._signer_name = ec.generate_private_key(ec.SECP256R1()), f"{name} below"
            self._chain = [_signed(name, self._signer_name, self._root_key, self._signer, authority=True)]

    def secret(self, name: str, address: str) -> dict[str, Any]:
        """The Secret with a leaf for `address`, which nobody has had before."""
        key: _Key = rsa.generate_private_key(65537, 2048) if self._rsa else ec.generate_private_key(ec.SECP256R1())
        leaf = _signed(self._signer_name, "leaf", self._signer, key, address=address)
        texts = {
            "tls.crt": "".join(_pem(certificate) for certificate in (leaf, *self._chain)),
            # "BEGIN RSA PRIVATE KEY" or "BEGIN EC PRIVATE KEY": PKCS1 is the encoding when nothing else is asked for.
            "tls.key": key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode(),
            "ca.crt": _pem(self.root),
        }
        marks = {"cert-manager.io/certificate-name": name, "cert-manager.io/ip-sans": address}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": name, "annotations": marks, "labels": {"controller.cert-manager.io/fao": "true"}},
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
        }


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _signed(
    issuer: str, subject: str, signer: Any, key: _Key, *, authority: bool = False, address: str = ""
) -> x509.Certificate:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        _named(issuer), _named(subject), key.public_key(), x509.random_serial_number(), now - _DAY, now + 90 * _DAY
    )
    made = made.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    made = made.add_extension(_usage(authority), critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = made.add_extension(signed_by, critical=False)
    if address:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        made = made.add_extension(names, critical=False)
    return made.sign(signer, hashes.SHA256())


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(authority: bool) -> x509.KeyUsage:
    """Digital signature and key encipherment, which everybody gets who asks for nothing; authorities sign, too."""
    no = dict.fromkeys(
        ("crl_sign", "content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
        False,
    )
    return x509.KeyUsage(digital_signature=True, key_encipherment=True, key_cert_sign=authority, **no)
