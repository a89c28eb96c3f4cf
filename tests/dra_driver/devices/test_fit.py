"""A config that a device cannot honour is refused with the reason; one that has no effect is a warning."""

import pytest
from support import inventories

from dra_driver.api.config import (
    GpuConfig,
    Interval,
    Iommu,
    MigDeviceConfig,
    Mps,
    Sharing,
    TimeSlicing,
    VfioDeviceConfig,
)
from dra_driver.api.inventory import ComputeInstanceFacts, MigFacts, MigProfileFacts
from dra_driver.api.policy import SharingRule
from dra_driver.devices.fit import CONFIG_KIND, checked_against, identity
from dra_driver.devices.model import DeviceKind, Offer, Partition
from dra_driver.errors import InvalidConfig

GIB = 2**30
UUIDS = [inventories.gpu_uuid(number) for number in (0, 1)]


def gpu(number: int = 0, **facts: object) -> Offer:
    usual = {"memory_bytes": 80 * GIB, "mig": MigFacts(enabled=False, pending=False)}
    gpu_facts = inventories.gpu(number, **usual | facts)
    return Offer(f"gpu-{number}", DeviceKind.GPU, gpu_facts)


def old() -> Offer:
    return gpu(product_name="Tesla P4", cuda_compute_capability="6.1", mig=None)


def shared(**rule: object) -> Offer:
    device = gpu()
    return Offer(device.name, device.kind, device.gpu, sharing=SharingRule.of({"replicas": 4, **rule}))


def mig(*, existing: bool = True) -> Offer:
    profile = MigProfileFacts(
        name="1g.10gb", id=19, slices=1, memory_bytes=10 * GIB, multiprocessors=14, size=1, starts=[0], max_instances=7
    )
    made = ComputeInstanceFacts(id=0, uuid="MIG-1", profile="1g.10gb", slices=1) if existing else None
    return Offer("gpu-0-mig-1g10gb-0", DeviceKind.MIG, gpu().gpu, Partition("1g.10gb", 0, 1), profile, made)


def sliced(interval: Interval = "Short") -> Sharing:
    return Sharing("TimeSlicing", time_slicing=TimeSlicing(interval))


def by_mps(
    percent: int | None = None, memory: int | None = None, *by_device: tuple[str, int], multi_user: bool = False
) -> Sharing:
    return Sharing("MPS", mps=Mps(percent, memory, by_device, multi_user))


def refusal(sharing: Sharing, *devices: Offer) -> str:
    with pytest.raises(InvalidConfig) as refused:
        checked_against(GpuConfig(sharing), devices)
    assert refused.value.retry_after_s is None
    return str(refused.value)


def test_each_kind_of_device_takes_one_kind_of_config() -> None:
    assert [CONFIG_KIND[kind] for kind in DeviceKind] == [GpuConfig, MigDeviceConfig, VfioDeviceConfig]


@pytest.mark.parametrize("sharing", [None, sliced(), by_mps(), by_mps(50, 8 * GIB, ("*", GIB), multi_user=True)])
def test_a_modern_gpu_takes_every_config(sharing: Sharing | None) -> None:
    assert checked_against(GpuConfig(sharing), [gpu(), gpu(1)]) == ()


def test_nothing_is_asked_of_devices_whose_config_sets_nothing() -> None:
    assert checked_against(GpuConfig(), [old(), shared(strategy="MPS")]) == ()
    assert checked_against(MigDeviceConfig(), [mig()]) == ()
    assert checked_against(VfioDeviceConfig(Iommu("PreferIommuFD", True)), [gpu()]) == ()


def test_a_time_slice_on_an_old_gpu_is_refused_with_the_reason_and_what_to_do() -> None:
    assert refusal(sliced(), old()) == (
        "GpuConfig.sharing: strategy TimeSlicing is not possible on gpu-0: time slices can be set on compute capability"
        " 7.0 (Volta) and newer; without a sharing strategy, programs take turns on this GPU too"
        " (Tesla P4, compute capability 6.1)"
    )


def test_mps_for_several_users_or_with_limits_wants_volta() -> None:
    assert "several users" in refusal(by_mps(multi_user=True), old())
    assert "MPS limits need" in refusal(by_mps(None, GIB), old())
    assert checked_against(GpuConfig(by_mps()), [old()]) == ()


def test_all_problems_of_all_devices_are_told_at_once() -> None:
    with pytest.raises(InvalidConfig) as refused:
        checked_against(GpuConfig(by_mps(None, None, ("7", GIB), multi_user=True)), [old(), shared(strategy="MPS")])
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize("sharing", [by_mps(), sliced("Long"), sliced("Default")])
def test_a_device_that_the_policy_shares_has_the_settings_of_the_policy(sharing: Sharing) -> None:
    assert "is shared by time-slicing with other claims" in refusal(
        sharing, shared(strategy="TimeSlicing", interval="Short")
    )


def test_a_config_that_says_what_the_policy_says_is_no_contradiction() -> None:
    assert checked_against(GpuConfig(sliced("Short")), [shared(strategy="TimeSlicing", interval="Short")]) == ()
    assert checked_against(GpuConfig(sliced("Default")), [shared(strategy="TimeSlicing")]) == ()
    assert checked_against(GpuConfig(by_mps(multi_user=True)), [shared(strategy="MPS", multiUser=True)]) == ()
    assert "shared by MPS" in refusal(by_mps(50), shared(strategy="MPS"))


def test_limits_for_devices_that_the_claim_does_not_have_are_refused() -> None:
    devices = [gpu(), gpu(1)]
    assert checked_against(GpuConfig(by_mps(None, None, ("1", GIB), (UUIDS[0], GIB))), devices) == ()
    message = refusal(by_mps(None, None, ("2", GIB)), *devices)
    assert message == (
        "GpuConfig.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[2]: is none of the devices that the config is"
        f" for; they are `0` or `{UUIDS[0]}`, `1` or `{UUIDS[1]}`; `*` is all"
    )


def test_an_interval_for_a_mig_device_is_a_warning() -> None:
    (warning,) = checked_against(MigDeviceConfig(sliced("Long")), [mig()])
    assert warning.startswith(
        "gpu-0-mig-1g10gb-0: the interval has no effect: the time slice of MIG devices cannot be set"
    )
    assert checked_against(MigDeviceConfig(sliced("Default")), [mig()]) == ()


@pytest.mark.parametrize("existing", [True, False])
def test_a_limit_above_the_memory_of_the_device_is_a_warning(existing: bool) -> None:
    (warning,) = checked_against(MigDeviceConfig(by_mps(None, 11 * GIB)), [mig(existing=existing)])
    assert warning.endswith("the memory limit has no effect: it is 11Gi, and the device has 10Gi")
    assert checked_against(GpuConfig(by_mps(None, 80 * GIB)), [gpu()]) == ()
    assert len(checked_against(GpuConfig(by_mps(None, 81 * GIB)), [gpu(), gpu(1)])) == 2


def test_a_mig_device_is_named_by_its_uuid_and_before_it_is_made_by_its_name() -> None:
    assert identity(gpu()) == UUIDS[0]
    assert identity(mig()) == "MIG-1"
    assert identity(mig(existing=False)) == "gpu-0-mig-1g10gb-0"
