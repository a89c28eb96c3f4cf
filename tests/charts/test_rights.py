"""Each line of the table of rights, by the chart's roles and policies: without a server always, and on a real one.

`docs.from_code.rights` has the lines; docs/security.md shows them.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import real_api_server, versions
from support.api import Api
from support.chart_values import Values
from support.foreign_types import EVERYTHING_SERVED
from support.helm import CHART, Release
from support.permissions import Grant
from support.rights import (
    ACCOUNTS,
    Caller,
    access_of,
    admission_objects,
    attempts,
    claim_with_parameters,
    granted,
    judged,
    prepared,
    rbac_objects,
    settled,
    with_daemons,
)

from docs.from_code.rights import IGNORED, NODE_AUTHORIZER, RBAC, VALIDATION, Account, Line, Setup, lines
from dra_driver.api.meta import RESOURCE_CLAIMS
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.events import EventRecorder, News, Regarding
from dra_driver.names import ClaimRef
from kubelet_plugin.reporting.claim_devices import key_of, put_entries

type Render = Any
type Releases = Mapping[Setup, Release]

VALUES: Mapping[Setup, Values] = {
    Setup.CONTROLLER: {},
    Setup.NODE: {"publisher": "node"},
    Setup.UI: {"ui": {"enabled": True}},
    Setup.WEBHOOK: {"webhook": {"install": True}},
    Setup.REMOVAL: {"webhook": {"install": True, "certificates": "cert-manager"}},
}
LINES = lines()


def release_of(setup: Setup, render: Render) -> Release:
    """What is there meanwhile: while a release is removed, its hooks alone."""
    release: Release = render(VALUES[setup], before=EVERYTHING_SERVED if setup is Setup.REMOVAL else ())
    return replace(release, objects=release.hooks if setup is Setup.REMOVAL else release.objects, hooks=())


def lines_of(setup: Setup) -> list[Line]:
    return [line for line in LINES if setup in line.where()]


@pytest.fixture
def releases(render: Render) -> Releases:
    with_daemons(render())
    return {setup: release_of(setup, render) for setup in Setup}


def test_each_allowed_line_has_its_reason_and_no_refused_one() -> None:
    assert [line for line in LINES if line.allowed != bool(line.reason) and line.by != IGNORED] == []


@pytest.mark.parametrize("setup", Setup, ids=lambda setup: setup.name.lower())
def test_roles_and_policies_answer_as_the_table_says(setup: Setup, releases: Releases) -> None:
    pytest.importorskip("cel_expr_python.cel", reason="Google's evaluator is not installed")
    release = releases[setup]
    tried = [attempt for line in lines_of(setup) if not line.by_quantity for attempt in attempts(line)]
    assert tried
    wrong = {}
    for attempt in tried:
        by = attempt.line.by
        wanted = {by} - {"", IGNORED, NODE_AUTHORIZER}
        if by == VALIDATION or (by == RBAC and attempt.line.account not in ACCOUNTS):
            continue  # by Kubernetes itself, and by roles of its own
        if (answer := judged(release, attempt)) != wanted:
            wrong[str(attempt)] = (wanted, answer)
    assert wrong == {}


@pytest.mark.parametrize("setup", Setup, ids=lambda setup: setup.name.lower())
def test_every_right_of_the_chart_is_explained_by_a_line(setup: Setup, releases: Releases) -> None:
    release = releases[setup]
    where = {setup} | ({Setup.CONTROLLER} if setup in (Setup.WEBHOOK, Setup.UI) else set())
    for account in ACCOUNTS:
        known = [
            access_of(attempt)
            for line in LINES
            if line.account is account and line.allowed and where & set(line.where())
            for attempt in attempts(line)
        ]
        if account is not Account.UNBOUND:
            assert [str(grant) for grant in granted(release, account) if not any(map(grant.covers, known))] == []


def test_the_setups_have_all_rights_that_any_values_could_give(releases: Releases) -> None:
    """All rules of the templates, whatever conditions they stand under."""
    rendered = {
        grant.permission for release in releases.values() for account in ACCOUNTS for grant in granted(release, account)
    }
    written = set()
    for template in (CHART / "templates").rglob("*.yaml"):
        text = template.read_text()
        blocks = re.findall(r"^rules:\n(.*?)(?=^---|^\{\{- if|\Z)", _without_actions(text), re.M | re.S)
        assert len(blocks) == len(re.findall(r"^kind: (?:Cluster)?Role$", text, re.M)), template.name
        for rule in (rule for block in blocks for rule in yaml.safe_load(block)):
            written |= {
                (verb, group, resource)
                for verb in rule["verbs"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
            }
    assert written == rendered


def _without_actions(text: str) -> str:
    """Conditions go, what they hold stays; what is written by an action is `x`."""
    text = re.sub(r"^\{\{-? (?:if|else|end|with|range|/\*)[^}]*\}\}\n", "", text, flags=re.M)
    text = re.sub(r"\{\{-? (?:if|else|end|with|range)[^}]*\}\}", "", text)
    return re.sub(r"\{\{.*?\}\}", "x", text)


def test_a_right_without_a_line_and_a_line_without_a_right_are_seen(releases: Releases) -> None:
    release = releases[Setup.CONTROLLER]
    (line,) = [line for line in lines_of(Setup.CONTROLLER) if line.account is Account.DAEMON and line.allowed]
    accesses = [access_of(attempt) for attempt in attempts(line)]
    assert not any(map(Grant("get", "", "secrets").covers, accesses))
    stolen = Line(Account.DAEMON, "get", "secrets", "any", "because", on="default/secret")
    assert [judged(release, attempt) for attempt in attempts(stolen)] == [{RBAC}]


# On a real API server.


async def test_a_real_api_server_answers_as_the_table_says(tmp_path: Path, releases: Releases) -> None:
    """With the policies; and without, when what they refuse is allowed, but for what Kubernetes 1.36 refuses itself."""
    assets = real_api_server.assets_folder()
    minor = versions.real_minor(assets)
    server = real_api_server.start(assets, tmp_path / "server", own_defaults=True)
    try:
        async with Api(server.url, token=server.token, ssl=server.ssl_context()) as admin:
            tokens = await prepared(admin, releases[Setup.CONTROLLER])
            caller, counts = Caller(admin, tokens), {}
            for setup, release in releases.items():
                roles, admission = rbac_objects(release.objects), admission_objects(release.objects)
                for policies, objects in ((False, roles), (True, admission)):
                    for path, obj in objects:
                        await admin.post(path, obj)
                    todo = [line for line in lines_of(setup) if policies or line.by_policy]
                    if not server.has_controllers:
                        todo = [line for line in todo if line.account not in (Account.EDITOR, Account.VIEWER)]
                    counts[setup.name, policies], wrong = await settled(caller, todo, minor, policies=policies)
                    assert not wrong, "\n".join(wrong)
                if setup is Setup.CONTROLLER:
                    await the_programs_own_writers_are_let_through(server, admin, tokens)
                for path, obj in [*roles, *admission]:
                    await admin.delete(f"{path}/{obj['metadata']['name']}")
            print(f"1.{minor}: {sum(counts.values())} requests: {counts}")
    finally:
        server.stop()


async def the_programs_own_writers_are_let_through(
    server: real_api_server.RealApiServer, admin: Api, tokens: Mapping[Account, str]
) -> None:
    """Parameters of claims keep their bytes: rewritten, they would count as another allocation."""
    uid = await claim_with_parameters(admin, "written", "node-1")
    async with kube_of(server, tokens[Account.PLUGIN]) as kube:
        entry = {"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-1", "data": {"a": 1}}
        claim = ClaimRef("default", "written", uid)
        await put_entries(kube, claim, "gpu.nvidia.com", [entry], [key_of(entry)])
        written = await kube.get(RESOURCE_CLAIMS, "written", "default")
        assert [device["driver"] for device in written["status"]["devices"]] == ["gpu.nvidia.com"]
        about = (Regarding.pod("default", "a", "1"), Regarding.claim(claim), Regarding.node("node-1"))
        events = EventRecorder(kube, controller="gpu.nvidia.com/kubelet-plugin", instance="node-1")
        assert await dropped(events, *about, Regarding.node("node-2")) == 1
    async with kube_of(server, tokens[Account.CONTROLLER]) as kube:
        domain = Regarding("resource.nvidia.com/v1beta1", "ComputeDomain", "train", "1", "default")
        events = EventRecorder(kube, controller="gpu.nvidia.com/controller", instance="a")
        assert await dropped(events, domain, Regarding.node("node-2"), about[0]) == 1


def kube_of(server: real_api_server.RealApiServer, token: str) -> Kube:
    return Kube(Endpoint(server.url, server.ssl_context(), lambda: f"Bearer {token}"))


async def dropped(events: EventRecorder, *about: Regarding) -> int:
    """How many could not be written."""
    for index, regarding in enumerate(about):
        await events.write_once(News(regarding, "Warning", "GpuUnhealthy", "Watch", "GPU gpu-1: Xid 79."), str(index))
    return events.dropped["refused"]
