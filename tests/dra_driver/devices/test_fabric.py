"""Which GPUs reach each other over NVLink, and whether a node's NVLink fabric can be used."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inventories import gpu, gpu_uuid
from support.rows import rows

from dra_driver.api.inventory import FabricFacts, GpuFacts, MigFacts, NvlinkFacts
from dra_driver.devices.nvlink import NodeFabric, fabric_of, nvlink_domains


def linked(number: int, *peers: int, **facts: object) -> GpuFacts:
    nvlink = NvlinkFacts(links=12, switched=False, peers=sorted(gpu_uuid(peer) for peer in peers))
    return gpu(number, nvlink=nvlink, **facts)


def domains(*gpus: GpuFacts) -> dict[int, str]:
    names = nvlink_domains(gpus)
    return {item.minor: names[item.uuid] for item in gpus if item.uuid in names}


def test_without_nvlink_there_are_no_domains() -> None:
    assert domains(gpu(0), gpu(1, nvlink=NvlinkFacts(links=0))) == {}


def test_pairs_are_domains_of_their_own_named_after_their_smallest_uuid() -> None:
    by_minor = domains(linked(0, 1), linked(1, 0), linked(2, 3), linked(3, 2))
    assert by_minor == {0: gpu_uuid(0), 1: gpu_uuid(0), 2: gpu_uuid(2), 3: gpu_uuid(2)}


def test_a_gpu_whose_peers_are_all_gone_is_alone_and_in_no_domain() -> None:
    assert domains(linked(0, 1)) == {}


def test_a_chain_is_no_domain_because_its_ends_do_not_reach_each_other() -> None:
    assert domains(linked(0, 1), linked(1, 0, 2), linked(2, 1)) == {}


def test_a_clique_of_a_rack_is_the_domain() -> None:
    fabric = FabricFacts(state="Completed", cluster_uuid="c0ffee00-0000-4000-8000-000000000000", clique_id=7)
    assert domains(linked(0, 1, fabric=fabric), linked(1, 0, fabric=fabric)) == {
        0: "c0ffee00-0000-4000-8000-000000000000.7",
        1: "c0ffee00-0000-4000-8000-000000000000.7",
    }


@pytest.mark.parametrize(
    "fabric",
    [FabricFacts(state="InProgress"), FabricFacts(state="NotStarted"), FabricFacts(state="Completed", status=9)],
)
def test_links_carry_nothing_before_the_fabric_manager_has_registered_the_gpu(fabric: FabricFacts) -> None:
    done = FabricFacts(state="Completed")
    three = (linked(0, 1, 2, fabric=done), linked(1, 0, 2, fabric=done), linked(2, 0, 1, fabric=fabric))
    assert domains(*three) == {0: gpu_uuid(0), 1: gpu_uuid(0)}


def test_a_gpu_in_mig_mode_is_in_no_domain_and_the_others_stay_in_theirs() -> None:
    mig = MigFacts(enabled=True, pending=True)
    three = (linked(0, 1, 2, mig=mig), linked(1, 0, 2), linked(2, 0, 1))
    assert domains(*three) == {1: gpu_uuid(1), 2: gpu_uuid(1)}


@given(st.sets(st.frozensets(st.integers(0, 5), min_size=2, max_size=2)))
def test_in_a_domain_everybody_reaches_everybody(links: set[frozenset[int]]) -> None:
    gpus = [linked(number, *(min(pair - {number}) for pair in links if number in pair)) for number in range(6)]
    names = domains(*gpus)
    for minor, name in names.items():
        others = {number for number, other in names.items() if other == name and number != minor}
        assert others and all(frozenset((minor, other)) in links for other in others)


# the fabric of a node

RACK = "11111111-2222-4333-8444-555555555555"


def registered(number: int, **facts: Any) -> GpuFacts:
    values = {"state": "Completed", "clusterUUID": RACK, "cliqueID": 1, **facts}
    return gpu(number, fabric=FabricFacts.model_validate(values))


def test_gpus_of_one_clique_are_in_it() -> None:
    assert fabric_of([registered(0), registered(1)]) == NodeFabric(f"{RACK}.1")


@pytest.mark.parametrize("gpus", [[], [gpu(0)], [registered(0, clusterUUID=None, cliqueID=None)]])
def test_without_a_fabric_beyond_the_machine_there_is_no_clique_and_no_problem(gpus: list[GpuFacts]) -> None:
    assert fabric_of(gpus) == NodeFabric()


@rows(
    "other, reason",
    [
        (registered(1, state="NotStarted"), "FabricNotRegistered"),
        (registered(1, state="InProgress"), "FabricNotRegistered"),
        (registered(1, status=999), "FabricRefused"),
        (registered(1, cliqueID=2), "MixedCliques"),
        (registered(1, clusterUUID=None, cliqueID=None), "MixedCliques"),
        (gpu(1), "MixedCliques"),
        (registered(1, health="Unhealthy"), "FabricUnhealthy"),
    ],
)
def test_one_gpu_that_differs_makes_the_fabric_of_its_node_unusable(other: GpuFacts, reason: str) -> None:
    fabric = fabric_of([registered(0), other])
    assert fabric.reason == reason
    assert fabric.problem
