"""What excludes what, as the issue and the references have it; and the page shows the same table."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import inventories
from support.rows import rows

from dra_driver.api.inventory import GpuFacts, MigFacts, PassthroughFacts
from dra_driver.devices.exclusion import PAIRS, GpuUse, PlannedUse, conflict, deciding_row, unsupported, without_effect
from dra_driver.devices.model import DeviceKind, Partition

GPU = inventories.gpu_uuid(0)
FIRST, SECOND = Partition("1g.10gb", 0, 1), Partition("1g.10gb", 1, 1)
HALF = Partition("3g.40gb", 0, 4)
PARTS = [Partition("3g.40gb", 0, 4, compute_slices=1, compute_start=start) for start in (0, 1)]


gpu = partial(inventories.gpu, passthrough=PassthroughFacts(iommu_group=7), mig=MigFacts(enabled=False, pending=False))
OLD = gpu(product_name="Tesla P4", architecture="Pascal", cuda_compute_capability="6.1", mig=None)


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


FULL, MIG, VFIO = DeviceKind.GPU, DeviceKind.MIG, DeviceKind.VFIO
IN_MIG_MODE = gpu(mig=MigFacts(enabled=True, pending=True))
GUEST = gpu(virtualization="VGPUGuest")


@pytest.mark.parametrize(
    ("facts", "wish"),
    [
        *((gpu(), PlannedUse(FULL, way, True, limits=True, clients=48)) for way in (None, "TimeSlicing", "MPS")),
        *((gpu(), PlannedUse(MIG, way, True, limits=True)) for way in (None, "TimeSlicing", "MPS")),
        *((gpu(cuda_compute_capability=enough), PlannedUse(FULL, "TimeSlicing")) for enough in ("7.0", "12.1")),
        (gpu(), PlannedUse(VFIO)),
        (gpu(virtualization="Passthrough"), PlannedUse(VFIO)),
        (OLD, PlannedUse(FULL, "TimeSlicing", sets_interval=False)),
        (OLD, PlannedUse(FULL, "MPS", clients=16)),
        (IN_MIG_MODE, PlannedUse(MIG, "MPS")),
        (GUEST, PlannedUse(FULL, "TimeSlicing", sets_interval=False)),
    ],
)
def test_what_a_gpu_can_do(facts: GpuFacts, wish: PlannedUse) -> None:
    assert unsupported(facts, wish) is None


@pytest.mark.parametrize(
    ("facts", "wish", "why"),
    [
        (OLD, PlannedUse(FULL, "TimeSlicing"), "time slices can be set on compute capability 7.0 (Volta) and newer"),
        (OLD, PlannedUse(FULL, "TimeSlicing"), "(Tesla P4, compute capability 6.1)"),
        (OLD, PlannedUse(FULL, "MPS", True), "several users"),
        (OLD, PlannedUse(FULL, "MPS", limits=True), "MPS limits need"),
        (OLD, PlannedUse(FULL, "MPS", clients=17), "at most 16"),
        # A GPU that does not tell its capability is promised nothing.
        *(
            (gpu(cuda_compute_capability=unknown), PlannedUse(FULL, "TimeSlicing"), "(Volta)")
            for unknown in ("", "9", "N/A", "9.x", "-1.0")
        ),
        (gpu(), PlannedUse(MIG, "MPS", clients=49), "at most 48"),
        (IN_MIG_MODE, PlannedUse(FULL), "MIG mode"),
        (gpu(mig=None), PlannedUse(MIG), "no MIG mode"),
        (gpu(passthrough=None), PlannedUse(VFIO), "IOMMU"),
        *((gpu(virtualization=way), PlannedUse(VFIO), "virtual") for way in ("VGPUGuest", "HostVGPU", "HostVSGA")),
        (IN_MIG_MODE, PlannedUse(VFIO), "MIG mode"),
        (gpu(), PlannedUse(VFIO, "MPS"), "exclusive to a virtual machine"),
        (GUEST, PlannedUse(FULL, "TimeSlicing"), "host"),
    ],
)
def test_what_a_gpu_cannot_do(facts: GpuFacts, wish: PlannedUse, why: str) -> None:
    assert why in (unsupported(facts, wish) or "")


def test_a_time_slice_for_a_mig_device_is_accepted_and_has_no_effect() -> None:
    assert "cannot be set" in (without_effect(gpu(), PlannedUse(MIG, "TimeSlicing")) or "")
    assert without_effect(gpu(), PlannedUse(MIG, "MPS")) is None
    assert without_effect(gpu(), PlannedUse(FULL, "TimeSlicing")) is None
