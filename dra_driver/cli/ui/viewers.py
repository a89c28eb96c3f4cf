"""Who may look. Each request brings a secret. A server for its own user wants the key that it printed when it started.
A server for a cluster wants a bearer token, and asks the API server whose it is and what that user may read.
"""

import asyncio
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import ClusterError
from dra_driver.kube.client import Kube

_REMEMBERED_S = 60.0
"""How long an answer about a token counts: a right that is taken away ends what is shown after this time."""
_MOST_REMEMBERED = 256
_AT_ONCE = 4
"""Questions about tokens: strangers must not keep the API server busy."""
_MOST_WAITING = 64
_LONGEST_SECRET = 3500
"""A cookie may have 4096 bytes, with its name and attributes."""
_REVIEWS = "/apis/{group}/v1/{plural}"


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """`status` is that of HTTP; `text` says what to do."""

    status: int
    text: str


class Viewers(Protocol):
    ask: str
    """What the page for strangers asks for."""

    async def refusal(self, secret: str | None) -> HttpRefusal | None:
        """None: the viewer with this secret may look."""


class OwnKey:
    """For the user who started the server, and no other user of the machine."""

    ask = "The key in the address that dractl ui printed"

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(24)

    async def refusal(self, secret: str | None) -> HttpRefusal | None:
        if secret is not None and hmac.compare_digest(_bytes(secret), self.key.encode()):
            return None
        return HttpRefusal(401, "Open the address that dractl ui printed: it has the key of this server.")


class TokenReviews:
    """For users of the cluster who may list all of `kinds`: the pages show nothing else. `role` is a ClusterRole that
    allows it."""

    ask = "Bearer token (kubectl create token NAME)"

    def __init__(self, kube: Kube, kinds: Sequence[Resource], role: str) -> None:
        self._kube = kube
        self._kinds = kinds
        self._role = role
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0
        self._remembered: dict[bytes, tuple[float, HttpRefusal | None]] = {}

    async def refusal(self, secret: str | None) -> HttpRefusal | None:
        """An API server that does not answer, or refuses the question, refuses the viewer."""
        if not secret:
            return HttpRefusal(401, "A bearer token of this cluster is needed.")
        if len(secret) > _LONGEST_SECRET:
            return HttpRefusal(
                401, f"The token has more than {_LONGEST_SECRET} characters; use dractl ui on your machine."
            )
        name, now = sha256(_bytes(secret)).digest(), asyncio.get_running_loop().time()
        known = self._remembered.get(name)
        if known is not None and now - known[0] < _REMEMBERED_S:
            return known[1]
        if self._waiting >= _MOST_WAITING:
            return HttpRefusal(503, "The server is asking about too many other tokens; try again in a moment.")
        self._waiting += 1
        try:
            async with self._asking:
                answer = await self._asked(secret)
        except ClusterError as error:
            return HttpRefusal(503, f"The API server could not be asked about the token: {error}")
        finally:
            self._waiting -= 1
        self._remembered.pop(name, None)
        while len(self._remembered) >= _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[name] = (now, answer)
        return answer

    async def _asked(self, token: str) -> HttpRefusal | None:
        review = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
        if review.get("authenticated") is not True:
            return HttpRefusal(401, "The API server does not know this token, or it has expired.")
        user = review.get("user") or {}
        answers = await asyncio.gather(*(self._may_list(user, kind) for kind in self._kinds))
        missing = [kind.plural for kind, allowed in zip(self._kinds, answers, strict=True) if not allowed]
        if not missing:
            return None
        return HttpRefusal(403, denied(str(user.get("username")), missing, self._role))

    async def _may_list(self, user: JsonObject, kind: Resource) -> bool:
        for verb in ("list", "watch"):
            spec = {
                "user": user.get("username") or "",
                "uid": user.get("uid") or "",
                "groups": user.get("groups") or [],
                "extra": user.get("extra") or {},
                "resourceAttributes": {
                    "verb": verb,
                    "group": kind.group,
                    "version": kind.version,
                    "resource": kind.plural,
                },
            }
            status = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
            if status.get("allowed") is not True:
                return False
        return True

    async def _review(self, group: str, kind: str, spec: JsonObject) -> dict[str, Any]:
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        answer = await self._kube.raw("POST", _REVIEWS.format(group=group, plural=f"{kind.lower()}s"), body)
        return answer.get("status") or {}


def _bytes(secret: str) -> bytes:
    """Strangers send bytes that are no text, too, which headers have as surrogates."""
    return secret.encode(errors="surrogatepass")


def denied(user: str, missing: Sequence[str], role: str) -> str:
    subject = f"--user={user}"
    if user.startswith("system:serviceaccount:"):
        subject = f"--serviceaccount={user.removeprefix('system:serviceaccount:')}"
    return (
        f"{user} may not list and watch {', '.join(missing)} in all namespaces. An administrator allows it with:"
        f" kubectl create clusterrolebinding gpu-ui-viewer --clusterrole={role} {subject}"
    )
