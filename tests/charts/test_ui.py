"""The web page of a release: off unless asked for, without rights to change anything, and shown to those alone who may
read what it shows."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support import real_api_server
from support.api import Api
from support.helm import Object, Release
from support.rights import rbac_objects
from support.rows import slow_but

from dra_driver.cli.main import load
from dra_driver.cli.overview import COMMANDS
from dra_driver.cli.ui.command import SHOWN
from dra_driver.cli.ui.ui_server import Listening, UiServer
from dra_driver.cli.ui.viewers import TokenReviews
from dra_driver.cli.ui.watched import WatchedCluster
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.names import GPU_DRIVER

type Render = Any

HTTPS = {"ui": {"enabled": True, "tlsSecret": "ui-tls"}, "networkPolicy": {"install": True}}


def named(release: Release, kind: str, ending: str) -> Object:
    (chosen,) = [item for item in release.objects if item["kind"] == kind and item["metadata"]["name"].endswith(ending)]
    return chosen


def container(release: Release) -> Object:
    deployment = named(release, "Deployment", "-ui")
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_it_is_off_by_default(render: Render) -> None:
    assert [item["metadata"]["name"] for item in render().objects if "-ui" in item["metadata"]["name"]] == []


@pytest.mark.parametrize("publisher", slow_but(["controller", "node"], "controller"))
def test_viewers_need_the_rights_for_all_that_is_shown_and_no_other(publisher: str, render: Render) -> None:
    role = named(render({**HTTPS, "publisher": publisher}), "ClusterRole", "-ui-viewer")
    allowed = {(group, plural) for rule in role["rules"] for group in rule["apiGroups"] for plural in rule["resources"]}
    assert allowed == {(kind.group, kind.plural) for kind in SHOWN}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_beyond_that_its_account_may_only_ask_who_a_viewer_is(render: Render) -> None:
    release = render(HTTPS)
    rules = named(release, "ClusterRole", "-ui")["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["tokenreviews"], ["create"]),
        (["subjectaccessreviews"], ["create"]),
    ]
    account = named(release, "Deployment", "-ui")["spec"]["template"]["spec"]["serviceAccountName"]
    bindings = [
        item["roleRef"]["name"].removeprefix(named(release, "ClusterRole", "-ui")["metadata"]["name"])
        for item in release.objects
        if item["kind"] in ("ClusterRoleBinding", "RoleBinding")
        and account in [subject["name"] for subject in item["subjects"]]
    ]
    assert bindings == ["", "-viewer"]


def test_a_refusal_names_the_role_that_helps(render: Render) -> None:
    release = render(HTTPS)
    role = named(release, "ClusterRole", "-ui-viewer")["metadata"]["name"]
    assert f"--viewer-role={role}" in container(release)["args"]


@pytest.mark.parametrize("values", [{"ui": {"enabled": True}}, HTTPS], ids=["port-forward", "https"])
def test_its_arguments_are_options_of_the_command(values: Object, render: Render) -> None:
    command = load(next(item for item in COMMANDS if item.name == "ui"))
    options = {option for parameter in command.params for option in parameter.opts}
    started = container(render(values))
    assert started["command"] == ["dractl", "ui", "--shared"]
    assert {argument.partition("=")[0] for argument in (*started["args"], "--shared")} <= options


def test_without_a_certificate_the_network_does_not_reach_it(render: Render) -> None:
    release = render({"ui": {"enabled": True}, "networkPolicy": {"install": True}})
    assert "ports" not in container(release) and not any("certificates" in item for item in container(release)["args"])
    assert [
        item for item in release.objects if item["kind"] == "Service" and item["metadata"]["name"].endswith("-ui")
    ] == []
    assert "ingress" not in named(release, "NetworkPolicy", "-ui")["spec"]


def test_with_a_certificate_it_speaks_https_only(render: Render) -> None:
    release = render(HTTPS)
    only = container(release)
    assert "--certificates=/etc/gpu-dra-ui" in only["args"]
    assert [probe["httpGet"]["scheme"] for probe in (only["readinessProbe"], only["livenessProbe"])] == ["HTTPS"] * 2
    assert named(release, "Service", "-ui")["spec"]["ports"][0]["targetPort"] == "https"
    (ingress,) = named(release, "NetworkPolicy", "-ui")["spec"]["ingress"]
    assert ingress["ports"] == [{"port": 8080, "protocol": "TCP"}]


# -- on a real API server


async def test_a_real_api_server_decides_who_sees_the_pages(render: Render, tmp_path: Path) -> None:
    """A token without rights is refused until the role that the refusal names is bound."""
    release = render(HTTPS)
    server = real_api_server.start(real_api_server.assets_folder(), tmp_path / "server")
    try:
        async with Api(server.url, token=server.token, ssl=server.ssl_context()) as admin:
            namespace = named(release, "Deployment", "-ui")["metadata"]["namespace"]
            await admin.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
            for path, obj in rbac_objects(release.objects):
                await admin.post(path, obj)
            own = named(release, "Deployment", "-ui")["spec"]["template"]["spec"]["serviceAccountName"]
            token, viewer = await _token(admin, namespace, own), await _token(admin, "default", "viewer")
            role = named(release, "ClusterRole", "-ui-viewer")["metadata"]["name"]
            async with Kube(Endpoint(server.url, server.ssl_context(), lambda: f"Bearer {token}")) as kube:
                viewers = TokenReviews(kube, SHOWN, role)
                stranger, refused = await viewers.refusal("nonsense"), await viewers.refusal(viewer)
                assert stranger is not None and stranger.status == 401
                assert refused is not None and refused.status == 403
                assert f"--clusterrole={role} --serviceaccount=default:viewer" in refused.text
                await admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {
                    "metadata": {"name": "gpu-ui-viewer"},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                    "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "viewer"}],
                })  # fmt: skip
                async with asyncio.timeout(30):
                    while await TokenReviews(kube, SHOWN, role).refusal(viewer) is not None:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                await _sees_the_page(kube, viewer)
    finally:
        server.stop()


async def _token(admin: Api, namespace: str, name: str) -> str:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await admin.post(accounts, {"metadata": {"name": name}})
    answer = await admin.post(f"{accounts}/{name}/token", {"spec": {}})
    token: str = answer["status"]["token"]
    return token


async def _sees_the_page(kube: Kube, token: str) -> None:
    """With the rights of the page's account, everything that is there can be read."""
    watched = WatchedCluster(kube, GPU_DRIVER)
    async with (
        UiServer(watched, TokenReviews(kube, SHOWN, "role"), Listening("127.0.0.1", 0)).serving() as port,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
    ):
        text = "cannot be read"
        async with asyncio.timeout(60):
            # A new server lets everyone read its version a moment later than it answers.
            while "cannot be read" in text:
                async with session.get(f"http://127.0.0.1:{port}/") as answer:
                    text = await answer.text()
                await asyncio.sleep(0.5)
    await watched.close()
    assert answer.status == 200 and "No node has reported GPUs yet." in text
