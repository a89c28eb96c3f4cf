"""Admission webhooks: whom a server asks about which requests, and what becomes of them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.api import APPLY, Api
from support.asking_api_server import AskingApiServer
from support.webhooks import Webhook, a_webhook

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"

type Json = dict[str, Any]


@pytest.fixture
def server_type() -> type[AskingApiServer]:
    return AskingApiServer


@pytest_asyncio.fixture
async def webhook() -> AsyncIterator[Webhook]:
    async with a_webhook() as running:
        yield running


class Configuration:
    """Of one webhook, which is called about objects with the label `of` of this test."""

    def __init__(self, api: Api, webhook: Webhook, unique: str) -> None:
        self._api = api
        self._webhook = webhook
        self.unique = unique

    def named(self, name: str, **labels: str) -> Json:
        return {"name": f"{self.unique}-{name}", "labels": {"of": self.unique, **labels}}

    async def make(self, resources: list[str], **fields: Any) -> None:
        """And wait until the server knows of it: the object of that name is refused by a webhook of its own."""
        asks = {"admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5}
        mine = {
            "name": f"{self.unique}.example.com",
            "clientConfig": self._webhook.client_config(),
            "rules": [rule(resources)],
            "objectSelector": {"matchLabels": {"of": self.unique}},
            **asks,
            **fields,
        }
        witness = {
            "name": f"witness.{self.unique}.example.com",
            "clientConfig": self._webhook.client_config(),
            "rules": [rule(["deviceclasses"], "CREATE")],
            "matchConditions": [{"name": "it", "expression": f"object.metadata.name == 'witness-{self.unique}'"}],
            **asks,
        }
        body = {"metadata": {"name": self.unique}, "webhooks": [mine, witness]}
        await self._api.post(CONFIGURATIONS, body)
        seen = {"metadata": {"name": f"witness-{self.unique}", "labels": {"refuse": ""}}, "spec": {}}

        async def known() -> bool:
            try:
                await self._api.post(CLASSES, seen, dryRun="All")
            except Exception as error:
                return "witness." in str(error)
            return False

        await self._api.eventually(known)

    async def remove(self) -> None:
        await self._api.delete(f"{CONFIGURATIONS}/{self.unique}")


def rule(resources: list[str], *operations: str, versions: tuple[str, ...] = ("v1",)) -> Json:
    groups = ["resource.k8s.io", ""]
    operations = operations or ("CREATE", "UPDATE", "DELETE")
    return {
        "apiGroups": groups,
        "apiVersions": list(versions),
        "resources": resources,
        "operations": list(operations),
        "scope": "*",
    }


@pytest_asyncio.fixture
async def configuration(api: Api, webhook: Webhook, unique: str) -> AsyncIterator[Configuration]:
    installed = Configuration(api, webhook, unique)
    yield installed
    await installed.remove()


async def test_what_a_webhook_refuses_is_not_stored_and_its_words_are_passed_on(
    api: Api, webhook: Webhook, configuration: Configuration
) -> None:
    await configuration.make(["deviceclasses"])
    body = {"metadata": configuration.named("a", refuse="say-why"), "spec": {}}
    for dry_run in ({}, {"dryRun": "All"}):
        refusal = await api.refused("POST", CLASSES, body, **dry_run)
        assert (refusal.status, refusal.reason) == (422, "Invalid")
        message = f'admission webhook "{configuration.unique}.example.com" denied the request: because of this'
        assert refusal.message == message
    assert await api.is_gone(f"{CLASSES}/{body['metadata']['name']}")
    assert [request["dryRun"] for request in webhook.about(body["metadata"]["name"])] == [False, True]
    silent = {"metadata": configuration.named("b", refuse=""), "spec": {}}
    refusal = await api.refused("POST", CLASSES, silent)
    assert refusal.status == 400 or refusal.status == 403
    assert refusal.message.endswith("denied the request without explanation")


async def test_what_it_warns_of_is_a_warning_of_the_answer(api: Api, configuration: Configuration) -> None:
    await configuration.make(["deviceclasses"])
    await api.post(CLASSES, {"metadata": configuration.named("a", warn=""), "spec": {}})
    assert any("mind that" in warning for warning in api.warnings)


async def test_it_is_asked_with_what_is_about_to_be_stored_and_what_is_there(
    api: Api, webhook: Webhook, configuration: Configuration
) -> None:
    await configuration.make(["deviceclasses"])
    metadata = configuration.named("a")
    path = f"{CLASSES}/{metadata['name']}"

    def asked() -> Json:
        """What was asked last. A real server that finds its copy of the object too old asks again with a newer one."""
        reviews, webhook.requests = webhook.about(metadata["name"]), []
        return reviews[-1]

    await api.post(CLASSES, {"metadata": metadata, "spec": {}})
    created = asked()
    await api.patch(path, {"metadata": {"labels": {"more": "1"}}})
    patched = asked()
    config = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": metadata["name"]}}
    labelled = {**config, "metadata": {**config["metadata"], "labels": {"applied": "1"}}}
    await api.patch(path, labelled, APPLY, fieldManager="me")
    applied = asked()
    await api.delete(path)
    deleted = asked()
    assert (created["operation"], created["oldObject"]) == ("CREATE", None)
    assert created["object"]["metadata"]["uid"] and created["object"]["kind"] == "DeviceClass"
    assert created["kind"] == {"group": "resource.k8s.io", "version": "v1", "kind": "DeviceClass"}
    assert created["resource"] == {"group": "resource.k8s.io", "version": "v1", "resource": "deviceclasses"}
    assert patched["operation"] == applied["operation"] == "UPDATE"
    assert patched["object"]["metadata"]["labels"]["more"] == "1"
    assert "more" not in patched["oldObject"]["metadata"]["labels"]
    assert applied["object"]["metadata"]["labels"]["applied"] == "1"
    assert (deleted["operation"], deleted["object"]) == ("DELETE", None)
    assert deleted["oldObject"]["metadata"]["labels"]["applied"] == "1"


async def test_a_name_that_the_server_makes_is_the_name_that_was_asked_about(
    api: Api, webhook: Webhook, configuration: Configuration
) -> None:
    await configuration.make(["deviceclasses"])
    metadata = {"generateName": f"{configuration.unique}-", "labels": {"of": configuration.unique}}
    made = await api.post(CLASSES, {"metadata": metadata, "spec": {}})
    assert [request["operation"] for request in webhook.about(made["metadata"]["name"])] == ["CREATE"]


async def test_what_the_server_refuses_itself_nobody_is_asked_about(
    api: Api, webhook: Webhook, configuration: Configuration
) -> None:
    await configuration.make(["deviceclasses"])
    metadata = configuration.named("a")
    refusal = await api.refused("POST", CLASSES, {"metadata": metadata, "spec": {"extendedResourceName": "x"}})
    assert refusal.status == 422 and webhook.about(metadata["name"]) == []


async def test_a_webhook_that_fails_stands_in_the_way_or_not_as_its_policy_says(
    api: Api, webhook: Webhook, configuration: Configuration
) -> None:
    await configuration.make(["deviceclasses"])
    refusal = await api.refused("POST", CLASSES, {"metadata": configuration.named("a", fail=""), "spec": {}})
    assert refusal.status == 500 and refusal.message.startswith("Internal error occurred: failed calling webhook")


async def test_a_webhook_that_fails_and_may_be_ignored_is_ignored(api: Api, configuration: Configuration) -> None:
    await configuration.make(["deviceclasses"], failurePolicy="Ignore")
    await api.post(CLASSES, {"metadata": configuration.named("a", fail=""), "spec": {}})
    refusal = await api.refused("POST", CLASSES, {"metadata": configuration.named("b", refuse=""), "spec": {}})
    assert "denied the request" in refusal.message, "what it does refuse is refused all the same"


async def test_a_server_that_is_not_trusted_is_one_that_fails(
    api: Api, webhook: Webhook, configuration: Configuration
) -> None:
    async with a_webhook() as other:
        untrusted = {"url": webhook.url + "/", "caBundle": other.client_config()["caBundle"]}
        await configuration.make(["deviceclasses"], clientConfig=untrusted)
        refusal = await api.refused("POST", CLASSES, {"metadata": configuration.named("a"), "spec": {}})
        assert refusal.status == 500 and "certificate" in refusal.message


@pytest.mark.parametrize(
    ("condition", "asked"),
    [
        ("request.operation == 'CREATE' && object.metadata.name.endsWith('-a')", True),
        ("object.?spec.?config.orValue([]).exists(c, c.?opaque.?driver.orValue('') in ['x', 'y'])", False),
        ("oldObject == null", True),
        ("has(object.metadata.annotations)", False),
    ],
)
async def test_conditions_say_what_concerns_it(
    api: Api, webhook: Webhook, configuration: Configuration, condition: str, asked: bool
) -> None:
    await configuration.make(["deviceclasses"], matchConditions=[{"name": "it", "expression": condition}])
    metadata = configuration.named("a")
    await api.post(CLASSES, {"metadata": metadata, "spec": {}})
    assert bool(webhook.about(metadata["name"])) == asked


async def test_a_condition_that_fails_refuses_the_request(api: Api, configuration: Configuration) -> None:
    condition = {"name": "it", "expression": "object.nothing == 1"}
    await configuration.make(["deviceclasses"], matchConditions=[condition])
    refusal = await api.refused("POST", CLASSES, {"metadata": configuration.named("a"), "spec": {}})
    assert refusal.status == 403
    assert "is forbidden: expression 'object.nothing == 1' resulted in error: no such key: nothing" in refusal.message


async def test_namespaces_are_selected_by_their_labels(
    api: Api, webhook: Webhook, configuration: Configuration, namespace: str
) -> None:
    term = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace]}
    await configuration.make(["resourceclaims"], namespaceSelector={"matchExpressions": [term]})
    request = {"name": "a", "exactly": {"deviceClassName": "x"}}
    for name, place in (("a", namespace), ("b", "default")):
        body = {"metadata": configuration.named(name), "spec": {"devices": {"requests": [request]}}}
        await api.post(f"/apis/resource.k8s.io/v1/namespaces/{place}/resourceclaims", body)
    assert [request["namespace"] for request in webhook.requests if request["kind"]["kind"] == "ResourceClaim"] == [
        "default"
    ]


async def test_status_is_another_resource(
    api: Api, webhook: Webhook, configuration: Configuration, namespace: str
) -> None:
    await configuration.make(["resourceclaims"])
    claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    metadata = configuration.named("a")
    request = {"name": "a", "exactly": {"deviceClassName": "x"}}
    await api.post(claims, {"metadata": metadata, "spec": {"devices": {"requests": [request]}}})
    await api.patch(f"{claims}/{metadata['name']}/status", {"status": {}})
    assert [request["operation"] for request in webhook.about(metadata["name"])] == ["CREATE"]
