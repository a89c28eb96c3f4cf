"""Is a GPU fit for use? The check that a new or returned GPU must pass if the policy requires one.

`kubelet_plugin.facts.monitor` asks once for each GPU and life of the driver, and again after a while when the answer
was no. The check that comes with the driver asks what the driver can be asked: does the GPU answer, has it memory, a
clock and as many NVLinks as its like. An administrator's command says more, for instance by running a program on the
GPU.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dra_driver.api.inventory import GpuFacts

COMMAND_TIMEOUT_S = 300.0
_SHOWN = 300


def fault_of(gpu: GpuFacts, others: Sequence[GpuFacts], max_clock_mhz: int | None) -> str | None:
    """What the built-in check finds wrong with a GPU that answers; None when nothing. Pure.

    `others` are the node's other GPUs. GPUs without memory of their own (integrated ones) report none, which is fine.
    """
    if gpu.memory_bytes == 0:
        return "it reports no memory"
    alike = [other for other in others if other.product_name == gpu.product_name]
    most = max((other.memory_bytes or 0 for other in alike), default=0)
    if gpu.memory_bytes is not None and most > gpu.memory_bytes:
        return f"it has {gpu.memory_bytes} bytes of memory, others of its kind have {most}"
    if max_clock_mhz == 0:
        return "its clocks are at 0 MHz"
    links = max((other.nvlink.links for other in alike if other.nvlink is not None), default=0)
    own = gpu.nvlink.links if gpu.nvlink is not None else 0
    if own < links:
        return f"{own} of its NVLinks are active, others of its kind have {links}"
    return None


@dataclass(frozen=True, slots=True)
class Command:
    """An administrator's check: exit status 0 is fit, everything else is not. The GPU is in its environment:
    GPU_UUID, GPU_PCI_BUS_ID, GPU_MINOR, and CUDA_VISIBLE_DEVICES with the UUID."""

    arguments: tuple[str, ...]
    timeout_s: float = COMMAND_TIMEOUT_S

    async def fault_of(self, gpu: GpuFacts) -> str | None:
        """Why the GPU is not fit; None when it is. A command that cannot be run, or does not end, is a fault too."""
        environment = {
            **os.environ,
            "GPU_UUID": gpu.uuid,
            "GPU_PCI_BUS_ID": gpu.pci_bus_id,
            "GPU_MINOR": str(gpu.minor),
            "CUDA_VISIBLE_DEVICES": gpu.uuid,
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self.arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return f"the check `{self.arguments[0]}` cannot be run in the plugin's container: {error.strerror or error}"
        return await self._verdict(process)

    async def _verdict(self, process: asyncio.subprocess.Process) -> str | None:
        try:
            async with asyncio.timeout(self.timeout_s):
                output, _ = await process.communicate()
        except TimeoutError:
            return f"the check `{self.arguments[0]}` did not end within {self.timeout_s:g} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode == 0:
            return None
        shown = output.decode(errors="replace").strip()[-_SHOWN:]
        return f"the check `{self.arguments[0]}` ended with status {process.returncode}" + (
            f": {shown}" if shown else ""
        )
