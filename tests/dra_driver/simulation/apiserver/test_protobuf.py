"""The protobuf bodies that kubectl sends, and claims in protobuf."""

from collections.abc import Iterator

import pytest
from support.rows import rows

from dra_driver.apirules.schema import Schema, builtin_schema
from dra_driver.apirules.status import ApiError
from dra_driver.simulation.apiserver.protobuf import FieldForm, decode, encode, table


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


@rows(
    "body, status",
    [
        (b"{}", 400),
        (envelope("ConfigMap", b"\x0a\x7f"), 400),
        (envelope("ConfigMap", b"\x0a"), 400),
        (envelope("DaemonSet", b""), 415),
        (envelope("Deployment", field(2, field(3, field(2, field(2, field(10, "probe")))))), 415),
        (envelope("ResourceClaim", field(3, field(4, field(5, field(1, "{"))))), 400),
        (envelope("ResourceClaim", field(1, field(8, b"\x08" + b"\xff" * 8 + b"\x7f"))), 400),
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes, status: int) -> None:
    with pytest.raises(ApiError) as refusal:
        decode(body)
    assert refusal.value.status == status


def missing(message: str, schema: Schema, path: str) -> Iterator[str]:
    """Fields of a schema that a message does not have, and those that it has by another name."""
    named: dict[str, FieldForm] = {}
    for name, (_, form) in table()[message].items():
        named |= {inner: its for inner, (_, its) in table()[form.of].items()} if form.inline else {name: form}
    yield from (f"{path}.{name}" for name in schema.properties.keys() ^ named.keys())
    for name, form in named.items():
        child = schema.properties.get(name)
        below = child.items if child is not None and form.is_list else child
        if below is not None and form.of in table():
            yield from missing(form.of, below, f"{path}.{name}")


def test_every_field_of_a_claim_has_its_number() -> None:
    unnumbered = missing("ResourceClaim", builtin_schema("resource.k8s.io", "v1", "ResourceClaim"), "")
    assert set(unnumbered) == {".apiVersion", ".kind", ".metadata.managedFields"}


def test_a_claim_comes_back_as_it_went() -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a", "labels": {"k": "v"}, "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3},
        "spec": {
            "devices": {"config": [{"requests": ["a"], "opaque": {"driver": "d", "parameters": {"b": [1], "a": None}}}]}
        },
        "status": {
            "allocation": {"devices": {"results": [{"adminAccess": False, "consumedCapacity": {"memory": "1Gi"}}]}},
            "devices": [{"conditions": [{"type": "Ready", "message": ""}], "data": {"ä": "<"}}],
        },
    }
    assert decode(encode(claim) or b"") == claim
    tolerations = [{"key": "k", "tolerationSeconds": -1}, {"operator": "Exists", "tolerationSeconds": 1 << 40}]
    exactly = {"deviceClassName": "c" * 300, "tolerations": tolerations, "capacity": {"requests": {"m": "1"}}}
    claim["spec"] = {"devices": {"requests": [{"name": "a", "exactly": exactly}]}}
    assert decode(encode(claim) or b"") == claim


def test_other_objects_and_older_forms_have_none() -> None:
    assert encode({"apiVersion": "v1", "kind": "Pod"}) is None
    assert encode({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim"}) is None
