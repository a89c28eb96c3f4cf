"""HTTPS for reviews: whatever body comes is answered, certificates change while it runs, and nobody is cut off."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry
from support.reviews import BAD, GOOD, a_review, an_object, body_of, config

from controller.webhook.certificates import Lifetimes, Served, ServingCertificate, new_certificate
from controller.webhook.review_server import ReviewServer
from controller.webhook.service import WebhookMetrics, WebhookReplica
from dra_driver.allocation.selection import reads_of
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.library.texts import compiled_pattern
from dra_driver.errors import NodeNotReady
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.quantity import Quantity
from tests.controller.webhook.test_configuration import PLAN, SETTINGS
from tests.controller.webhook.test_review import NOT_REVIEWS

NAMES = ("webhook.gpu-dra.svc", "127.0.0.1")


def made() -> ServingCertificate:
    return new_certificate(NAMES, datetime.now(UTC), Lifetimes())


def echo(body: bytes) -> JsonObject:
    return {"length": len(body)}


@asynccontextmanager
async def served(
    certificate: ServingCertificate | None, respond: Callable[[bytes], JsonObject] = echo, *, drain_s: float = 0.0
) -> AsyncIterator[tuple[ReviewServer, int]]:
    server = ReviewServer("127.0.0.1:0", respond, drain_s=drain_s)
    if certificate is not None:
        server.use(certificate)
    async with server.running() as port:
        yield server, port


def client(certificate: ServingCertificate, *, keep: bool = True) -> aiohttp.ClientSession:
    """One that trusts this certificate's authority alone."""
    context = ssl.create_default_context(cadata="\n".join(certificate.authority))
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, force_close=not keep))


async def ask(session: aiohttp.ClientSession, port: int, body: bytes = b"{}", **options: Any) -> tuple[int, Any]:
    async with session.post(f"https://127.0.0.1:{port}/review", data=body, **options) as answer:
        return answer.status, await answer.read()


async def test_each_new_connection_gets_the_certificate_that_is_current_and_old_ones_go_on() -> None:
    first, second = made(), made()
    async with served(first) as (server, port), client(first) as old, client(second) as new:
        assert (await ask(old, port))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(new, port)
        server.use(second)
        assert (await ask(old, port))[0] == 200, "a connection that is open"
        assert (await ask(new, port))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(client_session := client(first), port)
        await client_session.close()


async def test_a_certificate_of_another_type_leaves_nothing_of_the_one_before() -> None:
    """A server that holds one of each type lets clients choose; what is not renewed any more would be chosen again."""
    before, after = rsa(), made()
    async with served(before) as (server, port):
        async with client(before) as session:
            assert (await ask(session, port))[0] == 200
        server.use(after)
        async with client(before) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await ask(session, port)


def rsa() -> ServingCertificate:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import rsa as keys
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = keys.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    now = datetime.now(UTC)
    chain = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(hours=1), now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
        .decode()
    )
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return replace(made(), chain=chain, key=text, authority=(chain.strip(),))


async def test_before_there_is_a_certificate_nobody_connects() -> None:
    async with served(None) as (server, port), client(certificate := made()) as session:
        with pytest.raises(aiohttp.ClientError):
            await ask(session, port)
        server.use(certificate)
        assert (await ask(session, port))[0] == 200


async def test_names_are_checked_by_who_asks_by_name() -> None:
    certificate = made()
    async with served(certificate) as (_, port), client(certificate) as session:
        assert (await ask(session, port, server_hostname="webhook.gpu-dra.svc"))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(session, port, server_hostname="other.svc")


async def test_what_is_too_large_or_elsewhere_or_another_method_is_refused() -> None:
    certificate = made()
    async with served(certificate) as (_, port), client(certificate) as session:
        assert (await ask(session, port, b"x" * (8 * 1024 * 1024 + 1)))[0] == 413
        assert await ask(session, port, b"x" * 3_000_000) == (200, b'{"length": 3000000}')
        async with session.get(f"https://127.0.0.1:{port}/review") as answer:
            assert answer.status == 405
        async with session.post(f"https://127.0.0.1:{port}/other") as answer:
            assert answer.status == 404


async def test_a_review_that_fails_is_a_500_so_that_the_failure_policy_decides() -> None:
    def fails(body: bytes) -> JsonObject:
        raise RuntimeError("a defect")

    certificate = made()
    async with served(certificate, fails) as (_, port), client(certificate) as session:
        status, body = await ask(session, port)
        assert status == 500 and b"defect" not in body


async def test_a_replica_that_ends_answers_on_and_asks_everybody_to_go_elsewhere() -> None:
    certificate, running = made(), asyncio.Event()
    async with client(certificate) as session:
        async with served(certificate, drain_s=0.5) as (_, port):
            assert (await ask(session, port))[0] == 200

            async def later() -> tuple[int, str | None]:
                await running.wait()
                async with session.post(f"https://127.0.0.1:{port}/review", data=b"{}") as answer:
                    return answer.status, answer.headers.get("Connection")

            asking = asyncio.create_task(later())
            asyncio.get_running_loop().call_later(0.05, running.set)
        assert await asking == (200, "close")
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(session, port)


async def test_a_port_that_is_taken_is_named() -> None:
    async with served(made()) as (_, port):
        with pytest.raises(NodeNotReady, match="cannot serve the webhook"):
            async with ReviewServer(f"127.0.0.1:{port}", echo, drain_s=0.0).running():
                pass


@pytest.fixture
def registry() -> CollectorRegistry:
    """Of the metrics of `webhook`."""
    return CollectorRegistry()


@pytest.fixture
async def webhook(registry: CollectorRegistry) -> WebhookReplica:
    """That knows nothing of a cluster yet."""
    plan = replace(PLAN, settings=replace(SETTINGS, endpoint="127.0.0.1:0", url="https://127.0.0.1", drain_s=0.0))
    kube = Kube(Endpoint(server="http://127.0.0.1:1"))
    metrics = WebhookMetrics(registry)
    return WebhookReplica(kube, plan, policy=PublishingPolicy(), metrics=metrics)


async def test_bodies_of_all_kinds_are_answered_over_https(webhook: WebhookReplica) -> None:
    """400 for what is no review, and a review for what is one."""
    certificate = made()
    async with served(certificate, webhook.respond) as (_, port), client(certificate) as session:
        for body in NOT_REVIEWS.values():
            status, response = await ask(session, port, body)
            assert status == 400 and b'"message"' in response
        for parameters, allowed in ((GOOD, True), (BAD, False)):
            body = body_of(a_review(an_object("ResourceClaim", config(parameters))))
            async with session.post(f"https://127.0.0.1:{port}/review", data=body) as answer:
                assert answer.status == 200 and answer.content_type == "application/json"
                assert (await answer.json())["response"]["allowed"] is allowed


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


async def test_reviews_are_counted_by_result_and_timed(webhook: WebhookReplica, registry: CollectorRegistry) -> None:
    for parameters in (GOOD, GOOD, BAD):
        webhook.respond(body_of(a_review(an_object("ResourceClaim", config(parameters)))))
    with pytest.raises(ValueError, match="not JSON"):
        webhook.respond(b"{")
    webhook._judge = None  # a defect of ours
    with pytest.raises(AttributeError):
        webhook.respond(body_of(a_review(an_object("ResourceClaim", config(GOOD)))))
    counts = {
        result: value(registry, "gpu_dra_webhook_reviews_total", kind=kind, result=result)
        for kind, result in (("ResourceClaim", "admitted"), ("ResourceClaim", "refused"), ("", "malformed"))
    }
    assert counts == {"admitted": 2, "refused": 1, "malformed": 1}
    assert value(registry, "gpu_dra_webhook_reviews_total", kind="ResourceClaim", result="failed") == 1
    assert value(registry, "gpu_dra_webhook_review_seconds_count") == 5


async def test_the_certificate_that_is_served_tells_when_it_expires(
    webhook: WebhookReplica, registry: CollectorRegistry
) -> None:
    name = "gpu_dra_webhook_certificate_expiry_timestamp_seconds"
    assert value(registry, name) == 0
    certificate = made()
    webhook._serve(Served(certificate))
    assert value(registry, name) == certificate.until.timestamp()


async def test_a_replica_that_knows_nothing_yet_is_not_ready(webhook: WebhookReplica) -> None:
    assert webhook.problem() == "ValidatingWebhookConfiguration gpu-dra-webhook has not been read yet"


async def test_what_was_learnt_from_reviews_is_forgotten_when_it_is_much(webhook: WebhookReplica) -> None:
    """Else whoever writes many different selectors would fill the memory."""
    await webhook._know(36)
    selector = "quantity('4711Mi').isGreaterThan(quantity('1')) && device.driver.matches('seldom')"
    compile_selector(selector).matches(CelDevice("gpu.nvidia.com", Device.of({"name": "gpu-0"})))
    review = a_review(an_object("ResourceClaim", selectors=(selector,)), padding="x" * 3_000_000)
    webhook.respond(body_of(review))
    caches = (compile_selector, compiled_pattern, reads_of, Quantity.parse)
    reads_of(selector)
    cached = [cache.cache_info().currsize for cache in caches]
    async with asyncio.timeout(10):
        await webhook._tired.wait()
    sites = webhook._judge.knowledge.sites
    await webhook._know(36)
    assert not webhook._tired.is_set()
    for cache, before in zip(caches, cached, strict=True):
        assert cache.cache_info().currsize < before, cache
    assert webhook._judge.knowledge.sites is not sites


async def test_of_a_server_that_is_newer_than_this_release_the_newest_that_is_known_is_assumed(
    webhook: WebhookReplica,
) -> None:
    await webhook._know(36)
    assert webhook._judge.knows_server and webhook._judge.knowledge.minor == 36
    await webhook._know(99)
    assert not webhook._judge.knows_server and webhook._judge.knowledge.minor == 37


async def test_a_connection_without_a_request_makes_room_and_one_that_is_worked_on_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a handshake, half a header, and an idle connection are all closed at the limit; API servers get through."""
    monkeypatch.setattr("dra_driver.runtime.connections.MOST_CONNECTIONS", 8)
    certificate, begun, end = made(), threading.Event(), threading.Event()

    def slow(body: bytes) -> JsonObject:
        if body == b"slow":
            begun.set()
            assert end.wait(60)
        return {}

    async with served(certificate, slow) as (_, port), client(certificate) as session:
        asking = asyncio.create_task(ask(session, port, b"slow"))
        await asyncio.to_thread(begun.wait, 60)
        half = []
        for _ in range(20):
            half.append(await asyncio.open_connection("127.0.0.1", port))
            half.append(await half_a_header(certificate, port))
        async with asyncio.timeout(60):
            for _ in range(3):
                async with client(certificate) as other:
                    assert (await ask(other, port))[0] == 200
            # All but the newest are closed.
            for reader, _ in half[:30]:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        end.set()
        assert (await asking)[0] == 200
        for _, writer in half:
            writer.close()


async def half_a_header(
    certificate: ServingCertificate, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cadata="\n".join(certificate.authority))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"POST /review HTTP/1.1\r\nHost: x\r\n")
    return reader, writer


async def test_a_connection_that_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.runtime.connections.FIRST_REQUEST_S", 0.05)
    certificate = made()
    async with served(certificate) as (_, port):
        monkeypatch.setattr("dra_driver.runtime.connections.FIRST_REQUEST_S", 0.05)
        plain, _ = await asyncio.open_connection("127.0.0.1", port)
        half, _ = await half_a_header(certificate, port)
        async with asyncio.timeout(60):
            for reader in (plain, half):
                with suppress(ConnectionError):
                    assert await reader.read() == b""


async def test_few_large_bodies_are_read_at_a_time_and_small_ones_do_not_wait_for_them() -> None:
    certificate = made()
    large = b"x" * 200_000
    async with served(certificate) as (_, port), client(certificate) as session:

        async def begins() -> AsyncIterator[bytes]:
            yield large[:1000]
            await forever.wait()

        forever = asyncio.Event()
        headers = {"Content-Length": str(len(large))}
        waiting = [asyncio.create_task(ask(session, port, begins(), headers=headers)) for _ in range(6)]
        async with asyncio.timeout(60):
            assert (await ask(session, port, b"small"))[0] == 200
            complete = asyncio.create_task(ask(session, port, large))
            for _ in range(50):
                assert (await ask(session, port, b"small"))[0] == 200
        assert not any(task.done() for task in (*waiting, complete))
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(60):
            assert await complete == (200, b'{"length": 200000}')


async def test_a_body_that_does_not_come_is_given_up_long_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.webhook.review_server._READ_TIMEOUT_S", 0.05)
    certificate = made()

    async def begins() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async with served(certificate) as (_, port), client(certificate) as session:
        async with asyncio.timeout(15):
            assert (await ask(session, port, begins(), headers={"Content-Length": "2"}))[0] == 408


async def test_a_review_that_waits_for_a_thread_is_dropped_at_its_deadline_and_one_that_never_ends_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.webhook.review_server._STUCK_S", 0.0)
    certificate, end, bodies = made(), threading.Event(), list[bytes]()

    def hangs(body: bytes) -> JsonObject:
        bodies.append(body)
        assert end.wait(60)
        return {}

    server = ReviewServer("127.0.0.1:0", hangs, drain_s=0.0, deadline_s=0.5)
    server.use(certificate)
    assert server.stuck() is None, "nothing was begun"
    async with server.running() as port, client(certificate) as session:
        answers = await asyncio.gather(*(ask(session, port, b"%d" % number) for number in range(9)))
        assert {status for status, _ in answers} == {408}
        assert "has not ended" in (server.stuck() or "")
        end.set()
        await server.in_thread(lambda: None)
        assert len(bodies) == 4, "the others were dropped"
