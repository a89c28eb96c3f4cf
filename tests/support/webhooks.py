"""An admission webhook for tests: it remembers what it was asked, and answers as the object's labels say."""

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from controller.webhook.certificates import Lifetimes, ServingCertificate, new_certificate
from controller.webhook.review_server import tls_context

type Json = dict[str, Any]


class Webhook:
    """`url` is where it listens, `requests` the requests of all reviews, in order."""

    def __init__(self, url: str, certificate: ServingCertificate) -> None:
        self.url = url
        self.requests: list[Json] = []
        self._certificate = certificate

    def client_config(self) -> Json:
        bundle = base64.b64encode(self._certificate.authority[0].encode()).decode()
        return {"url": f"{self.url}/", "caBundle": bundle}

    def about(self, name: str) -> list[Json]:
        """What was asked about objects of a name."""
        return [request for request in self.requests if request["name"] == name]

    async def answer(self, request: web.Request) -> web.Response:
        review = await request.json()
        asked = review["request"]
        self.requests.append(asked)
        labels = (asked["object"] or asked["oldObject"])["metadata"].get("labels") or {}
        response: Json = {"uid": asked["uid"], "allowed": "refuse" not in labels}
        if "fail" in labels:
            return web.Response(status=500)
        if labels.get("refuse") == "say-why":
            response["status"] = {"code": 422, "reason": "Invalid", "message": "because of this"}
        if "warn" in labels:
            response["warnings"] = ["mind that"]
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})


@asynccontextmanager
async def a_webhook() -> AsyncIterator[Webhook]:
    """Listens on this machine, with a certificate for its address."""
    certificate = new_certificate(("127.0.0.1",), datetime.now(UTC), Lifetimes())
    webhooks: list[Webhook] = []

    async def answer(request: web.Request) -> web.Response:
        return await webhooks[0].answer(request)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context: ssl.SSLContext = tls_context(certificate)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    webhooks.append(Webhook(f"https://127.0.0.1:{runner.addresses[0][1]}", certificate))
    yield webhooks[0]
    await runner.cleanup()
