"""Policies, claims, programs, administrators, kills and reboots in any order: no GPU is reset that something uses, no
intent is forgotten, and at rest the mode is what the policy asks for."""

import asyncio
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.claims import a_held_device, a_ref, an_entry
from support.killed import Killed
from support.mode_world import ModeWorld, policy
from support.rows import examples

from dra_driver.errors import DriverError
from kubelet_plugin.prepare.lifecycle import Entry
from kubelet_plugin.prepare.transitions import mode_changes, released, with_entry

acts = st.one_of(
    st.integers(1, 9),
    st.sampled_from(["flip", "settle", "claim", "release"]),
    st.sampled_from(["monitor", "no monitor", "publish", "reboot", "administrator on", "administrator off"]),
)
"""A number: the policy is made or deleted, and the plugin is killed after so many steps of what follows."""


class History:
    def __init__(self, folder: Path) -> None:
        self.world = ModeWorld(folder)
        self.claim: Entry | None = None
        self.programs: list[int] = []
        self.of_administrator = False
        self.kill_at: int | None = None
        self.steps = 0
        self._start()

    def _start(self) -> None:
        self.steps = 0
        self.world.restart(self._moment)
        self.mode = self.world.mode[0]

    def _moment(self, what: str) -> None:
        """The mode changed since the last step: then the journal has the intent, and nothing uses the GPU."""
        mode = self.world.mode[0]
        if mode != self.mode:
            self.mode = mode
            journal = self.world.journal.current
            assert mode_changes(journal) == (self.world.hold,), what
            assert not journal.held and not self.programs, what
        self.steps += 1
        if self.steps == self.kill_at:
            raise Killed

    async def act(self, act: str | int) -> None:
        if isinstance(act, int):
            self.kill_at, act = self.steps + act, "flip"
        try:
            await getattr(self, f"_{act.replace(' ', '_')}")()
        except Killed:
            self.kill_at = None
            await self._restart()

    async def _restart(self) -> None:
        await self.world.end()
        self._start()

    async def _flip(self) -> None:
        """The policy is made, or deleted."""
        self.world.policies = [] if self.world.policies else [policy()]
        await self._settle()

    async def _claim(self) -> None:
        """Allocated a device of now, tainted or not; prepared if the plugin does, and then a program uses it."""
        if self.claim is not None or self.world.held is None:
            return
        devices = await self.world.devices()
        if not devices:
            return
        gpu = self.world.host.state.gpus[0]
        held = replace(a_held_device(0), gpu_uuid=gpu.uuid, pci_bus_id=gpu.address, device=devices[0])
        entry = an_entry(a_ref("user"), held)
        self.claim, self.world.users = entry, {devices[0]: ["team-a/user"]}
        with suppress(DriverError):
            await self.world.journal.commit(with_entry(entry))
            if not self.world.mode[0]:
                self.programs.append(self.world.host.attach_client(0, name="python3"))

    async def _release(self) -> None:
        self.claim, self.world.users = None, {}
        for pid in self.programs:
            self.world.host.detach_client(pid)
        self.programs = []
        for uid in self.world.journal.current.held:
            await self.world.journal.commit(released(uid))

    async def _monitor(self) -> None:
        with self.world.host.edit() as state:
            state.gpus[0].clients = [client for client in state.gpus[0].clients if client.pid != 7]
        self.world.host.attach_client(0, name="dcgm", kind="monitor", pid=7)

    async def _no_monitor(self) -> None:
        self.world.host.detach_client(7)

    async def _publish(self) -> None:
        await self.world.publish()

    async def _settle(self) -> None:
        for _ in range(2):
            await self.world.publish()
            await self.world.modes.settle()

    async def _reboot(self) -> None:
        """The pods are gone with it."""
        await self._release()
        await self.world.end()
        self.world.host.reboot()
        self._start()

    async def _administrator_on(self) -> None:
        """Who looks first, as one should."""
        if not self.world.host.state.gpus[0].clients and not mode_changes(self.world.journal.current):
            self.of_administrator = self.of_administrator or not self.world.journal.current.holds
            self._set(1)

    async def _administrator_off(self) -> None:
        if not self.world.host.state.gpus[0].clients and not mode_changes(self.world.journal.current):
            self.of_administrator = False
            self._set(0)

    def _set(self, mode: int) -> None:
        self.world.host.set_mig(0, mode)
        self.mode = mode

    async def rest(self) -> None:
        self.kill_at = None
        await self._restart()
        await self._release()
        await self._no_monitor()
        await self.world.until_quiet()
        wanted, mode, holds = bool(self.world.policies), self.world.mode, self.world.journal.current.holds
        assert mode in ((0, 0), (1, 1))
        assert mode[0] or not wanted
        assert wanted or not mode[0] or self.of_administrator
        assert not mode_changes(self.world.journal.current) and (mode[0] or not holds)
        await self.world.end()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(acts, max_size=20), st.sampled_from(["nvml", "nvidia-smi"]))
def test_any_history_ends_well(history: list[str | int], resets: Literal["nvml", "nvidia-smi"]) -> None:
    async def live() -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            lived = History(Path(folder))
            lived.world.host.set_resets(resets)
            for act in history:
                await lived.act(act)
            await lived.rest()

    asyncio.run(live())
