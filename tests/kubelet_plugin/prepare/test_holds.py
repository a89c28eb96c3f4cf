"""What people read about a hold."""

import pytest

from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    FabricPartition,
    GpuIdentity,
    GpuInstance,
    Hold,
    MigMode,
    MpsDaemon,
    TimeSlice,
    UnknownHold,
    VfioBinding,
    described,
)

GPU = GpuIdentity("GPU-1", "0000:1b:00.0")
INSTANCE = GpuInstance(GPU, "3g.40gb", 9, 4, 4)


@pytest.mark.parametrize(
    ("hold", "text"),
    [
        (MigMode(GPU), "MIG mode of {gpu}"),
        (INSTANCE, "GPU instance 3g.40gb at memory slice 4 of {gpu}"),
        (ComputeInstance(INSTANCE), "the compute instance of GPU instance 3g.40gb at memory slice 4 of {gpu}"),
        (
            ComputeInstance(INSTANCE, 1, 2),
            "a compute instance of 1 slices from 2 of GPU instance 3g.40gb at memory slice 4 of {gpu}",
        ),
        (FabricPartition(0, (GPU, GPU)), "fabric partition 0 of {gpu}, {gpu}"),
        (ComputeMode(GPU, 0), "compute mode DEFAULT of {gpu}"),
        (ComputeMode(GPU, 3), "compute mode EXCLUSIVE_PROCESS of {gpu}"),
        (TimeSlice(GPU, "Long"), "time slice Long of {gpu}"),
        (MpsDaemon("claim-a", (GPU,)), "MPS daemon claim-a of {gpu}"),
        (MpsDaemon("claim-a", (GPU,), multi_user=True), "MPS daemon claim-a for several users of {gpu}"),
        (VfioBinding(GPU, iommufd=True), "a VFIO driver (iommufd) for {gpu}"),
        (VfioBinding(GPU, iommufd=False), "a VFIO driver (legacy group) for {gpu}"),
        (UnknownHold("power-cap", "{}"), "something of a newer release (power-cap)"),
    ],
)
def test_a_hold_is_described_with_its_gpu(hold: Hold, text: str) -> None:
    assert described(hold) == text.format(gpu=GPU)
