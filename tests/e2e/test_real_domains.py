"""ComputeDomains on a real cluster: the chart's pods, DaemonSets of the real controller, claims of the real kubelet.

Needs what test_real_chart.py needs. The hardware is a simulated tray of a rack; its nvidia-imex is a program that the
daemons' containers get by CDI and run. Each node is one tray of the same rack. What is about one node is shown on the
first; what is about two needs a cluster of two (see tests/support/real_nodes.py).
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support import real_nodes
from support.chart_values import merged
from support.helm import NAMESPACE, Helm
from support.real_chart import CHART_IS_THERE, CHART_WHY_NOT, VALUES, room_for_a_release, wait_ready
from support.real_cluster import get, inside, kubectl, until
from support.real_domains import (
    becomes,
    channels,
    controller_pods,
    daemon_set,
    daemons,
    domain,
    exists,
    in_daemon,
    kill,
    make_domain,
    message,
    node_labels,
    nothing_of_domains,
    of_node,
    on_node,
    phase,
    plugin_pods,
    published_domains,
    reason,
    runs,
    use_domain,
)

from dra_driver.api.binding import BINDING_READY
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

pytestmark = pytest.mark.skipif(not CHART_IS_THERE, reason=CHART_WHY_NOT)

CHANNEL_0 = "channel0 c 234,0"
CONTROLLER = "deployment/gpu-dra-driver-controller"


RACK = {"kubeletPlugin": {"simulate": "gb200"}, "policy": {"computeDomains": [{"channels": 2}]}}
"""Every node has places for two pods of a domain."""


def only_at(node: str) -> dict[str, Any]:
    return merged(RACK, {"kubeletPlugin": {"nodeSelector": {"kubernetes.io/hostname": node}}})


@pytest.fixture(scope="module")
def release(image: None) -> Iterator[Helm]:
    """On the first node."""
    with room_for_a_release() as helm:
        helm.install(merged(dict(VALUES), only_at(real_nodes.names()[0])))
        wait_ready()
        until(lambda: "compute-domain" in kubectl("get", "resourceslices", "-o", "name"), "channels are published")
        yield helm


@pytest.fixture
def pair(release: Helm) -> Iterator[tuple[str, str]]:
    """Two nodes with the driver."""
    first, second = real_nodes.two()
    release.upgrade(merged(dict(VALUES), RACK))
    try:
        until(lambda: trays() == {first, second}, "both publish channels")
        wait_ready()
        yield first, second
        take_down()
    finally:
        release.upgrade(merged(dict(VALUES), only_at(first)))
        wait_ready()


def trays() -> set[str]:
    """Nodes that have channels to give."""
    slices = [spec["spec"] for spec in get("resourceslices")["items"]]
    return {spec["nodeName"] for spec in slices if spec["driver"] == COMPUTE_DOMAIN_DRIVER and spec.get("devices")}


@pytest.fixture(autouse=True)
def clean(release: Helm) -> Iterator[None]:
    """Each test begins and ends without domains."""
    yield
    take_down()


def take_down() -> None:
    kubectl("scale", "-n", NAMESPACE, CONTROLLER, "--replicas=2")
    kubectl("delete", "pods", "--all", "--ignore-not-found")
    kubectl("delete", "computedomains", "--all", "--timeout=90s")
    nothing_of_domains()


def end(pod: str) -> None:
    kubectl("delete", "pod", pod)


def test_a_domain_of_two_pods_comes_up_with_a_real_daemon_and_leaves_nothing() -> None:
    make_domain("first")
    use_domain("first", "one", "two")
    runs("one", "two")
    becomes("first", "AllNodesReady")
    ready = [("channel", "PeersReady", "Ready")] * 2 + [("daemon", "Ready")]
    until(lambda: true_conditions() == ready, "claims say how they stand in the domain")
    # Every container of a domain has the same channel, whichever place it has on the node.
    assert channels("one") == channels("two") == [CHANNEL_0]
    assert "NVIDIA_VISIBLE_DEVICES=void" in inside(("default", "one"), "main", "env")
    uid = domain("first").metadata.uid
    assert node_labels() == published_domains() == {uid}
    assert daemon_set("first")["status"]["numberReady"] == 1
    it_has_a_daemon("first")
    # There are two places.
    use_domain("first", "three")
    until(lambda: "PodScheduled" in kubectl("get", "pod", "three", "-o", "jsonpath={.status}"), "it was tried")
    assert (phase("three"), domain("first").status.ready_nodes) == ("Pending", "1/1")
    end("one")
    runs("three")
    for pod in ("two", "three"):
        end(pod)
    becomes("first", "NoNodes")
    until(lambda: not daemons("first"), "without pods the node leaves, and its daemon goes")
    assert not node_labels()


def true_conditions() -> list[tuple[str, ...]]:
    """What is true of each device of the second driver, by its kind, as `status.devices` of its claim says. Without
    what the scheduler waits for: that is there only where the API server has binding conditions."""
    true_by_kind = []
    for claim in get("resourceclaims", "-A")["items"]:
        for device in claim.get("status", {}).get("devices") or ():
            if device["driver"] == COMPUTE_DOMAIN_DRIVER:
                kind = device["device"].partition("-")[0]
                true = {condition["type"] for condition in device["conditions"] if condition["status"] == "True"}
                true_by_kind.append((kind, *sorted(true - {BINDING_READY})))
    return sorted(true_by_kind)


def it_has_a_daemon(name: str) -> None:
    """What it was given by CDI, wrote for its program, and what that says of itself."""
    (pod,) = daemons(name)
    (entry,) = domain(name).status.nodes
    assert (entry.ip_address, entry.index, entry.status) == (pod["status"]["podIP"], 0, "Ready")
    variables = in_daemon(name, "env").splitlines()
    assert f"CLIQUE_ID={entry.clique_id}" in variables
    assert f"COMPUTE_DOMAIN_UUID={domain(name).metadata.uid}" in variables
    assert f"{entry.ip_address}\tcompute-domain-daemon-0000" in in_daemon(name, "cat /etc/hosts").splitlines()
    names = in_daemon(name, "cat /imexd/nodes_config.cfg").split()
    assert names == [f"compute-domain-daemon-{index:04d}" for index in range(18)]
    assert "nvidia-cap" in in_daemon(name, "ls /dev/nvidia-caps")
    assert in_daemon(name, "nvidia-imex-ctl -c /imexd/config.cfg -q").strip() == "READY"
    assert "* compute-domain-daemon-0000 *" in in_daemon(name, "nvidia-imex-ctl -c /imexd/config.cfg -N")


def test_the_scheduler_keeps_pods_of_a_second_domain_off_until_the_first_has_left() -> None:
    make_domain("first")
    use_domain("first", "one")
    runs("one")
    first = {domain("first").metadata.uid}
    until(lambda: published_domains() == first, "the devices name their domain")
    make_domain("second")
    use_domain("second", "other")
    until(lambda: "cannot allocate all claims" in kubectl("describe", "pod", "other"), "the scheduler refuses it")
    assert node_labels() == first
    end("one")
    runs("other")
    becomes("second", "AllNodesReady")
    becomes("first", "NoNodes")
    assert node_labels() == {domain("second").metadata.uid}


def test_two_domains_that_race_for_a_node_have_it_one_after_the_other() -> None:
    """While no controller is there, the scheduler gives places of one node to pods of both."""
    for name in ("first", "second"):
        make_domain(name)
    kubectl("scale", "-n", NAMESPACE, CONTROLLER, "--replicas=0")
    until(lambda: not controller_pods(), "no controller is left")
    use_domain("first", "one")
    use_domain("second", "other")
    until(lambda: all(map(has_a_node, ("one", "other"))), "both pods have a node")
    kubectl("scale", "-n", NAMESPACE, CONTROLLER, "--replicas=2")
    until(lambda: node_labels(), "a domain has the node", 120)
    (uid,) = node_labels()
    pods = {"first": "one", "second": "other"}
    winner = "first" if uid == domain("first").metadata.uid else "second"
    loser = "second" if winner == "first" else "first"
    becomes(loser, "NodeInOtherDomain")
    assert f"default/{winner}" in message(loser)
    runs(pods[winner])
    becomes(winner, "AllNodesReady")
    # The kubelet names the domain. With binding conditions, the node gives the pod up, and the scheduler finds none.
    texts = f"default/{winner}", "FailedScheduling"
    until(lambda: any(text in kubectl("describe", "pod", pods[loser]) for text in texts), "an Event says why", 150)
    assert phase(pods[loser]) == "Pending"
    use_domain(winner, "more")
    runs("more")
    for pod in (pods[winner], "more"):
        end(pod)
    runs(pods[loser])
    becomes(loser, "AllNodesReady")
    assert node_labels() == {domain(loser).metadata.uid}


def has_a_node(pod: str) -> bool:
    """Or will have, once its claim is prepared (binding conditions)."""
    obj = get("pod", pod)
    return bool(obj["spec"].get("nodeName") or obj["status"].get("nominatedNodeName"))


def test_a_domain_that_is_deleted_while_a_program_runs_goes_after_it() -> None:
    make_domain("first")
    use_domain("first", "one")
    runs("one")
    kubectl("delete", "computedomain", "first", "--wait=false")
    becomes("first", "Terminating")
    until(lambda: "one" in message("first"), "it says who uses it")
    assert not kubectl("get", "resourceclaimtemplate", "first-channel", "--ignore-not-found")
    assert imex_state() == "READY"
    assert channels("one") == [CHANNEL_0]
    end("one")
    until(lambda: not exists("first"), "then it goes")
    nothing_of_domains()


def test_whoever_is_killed_in_the_middle_is_followed_by_one_that_goes_on() -> None:
    """Controllers while a domain comes up, the plugin while its pods run, the daemon, and all at the end."""
    make_domain("first")
    use_domain("first", "one")
    kill(controller_pods())
    runs("one")
    becomes("first", "AllNodesReady")

    (before,) = daemons("first")
    kill(plugin_pods())
    kill({before["metadata"]["name"]})
    use_domain("first", "two")
    runs("two")
    becomes("first", "AllNodesReady")
    (after,) = daemons("first")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    it_has_a_daemon("first")
    assert channels("one") == channels("two") == [CHANNEL_0]

    kubectl("delete", "computedomain", "first", "--wait=false")
    kubectl("delete", "pods", "one", "two", "--wait=false")
    kill(controller_pods() | plugin_pods())
    until(lambda: not exists("first"), "the domain goes", 150)
    until(lambda: not on_node(), "the node forgets it", 90)


def test_with_num_nodes_a_domain_is_not_ready_before_there_are_so_many_and_its_pods_start() -> None:
    make_domain("pair", num_nodes=2)
    use_domain("pair", "one")
    runs("one")
    becomes("pair", "NodesMissing")
    assert domain("pair").status.ready_nodes == "1/2"


def test_a_program_that_is_killed_is_started_again_in_the_same_container() -> None:
    make_domain("first")
    use_domain("first", "one")
    runs("one")
    (pod,) = daemons("first")
    before = programs()
    assert len(before) == 1
    becomes("first", "AllNodesReady")
    in_daemon("first", f"kill -9 {before[0]}")
    # It is back within a second; kubelet, that asks every 5 s, is to see it all the same.
    until(lambda: reason("first") != "AllNodesReady", "the domain says that its program ended", 30)
    until(lambda: programs() and programs() != before, "the program runs again")
    until(lambda: imex_state() == "READY", "and is ready")
    becomes("first", "AllNodesReady")
    (after,) = daemons("first")
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def programs(name: str = "first", node: str | None = None) -> list[str]:
    """Process ids of what the supervisor runs."""
    return in_daemon(name, "cat /proc/1/task/1/children", node).split()


def imex_state() -> str:
    return in_daemon("first", "nvidia-imex-ctl -c /imexd/config.cfg -q || true").strip()


# -- two nodes


def test_two_nodes_are_one_domain_whatever_befalls_one_of_them(pair: tuple[str, str]) -> None:
    """Its program, its plugin, its daemon, and its kubelet; and the domain is deleted while both use it."""
    first, second = pair
    make_domain("pair", num_nodes=2)
    use_domain("pair", "one", node=first)
    becomes("pair", "NodesMissing")
    use_domain("pair", "two", node=second)
    runs("one", "two")
    both_are_ready("pair", pair)
    assert channels("one") == channels("two") == [CHANNEL_0]
    before = {node.name: node for node in domain("pair").status.nodes}

    in_daemon("pair", f"kill -9 {programs('pair', second)[0]}", second)
    until(lambda: reason("pair") != "AllNodesReady", "the domain says that a program ended", 30)
    both_are_ready("pair", pair)

    (daemon,) = [pod for pod in daemons("pair") if pod["spec"]["nodeName"] == second]
    kill({daemon["metadata"]["name"]} | of_node(plugin_pods(), second))
    until(lambda: reason("pair") != "AllNodesReady", "the domain says that a daemon is gone", 30)
    both_are_ready("pair", pair)
    after = {node.name: node for node in domain("pair").status.nodes}
    assert {name: node.index for name, node in after.items()} == {name: node.index for name, node in before.items()}
    assert after[first].ip_address == before[first].ip_address
    # Two pods more, which find all as the first did.
    use_domain("pair", "three", node=second)
    runs("three")

    real_nodes.stop_kubelet(second)
    until(lambda: not real_nodes.is_ready(second), "the cluster says that the node is not ready", 120)
    becomes("pair", "DaemonsNotReady")
    assert second in message("pair")
    assert connections("pair", first)[:2] == ["CONNECTED", "CONNECTED"], "no connection ended by that"
    real_nodes.start_kubelet(second)
    both_are_ready("pair", pair)

    kubectl("delete", "computedomain", "pair", "--wait=false")
    becomes("pair", "Terminating")
    assert all(name in message("pair") for name in ("one", "two", "three")), message("pair")
    for pod in ("two", "three"):
        end(pod)
    until(lambda: "two" not in message("pair"), "it says who is left")
    assert channels("one") == [CHANNEL_0]
    end("one")
    until(lambda: not exists("pair"), "then it goes")


def test_a_node_that_is_lost_and_replaced_is_in_the_domain_again(pair: tuple[str, str]) -> None:
    first, second = pair
    make_domain("pair", num_nodes=2)
    use_domain("pair", "one", node=first)
    use_domain("pair", "two", node=second)
    runs("one", "two")
    both_are_ready("pair", pair)
    before = {node.name: node for node in domain("pair").status.nodes}

    real_nodes.lose(second)
    until(lambda: reason("pair") != "AllNodesReady", "the domain notices", 120)
    kubectl("delete", "node", second)
    until(lambda: second not in trays(), "nothing of it is published")
    becomes("pair", "NodeGone")
    kubectl("delete", "pod", "two", "--force", "--grace-period=0", "--ignore-not-found")
    becomes("pair", "NodesMissing")
    until(lambda: [node.name for node in domain("pair").status.nodes] == [first], "its daemon's pod goes, too", 120)
    assert channels("one") == [CHANNEL_0]

    real_nodes.join(second)
    until(lambda: trays() == set(pair), "the new machine publishes channels", 120)
    use_domain("pair", "two", node=second)
    runs("two")
    both_are_ready("pair", pair)
    after = {node.name: node for node in domain("pair").status.nodes}
    assert {name: node.index for name, node in after.items()} == {name: node.index for name, node in before.items()}
    assert channels("two") == [CHANNEL_0]

    # And one that goes for good while the domain is deleted.
    kubectl("delete", "computedomain", "pair", "--wait=false")
    real_nodes.lose(second)
    kubectl("delete", "node", second)
    end("one")
    kubectl("delete", "pod", "two", "--force", "--grace-period=0", "--ignore-not-found")
    until(lambda: not exists("pair"), "it goes", 120)
    real_nodes.join(second)
    until(lambda: trays() == set(pair), "the new machine publishes channels", 120)


def both_are_ready(name: str, pair: tuple[str, str]) -> None:
    """As the domain says, and as the programs themselves do that have a connection each way."""
    becomes(name, "AllNodesReady")
    assert domain(name).status.ready_nodes == "2/2"
    assert {member.name for member in domain(name).status.nodes if member.status == "Ready"} == set(pair)
    for node in pair:
        until(lambda node=node: connections(name, node)[:2] == ["CONNECTED"] * 2, f"{node} is connected")  # type: ignore[misc]


def connections(name: str, node: str) -> list[str]:
    """To each place of the list, as the program on this node says; empty while there is none to say it."""
    asked = "nvidia-imex-ctl -c /imexd/config.cfg -N -j || true"
    try:
        answer = in_daemon(name, asked, node)
    except (AssertionError, ValueError):
        return []
    if not answer.strip():
        return []
    (own,) = [node_status for node_status in json.loads(answer)["nodes"].values() if node_status["local"]]
    return [connection["status"] for connection in own["connections"].values()]
