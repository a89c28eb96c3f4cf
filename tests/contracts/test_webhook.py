"""The webhook with an API server: on and off without a gap, certificates that change under load, what users are told.

Two replicas, as the chart has them; what Helm does to the two objects is done by hand.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from support.api import APPLY, Api, Refused
from support.asking_api_server import AskingApiServer
from support.issuer import Issuer
from support.reviews import BAD, GOOD, KINDS, an_object, config

from controller.settings import WebhookSettings
from controller.webhook.certificates import Lifetimes, certificate_in
from controller.webhook.configuration import OVERLAP, WebhookPlan, is_armed, trusted_in
from controller.webhook.service import WebhookMetrics, WebhookReplica
from controller.webhook.trust import lead
from dra_driver.api.policy import PublishingPolicy
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.names import GPU_DRIVER

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
SETTLE_S = 0.3
TIMES = Lifetimes(whole=timedelta(days=400))
"""API servers know what time it is, so what is made in a past that lies 130 days back must still be good now."""
PAST = timedelta(days=-130)
PLURALS = {kind: f"{kind.lower()}s" if not kind.endswith("Class") else "deviceclasses" for kind in KINDS}


@pytest.fixture
def server_type() -> type[AskingApiServer]:
    return AskingApiServer


@dataclass
class Clock:
    """A wall clock that tests can put forward."""

    offset: timedelta = PAST

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.offset


@dataclass
class Replica:
    webhook: WebhookReplica
    kube: Kube
    plan: WebhookPlan
    clock: Clock
    port: int
    metrics: CollectorRegistry
    stack: AsyncExitStack
    leading: asyncio.Task[Any] | None = None

    def lead(self) -> None:
        self.leading = asyncio.create_task(lead(self.kube, self.plan, now=self.clock, look_s=0.2))


@dataclass
class Install:
    """A release: the objects that the chart makes, and replicas behind one address, which is what a Service is here."""

    api: Api
    name: str
    namespace: str
    port: int
    clock: Clock = field(default_factory=Clock)
    replicas: list[Replica] = field(default_factory=list)
    connections: set[asyncio.Task[Any]] = field(default_factory=set)
    failure_policy: Any = "Fail"
    issued_here: bool = True

    @property
    def configuration(self) -> str:
        return f"{CONFIGURATIONS}/{self.name}"

    @property
    def secret(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets/{self.name}"

    async def make_objects(self) -> None:
        """As Helm does."""
        await self.api.post(CONFIGURATIONS, {"metadata": {"name": self.name}})
        await self.api.post(self.secret.rpartition("/")[0], {"metadata": {"name": self.name}})

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[Replica]:
        settings = WebhookSettings(
            endpoint="127.0.0.1:0",
            configuration=self.name,
            secret=self.name,
            service="",
            url=f"https://127.0.0.1:{self.port}",
            issued_here=self.issued_here,
            failure_policy=self.failure_policy,
            # The longest there is: a busy machine is no failure of the webhook.
            timeout_s=30,
            exempt_namespaces=(self.namespace,),
            drain_s=0.3,
        )
        plan = WebhookPlan(settings, self.namespace, GPU_DRIVER, settle_s=SETTLE_S, times=TIMES)
        registry = CollectorRegistry()
        async with AsyncExitStack() as stack:
            endpoint = Endpoint(server=self.api.url, token=self._token, tls=self.api.ssl)
            kube = await stack.enter_async_context(Kube(endpoint, user_agent="gpu-dra-controller"))
            webhook = WebhookReplica(
                kube,
                plan,
                policy=PublishingPolicy(),
                metrics=WebhookMetrics(registry),
                now=self.clock,
                look_s=0.2,
            )
            port = await stack.enter_async_context(webhook.serving())
            running = asyncio.create_task(webhook.run())
            new_replica = Replica(webhook, kube, plan, self.clock, port, registry, stack)
            self.replicas.append(new_replica)
            try:
                yield new_replica
            finally:
                # As kubelet: no endpoint of the Service any more, and told to end.
                self.replicas.remove(new_replica)
                for task in filter(None, (running, new_replica.leading)):
                    task.cancel()
                await asyncio.gather(*filter(None, (running, new_replica.leading)), return_exceptions=True)

    def _token(self) -> str | None:
        return f"Bearer {self.api.token}" if self.api.token else None

    async def armed(self) -> bool:
        try:
            return is_armed(await self.api.get(self.configuration))
        except Refused:
            return False

    async def until_asked(self) -> None:
        """Until the API server asks about everything, as far as this client can see."""
        await self.api.eventually(self.armed)
        await self.until(refused_by_us(self.api))

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        await self.api.eventually(condition)

    # -- the Service

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to one of the ready replicas, in turn."""
        ready = [candidate for candidate in self.replicas if candidate.webhook.problem() is None]
        if not ready:
            writer.close()
            return
        self._turn = getattr(self, "_turn", 0) + 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", ready[self._turn % len(ready)].port)
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def refused_by_us(api: Api) -> Callable[[], Awaitable[bool]]:
    async def refused() -> bool:
        try:
            await api.post(path_of(an_object("DeviceClass")), an_object("DeviceClass", config(BAD)), dryRun="All")
        except Refused as refusal:
            return 'admission webhook "refuse.' in refusal.message
        return False

    return refused


def path_of(obj: dict[str, Any]) -> str:
    namespace = obj["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{obj['apiVersion']}{place}/{PLURALS[obj['kind']]}"


@pytest_asyncio.fixture
async def install(api: Api, unique: str) -> AsyncIterator[Install]:
    await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    new_install = Install(api, f"{unique}-webhook", unique, 0)
    service = await asyncio.start_server(new_install.forward, "127.0.0.1", 0)
    new_install.port = service.sockets[0].getsockname()[1]
    yield new_install
    service.close()
    if not await api.is_gone(new_install.configuration):
        await api.delete(new_install.configuration)


@pytest_asyncio.fixture
async def team(api: Api, unique: str) -> str:
    name = f"{unique}-team"
    await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@dataclass
class Load:
    """Users who create claims all the time, right ones and wrong ones."""

    api: Api
    namespace: str
    created: int = 0
    refused: int = 0
    slipped: int = 0
    failed: list[str] = field(default_factory=list)

    async def run(self, worker: int) -> None:
        while True:
            for name, parameters in (("good", GOOD), ("bad", BAD)):
                metadata = {"generateName": f"{name}-{worker}-", "name": "", "namespace": self.namespace}
                obj = an_object("ResourceClaim", config(parameters), metadata=metadata)
                await self._create(obj, name)

    async def _create(self, obj: dict[str, Any], name: str) -> None:
        try:
            await self.api.post(path_of(obj), obj)
        except Refused as refusal:
            if name == "bad" and "denied the request" in refusal.message:
                self.refused += 1
            else:
                self.failed.append(str(refusal))
        else:
            self.created += name == "good"
            self.slipped += name == "bad"


@asynccontextmanager
async def under_load(api: Api, namespace: str) -> AsyncIterator[Load]:
    load = Load(api, namespace)
    tasks = [asyncio.create_task(load.run(worker)) for worker in range(3)]
    yield load
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def more(load: Load, count: int = 6) -> None:
    """Some more requests of both kinds."""
    created, refused = load.created + count, load.refused + load.slipped + count
    while load.created < created or load.refused + load.slipped < refused:
        assert not load.failed, load.failed[0]
        await asyncio.sleep(0.01)


async def test_users_are_told_what_check_says_and_only_of_what_is_ours(api: Api, install: Install, team: str) -> None:
    await install.make_objects()
    async with install.replica() as replica:
        replica.lead()
        await install.until_asked()
        for kind in KINDS:
            named = {"name": team, **({} if kind == "DeviceClass" else {"namespace": team})}
            wrong = an_object(kind, config(BAD), metadata=named)
            refusal = await api.refused("POST", path_of(wrong), wrong)
            assert refusal.status == 422
            place = {
                "DeviceClass": "spec.",
                "ResourceClaim": "spec.devices.",
                "ResourceClaimTemplate": "spec.spec.devices.",
            }
            start = f'admission webhook "refuse.{PLURALS[kind]}.gpu.nvidia.com" denied the request: {place[kind]}'
            assert refusal.message.startswith(f"{start}config[0].opaque.parameters.sharing.mpsConfig: is for strategy")
            right = an_object(kind, config(GOOD), metadata=named)
            await api.post(path_of(right), right)
        reads = ("device.attributes['gpu.nvidia.com'].productNam == 'x'",)
        odd = an_object("ResourceClaim", selectors=reads, metadata={"name": "odd", "namespace": team})
        await api.post(path_of(odd), odd)
        assert any("productNam" in warning for warning in api.warnings)
        other = config({**BAD, "apiVersion": "x"}, driver="gpu.example.com")
        reviewed = samples(replica, "gpu_dra_webhook_reviews_total")
        alien = an_object("ResourceClaim", other, metadata={"name": "alien", "namespace": team})
        await api.post(path_of(alien), alien)
        exempt = an_object("ResourceClaim", config(BAD), metadata={"namespace": install.namespace})
        await api.post(path_of(exempt), exempt)
        assert samples(replica, "gpu_dra_webhook_reviews_total") == reviewed, "nobody asks about those"
        assert reviewed["DeviceClass refused"] >= 1 and reviewed["ResourceClaim admitted"] >= 2


def samples(replica: Replica, name: str) -> dict[str, float]:
    return {
        " ".join(sample.labels.values()): sample.value
        for family in replica.metrics.collect()
        for sample in family.samples
        if sample.name == name
    }


async def test_objects_that_were_bad_before_can_be_changed_and_deleted(api: Api, install: Install, team: str) -> None:
    await install.make_objects()
    finalizers = {"finalizers": ["example.com/x"]}
    bad = an_object("ResourceClaim", config(BAD), metadata={"name": "old", "namespace": team, **finalizers})
    await api.post(path_of(bad), bad)
    path = f"{path_of(bad)}/old"
    async with install.replica() as replica:
        replica.lead()
        await install.until_asked()
        await api.patch(path, {"metadata": {"labels": {"a": "b"}}})
        await api.patch(f"{path}/status", {"status": {}})
        await api.delete(path)
        await api.patch(path, {"metadata": {"finalizers": []}})
        assert await api.is_gone(path)


@pytest.mark.slow
async def test_it_is_switched_on_and_off_and_replaced_under_load_without_one_failed_request(
    api: Api, install: Install, team: str
) -> None:
    """The policy is to fail, so whatever nobody answers would be seen here."""
    async with under_load(api, team) as load, AsyncExitStack() as first, AsyncExitStack() as second:
        await more(load)
        assert load.refused == 0, "nobody is asked yet"
        await install.make_objects()
        await more(load)
        for stack in (first, second):
            await stack.enter_async_context(install.replica())
        leader, follower = install.replicas
        leader.lead()
        await install.until_asked()
        slipped = load.slipped
        await more(load, 20)
        assert load.slipped <= slipped + 3 * 2, "requests that were under way"
        slipped = load.slipped
        assert samples(leader, "gpu_dra_webhook_reviews_total") and samples(follower, "gpu_dra_webhook_reviews_total")
        # An upgrade: new replicas first, then the old ones go, the leader among them.
        async with install.replica() as third, install.replica():
            await install.until(ready(third))
            await first.aclose()
            third.lead()
            await second.aclose()
            await more(load, 20)
            assert load.slipped == slipped, "nobody was let through while replicas changed"
            await api.delete(install.configuration)
            await install.until(not_asked(api))
            await more(load)
        await more(load)
    assert load.failed == []
    assert await api.is_gone(install.configuration), "nobody makes it again"


def ready(replica: Replica) -> Callable[[], Awaitable[bool]]:
    async def true() -> bool:
        return replica.webhook.problem() is None

    return true


def not_asked(api: Api) -> Callable[[], Awaitable[bool]]:
    async def true() -> bool:
        return not await refused_by_us(api)()

    return true


@pytest.mark.slow
async def test_certificates_are_renewed_under_load_long_before_they_expire(
    api: Api, install: Install, team: str
) -> None:
    """Time is put forward two months, twice, and nothing is started anew."""
    await install.make_objects()
    async with install.replica() as leader, install.replica():
        leader.lead()
        await install.until_asked()
        async with under_load(api, team) as load:
            served = [await current(install)]
            for _ in range(2):
                install.clock.offset += TIMES.renewed_after
                await install.until(changed(install, served[-1]))
                served.append(await current(install))
                await install.until(all_serve(install, served[-1]))
                await more(load, 15)
                trusted = trusted_in(await api.get(install.configuration))
                assert trusted == (*served[-1].authority, *served[-2].authority)
                install.clock.offset += OVERLAP
                await install.until(trusts_only(install, served[-1]))
                await more(load, 15)
        assert load.failed == [] and load.slipped == 0
        assert len({certificate_.key for certificate_ in served}) == 3
        assert (await current(install)) == served[-1], "of two replicas one has made each"


async def current(install: Install) -> Any:
    return certificate_in(await install.api.get(install.secret), "it")


def changed(install: Install, before: Any) -> Callable[[], Awaitable[bool]]:
    async def true() -> bool:
        return bool(await current(install) != before)

    return true


def all_serve(install: Install, certificate: Any) -> Callable[[], Awaitable[bool]]:
    async def true() -> bool:
        return all(replica.webhook._served.current == certificate for replica in install.replicas)

    return true


def trusts_only(install: Install, certificate: Any) -> Callable[[], Awaitable[bool]]:
    async def true() -> bool:
        return trusted_in(await install.api.get(install.configuration)) == certificate.authority

    return true


async def test_an_api_server_that_cannot_reach_it_goes_on_as_before(api: Api, install: Install, team: str) -> None:
    """Pods can be out of its reach; then nothing is refused, and the replicas say so."""
    await install.make_objects()
    async with install.replica() as replica:
        await install.until(ready(replica))
        install.replicas.remove(replica)  # no endpoint of the Service
        replica.lead()

        async def asked_about_the_probe() -> bool:
            webhooks = (await api.get(install.configuration)).get("webhooks") or ()
            return [webhook["name"] for webhook in webhooks] == ["webhook-probe.gpu.nvidia.com"]

        await install.until(asked_about_the_probe)
        async with under_load(api, team) as load:
            await more(load)
        assert load.failed == [] and load.refused == 0
        assert not await install.armed()
        install.replicas.append(replica)
        await install.until_asked()


async def test_a_secret_that_somebody_emptied_is_filled_again(api: Api, install: Install) -> None:
    await install.make_objects()
    async with install.replica() as replica:
        replica.lead()
        await install.until_asked()
        before = await current(install)
        await api.patch(install.secret, {"data": None})

        async def filled() -> bool:
            return await current(install) not in (None, before)

        await install.until(filled)
        made = await current(install)
        await install.until(all_serve(install, made))
        assert await refused_by_us(api)()


@pytest.mark.slow
async def test_a_secret_that_cert_manager_fills_is_read_and_never_written(
    api: Api, install: Install, team: str
) -> None:
    """Leaves are renewed, the authority is, and the Secret goes and comes back: all of it while users go on."""
    install.issued_here, install.clock.offset = False, timedelta()
    await api.post(CONFIGURATIONS, {"metadata": {"name": install.name}})
    first, second = Issuer("first"), Issuer("second", intermediate=True, rsa_leaves=True)

    async def issued(by: Issuer) -> Any:
        """As cert-manager does it: the whole Secret, in one request."""
        await api.patch(install.secret, by.secret(install.name, "127.0.0.1"), APPLY, fieldManager="cert-manager")
        made = await current(install)
        await install.until(all_serve(install, made))
        return made

    async with install.replica() as leader, install.replica():
        leader.lead()

        async def waits() -> bool:
            return "does not exist" in (leader.webhook.problem() or "") and not await install.armed()

        await install.until(waits)
        await issued(first)
        await install.until_asked()
        async with under_load(api, team) as load:
            configuration = await api.get(install.configuration)
            leaf = await issued(first)
            await more(load, 5)
            assert await api.get(install.configuration) == configuration, "the authority is the same"
            for issuer in (second, first):
                renewed = await issued(issuer)
                await more(load, 5)
                assert set(trusted_in(await api.get(install.configuration))) == {*leaf.authority, *renewed.authority}
                leaf = renewed
            await api.delete(install.secret)
            await more(load, 5)
            last = await issued(first)
            await more(load, 5)
        assert load.failed == [] and load.slipped == 0
        assert await current(install) == last, "nobody else writes it"


async def test_an_issuer_that_does_not_tell_its_authority_changes_nothing(
    api: Api, install: Install, team: str
) -> None:
    install.issued_here, install.clock.offset = False, timedelta()
    await api.post(CONFIGURATIONS, {"metadata": {"name": install.name}})
    issuer = Issuer("some authority")
    async with install.replica() as replica:
        replica.lead()
        await api.patch(install.secret, issuer.secret(install.name, "127.0.0.1"), APPLY, fieldManager="cert-manager")
        await install.until_asked()
        await api.patch(install.secret, {"data": {"ca.crt": ""}})
        async with under_load(api, team) as load:
            await more(load, 5)
        assert load.failed == [], "what was served before is served on"
