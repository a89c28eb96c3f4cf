"""docs/security.md says what the service accounts may do: no verb more and none less than the chart gives them."""

import re
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from support.pages import DOCS

type Permission = tuple[str, str, str]
"""Account, resource with its group, verb."""


def of_the_page() -> Iterator[Permission]:
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    part = text.partition("<!-- permissions: begin -->")[2].partition("<!-- permissions: end -->")[0]
    for account, resource, verbs in re.findall(
        r"^\| (plugin|controller|IMEX daemon) \| `([^`]+)` \| ([^|]+) \|", part, re.MULTILINE
    ):
        for verb in verbs.split(","):
            yield account, resource, verb.strip()


@pytest.mark.skipif(find_spec("helm_sdkpy") is None, reason="there is no Helm on this platform")
def test_the_table_of_permissions_is_that_of_the_chart() -> None:
    from support.helm import Helm, simulated_server

    with simulated_server() as server:
        objects = Helm(server.kubeconfig).install().objects
    given = {
        (_account(one["metadata"]["name"]), _named(resource, group), verb)
        for one in objects
        if one["kind"] in ("ClusterRole", "Role")
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(of_the_page()) == given


@pytest.mark.skipif(find_spec("helm_sdkpy") is None, reason="there is no Helm on this platform")
def test_without_compute_domains_the_controller_may_neither_make_pods_nor_write_nodes() -> None:
    from support.helm import Helm, simulated_server

    with simulated_server() as server:
        objects = Helm(server.kubeconfig).install({"featureGates": {"ComputeDomains": False}}).objects
    rules = [rule for one in objects if one["kind"] in ("ClusterRole", "Role") for rule in one["rules"]]
    assert not [rule for rule in rules if "daemonsets" in rule["resources"]]
    assert not [rule for rule in rules if "nodes" in rule["resources"] and "patch" in rule["verbs"]]


def _account(role: str) -> str:
    """Whose it is: the name of a role ends with that of its part."""
    accounts = {"kubelet-plugin": "plugin", "controller": "controller", "imex-daemon": "IMEX daemon"}
    (found,) = [account for ending, account in accounts.items() if role.endswith(ending)]
    return found


def _named(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource
