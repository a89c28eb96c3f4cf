"""What the pages of `dractl ui` show, and how they change, from values alone."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.allocation import gpu
from support.dra_objects import resource_slice
from support.html import HtmlReader
from support.objects import held, pod, result
from support.rows import rows

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Event
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import NODE_INVENTORIES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.cli.tables.seen import READ_AS, Board, KnownGpus, NodeOverview
from dra_driver.cli.ui import history
from dra_driver.cli.ui.drawing import NodeRows, racks_of
from dra_driver.cli.ui.history import GpuChange, GpuHistory
from dra_driver.cli.ui.pages import (
    MOST_NODES,
    NodeDetail,
    PageAddress,
    PageData,
    Place,
    WaitingReasons,
    document,
    page_of,
)
from dra_driver.cli.ui.parts import Html, HtmlPage, Rows, changes, element, part
from dra_driver.names import GPU_DRIVER

NASTY = "<b>&\"'</b>"


def slice_of(node: str, *, taint: str | None = None, gpus: int = 2, product: str = "NVIDIA H100") -> JsonObject:
    taints = [
        {"key": "gpu.nvidia.com/xid", "value": taint, "effect": "NoSchedule", "timeAdded": "2026-11-28T10:00:00Z"}
    ]
    devices = [
        gpu(
            f"gpu-{node}-{number}",
            memory="80Gi",
            taints=taints if taint and number == 1 else [],
            uuid=f"GPU-{node}-{number}",
            productName=product,
        )
        for number in range(gpus)
    ]
    return resource_slice(f"slice-{node}", *devices, node=node)


def inventory_of(node: str, clique: str = "-", conditions: Sequence[JsonObject] = ()) -> JsonObject:
    gpu = {
        "uuid": f"GPU-{node}-1", "name": f"gpu-{node}-1", "minor": 1, "pciBusID": "0000:1b:00.0", "productName": "H100",
        "brand": "NVIDIA", "architecture": "Hopper", "cudaComputeCapability": "9.0",
        "health": {"healthy": not conditions, "conditions": list(conditions)},
    }  # fmt: skip
    summary = {"gpus": 2, "healthy": "2/2", "product": "NVIDIA H100", "driver": "580", "clique": clique}
    return {"metadata": {"name": node}, "spec": {"nodeName": node, "bootID": "b", "gpus": [gpu], "summary": summary}}


def known_of(*objects: tuple[Resource, JsonObject]) -> KnownGpus:
    board = Board(GPU_DRIVER, 36)
    for kind, obj in objects:
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        board.learn(kind, key, None, READ_AS[kind](obj))
    board.refresh(10_000)
    return board.known({}, ())


CLUSTER = known_of(
    (RESOURCE_SLICES, slice_of("a")),
    (RESOURCE_SLICES, slice_of("b", taint="79")),
    (NODE_INVENTORIES, inventory_of("b", "rack-1")),
    (RESOURCE_SLICES, slice_of("c")),
    (RESOURCE_CLAIMS, held("train", result("gpu-a-0", pool="a"))),
    (PODS, pod("train-pod", ["train"], node_name="a")),
    (PODS, pod("later", ["later"], node_name=None)),
)


def shown(path: str, seen: PageData | KnownGpus = CLUSTER, **query: str) -> HtmlPage:
    address = PageAddress.of(path, query)
    assert address is not None
    return page_of(address, seen if isinstance(seen, PageData) else PageData(seen), NodeRows())


def read(page: HtmlPage) -> HtmlReader:
    return HtmlReader("".join(piece.html for piece in page.parts))


def words(page: HtmlPage) -> str:
    return str(read(page))


def turned(page: HtmlPage) -> list[str | None]:
    """Where its links to other pages of the map lead."""
    return [
        attributes["href"]
        for tag, attributes in read(page).tags
        if tag == "a" and (attributes["href"] or "")[:1] == "?"
    ]


@cache
def large() -> KnownGpus:
    """A cluster with two nodes more than a page has."""
    return known_of(*((RESOURCE_SLICES, slice_of(f"n-{number:04}", gpus=1)) for number in range(MOST_NODES + 2)))


# -- markup


@rows(
    "made, expected",
    [
        (element("p", "a < b & c"), "<p>a &lt; b &amp; c</p>"),
        (element("p", element("b", "x"), None, "y"), "<p><b>x</b>y</p>"),
        (element("a", "x", href='"><script>'), '<a href="&quot;&gt;&lt;script&gt;">x</a>'),
        (element("input", required=True, class_=None, aria_label="n", hidden=False), '<input required aria-label="n">'),
    ],
)
def test_text_and_attributes_are_escaped_and_markup_is_not(made: Html, expected: str) -> None:
    assert made == expected


def nasty_cluster() -> PageData:
    """Every text that a cluster has, as an attacker would write it."""
    waiting = pod(NASTY, ["x"], node_name=None)
    condition = {"type": "PodScheduled", "status": "False", "message": NASTY}
    waiting["status"] = {"conditions": [condition]}
    fault = {"type": "Xid", "value": NASTY, "severity": "Critical", "message": NASTY, "since": NASTY}
    event = {"metadata": {}, "reason": NASTY, "message": f"gpu-n-1 {NASTY}", "type": NASTY}
    domain = domain_of("d", [member("n", "rack"), member(NASTY, NASTY, ready=False)])
    known = known_of(
        (RESOURCE_SLICES, slice_of("n", taint=NASTY, product=NASTY)),
        (RESOURCE_SLICES, slice_of(NASTY)),
        (NODE_INVENTORIES, inventory_of("n", NASTY)),
        (RESOURCE_CLAIMS, held(NASTY, result("gpu-n-1", pool="n"))),
        (PODS, waiting),
    )
    detail = NodeDetail(NodeInventory.of(inventory_of("n", conditions=[fault])), [Event.of(event)], [NASTY])
    return PageData(known, [domain], detail, {f"default/{NASTY}": WaitingReasons(NASTY, (NASTY,))})


@pytest.mark.parametrize(
    "path", ["", "nodes/n", f"nodes/{NASTY}", "gpus/gpu-n-1", "waiting", "domains", "gpus/" + NASTY]
)
def test_nothing_from_the_cluster_or_the_address_becomes_markup(path: str) -> None:
    if "/" in path.partition("/")[2]:
        address = PageAddress(Place(path.partition("/")[0]), path.partition("/")[2])
    else:
        parsed = PageAddress.of(path, {"filter": ""})
        assert parsed is not None
        address = parsed
    page = page_of(address, nasty_cluster(), NodeRows())
    whole = document(page, address, "v")
    assert NASTY[:4] not in whole
    assert "&lt;b&gt;&amp;" in whole


# -- addresses


@rows(
    "path, query, expected",
    [
        ("/", {}, PageAddress(Place.MAP)),
        (
            "/",
            {"filter": "x", "sort": "free", "start": "250", "view": "signs"},
            PageAddress(Place.MAP, "", "x", "free", 250, True),
        ),
        ("/", {"sort": "evil", "start": "-1", "view": "?"}, PageAddress(Place.MAP)),
        ("/", {"start": "9" * 30}, PageAddress(Place.MAP)),
        ("/nodes/a", {}, PageAddress(Place.NODE, "a")),
        ("/waiting/team-a/p", {}, PageAddress(Place.POD, "team-a/p")),
        ("/nodes", {}, None),
        ("/nodes/a/b", {}, None),
        ("/nothing", {}, None),
    ],
)
def test_an_address_is_a_page(path: str, query: dict[str, str], expected: PageAddress | None) -> None:
    assert PageAddress.of(path, query) == expected


# -- what is shown


def test_the_map_has_a_row_for_each_node_those_with_problems_first() -> None:
    page = shown("/")
    assert page.orders == {"nodes": ["node-b", "node-a", "node-c"]}
    text = words(page)
    assert "6 GPUs on 3 nodes · ○ 4 free · ● 1 in use" in text
    assert "✕ 1 unhealthy · 1 pod waiting" in text
    assert "gpu-b-1: gpu.nvidia.com/ xid= 79: NoSchedule" in text
    assert shown("/", sort="name").orders == {"nodes": ["node-a", "node-b", "node-c"]}


def test_a_state_has_a_sign_and_a_word_beside_its_color() -> None:
    page = read(shown("/"))
    cards = [attributes["title"] for tag, attributes in page.tags if (attributes.get("class") or "").startswith("gpu ")]
    assert "gpu-b-1: unhealthy\ngpu.nvidia.com/xid=79:NoSchedule" in cards
    assert "gpu-a-0: in use\ndefault/train" in cards
    assert "memory slices: 8 default/train" in page.labels()
    assert {"✕", "●", "○"} <= set(page.words)


@rows("typed, nodes", [("train", ["node-a"]), ("GPU-C-1", ["node-c"]), ("xid", ["node-b"]), ("zz", [])])
def test_a_filter_finds_nodes_by_names_and_problems(typed: str, nodes: list[str]) -> None:
    page = shown("/", filter=typed)
    assert page.orders == {"nodes": nodes}
    assert f"{len(nodes)} of 3 nodes match {typed!r}." in words(page)


def test_a_large_cluster_has_pages() -> None:
    first, second = shown("/", large()), shown("/", large(), start=str(MOST_NODES), filter="n-")
    assert [len(page.orders["nodes"]) for page in (first, second)] == [MOST_NODES, 2]
    assert f"Nodes 1 to {MOST_NODES} of {MOST_NODES + 2}." in words(first)
    assert turned(first) == [f"?filter=&sort=problems&start={MOST_NODES}"]
    assert turned(second) == ["?filter=n-&sort=problems&start=0"]
    assert 'class="nodes compact"' in first.parts[-2].html, "a sign for each GPU"


def test_pages_keep_how_the_map_is_drawn_and_never_begin_after_the_last_node() -> None:
    page = shown("/", large(), start=str(9 * MOST_NODES), view="cards")
    assert f"Nodes {MOST_NODES + 1} to {MOST_NODES + 2} of {MOST_NODES + 2}." in words(page)
    assert turned(page) == ["?filter=&sort=problems&start=0&view=cards"]


def test_a_node_has_its_gpus_claims_faults_and_history() -> None:
    fault = {
        "type": "Xid", "value": "79", "severity": "Critical", "message": "off the bus", "since": "2026-11-28T10:59:00Z",
    }  # fmt: skip
    events = [
        {"metadata": {}, "reason": reason, "message": "gpu-b-1", "type": "Warning", "eventTime": f"2026-11-28T{time}Z"}
        for reason, time in (("GpuHealthy", "09:00:00"), ("GpuUnhealthy", "10:59:00"))
    ]
    detail = NodeDetail(NodeInventory.of(inventory_of("b", conditions=[fault])), [Event.of(item) for item in events])
    text = words(shown("nodes/b", PageData(CLUSTER, detail=detail)))
    assert "NVLink clique rack-1" in text
    assert "gpu-b-1 Xid 79 Critical 2026-11-28 10:59:00 off the bus" in text
    assert text.index("GpuUnhealthy") < text.index("GpuHealthy"), "the newest first"
    assert "default/train gpu-a-0 - train-pod" in words(shown("nodes/a"))


@rows("name", ["GPU-b-1", "gpu-b-1"])
def test_a_gpu_has_a_page_by_uuid_and_by_name(name: str) -> None:
    event = Event.of({"metadata": {}, "reason": "GpuUnhealthy", "message": "GPU gpu-b-1"})
    other = Event.of({"metadata": {}, "reason": "Elsewhere", "message": "GPU gpu-b-0"})
    text = words(shown(f"gpus/{name}", PageData(CLUSTER, detail=NodeDetail(events=[event, other]))))
    assert "State ✕ unhealthy Node b Product H100 Memory 80.0 GiB UUID GPU-b-1" in text
    assert "gpu.nvidia.com/xid 79 NoSchedule 2026-11-28 10:00:00" in text
    assert "GpuUnhealthy" in text and "Elsewhere" not in text


@rows("path", ["nodes/gone", "gpus/gone", "waiting/default/train-pod"])
def test_what_is_gone_has_a_page_that_says_so(path: str) -> None:
    assert shown(path).status == 404


def test_a_waiting_pod_has_the_reasons_of_explain_and_of_the_scheduler() -> None:
    seen = PageData(
        CLUSTER, explained={"default/later": WaitingReasons("3 nodes: too small", ("It waits.", "  3 nodes"))}
    )
    assert "default/later 3 nodes: too small The scheduler: no scheduler has processed it yet" in words(
        shown("waiting", seen)
    )
    assert "It waits.\n  3 nodes" in shown("waiting/default/later", seen).flat["reasons"]
    assert "Trying each node…" in words(shown("waiting/default/later"))


def member(node: str, clique: str, *, ready: bool = True, index: int = 0) -> JsonObject:
    status = "Ready" if ready else "NotReady"
    return {"name": node, "cliqueID": clique, "index": index, "status": status, "message": None if ready else NASTY}


def domain_of(name: str, nodes: Sequence[JsonObject], num_nodes: int = 0) -> ComputeDomain:
    channel = {"resourceClaimTemplate": {"name": "t"}}
    status: dict[str, Any] = {"status": "NotReady", "readyNodes": f"1/{len(nodes)}", "nodes": list(nodes)}
    spec = {"numNodes": num_nodes, "channel": channel}
    return ComputeDomain.of({"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": status})


def test_nodes_that_nvlink_connects_are_one_rack_with_or_without_a_domain() -> None:
    domain = domain_of("d", [member("x", "rack-1"), member("y", "rack-2", ready=False), member("z", "")], num_nodes=4)
    racks = racks_of(CLUSTER.nodes, [domain])
    assert {clique: [(tray.name, tray.domain) for tray in trays] for clique, trays in racks.items()} == {
        "rack-1": [("b", None), ("x", "team/d")],
        "rack-2": [("y", "team/d")],
    }
    text = words(shown("domains", PageData(CLUSTER, [domain])))
    assert "team/d … NotReady, 1/3 nodes ready Waits for 1 more node. Without a clique: z Racks: rack-1, rack-2" in text
    assert "b ○ ✕ no domain" in text
    assert "y … not ready team/d" in text


# -- changes

PIECES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=5)


def page_with(head: int, items: dict[str, int]) -> HtmlPage:
    parts = [part(name, "li", str(number)) for name, number in items.items()]
    return HtmlPage("t", [part("head", "p", str(head)), Rows("rows", parts, "")])


def applied(before: HtmlPage, change: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """As ui.js does it."""
    elements = {**before.flat, **change["set"]}
    order = change["rows"].get("rows", list(before.orders["rows"]))
    return {name: elements[name] for name in ("head", *order)}, order


@given(st.integers(0, 1), PIECES, st.integers(0, 1), PIECES)
def test_changes_make_one_state_of_a_page_the_other_and_say_nothing_more(
    head: int, items: dict[str, int], later_head: int, later_items: dict[str, int]
) -> None:
    before, after = page_with(head, items), page_with(later_head, later_items)
    change = changes(before, after)
    if change is None:
        assert before.state == after.state
        return
    assert applied(before, change) == (after.flat, after.orders["rows"])
    assert all(before.flat.get(name) != html for name, html in change["set"].items())
    assert (change["rows"] == {}) is (list(items) == list(later_items))
    whole = changes(None, after)
    assert whole is not None and (whole["set"], whole["rows"]) == (after.flat, after.orders)


def test_a_change_of_a_node_draws_and_sends_that_node_only() -> None:
    drawn = NodeRows()
    address = PageAddress(Place.MAP)
    before = page_of(address, PageData(CLUSTER), drawn)
    again = {**CLUSTER.nodes, "c": known_of((RESOURCE_SLICES, slice_of("c", taint="13"))).nodes["c"]}
    after = page_of(address, PageData(KnownGpus(again, CLUSTER.waiting, CLUSTER.pods)), drawn)
    change = changes(before, after)
    assert change is not None
    assert sorted(change["set"]) == ["alerts", "node-c", "summary", "whole"]
    assert change["rows"] == {"nodes": ["node-b", "node-c", "node-a"]}
    assert after.flat["node-b"] is before.flat["node-b"]


# -- what has changed

START = datetime(2026, 11, 28, 10, tzinfo=UTC)
WELL = known_of((RESOURCE_SLICES, slice_of("a"))).nodes
USED = known_of((RESOURCE_SLICES, slice_of("a")), (RESOURCE_CLAIMS, held("train", result("gpu-a-1", pool="a")))).nodes
FAULTY = known_of((RESOURCE_SLICES, slice_of("a", taint="79"))).nodes
FEWER = known_of((RESOURCE_SLICES, slice_of("a", gpus=1))).nodes


def seen(*states: Mapping[str, NodeOverview] | None) -> GpuHistory:
    """At one minute after the other; None: nobody looks."""
    gpu_history = GpuHistory()
    for minute, nodes in enumerate(states):
        if nodes is None:
            gpu_history.pause()
        else:
            gpu_history.saw(nodes, START + timedelta(minutes=minute))
    return gpu_history


def texts(gpu_history: GpuHistory) -> list[tuple[int, str, str, bool]]:
    return [
        ((change.seen - START).seconds // 60, change.gpu, change.text, change.earlier) for change in gpu_history.of("a")
    ]


def test_what_is_there_at_first_is_no_change() -> None:
    gpu_history = seen(USED, USED)
    assert (gpu_history.since, gpu_history.of("a")) == (START, [])


def test_claims_faults_and_lost_gpus_are_changes_the_latest_first() -> None:
    taint = "gpu.nvidia.com/xid=79:NoSchedule"
    assert texts(seen(WELL, USED, FAULTY, WELL, FEWER, USED)) == [
        (5, "gpu-a-1", "claim default/train got it", False),
        (5, "gpu-a-1", "is published", False),
        (4, "gpu-a-1", "is no longer published", False),
        (3, "gpu-a-1", f"no longer tainted {taint}", False),
        (2, "gpu-a-1", f"tainted {taint}", False),
        (2, "gpu-a-1", "claim default/train released it", False),
        (1, "gpu-a-1", "claim default/train got it", False),
    ]


def test_a_node_that_leaves_and_comes_back_is_the_same_node() -> None:
    assert texts(seen(WELL, {}, WELL)) == [
        (2, "gpu-a-1", "is published", False),
        (2, "gpu-a-0", "is published", False),
        (1, "gpu-a-1", "is no longer published", False),
        (1, "gpu-a-0", "is no longer published", False),
    ]


def test_what_changed_while_nobody_looked_has_no_time_of_its_own() -> None:
    assert texts(seen(WELL, None, USED, USED)) == [(2, "gpu-a-1", "claim default/train got it", True)]


def test_the_oldest_changes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 3)
    assert [change.seen.minute for change in seen(WELL, USED, WELL, USED, WELL).of("a")] == [4, 3, 2]


def test_many_changes_of_a_neighbor_do_not_hide_those_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SHOWN", 2)
    gpu_history = seen(WELL, USED, WELL, FEWER, WELL, FEWER, WELL)
    other = known_of((RESOURCE_SLICES, slice_of("a")), (RESOURCE_CLAIMS, held("x", result("gpu-a-0", pool="a")))).nodes
    first = seen(WELL, other, WELL, USED, WELL, USED, WELL)
    assert [change.text for change in first.of("a", "GPU-a-0")] == [
        "claim default/x released it", "claim default/x got it",
    ]  # fmt: skip
    assert len(gpu_history.of("a")) == 2


def test_what_was_forgotten_is_not_said_to_be_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 2)
    assert seen(WELL, USED).since == START
    assert seen(WELL, USED, WELL, USED).since == START + timedelta(minutes=1)


def test_each_part_is_an_element_with_its_id() -> None:
    """Otherwise a browser, which compares them, would load the page for ever."""
    for path in (
        "",
        "nodes/a",
        "nodes/gone",
        "gpus/GPU-b-1",
        "gpus/gone",
        "waiting",
        "waiting/default/later",
        "domains",
    ):
        for piece in shown(path).parts:
            assert HtmlReader(piece.html).tags[0][1]["id"] == piece.id


def test_a_page_that_becomes_another_says_which_parts_it_has() -> None:
    there, gone = shown("nodes/a"), shown("nodes/a", known_of())
    change = changes(there, gone)
    assert change is not None and change["parts"] == ["alerts", "gone"]
    assert change["parts"] != (changes(None, there) or {})["parts"]


def test_a_page_shows_the_changes_of_its_node_and_of_its_gpu() -> None:
    seen_changes = [
        GpuChange(START, "a", "gpu-a-1", "GPU-a-1", "claim team/x got it"),
        GpuChange(START, "a", "gpu-a-0", "GPU-a-0", "claim <b> got it", earlier=True),
    ]
    cluster = known_of((RESOURCE_SLICES, slice_of("a")))
    of_node = words(shown("nodes/a", PageData(cluster, changes=seen_changes, since=START)))
    assert "2026-11-28 10:00:00 gpu-a-1 claim team/x got it" in of_node
    assert "before 2026-11-28 10:00:00 gpu-a-0 claim <b> got it" in of_node
    of_gpu = words(shown("gpus/GPU-a-1", PageData(cluster, changes=seen_changes[:1], since=START)))
    assert "2026-11-28 10:00:00 gpu-a-1 claim team/x got it" in of_gpu
    quiet = words(shown("gpus/GPU-a-1", PageData(cluster, since=START)))
    assert "This server has seen no change since 2026-11-28 10:00:00" in quiet


def test_a_text_of_the_cluster_changes_no_direction_of_the_text_around_it() -> None:
    """As a taint's value could, so that a page reads otherwise than what it says."""
    reversed_text = element("p", "xid\u202e97", title="\x1b\u2066")
    assert reversed_text == '<p title="\\x1b\\u2066">xid\\u202e97</p>'
