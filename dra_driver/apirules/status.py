"""Kubernetes' errors: Status objects, and the field problems in a 422. Everything below the HTTP layer raises
`ApiError`; only the server converts it to a response.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject, Resource

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(Exception):
    """An answer other than success. `status` is the HTTP status, `reason` Kubernetes' word for it."""

    def __init__(
        self, status: int, message: str, *, reason: str | None = None, details: JsonObject | None = None
    ) -> None:
        self.status = status
        self.message = message
        self.reason = _REASONS.get(status, "") if reason is None else reason
        self.details = details
        super().__init__(message)

    def to_status(self) -> JsonObject:
        """The Status object that goes over the wire."""
        body: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        body["code"] = self.status
        return body


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One problem of one field. `reason` is for programs, `message` for people."""

    field: str
    reason: str
    message: str
    older: "tuple[int, FieldProblem] | None" = dataclasses.field(default=None, compare=False)
    """The form in which servers before this minor version report it."""

    def on(self, minor: int) -> "FieldProblem":
        """The form in which a server 1.`minor` reports it."""
        if self.older is None or minor >= self.older[0]:
            return self
        return self.older[1].on(minor)

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def _shown(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def required(field: str, detail: str = "") -> FieldProblem:
    """A required value is missing."""
    return FieldProblem(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))


def invalid(field: str, value: object, detail: str) -> FieldProblem:
    """A value that does not follow the rules; `detail` is the rule."""
    return FieldProblem(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {detail}")


def type_invalid(field: str, value: object, detail: str) -> FieldProblem:
    """A value of the wrong JSON type."""
    return FieldProblem(field, "FieldValueTypeInvalid", f"Invalid value: {_shown(value)}: {detail}")


def duplicate(path: str, value: object, key: str = "") -> FieldProblem:
    """A duplicate of a value that must be unique. `key` is the unique field of a list's item; servers before 1.35
    report that field instead of the item."""
    message = f"Duplicate value: {_shown(value)}"
    older = (35, FieldProblem(f"{path}.{key}", "FieldValueDuplicate", message)) if key else None
    return FieldProblem(path, "FieldValueDuplicate", message, older)


def not_supported(field: str, value: object, supported: Sequence[str]) -> FieldProblem:
    """A value outside a closed list."""
    listed = ", ".join(_shown(item) for item in supported)
    return FieldProblem(
        field, "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {listed}"
    )


def not_found_value(field: str, value: object) -> FieldProblem:
    """A reference to a part that the object does not have."""
    return FieldProblem(field, "FieldValueNotFound", f"Not found: {_shown(value)}")


def forbidden(field: str, detail: str) -> FieldProblem:
    """A field that must not be set in this situation."""
    return FieldProblem(field, "FieldValueForbidden", f"Forbidden: {detail}")


def too_long(field: str, limit_bytes: int) -> FieldProblem:
    """A string above its limit."""
    return FieldProblem(field, "FieldValueTooLong", f"Too long: may not be more than {limit_bytes} bytes")


def too_many(field: str, actual: int, limit: int) -> FieldProblem:
    """A list or map with too many entries."""
    return FieldProblem(field, "FieldValueTooMany", f"Too many: {actual}: must have at most {limit} items")


def _details(resource: Resource, name: str) -> JsonObject:
    details: JsonObject = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = resource.plural
    return details


def _qualified(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def invalid_object(resource: Resource, name: str, problems: Sequence[FieldProblem]) -> ApiError:
    """422 with every problem found; the kind is named in the singular here, as Kubernetes does."""
    listed = [str(problem) for problem in problems]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    details = _details(resource, name)
    details["kind"] = resource.kind
    details["causes"] = [
        {"reason": problem.reason, "message": problem.message, "field": problem.field} for problem in problems
    ]
    return ApiError(422, f'{kind} "{name}" is invalid: {text}', details=details)


def not_found(resource: Resource, name: str) -> ApiError:
    """404 for an object."""
    return ApiError(404, f'{_qualified(resource)} "{name}" not found', details=_details(resource, name))


def path_not_found() -> ApiError:
    """404 for a path of no resource type."""
    return ApiError(404, "the server could not find the requested resource", details={})


def method_not_allowed() -> ApiError:
    """405."""
    return ApiError(405, "the server does not allow this method on the requested resource", details={})


def already_exists(resource: Resource, name: str) -> ApiError:
    """409 on create."""
    return ApiError(
        409,
        f'{_qualified(resource)} "{name}" already exists',
        reason="AlreadyExists",
        details=_details(resource, name),
    )


def precondition_failed(resource: Resource, name: str, why: str) -> ApiError:
    """409: a precondition of a delete or replace does not hold; the details name the kind here."""
    error = conflict(resource, name, why)
    return ApiError(409, error.message, details={**_details(resource, name), "kind": resource.kind})


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    """409: stale resourceVersion or a precondition that does not hold."""
    return ApiError(
        409,
        f'Operation cannot be fulfilled on {_qualified(resource)} "{name}": {why}',
        details=_details(resource, name),
    )


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
"""The message for a stale write; clients search for these words."""


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, message)


def denied(resource: Resource, name: str, why: str) -> ApiError:
    """403: an admission rule or the state of the namespace forbids it."""
    shown = f' "{name}"' if name else ""
    return ApiError(403, f"{_qualified(resource)}{shown} is forbidden: {why}", details=_details(resource, name))


def expired(message: str) -> ApiError:
    """410: the position in the history is gone."""
    return ApiError(410, message)
