"""A simulated API server that asks admission webhooks before it stores something: ValidatingWebhookConfigurations.

A write finds out what it would store, and then whom that concerns. Where there are questions without an answer it gives
up with `Unasked`, the server asks (`ask`), and the write starts again with the answers: so each write stays atomic, and
what was judged is what is stored. Webhooks have a `url`; there is no network with Services here, and one that names a
Service cannot be reached. Sources: admissionregistration.k8s.io/v1, admission.k8s.io/v1.
"""

import asyncio
import base64
import hashlib
import json
import ssl
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import LabelSelector
from dra_driver.apirules.status import ApiError, denied
from dra_driver.cel.errors import CelError
from dra_driver.cel.functions import Server
from dra_driver.simulation.apiserver.crds import compiled
from dra_driver.simulation.apiserver.objects import DeleteOptions, ObjectService, WriteOptions
from dra_driver.simulation.apiserver.resource_types import ResourceType
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.simulation.apiserver.store import Store, StoredVersion

_CONFIGURATIONS = ("admissionregistration.k8s.io", "validatingwebhookconfigurations")
_NEVER_ASKED = frozenset(
    ("admissionregistration.k8s.io", f"{kind}s")
    for kind in (
        "validatingwebhookconfiguration",
        "mutatingwebhookconfiguration",
        "validatingadmissionpolicie",
        "validatingadmissionpolicybinding",
    )
)
"""So that no webhook can lock out all users."""
_VARIABLES = ("object", "oldObject", "request")


@dataclass(slots=True)
class AnsweredQuestions:
    """The questions of one request that have been answered, by key; and the name that was made for its object."""

    answers: dict[str, "WebhookVerdict"] = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookVerdict:
    """`refusal` is None where the webhook lets the object pass, or could not be asked and that does not matter."""

    refusal: ApiError | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WebhookQuestion:
    """`key` is the same for the same object, however often the write starts again."""

    key: str
    webhook: JsonObject
    review: JsonObject


class Unasked(Exception):
    """A write that cannot continue before these are answered."""

    def __init__(self, questions: Sequence[WebhookQuestion]) -> None:
        self.questions = tuple(questions)
        super().__init__(f"{len(self.questions)} webhooks must be asked")


@dataclass(frozen=True, slots=True)
class AdmittedChange:
    """What a write would do, in the stored shape. `obj` None: a deletion; `old` None: a creation."""

    kind: ResourceType
    subresource: str
    operation: str
    obj: JsonObject | None
    old: JsonObject | None
    dry_run: bool

    @property
    def metadata(self) -> JsonObject:
        metadata: JsonObject = (self.obj or self.old or {}).get("metadata") or {}
        return metadata


class Admission:
    """Of one server. `minor` is its version."""

    def __init__(self, store: Store, minor: int) -> None:
        self._store = store
        self._server = Server.of(minor, stored=True)

    def decide(self, change: AdmittedChange, asked: AnsweredQuestions, warnings: list[str]) -> None:
        """Let a change pass. Raises Unasked, or the ApiError of the first webhook that refuses it."""
        questions = list(self._questions(change))
        open_ = [question for question in questions if question.key not in asked.answers]
        if open_:
            raise Unasked(open_)
        verdicts = [asked.answers[question.key] for question in questions]
        warnings += [text for item in verdicts for text in item.warnings if text not in warnings]
        for verdict in verdicts:
            if verdict.refusal is not None:
                raise verdict.refusal

    def _questions(self, change: AdmittedChange) -> Iterator[WebhookQuestion]:
        if change.kind.key in _NEVER_ASKED:
            return
        for entry in self._store.entries(_CONFIGURATIONS):
            for webhook in entry.obj.get("webhooks") or ():
                request = _request(change)
                if (
                    _has_rule_for(webhook, change)
                    and self._selected(webhook, change)
                    and self._concerned(webhook, request, change)
                ):
                    yield _question(webhook, request, change)

    def _concerned(self, webhook: JsonObject, request: JsonObject, change: AdmittedChange) -> bool:
        """One condition that is false decides, also if others fail."""
        failures = []
        for condition in webhook.get("matchConditions") or ():
            text = condition["expression"]
            try:
                if not compiled(text, _VARIABLES, self._server)(request["object"], request["oldObject"], request):
                    return False
            except CelError as error:
                # Without the place in the expression, which the real server does not name.
                why = error.message.partition(": ")[2] if error.message.startswith("column ") else error.message
                failures.append(f"expression '{text}' resulted in error: {why}")
        if failures and webhook.get("failurePolicy") != "Ignore":
            raise denied(change.kind.resource, str(change.metadata.get("name", "")), failures[0])
        return not failures

    def _selected(self, webhook: JsonObject, change: AdmittedChange) -> bool:
        metadata = change.metadata
        if not LabelSelector.model_validate(webhook.get("objectSelector") or {}).matches(metadata.get("labels") or {}):
            return False
        wanted = LabelSelector.model_validate(webhook.get("namespaceSelector") or {})
        if change.kind.key == ("", "namespaces"):
            return wanted.matches(metadata.get("labels") or {})
        if not change.kind.resource.namespaced:
            return True
        entry = self._store.get(("", "namespaces"), "", str(metadata.get("namespace", "")))
        return entry is None or wanted.matches(entry.obj["metadata"].get("labels") or {})


def _has_rule_for(webhook: JsonObject, change: AdmittedChange) -> bool:
    """Types have one version here, so `matchPolicy` makes no difference."""
    resource = change.kind.resource
    path = f"{resource.plural}/{change.subresource}" if change.subresource else resource.plural
    scope = "Namespaced" if resource.namespaced else "Cluster"
    return any(
        _one_of(rule.get("operations"), change.operation)
        and _one_of(rule.get("apiGroups"), resource.group)
        and _one_of(rule.get("apiVersions"), resource.version)
        and any(_names(item, path) for item in rule.get("resources") or ())
        and rule.get("scope", "*") in ("*", scope)
        for rule in webhook.get("rules") or ()
    )


def _one_of(allowed: Sequence[str] | None, value: str) -> bool:
    return "*" in (allowed or ()) or value in (allowed or ())


def _names(pattern: str, path: str) -> bool:
    """`pods`, `pods/*`, `*`, `*/*`, `*/status`."""
    kind, _, sub = pattern.partition("/")
    own, _, own_sub = path.partition("/")
    return kind in ("*", own) and (sub == own_sub or (sub == "*" and ("/" in pattern)))


def _request(change: AdmittedChange) -> JsonObject:
    """The `request` of a review, but for its uid."""
    resource = change.kind.resource
    obj, old = (
        None if item is None else StoredVersion(item, 0).served_as(resource.api_version)
        for item in (change.obj, change.old)
    )
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    plural = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    return {
        "kind": kind,
        "resource": plural,
        "requestKind": kind,
        "requestResource": plural,
        **({"subResource": change.subresource} if change.subresource else {}),
        "name": change.metadata.get("name", ""),
        **({"namespace": change.metadata["namespace"]} if resource.namespaced else {}),
        "operation": change.operation,
        "userInfo": {"username": "simulated", "groups": ["system:masters", "system:authenticated"]},
        "object": obj,
        "oldObject": old,
        "dryRun": change.dry_run,
        "options": None,
    }


_MADE_ANEW = ("uid", "creationTimestamp", "resourceVersion")
"""What differs when a creation starts again."""


def _question(webhook: JsonObject, request: JsonObject, change: AdmittedChange) -> WebhookQuestion:
    objects = []
    for obj in (change.obj, change.old):
        metadata = {key: item for key, item in ((obj or {}).get("metadata") or {}).items() if key not in _MADE_ANEW}
        objects.append({**(obj or {}), "metadata": metadata})
    text = json.dumps([webhook, change.operation, change.subresource, *objects], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": str(uuid.uuid4()), **request},
    }
    return WebhookQuestion(key, webhook, review)


# -- asking


async def ask(questions: Iterable[WebhookQuestion]) -> dict[str, WebhookVerdict]:
    """All at once; the answers by key."""
    todo = list(questions)
    return dict(zip((question.key for question in todo), await asyncio.gather(*map(_ask, todo)), strict=True))


async def _ask(question: WebhookQuestion) -> WebhookVerdict:
    webhook, name = question.webhook, question.webhook["name"]
    try:
        response = await _answer(webhook, question.review)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        if webhook.get("failurePolicy") == "Ignore":
            return WebhookVerdict(None)
        why = str(error) or type(error).__name__
        return WebhookVerdict(
            ApiError(500, f'Internal error occurred: failed calling webhook "{name}": {why}', details={})
        )
    warnings = tuple(str(item) for item in response.get("warnings") or ())
    if response["allowed"] is True:
        return WebhookVerdict(None, warnings)
    status = response.get("status") or {}
    reason = status.get("message") or status.get("reason")
    message = f'admission webhook "{name}" denied the request' + (f": {reason}" if reason else " without explanation")
    code = max(int(status.get("code") or 403), 400)
    return WebhookVerdict(ApiError(code, message, reason=str(status.get("reason") or ""), details={}), warnings)


async def _answer(webhook: JsonObject, review: JsonObject) -> Mapping[str, Any]:
    """The `response`. Raises what `_ask` takes for a webhook that could not be asked."""
    config = webhook.get("clientConfig") or {}
    if not config.get("url"):
        raise ValueError("Services cannot be reached in a simulated cluster; give the webhook a url")
    authorities = base64.b64decode(config.get("caBundle") or "").decode()
    context = ssl.create_default_context(cadata=authorities or None)
    timeout = aiohttp.ClientTimeout(total=webhook.get("timeoutSeconds") or 10)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.post(config["url"], json=review, params={"timeout": f"{timeout.total}s"}) as answer,
    ):
        if answer.status != 200:
            raise ValueError(f"it answered {answer.status}")
        answered = json.loads(await answer.read())
    response = answered.get("response") if isinstance(answered, dict) else None
    if not isinstance(response, dict) or response.get("uid") != review["request"]["uid"]:
        raise ValueError("expected response.uid to be that of the request")
    if not isinstance(response.get("allowed"), bool):
        raise ValueError("the response does not say whether the object is allowed")
    return response


# -- the server

_ASKED: ContextVar[AnsweredQuestions] = ContextVar("asked")
"""Of the request that is answered now."""


def _asked_now() -> AnsweredQuestions | None:
    """None for what the server does by itself, before it runs or after a request: no webhook is asked about that."""
    try:
        return _ASKED.get(None) if asyncio.current_task() is not None else None
    except RuntimeError:  # no loop runs yet
        return None


class _AskingObjects(ObjectService):
    def admit(
        self,
        kind: ResourceType,
        subresource: str,
        obj: JsonObject | None,
        old: JsonObject | None,
        options: WriteOptions | DeleteOptions,
    ) -> None:
        asked = _asked_now()
        if asked is not None:
            operation = "DELETE" if obj is None else "CREATE" if old is None else "UPDATE"
            change = AdmittedChange(kind, subresource, operation, obj, old, options.dry_run)
            warnings = options.warnings if isinstance(options, WriteOptions) else []
            Admission(self.store, self.gates.minor).decide(change, asked, warnings)

    def generated_name(self, kind: ResourceType, base: str, namespace: str) -> str:
        """The same one again where webhooks were asked about it."""
        asked = _asked_now() or AnsweredQuestions()
        asked.name = asked.name or super().generated_name(kind, base, namespace)
        return asked.name


class AskingApiServer(SimulatedApiServer):
    objects_type = _AskingObjects

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = AnsweredQuestions()
        _ASKED.set(asked)
        while True:
            try:
                return await super().answer(request)
            except Unasked as error:
                asked.answers.update(await ask(error.questions))
