"""Converts the API server's error responses, and connection errors, to errors of this project. `dra_driver.kube.client`
calls this after every request.
"""

import errno
import json
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any, TypeGuard

from pydantic_core import from_json

from dra_driver.api.meta import JsonObject
from dra_driver.errors import AlreadyExists, ClusterError, Conflict, Gone, NotFound, Rejected, Unreachable
from dra_driver.kube.http_client import PROXY_LOGIN, ConnectError

PROTOBUF = "application/vnd.kubernetes.protobuf"

_LONGEST_WAIT_S = 60.0
"""Limit for the wait that the server or a proxy requests, because a node must not lack a heartbeat for an hour."""


def decoded(content: bytes, about: str) -> Any:
    try:
        return from_json(content, allow_inf_nan=False)
    except ValueError as error:
        # A proxy's page, a truncated answer, or deeply nested lists: not an answer of the API server.
        raise Unreachable(f"the answer is not JSON: {content[:80]!r}", about=about) from error


def an_object(answer: Any, about: str) -> JsonObject:
    """The decoded answer if it is an object or a list of objects; raises Unreachable for other answers, such as a
    proxy's."""
    if _is_object(answer):
        return answer
    raise of_another(answer, about)


def a_stored_object(answer: Any, about: str) -> JsonObject:
    """Like `an_object`, with the name, UID and version of a stored object, and metadata of the expected types."""
    if _is_object(answer) and _is_of_stored(answer["metadata"]):
        return answer
    raise of_another(answer, about)


def of_another(answer: Any, about: str) -> Unreachable:
    """The error for a decoded answer that no API server sends."""
    return Unreachable(f"the answer is not from an API server: {_excerpt(answer)}", about=about)


# They run for each of the tens of thousands of objects of a large cluster, so they name each field instead of looping.


def _is_object(answer: Any) -> TypeGuard[JsonObject]:
    if not (isinstance(answer, dict) and isinstance(metadata := answer.get("metadata"), dict)):
        return False
    return answer.get("kind") == "Status" or (
        isinstance(answer.get("spec"), dict | None)
        and isinstance(answer.get("status"), dict | None)
        and isinstance(answer.get("data"), dict | None)
        # Clients send these two back.
        and isinstance(metadata.get("resourceVersion"), str | None)
        and isinstance(metadata.get("continue"), str | None)
    )


def _is_of_stored(metadata: JsonObject) -> bool:
    owners = metadata.get("ownerReferences")
    return (
        _is_text(metadata.get("name"))
        and _is_text(metadata.get("uid"))
        and _is_text(metadata.get("resourceVersion"))
        and isinstance(metadata.get("namespace"), str | None)
        and _is_text_map(metadata.get("labels"))
        and _is_text_map(metadata.get("annotations"))
        and (not owners or (isinstance(owners, list) and all(isinstance(owner, dict) for owner in owners)))
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_text_map(entry: Any) -> bool:
    return entry is None or (isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values()))


def a_list(answer: Any, about: str) -> list[JsonObject]:
    """The objects of a list. Raises Unreachable if it is not a list: an answer without items must not mean that all
    objects are gone."""
    items = an_object(answer, about).get("items", "missing") or []
    if not isinstance(items, list):
        raise of_another(answer, about)
    return [a_stored_object(item, about) for item in items]


def an_event(answer: Any, about: str) -> tuple[str, JsonObject]:
    """Type and object of a watch's line. Raises Unreachable for an invalid line, and the error of a line of type
    ERROR."""
    if not isinstance(answer, dict) or not isinstance(answer.get("object"), dict):
        raise Unreachable(f"invalid line of a watch: {_excerpt(answer)}", about=about)
    if answer.get("type") == "BOOKMARK":
        bookmark = an_object(answer["object"], about)
        if not bookmark["metadata"].get("resourceVersion"):
            raise Unreachable(f"invalid line of a watch: {_excerpt(answer)}", about=about)
        return "BOOKMARK", bookmark
    if answer.get("type") != "ERROR":
        return str(answer.get("type")), a_stored_object(answer["object"], about)
    status = answer["object"]
    code = status.get("code")
    raise refusal(code if isinstance(code, int) else 500, status, None, about)


def error_of(code: int, headers: Mapping[str, str], content: bytes, about: str) -> ClusterError:
    """The error for an unsuccessful answer; an API server never redirects."""
    if code < 400:
        place = headers.get("location", "no address")
        message = f"the server redirects to {place}; set the API server's own address in the kubeconfig"
        return Unreachable(message, about=about, status=code)
    try:
        if headers.get("content-type", "").startswith(PROTOBUF):
            from dra_driver.kube import envelope

            status = envelope.refusal(content)
        else:
            status = json.loads(content)
    except (ValueError, RecursionError):
        status = {"message": content.decode(errors="replace")[:500].strip()}
    if not isinstance(status, dict):
        status = {}
    return refusal(code, status, headers.get("retry-after"), about)


def _excerpt(answer: Any) -> str:
    try:
        return repr(str(answer)[:80])
    except RecursionError:
        return "too many levels"


def refusal(code: int, status: JsonObject, retry_after: str | None, about: str) -> ClusterError:
    """The error for a Status object. Source: Kubernetes API conventions, response status kind."""
    message = str(status.get("message") or f"the API server answered {code}")
    if message == "Unauthorized":
        message = f"{message}: the API server does not accept the credentials; they may have expired"
    if code == 407:
        message = PROXY_LOGIN
    if code == 404:
        return NotFound(message, about=about, status=code)
    if code == 409:
        kind = AlreadyExists if status.get("reason") == "AlreadyExists" else Conflict
        return kind(message, about=about, status=code)
    if code == 410:
        return Gone(message, about=about, status=code)
    if code == 429 or code >= 500:
        seconds = retry_after is not None and retry_after.isascii() and retry_after.isdigit()
        wait = min(float(retry_after), _LONGEST_WAIT_S) if retry_after is not None and seconds else None
        return Unreachable(message, about=about, status=code, retry_after_s=wait)
    return Rejected(message, about=about, status=code)


def unreachable(error: Exception, about: str) -> Unreachable:
    cause = error.cause if isinstance(error, ConnectError) else error
    reason = f"{error.address}: {_reason(cause)}" if isinstance(error, ConnectError) else _reason(cause)
    if isinstance(cause, ssl.SSLError):
        return Unreachable(f"cannot trust the API server: {reason}", about=about)
    return Unreachable(f"cannot reach the API server: {reason}", about=about)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        # Without the names of OpenSSL's functions, which say nothing about the certificate.
        return error.verify_message
    number = error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
    if number is not None and number in errno.errorcode:
        return os.strerror(number)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    # Name resolution has numbers of its own.
    return (error.strerror if isinstance(error, socket.gaierror) else None) or str(error) or type(error).__name__
