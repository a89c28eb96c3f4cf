"""Certificates: what is made is good for its names, what is read is judged, and the key of the authority is gone."""

import base64
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from support.rows import rows

from controller.webhook.certificates import (
    Lifetimes,
    ServingCertificate,
    certificate_in,
    has_expired,
    is_due,
    new_certificate,
    pem_blocks,
    secret_data,
)
from controller.webhook.review_server import tls_context
from dra_driver.api.meta import JsonObject
from dra_driver.errors import InvalidInput

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NAMES = ("webhook.gpu-dra.svc", "127.0.0.1")
MADE = new_certificate(NAMES, NOW, Lifetimes())


def secret(**changes: str | None) -> JsonObject:
    data = secret_data(MADE)
    for key, text in changes.items():
        data[key.replace("_", ".")] = None if text is None else base64.b64encode(text.encode()).decode()
    return {"data": data}


def test_what_is_made_can_be_kept_in_a_secret_and_read_again() -> None:
    assert certificate_in(secret(), "Secret x") == MADE


def test_it_is_good_for_its_names_from_a_little_before_now_until_its_time_is_over() -> None:
    assert MADE.since < NOW and MADE.until == NOW + Lifetimes().whole
    assert MADE.problem(NAMES, NOW) is None
    assert MADE.problem(("other.svc",), NOW) == "the certificate is not for other.svc"
    assert MADE.problem(NAMES, MADE.since) is None
    early = MADE.since - timedelta(seconds=1)
    assert MADE.problem(NAMES, early) == "the certificate is valid from 2026-05-01 11:55 on"
    assert MADE.problem(NAMES, MADE.until) == "the certificate has expired at 2026-07-30 12:00"


def test_it_is_signed_by_its_authority_which_can_sign_nothing_below_it_and_whose_key_is_nowhere() -> None:
    leaf, authority = (x509.load_pem_x509_certificate(pem.encode()) for pem in (MADE.chain, MADE.authority[0]))
    leaf.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert secret_data(MADE).keys() == {"tls.crt", "tls.key", "ca.crt"}
    other = new_certificate(NAMES, NOW, Lifetimes())
    assert other.authority != MADE.authority and other.key != MADE.key


def test_an_empty_secret_holds_none() -> None:
    assert certificate_in({}, "Secret x") is None
    assert certificate_in({"data": None}, "Secret x") is None
    assert certificate_in({"data": {"tls.crt": "", "tls.key": "", "ca.crt": ""}}, "Secret x") is None


OTHER = new_certificate(NAMES, NOW, Lifetimes())
DAMAGED: dict[str, tuple[JsonObject, str]] = {
    "no authority": (secret(ca_crt=None), "there is no ca.crt; the issuer must provide its authority"),
    "an empty authority": (secret(ca_crt="\n"), "there is no certificate in ca.crt"),
    "no key": (secret(tls_key=None), "there is no tls.key"),
    "another's key": (secret(tls_key=OTHER.key), "the key does not match the certificate"),
    "no certificate": (secret(tls_crt="hello"), "certificate or key cannot be read"),
    "no key in it": (secret(tls_key="hello"), "certificate or key cannot be read"),
    "not base64": ({"data": {**secret_data(MADE), "tls.crt": "%"}}, "tls.crt is not PEM"),
    "a number": ({"data": {**secret_data(MADE), "tls.crt": 1}}, "there is no tls.crt"),
    "a broken authority": (
        secret(ca_crt="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        "certificate or key cannot be read",
    ),
}


@rows("stored, why", DAMAGED.values())
def test_a_damaged_secret_is_named(stored: JsonObject, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        certificate_in(stored, "Secret gpu-dra/webhook")
    assert caught.value.message.startswith(why) and caught.value.about == "Secret gpu-dra/webhook"


def test_a_new_one_is_due_a_third_of_its_life_before_the_end() -> None:
    times = Lifetimes()
    assert not is_due(MADE, NAMES, NOW, times)
    assert not is_due(MADE, NAMES, MADE.since + times.renewed_after - timedelta(seconds=1), times)
    assert is_due(MADE, NAMES, MADE.since + times.renewed_after, times)
    assert is_due(MADE, NAMES, MADE.since - timedelta(days=365), times), "made while a clock was ahead"
    assert MADE.until - (MADE.since + times.renewed_after) >= timedelta(days=30)


@pytest.mark.parametrize(
    ("certificate", "names"), [(None, NAMES), (MADE, ("renamed.svc",))], ids=["there is none", "it is for other names"]
)
def test_a_new_one_is_due_at_once_where_there_is_none_that_will_do(
    certificate: ServingCertificate | None, names: tuple[str, ...]
) -> None:
    assert is_due(certificate, names, NOW, Lifetimes())


def test_authorities_are_told_apart_and_expire() -> None:
    assert pem_blocks(f"x\n{MADE.authority[0]}\ny\n{OTHER.authority[0]}") == [*MADE.authority, *OTHER.authority]
    assert not has_expired(MADE.authority[0], NOW)
    assert has_expired(MADE.authority[0], MADE.until)
    assert has_expired("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", NOW)


def test_a_server_can_be_made_of_it() -> None:
    context = tls_context(MADE)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        tls_context(ServingCertificate(MADE.chain, OTHER.key, MADE.authority, MADE.names, MADE.since, MADE.until))
