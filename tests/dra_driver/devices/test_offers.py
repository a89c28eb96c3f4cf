"""What a node offers: every device that can be, named by its hardware, and nothing that nobody could use."""

from typing import Any

import pytest
from support.inventories import compute_instance, gpu, gpu_instance, inventory_spec, mig, policy

from dra_driver.api.inventory import GpuFacts, PassthroughFacts
from dra_driver.api.policy import PublishingPolicy
from dra_driver.devices.limitations import LimitationCause
from dra_driver.devices.model import DeviceKind, Offer
from dra_driver.devices.offers import Offers, by_name, offers

EVERYTHING = PublishingPolicy.EVERYTHING
GPU = "gpu-00000000"
WHOLE_GPU = gpu_instance("3g.40gb", 4, 4, compute_instance("3g.40gb", 3))


def dynamic(**more: Any) -> PublishingPolicy:
    return policy(mig=[{"mode": "Dynamic", **more}])


def offered(*gpus: GpuFacts, policy: PublishingPolicy = EVERYTHING) -> Offers:
    return offers(inventory_spec("node-a", gpus), policy, {})


def names(node_offers: Offers) -> list[str]:
    return [offer.name for offer in node_offers.offers]


def the(node_offers: Offers, name: str) -> Offer:
    return by_name(node_offers)[name]


def test_without_a_policy_a_gpu_is_offered_as_a_whole() -> None:
    node_offers = offered(gpu(0, mig=mig()), gpu(1))
    assert names(node_offers) == [GPU, "gpu-00000001"]
    assert {offer.kind for offer in node_offers.offers} == {DeviceKind.GPU}
    assert node_offers.notes == ()


def test_mig_devices_that_exist_are_offered_instead_of_their_gpu() -> None:
    instances = [
        gpu_instance("1g.10gb+me", 2, 1, compute_instance("1g.10gb+me", 1)),
        gpu_instance(
            "3g.40gb",
            4,
            4,
            compute_instance("1c.3g.40gb", 1, start=0, number=1),
            compute_instance("2c.3g.40gb", 2, start=1, number=2),
        ),
    ]
    node_offers = offered(gpu(0, mig=mig(enabled=True, instances=instances)))
    assert names(node_offers) == [f"{GPU}-mig-1g10gb-me-2", f"{GPU}-mig-1c3g40gb-4-0", f"{GPU}-mig-2c3g40gb-4-1"]
    part = the(node_offers, f"{GPU}-mig-2c3g40gb-4-1")
    assert part.existing == instances[1].compute_instances[1]
    assert part.partition is not None and part.partition.name == "2c.3g.40gb"
    assert part.profile is not None and part.profile.name == "3g.40gb"


def test_a_gpu_in_mig_mode_without_mig_devices_is_stranded() -> None:
    node_offers = offered(gpu(0, mig=mig(enabled=True, instances=[gpu_instance("1g.10gb", 0, 1)])))
    assert node_offers.offers == ()
    assert [note.cause for note in node_offers.notes] == [LimitationCause.NO_MIG_DEVICES]


def test_partitions_on_demand_are_every_profile_at_every_place_and_the_gpu() -> None:
    node_offers = offered(gpu(0, mig=mig()), policy=dynamic())
    assert len(node_offers.offers) == 26
    assert sum(offer.kind is DeviceKind.GPU for offer in node_offers.offers) == 1
    assert all(offer.existing is None for offer in node_offers.offers)
    assert {f"{GPU}-mig-1g10gb-6", f"{GPU}-mig-1g10gb-me-0", f"{GPU}-mig-7g80gb-0"} <= set(names(node_offers))


def test_the_smallest_piece_is_in_front_and_the_whole_gpu_last() -> None:
    node_offers = offered(gpu(0, mig=mig()), policy=dynamic())
    sizes = [offer.partition.size if offer.partition is not None else 9 for offer in node_offers.offers]
    assert sizes == sorted(sizes)
    assert names(node_offers)[0] == f"{GPU}-mig-1g10gb-6"


def test_the_policy_names_profiles_and_compute_instances() -> None:
    rules = dynamic(profiles=["4g.*"], computeInstances=["1c.3g.40gb", "2c.3g.40gb"])
    assert names(offered(gpu(0, mig=mig()), policy=rules)) == [
        *(f"{GPU}-mig-1c3g40gb-{start}-{part}" for start in (4, 0) for part in (0, 1, 2)),
        *(f"{GPU}-mig-2c3g40gb-{start}-0" for start in (4, 0)),
        f"{GPU}-mig-4g40gb-0",
        GPU,
    ]


@pytest.mark.parametrize("name", ["3c.4g.40gb", "3c.3g.40gb", "1c.2g.10gb"])
def test_compute_instances_that_cannot_be_are_said(name: str) -> None:
    node_offers = offered(gpu(0, mig=mig()), policy=dynamic(profiles=["4g.*"], computeInstances=[name]))
    assert names(node_offers) == [f"{GPU}-mig-4g40gb-0", GPU]
    assert name in str(node_offers.notes[0])


def test_an_ampere_out_of_mig_mode_is_offered_as_a_whole_only() -> None:
    node_offers = offered(gpu(0, mig=mig(switchable=False)), policy=dynamic())
    assert names(node_offers) == [GPU]
    assert [note.cause for note in node_offers.notes] == [LimitationCause.RESET_NEEDED]


@pytest.mark.parametrize("switchable", [False, True])
def test_what_an_administrator_put_into_mig_mode_is_offered_in_parts_only(switchable: bool) -> None:
    node_offers = offered(gpu(0, mig=mig(enabled=True, switchable=switchable)), policy=dynamic())
    assert {offer.kind for offer in node_offers.offers} == {DeviceKind.MIG}
    assert len(node_offers.offers) == 25


def test_an_instance_of_somebody_else_takes_its_place_away() -> None:
    node_offers = offered(gpu(0, mig=mig(enabled=True, instances=[WHOLE_GPU])), policy=dynamic())
    assert all(
        offer.partition is not None and offer.partition.start + offer.partition.size <= 4
        for offer in node_offers.offers
    )
    assert f"{GPU}-mig-4g40gb-0" in names(node_offers)
    assert [note.cause for note in node_offers.notes] == [LimitationCause.FOREIGN_INSTANCE]


@pytest.mark.parametrize("facts", [{"virtualization": "VGPUGuest"}, {"mig": mig(profiles=[])}])
def test_what_cannot_be_partitioned_here_is_offered_as_it_is(facts: dict[str, Any]) -> None:
    node_offers = offered(gpu(0, **{"mig": mig(), **facts}), policy=dynamic())
    assert names(node_offers) == [GPU]
    assert node_offers.notes


def test_a_rule_for_partitions_says_nothing_of_gpus_without_mig() -> None:
    assert offered(gpu(0), policy=dynamic()) == offered(gpu(0))


def test_replicas_are_one_device_and_as_many_shares() -> None:
    rules = policy(sharing=[{"strategy": "TimeSlicing", "replicas": 3}])
    node_offers = offered(gpu(0), policy=rules)
    assert names(node_offers) == [f"{GPU}-share-0", f"{GPU}-share-1", f"{GPU}-share-2", GPU]
    assert [offer.share for offer in node_offers.offers] == [0, 1, 2, None]
    assert {offer.sharing for offer in node_offers.offers} == {rules.sharing[0]}


def test_mig_devices_are_shared_by_profile_and_those_made_on_demand_have_no_separate_shares() -> None:
    rules = policy(
        sharing=[{"devices": "mig", "profiles": ["1g.*"], "strategy": "MPS", "replicas": 2}], mig=[{"mode": "Dynamic"}]
    )
    node_offers = offered(gpu(0, mig=mig()), policy=rules)
    shared = {offer.partition.profile for offer in node_offers.offers if offer.sharing is not None and offer.partition}
    assert shared == {"1g.10gb", "1g.10gb+me", "1g.20gb"}
    assert all(offer.share is None for offer in node_offers.offers)
    instances = [gpu_instance("1g.10gb", 0, 1, compute_instance("1g.10gb", 1))]
    static = policy(sharing=[{"devices": "mig", "strategy": "TimeSlicing", "replicas": 2}])
    node_offers = offered(gpu(0, mig=mig(enabled=True, instances=instances)), policy=static)
    assert names(node_offers) == [f"{GPU}-mig-1g10gb-0{suffix}" for suffix in ("-share-0", "-share-1", "")]


def test_what_a_later_rule_calls_exclusive_is_not_shared() -> None:
    everything: dict[str, Any] = {"strategy": "TimeSlicing", "replicas": 2}
    rules = policy(sharing=[everything, {"gpus": {"products": ["NVIDIA H100*"]}, "strategy": "Exclusive"}])
    node_offers = offered(gpu(0), gpu(1, product_name="Tesla T4"), policy=rules)
    assert [(offer.name, offer.sharing is not None) for offer in node_offers.offers] == [
        ("gpu-00000000", False), ("gpu-00000001-share-0", True), ("gpu-00000001-share-1", True), ("gpu-00000001", True)
    ]  # fmt: skip
    before = policy(sharing=[*reversed(rules.to_wire()["sharing"])])
    assert [offer.sharing is not None for offer in offered(gpu(0), policy=before).offers] == [True] * 3


def test_what_a_gpu_cannot_do_it_is_not_asked_to_do() -> None:
    rules = policy(sharing=[{"strategy": "TimeSlicing", "replicas": 2, "interval": "Long"}])
    node_offers = offered(gpu(0, cuda_compute_capability="6.1"), policy=rules)
    assert names(node_offers) == [GPU]
    assert node_offers.offers[0].sharing is None
    assert [note.cause for note in node_offers.notes] == [LimitationCause.NO_SHARING]


def test_gpus_for_virtual_machines_come_beside_the_gpu_where_there_is_an_iommu() -> None:
    rules = policy(passthrough=[{"gpus": {"names": [GPU, "gpu-00000001"]}}])
    iommu = PassthroughFacts(iommu_group=7)
    node_offers = offered(gpu(0, passthrough=iommu), gpu(1), gpu(2, passthrough=iommu), policy=rules)
    assert names(node_offers) == [GPU, f"{GPU}-vfio", "gpu-00000001", "gpu-00000002"]
    assert the(node_offers, f"{GPU}-vfio").kind is DeviceKind.VFIO
    assert [note.cause for note in node_offers.notes] == [LimitationCause.NO_IOMMU]


def test_what_the_policy_keeps_back_is_not_offered_but_found() -> None:
    rules = policy(withhold=[{"gpus": {"names": [GPU]}}])
    node_offers = offered(gpu(0), gpu(1), policy=rules)
    assert names(node_offers) == ["gpu-00000001"]
    assert set(by_name(node_offers)) == {GPU, "gpu-00000001"}
    assert node_offers.notes == ()


@pytest.mark.parametrize(("name", "reason"), [("GPU 0", "not a DNS label"), (gpu(1).name, "has this name")])
def test_a_device_without_a_name_of_its_own_is_left_out(name: str, reason: str) -> None:
    node_offers = offered(gpu(1), gpu(0, name=name))
    assert names(node_offers) == [gpu(1).name]
    assert reason in str(node_offers.notes[0])
