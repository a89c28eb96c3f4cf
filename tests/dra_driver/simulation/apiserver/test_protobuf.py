"""The protobuf bodies that kubectl sends."""

import pytest

from dra_driver.simulation.apiserver.protobuf import decode
from dra_driver.simulation.apiserver.status import ApiError


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(data)]) + data


def envelope(kind: str, message: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, "v1") + field(2, kind)) + field(2, message)


def test_a_config_map() -> None:
    metadata = field(1, "a") + field(3, "ns") + field(11, field(1, "k") + field(2, "v"))
    body = field(1, metadata) + field(2, field(1, "x") + field(2, "1")) + field(4, 1)
    assert decode(envelope("ConfigMap", body)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "ns", "labels": {"k": "v"}},
        "data": {"x": "1"},
        "immutable": True,
    }


def test_the_bytes_of_a_secret_are_base64_in_json() -> None:
    body = field(2, field(1, "k") + field(2, b"\x00\xff"))
    assert decode(envelope("Secret", body))["data"] == {"k": "AP8="}


def test_delete_options() -> None:
    body = field(1, 5) + field(2, field(1, "uid")) + field(4, "Orphan") + field(5, "All")
    decoded = decode(envelope("DeleteOptions", body))
    assert decoded["gracePeriodSeconds"] == 5
    assert (decoded["preconditions"], decoded["propagationPolicy"], decoded["dryRun"]) == (
        {"uid": "uid"},
        "Orphan",
        ["All"],
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{}", 400),
        (envelope("ConfigMap", b"\x0a\x7f"), 400),
        (envelope("ConfigMap", b"\x0a"), 400),
        (envelope("Deployment", b""), 415),
    ],
    ids=["no envelope", "cut off", "no length", "another kind"],
)
def test_what_cannot_be_read_is_refused(body: bytes, status: int) -> None:
    with pytest.raises(ApiError) as refusal:
        decode(body)
    assert refusal.value.status == status
