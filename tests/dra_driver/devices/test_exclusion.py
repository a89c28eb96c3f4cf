"""What excludes what, as the issue and the references have it; and the page shows the same table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from dra_driver.api.inventory import GpuFacts, MigFacts, PassthroughFacts
from dra_driver.devices.exclusion import PAIRS, GpuUse, conflict, deciding_row, unsupported, without_effect
from dra_driver.devices.model import DeviceKind, Partition

GPU = "GPU-5a7b8d0e-0000-4000-8000-000000000000"
FIRST, SECOND = Partition("1g.10gb", 0, 1), Partition("1g.10gb", 1, 1)
HALF = Partition("3g.40gb", 0, 4)
PARTS = [Partition("3g.40gb", 0, 4, compute_slices=1, compute_start=start) for start in (0, 1)]


def gpu(**facts: object) -> GpuFacts:
    known: dict[str, object] = {
        "uuid": GPU,
        "name": "gpu-5a7b8d0e",
        "minor": 0,
        "pciBusID": "0000:1b:00.0",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0",
        "passthrough": PassthroughFacts(iommu_group=7),
        "mig": MigFacts(enabled=False, pending=False),
    }
    return GpuFacts.of(known | facts)


OLD = gpu(productName="Tesla P4", architecture="Pascal", cudaComputeCapability="6.1", mig=None)


def full(strategy: str | None = None, *, uuid: str = GPU, shared: bool = False, **others: object) -> GpuUse:
    return GpuUse(uuid, DeviceKind.GPU, strategy=strategy, shared=shared, **others)


def mig(partition: Partition, strategy: str | None = None, *, shared: bool = False) -> GpuUse:
    return GpuUse(GPU, DeviceKind.MIG, partition, strategy, shared)


VFIO = GpuUse(GPU, DeviceKind.VFIO)
SLICED, CLIENT = full("TimeSlicing", shared=True), full("MPS", shared=True)


@rows(
    "held, wanted",
    [
        (SLICED, SLICED),
        (CLIENT, CLIENT),
        (full("TimeSlicing", shared=True, share=0), full("TimeSlicing", shared=True, share=1)),
        (mig(FIRST), mig(SECOND)),
        (mig(FIRST, "TimeSlicing", shared=True), mig(SECOND, "MPS", shared=True)),
        (mig(FIRST, "TimeSlicing", shared=True), mig(FIRST, "TimeSlicing", shared=True)),
        (mig(FIRST, "MPS", shared=True), mig(FIRST, "MPS", shared=True)),
        (mig(FIRST, "MPS"), mig(SECOND)),
        (mig(PARTS[0]), mig(PARTS[1])),
        (full(), full(uuid="GPU-other")),
        (full("MPS"), full("TimeSlicing", uuid="GPU-other")),
        (VFIO, full(uuid="GPU-other")),
    ],
)
def test_these_two_can_be_side_by_side(held: GpuUse, wanted: GpuUse) -> None:
    assert conflict(held, wanted) is None


@rows(
    "held, wanted, says",
    [
        (full(), full(), "exclusive to one claim"),
        (full("TimeSlicing"), full("TimeSlicing"), "exclusive to one claim"),
        (full(), SLICED, "exclusive to one claim"),
        (SLICED, CLIENT, "exclude each other"),
        (mig(FIRST, "MPS", shared=True), mig(FIRST, "TimeSlicing", shared=True), "exclude each other"),
        (full("TimeSlicing", shared=True, settings="Short"), SLICED, "same settings"),
        (full("MPS", shared=True, share=1), full("MPS", shared=True, share=1), "each share is for one claim"),
        (full(), mig(FIRST), "cannot be used as a whole"),
        (SLICED, mig(FIRST), "cannot be used as a whole"),
        (mig(FIRST), mig(FIRST), "exclusive to one claim"),
        (mig(FIRST), mig(HALF), "same slices"),
        (mig(FIRST, "MPS", shared=True), mig(HALF, "MPS", shared=True), "same slices"),
        (mig(HALF), mig(PARTS[0]), "same slices"),
        (mig(PARTS[0]), mig(PARTS[0]), "exclusive to one claim"),
        (VFIO, full(), "virtual machine"),
        (VFIO, SLICED, "virtual machine"),
        (VFIO, mig(SECOND), "virtual machine"),
        (VFIO, VFIO, "virtual machine"),
    ],
)
def test_these_two_exclude_each_other(held: GpuUse, wanted: GpuUse, says: str) -> None:
    assert says in (conflict(held, wanted) or "")
    assert conflict(wanted, held) == conflict(held, wanted)


PLACES = [None, FIRST, SECOND, HALF, *PARTS]


@st.composite
def uses(draw: st.DrawFn) -> GpuUse:
    kind = draw(st.sampled_from(DeviceKind))
    partition = draw(st.sampled_from(PLACES[1:])) if kind is DeviceKind.MIG else None
    strategy = draw(st.sampled_from([None, "TimeSlicing", "MPS"]))
    shared = strategy is not None and draw(st.booleans())
    share = draw(st.sampled_from([None, 0, 1])) if shared else None
    return GpuUse(GPU, kind, partition, strategy, shared, share, draw(st.sampled_from([None, "Short"])))


@given(uses(), uses())
def test_one_row_decides_every_two_uses_of_a_gpu_in_either_order(first: GpuUse, second: GpuUse) -> None:
    assert deciding_row(first, second) is deciding_row(second, first)


@given(uses(), uses())
def test_two_claims_have_one_device_only_as_shares_of_it(first: GpuUse, second: GpuUse) -> None:
    if conflict(first, second) is None and first.partition == second.partition:
        assert first.shared
        assert second.shared
        assert (first.kind, first.strategy, first.settings) == (second.kind, second.strategy, second.settings)


ALL = [
    *(full(strategy, shared=True, share=share, settings=settings) for strategy in ("TimeSlicing", "MPS")
      for share in (None, 0) for settings in (None, "Short")),
    *(mig(place) for place in (FIRST, SECOND, HALF)), full(), VFIO,
]  # fmt: skip


def test_no_row_of_the_table_is_hidden_by_those_above_it() -> None:
    reached = {deciding_row(first, second).reason for first in ALL for second in ALL}
    assert reached == {row.reason for row in PAIRS}


def test_a_use_that_makes_no_sense_cannot_be_made() -> None:
    for wrong in (
        lambda: GpuUse(GPU, DeviceKind.MIG),
        lambda: GpuUse(GPU, DeviceKind.GPU, FIRST),
        lambda: full(shared=True),
    ):
        with pytest.raises(ValueError, match=r"partition|strategy"):
            wrong()


def test_a_modern_gpu_can_do_it_all() -> None:
    for strategy in (None, "TimeSlicing", "MPS"):
        assert unsupported(gpu(), DeviceKind.GPU, strategy, True, limits=True, clients=48) is None
        assert unsupported(gpu(), DeviceKind.MIG, strategy, True, limits=True) is None
    assert unsupported(gpu(), DeviceKind.VFIO, None) is None


def test_before_volta_time_slices_multi_user_and_limits_are_refused_and_plain_mps_is_not() -> None:
    refusal = unsupported(OLD, DeviceKind.GPU, "TimeSlicing")
    assert refusal is not None
    assert refusal.startswith("time slices can be set on compute capability 7.0 (Volta) and newer")
    assert refusal.endswith("(Tesla P4, compute capability 6.1)")
    assert unsupported(OLD, DeviceKind.GPU, "TimeSlicing", sets_interval=False) is None
    assert "several users" in (unsupported(OLD, DeviceKind.GPU, "MPS", True) or "")
    assert "MPS limits need" in (unsupported(OLD, DeviceKind.GPU, "MPS", limits=True) or "")
    assert unsupported(OLD, DeviceKind.GPU, "MPS", clients=16) is None
    assert "at most 16" in (unsupported(OLD, DeviceKind.GPU, "MPS", clients=17) or "")


def test_a_gpu_that_does_not_tell_its_capability_is_promised_nothing() -> None:
    for capability in ("", "9", "N/A", "9.x", "-1.0"):
        assert unsupported(gpu(cudaComputeCapability=capability), DeviceKind.GPU, "TimeSlicing") is not None
    for enough in ("7.0", "12.1"):
        assert unsupported(gpu(cudaComputeCapability=enough), DeviceKind.GPU, "TimeSlicing") is None


def test_mps_has_a_number_of_clients() -> None:
    assert "at most 48" in (unsupported(gpu(), DeviceKind.MIG, "MPS", clients=49) or "")


def test_a_gpu_in_mig_mode_is_no_full_gpu_and_none_without_mig_is_partitioned() -> None:
    in_mig_mode = gpu(mig=MigFacts(enabled=True, pending=True))
    assert "MIG mode" in (unsupported(in_mig_mode, DeviceKind.GPU, None) or "")
    assert unsupported(in_mig_mode, DeviceKind.MIG, "MPS") is None
    assert "no MIG mode" in (unsupported(gpu(mig=None), DeviceKind.MIG, None) or "")


def test_virtual_machines_want_a_whole_physical_gpu_behind_an_iommu_and_share_nothing() -> None:
    partitioned = gpu(mig=MigFacts(enabled=True, pending=True))
    assert "IOMMU" in (unsupported(gpu(passthrough=None), DeviceKind.VFIO, None) or "")
    for virtual in ("VGPUGuest", "HostVGPU", "HostVSGA"):
        assert "virtual" in (unsupported(gpu(virtualization=virtual), DeviceKind.VFIO, None) or ""), virtual
    assert unsupported(gpu(virtualization="Passthrough"), DeviceKind.VFIO, None) is None
    assert "MIG mode" in (unsupported(partitioned, DeviceKind.VFIO, None) or "")
    assert "exclusive to a virtual machine" in (unsupported(gpu(), DeviceKind.VFIO, "MPS") or "")


def test_the_host_of_a_virtual_gpu_sets_its_time_slice() -> None:
    guest = gpu(virtualization="VGPUGuest")
    assert "host" in (unsupported(guest, DeviceKind.GPU, "TimeSlicing") or "")
    assert unsupported(guest, DeviceKind.GPU, "TimeSlicing", sets_interval=False) is None


def test_a_time_slice_for_a_mig_device_is_accepted_and_has_no_effect() -> None:
    assert unsupported(gpu(), DeviceKind.MIG, "TimeSlicing") is None
    assert "cannot be set" in (without_effect(gpu(), DeviceKind.MIG, "TimeSlicing") or "")
    assert without_effect(gpu(), DeviceKind.MIG, "MPS") is None
    assert without_effect(gpu(), DeviceKind.GPU, "TimeSlicing") is None
