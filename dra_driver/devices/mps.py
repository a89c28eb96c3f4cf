"""How MPS gets limits: amounts as it reads them, commands to a daemon at its start, what a client has in its
environment.

The effect that starts daemons and the writer of a claim's CDI file enter here. Amounts are rounded up: a share must
never be smaller than what was allocated, and MPS counts in whole megabytes. Pure.
Source: the MPS manual, "Environment variables" and "Control commands".
"""

from collections.abc import Iterable, Mapping

from dra_driver.errors import InvalidInput

PIPE_IN_CONTAINER = "/tmp/nvidia-mps"
SHM_IN_CONTAINER = "/dev/shm"

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
THREADS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

_MEBIBYTE = 1 << 20


def limit_text(amount_bytes: int) -> str:
    """`1024M`, rounded up. Raises InvalidInput for what is no amount: MPS takes 0 for "no limit"."""
    if amount_bytes <= 0:
        raise InvalidInput(f"a memory limit of {amount_bytes} bytes leaves nothing; the smallest is 1M")
    return f"{-(-amount_bytes // _MEBIBYTE)}M"


def checked_percentage(percent: int) -> int:
    """Raises InvalidInput when it is not one to a hundred."""
    if not 1 <= percent <= 100:
        raise InvalidInput(f"{percent} is not a percentage of threads: 1 to 100")
    return percent


def default_commands(thread_percentage: int | None, memory_limits: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Commands for the control daemon before its first client comes.

    `memory_limits` is bytes by device as the daemon enumerates them: a UUID or an index. Raises InvalidInput.
    """
    commands = []
    if thread_percentage is not None:
        commands.append(f"set_default_active_thread_percentage {checked_percentage(thread_percentage)}")
    for device, amount in memory_limits:
        commands.append(f"set_default_device_pinned_mem_limit {device} {limit_text(amount)}")
    return tuple(commands)


def client_environment(
    thread_percentage: int | None = None, memory_by_index: Mapping[int, int] | None = None
) -> tuple[tuple[str, str], ...]:
    """What a container of a share has in its environment, besides the daemon's folders mounted.

    `memory_by_index` is bytes by the device's index among those of the daemon: 0 where it serves one. A client can
    lower the daemon's defaults in this way, never raise them. Raises InvalidInput.
    """
    results = [(PIPE_VARIABLE, PIPE_IN_CONTAINER)]
    if thread_percentage is not None:
        results.append((THREADS_VARIABLE, str(checked_percentage(thread_percentage))))
    if memory_by_index:
        limits = ",".join(f"{index}={limit_text(memory_by_index[index])}" for index in sorted(memory_by_index))
        results.append((MEMORY_VARIABLE, limits))
    return tuple(results)
