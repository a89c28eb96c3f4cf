"""What holds for every explanation, whatever the cluster."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.allocation import exactly, gpu
from support.rows import examples
from support.stories import PROFILES, Cluster, at_least, profile, shared, taint

from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.offline import allocate_all, placement_of
from dra_driver.explain.explain import Answer
from dra_driver.explain.wording import sentences, summary

_MEMORY = st.sampled_from(["40Gi", "80Gi", "141Gi"])


@st.composite
def _clusters(draw: st.DrawFn) -> Cluster:
    cluster = Cluster()
    for number in range(draw(st.integers(0, 3))):
        name = f"node-{number}"
        kind = draw(st.sampled_from(["gpus", "mig", "shared", "none"]))
        if kind == "mig":
            cluster.mig_node(name, "gpu-0")
            held = draw(st.sets(st.sampled_from(["gpu-0-mig-1g10gb-0", "gpu-0-mig-1g10gb-4", "gpu-0-mig-2g20gb-2"])))
        elif kind == "shared":
            cluster.node(name, shared("gpu-0"))
            held = set()
            if draw(st.booleans()):
                cluster.holding(
                    f"share-{number}", name, "gpu-0", memory=draw(st.sampled_from(["10Gi", "70Gi", "80Gi"]))
                )
        else:
            devices = [
                gpu(
                    f"gpu-{index}",
                    memory=draw(_MEMORY),
                    domain=draw(st.sampled_from(["a", "b"])),
                    taints=[taint()] if draw(st.booleans()) else (),
                )
                for index in range(draw(st.integers(1, 4)) if kind == "gpus" else 0)
            ]
            cluster.node(name, *devices, unschedulable=draw(st.booleans()) and draw(st.booleans()))
            held = {device["name"] for device in devices if draw(st.booleans())}
        for device in sorted(held):
            cluster.holding(f"{name}-{device}", name, device, gone=draw(st.booleans()))
    requests = []
    for index in range(draw(st.integers(1, 2))):
        mig = draw(st.booleans())
        selector = profile(draw(st.sampled_from(sorted(PROFILES)))) if mig else at_least(draw(_MEMORY))
        fields: dict[str, object] = {"class_name": "mig" if mig else "gpu", "count": draw(st.integers(1, 3))}
        if draw(st.booleans()) and not mig:
            fields["capacity"] = {"requests": {"memory": draw(st.sampled_from(["20Gi", "80Gi"]))}}
        if draw(st.booleans()):
            fields["tolerations"] = [{"operator": "Exists"}]
        requests.append(exactly(f"request-{index}", selector, **fields))
    constraints = [{"matchAttribute": "gpu.nvidia.com/domain"}] if draw(st.booleans()) else []
    cluster.pod(*requests, constraints=constraints)
    return cluster


@st.composite
def _clusters_with_a_gpu_in_use(draw: st.DrawFn) -> Cluster:
    cluster = draw(_clusters())
    cluster.node("node-in-use", gpu("gpu-0", memory="141Gi"))
    cluster.holding("holder", "node-in-use", "gpu-0")
    return cluster


@given(cluster=_clusters())
@settings(max_examples=examples(60), deadline=None)
def test_an_explanation_says_of_each_node_what_the_allocator_says(cluster: Cluster) -> None:
    world = cluster.world
    explained = cluster.explained()
    claims = [world.claims["team-a", "gpu"]]
    fitting = [
        name
        for name, node in world.nodes.items()
        if not isinstance(placement_of(world, world.pods["team-a", "train"], claims, node), str)
    ]
    assert list(explained.fitting) == fitting
    assert explained.answer is (Answer.FITS if fitting else Answer.WAITS)
    (placed,) = [placement for placement in allocate_all(world) if placement.name == "train"]
    assert (placed.node is not None) == bool(fitting)


@given(cluster=_clusters())
@settings(max_examples=examples(60), deadline=None)
def test_every_node_that_does_not_fit_is_in_one_group_with_a_reason_that_names_what_is_known(cluster: Cluster) -> None:
    explained = cluster.explained(devices_of=None)
    grouped = [node for group in explained.groups for node in group.nodes]
    assert sorted([*grouped, *explained.fitting]) == sorted(cluster.world.nodes)
    assert all(group.text and "not known" not in group.text and "\0" not in group.text for group in explained.groups)
    assert summary(explained)
    assert all(len(line) <= 80 or " " not in line.strip() for line in sentences(explained, 80))


@given(cluster=_clusters())
@settings(max_examples=examples(60), deadline=None)
def test_suggestions_come_nearest_first_and_each_once(cluster: Cluster) -> None:
    suggestions = cluster.explained().suggestions
    assert [suggestion.distance for suggestion in suggestions] == sorted(
        suggestion.distance for suggestion in suggestions
    )
    assert len({suggestion.text for suggestion in suggestions}) == len(suggestions)
    assert all(suggestion.node in cluster.world.nodes for suggestion in suggestions)


def test_whatever_a_wait_promises_comes_true() -> None:
    """A claim that is named alone as what to wait for is really all that is in the way there."""
    promised = []

    @given(cluster=_clusters_with_a_gpu_in_use())
    @settings(max_examples=60, deadline=None)
    def comes_true(cluster: Cluster) -> None:
        world = cluster.world
        claims = [world.claims["team-a", "gpu"]]
        for suggestion in cluster.explained().suggestions:
            if suggestion.kind == "wait" and suggestion.text.endswith(" ends.") and "(" in suggestion.text:
                promised.append(suggestion.text)
                namespace, _, name = suggestion.text.removeprefix("It fits when ").split(" ")[0].partition("/")
                later = world.without_allocations([(namespace, name)])
                node: NodeView = later.nodes[suggestion.node]
                assert not isinstance(placement_of(later, later.pods["team-a", "train"], claims, node), str)

    comes_true()
    assert promised, "in none of the clusters was a claim alone in the way"


def test_nobody_looks_for_what_would_fit_when_it_has_been_enough() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.holding("a", "node-1", "gpu-0")
    cluster.pod()
    assert cluster.explained(enough=lambda: True).suggestions == ()
