"""Nothing that looks like a credential leaves in a bundle, and what a support case needs does."""

import json
from typing import Any

from support.rows import rows

from dra_driver.doctor.redaction import REDACTED, LineRedactor, redacted, redacted_text

SECRET = "hunter2-Vx9"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\nMIIEow\n-----END RSA PRIVATE KEY-----"

TEXTS = [
    f"password={SECRET}",
    f"the PASSWORD: {SECRET} was wrong",
    f'{{"token": "{SECRET}", "level": "info"}}',
    f'"{{\\"api_key\\": \\"{SECRET}\\"}}"',
    f"DB_PASSWD='{SECRET}'",
    f"aws_secret_access_key = {SECRET}",
    f"curl -H 'Authorization: Bearer {SECRET}' https://a",
    f"authorization: Basic {SECRET}12345678",
    f"sent Bearer {SECRET}0123 to the server",
    f"https://user:{SECRET}@registry.example/v2",
    f"https://a/b?access_token={SECRET}&x=1",
    f"run --registry-token {SECRET} --verbose",
    f"run --tls-key {SECRET} --verbose",
    f"run --password={SECRET}",
    f"client-key-data: {SECRET}",
    f".dockercfg auth: {SECRET}",
    KEY,
    f"key: {json.dumps(KEY)}",
    f"Set-Cookie: {SECRET}",
]
TOKENS = [
    JWT,
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_0123456789abcdefghijABCDEFGHIJ",
    "glpat-0123456789abcdefghij",
    "xoxb-1234-abcdefgh",
    "AIza0123456789abcdefghijABCDEFGHIJ01234",
    "nvapi-0123456789abcdefghij",
    "hf_0123456789abcdefghij",
    "abcdef.0123456789abcdef",
]


@rows("text", TEXTS)
def test_values_of_what_is_called_a_secret_go(text: str) -> None:
    assert SECRET not in redacted_text(text)
    assert REDACTED in redacted_text(text)


@rows("token", TOKENS)
def test_tokens_are_known_by_their_form(token: str) -> None:
    assert redacted_text(f"got {token}, and went on") == f"got {REDACTED}, and went on"


@rows(
    "text",
    [
        "claim team-a/train (11111111-0000-4000-8000-000000000001): prepared in 4 ms",
        "GPU-45bf8bc8-0000-4000-8000-000000000001 at 0000:1b:00.0: Xid 79",
        "device.attributes['gpu.nvidia.com'].type == 'gpu'",
        "registry.example/gpu-dra-driver:0.1.0@sha256:0123456789abcdef",
        "https://10.0.0.1:443/apis/resource.k8s.io/v1/resourceslices?limit=500",
        "--policy=/etc/gpu-dra-driver/policy.yaml --kubelet-root=/var/lib/kubelet",
        "2026-03-01T12:00:00.000000Z",
        "00000-gpu.nvidia.com-gpu-1-x7k2p",
    ],
)
def test_what_a_support_case_needs_stays(text: str) -> None:
    assert redacted_text(text) == text


def test_json_lines_stay_json() -> None:
    line = json.dumps({"event": "asked", "token": SECRET, "nested": {"password": SECRET}, "ms": 3})
    assert json.loads(redacted_text(line)) == {
        "event": "asked",
        "token": REDACTED,
        "nested": {"password": REDACTED},
        "ms": 3,
    }


def shown_lines(*lines: str) -> list[str]:
    redactor = LineRedactor()
    return [shown for shown in map(redactor.line, lines) if shown is not None]


def test_private_keys_of_many_lines_go_from_logs() -> None:
    shown = shown_lines("before", *KEY.split("\n"), "after", f"password={SECRET}")
    assert shown[0] == "before"
    assert shown[-2:] == ["after", f"password={REDACTED}"]
    assert SECRET not in "".join(shown)
    assert "MIIEow" not in "".join(shown)


def test_a_key_that_never_ends_hides_what_follows() -> None:
    assert shown_lines("-----BEGIN PRIVATE KEY-----", SECRET, SECRET)[1:] == []


def an_object(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **fields}


def test_values_of_variables_go_and_where_they_come_from_stays() -> None:
    env = [
        {"name": "PLAIN", "value": "anything"},
        {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    pod = redacted(an_object(spec={"containers": [{"name": "c", "env": env}], "initContainers": [{"env": env[:1]}]}))
    assert pod["spec"]["containers"][0]["env"] == [{"name": "PLAIN", "value": REDACTED}, env[1]]
    assert pod["spec"]["initContainers"][0]["env"][0]["value"] == REDACTED


def test_annotations_of_others_and_managed_fields_go() -> None:
    annotations = {
        "kubectl.kubernetes.io/last-applied-configuration": SECRET,
        "team.example/note": "anything",
        "confirm.dra.gpu/gpu.nvidia.com": "2026-03-01T12:00:00Z",
    }
    metadata = {"name": "a", "annotations": annotations, "managedFields": [{"manager": SECRET}]}
    assert redacted({"kind": "Node", "metadata": metadata})["metadata"] == {
        "name": "a",
        "annotations": {
            "team.example/note": REDACTED,
            "confirm.dra.gpu/gpu.nvidia.com": "2026-03-01T12:00:00Z",
        },
    }


def test_of_config_maps_only_the_policy_stays() -> None:
    config_map = redacted(
        {
            "kind": "ConfigMap",
            "metadata": {"name": "a"},
            "data": {"policy.yaml": f"kind: PublishingPolicy # password: {SECRET}", "other": "anything"},
            "binaryData": {"x": SECRET},
        }
    )
    assert config_map["data"] == {"policy.yaml": f"kind: PublishingPolicy # password: {REDACTED}", "other": REDACTED}
    assert "binaryData" not in config_map


def test_command_lines_lose_what_follows_a_flag_for_a_secret() -> None:
    container = {
        "args": ["--token", SECRET, f"--password={SECRET}", "--workers=4"],
        "command": ["run", "-auth", SECRET],
    }
    container_after = redacted(an_object(spec={"containers": [container]}))["spec"]["containers"][0]
    assert container_after["args"] == ["--token", REDACTED, f"--password={REDACTED}", "--workers=4"]
    assert container_after["command"] == ["run", "-auth", REDACTED]


def test_headers_fields_of_that_name_and_authorities_go() -> None:
    probe = {"httpGet": {"path": "/healthz", "httpHeaders": [{"name": "X", "value": SECRET}]}}
    webhook = {"clientConfig": {"caBundle": "Q0E=", "service": {"name": "w"}}}
    obj = redacted(an_object(spec={"probe": probe, "password": SECRET, "secretName": "a", "webhooks": [webhook]}))
    assert SECRET not in json.dumps(obj)
    assert obj["spec"]["secretName"] == "a"
    assert obj["spec"]["webhooks"][0]["clientConfig"] == {"caBundle": REDACTED, "service": {"name": "w"}}


@rows("piece", [("a",), ("-",), ("a-",), ("auth",), ("a.",)])
def test_the_time_for_a_long_word_grows_with_its_length(piece: str) -> None:
    """Another user's object may have one. To look at the rest of the word from each of its characters takes minutes."""
    word = piece * 60_000
    assert redacted_text(f"{word} --token abc") == f"{word} --token {REDACTED}"
