"""Limits as MPS reads them: `dra_driver.devices.mps`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.devices.mps import checked_percentage, client_environment, default_commands, limit_text
from dra_driver.errors import InvalidInput


@given(st.integers(min_value=1, max_value=1 << 45))
def test_a_limit_is_the_smallest_whole_number_of_megabytes_that_holds_the_amount(amount: int) -> None:
    text = limit_text(amount)
    assert text.endswith("M")
    megabytes = int(text[:-1])
    assert (megabytes - 1) << 20 < amount <= megabytes << 20


@pytest.mark.parametrize("amount", [0, -1])
def test_no_memory_is_not_mistaken_for_no_limit(amount: int) -> None:
    with pytest.raises(InvalidInput, match="leaves nothing"):
        limit_text(amount)


@pytest.mark.parametrize("percent", [0, -5, 101])
def test_a_percentage_is_one_to_a_hundred(percent: int) -> None:
    with pytest.raises(InvalidInput, match="1 to 100"):
        checked_percentage(percent)


def test_a_daemon_is_told_threads_first_and_then_each_devices_memory() -> None:
    assert default_commands(40, (("GPU-a", 8 << 30), ("GPU-b", 1))) == (
        "set_default_active_thread_percentage 40",
        "set_default_device_pinned_mem_limit GPU-a 8192M",
        "set_default_device_pinned_mem_limit GPU-b 1M",
    )
    assert default_commands(None, ()) == ()


def test_a_client_finds_the_daemon_and_its_own_limits_in_its_environment() -> None:
    assert client_environment() == (("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"),)
    assert dict(client_environment(50, {1: 1 << 30, 0: (1 << 20) + 1})) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2M,1=1024M",
    }
