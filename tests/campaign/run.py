"""Carries out a sequence in a world and lets the oracle judge: on the way, at rest, and after the last claim.

What the product owes: kubelet's call is answered or fails within its deadline, a plugin never ends by itself, no device
is in two hands at any moment. Once nothing fails any more, each claim that kubelet wants is prepared, each is released,
and the node is as it was at the start.
"""

import asyncio
import errno
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign import oracle
from campaign.plan import Sequence_, Step, fits, group_of
from campaign.world import NODE, TEAM, Violation, World
from support.mishaps import fail_call, slow_call
from support.objects import allocation, claim, result

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY, binding_failure, waiting_results
from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.errors import NodeNotReady, NotFound, Unreachable
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, CONFIG_API_VERSION, GPU_DRIVER
from kubelet_plugin.prepare.holds import SwitchedMode, described
from kubelet_plugin.prepare.store import JournalFile
from kubelet_plugin.reporting.reported import Reported

_CALL_S = 4.0
"""When kubelet gives up here; its own deadline is 45 s."""
_PATIENCE_S = 90.0
"""How long a node may take to be right again when nothing fails any more: its slowest retry comes after a minute."""
_PAUSE_S = 0.05
_WATCH_S = 0.03
_PENDING_S = 0.1
_PENDING_LOOKS = 10
_RETRY_S = 30
"""What passes on the plugins' clock between two tries of kubelet, which waits about 90 s."""
_METHODS = {"prepare": "NodePrepareResources", "unprepare": "NodeUnprepareResources"}


@dataclass
class Claimed:
    """A claim of the sequence, and what kubelet knows of it."""

    args: Mapping[str, Any]
    ref: dict[str, str]
    exists: bool = True
    here: bool = True
    """Whether its devices are of this node."""
    wanted: bool = False
    """Whether kubelet wants it prepared; otherwise it wants it released."""
    asked: bool = False
    """Whether kubelet must release it, or has asked for that."""
    released: bool = True
    """Whether kubelet's last call about it was a release, and done."""
    allocations: int = 1
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Kubelet makes one call about a claim at a time."""

    @property
    def driver(self) -> str:
        return COMPUTE_DOMAIN_DRIVER if self.args["devices"][0]["kind"] == "channel" else GPU_DRIVER


@dataclass
class Outcome:
    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """What came of it, so that a campaign shows that it met what it is about."""
    seconds: float = 0.0
    violation: str | None = None


async def run(world: World, sequence: Sequence_) -> Outcome:
    """A violation is in the outcome; afterwards the world must not be used again."""
    running = Running(world)
    began = time.monotonic()
    try:
        for number, step in enumerate(sequence.steps):
            try:
                await running.do(step)
            except Violation as violation:
                raise Violation(f"after step {number} ({step}): {violation}") from violation
        await running.settle()
    except (Violation, TimeoutError) as violation:
        running.outcome.violation = str(violation) or repr(violation)
    except Exception as error:
        running.outcome.violation = f"the campaign itself failed: {error!r}"
    finally:
        await running.close()
    running.outcome.seconds = time.monotonic() - began
    return running.outcome


class Running:
    """One sequence on its way. `patience_s`: see `_PATIENCE_S`."""

    def __init__(self, world: World, patience_s: float = _PATIENCE_S) -> None:
        self._world = world
        self._patience_s = patience_s
        self._witness = oracle.ModeWitness(world.changing)
        self._witnessed: list[str] = []
        self._watching = asyncio.create_task(self._watch()) if world.changing else None
        self._claims: dict[int, Claimed] = {}
        self._spoiled: dict[str, bytes | None] = {}
        """What was last written over records of the plugin, by name; None: nothing, it was removed."""
        self._calls: set[asyncio.Task[Any]] = set()
        self._answered = 0
        """Claims whose pods waited, and that the node prepared."""
        self.outcome = Outcome()

    async def do(self, step: Step) -> None:
        name = step.do.replace(" ", "_")
        act: Callable[..., Awaitable[None]] = getattr(self, f"_{name}")
        if name not in ("claim", "prepare", "unprepare", "forget", "move", "wait"):
            self.outcome.faults[step.do] += 1
        await act(**step.args)
        await self._look()

    async def close(self) -> None:
        tasks = [*self._calls, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """See each mode that a GPU has."""
        while True:
            self._witnessed += self._witness.look(self._world.place)
            self.outcome.seen["mode switched"] = self._witness.switches
            await asyncio.sleep(_WATCH_S)

    async def settle(self) -> None:
        """Nothing fails any more: what is wanted is prepared, then everything is released."""
        world = self._world
        await world.heal()
        await asyncio.gather(*self._calls)
        await world.serving()
        for plugin in world.plugins[:-1]:
            await world.stop_plugin(plugin)
        gone = [
            claimed for claimed in self._claims.values() if claimed.asked and not (claimed.exists and claimed.wanted)
        ]
        await self._until_answered("unprepare", gone)
        wanted = [claimed for claimed in self._claims.values() if claimed.exists and claimed.wanted]
        await self._until_answered("prepare", wanted)
        await self._look(at_rest=True)
        await self._until_bound(
            [claimed for claimed in self._claims.values() if claimed.exists and claimed.here and not claimed.wanted]
        )
        await self._look(at_rest=True)
        await self._until_answered("unprepare", [claimed for claimed in self._claims.values() if claimed.asked])
        for claimed in self._claims.values():
            if claimed.exists:
                await self._delete(claimed)
        await self._at_rest()
        await world.set_modes(on=False)
        await self._at_rest()

    async def _until_bound(self, claims: list[Claimed]) -> None:
        """The scheduler waits for the node, and binds the pod. It gives a claim up because the node did; and every
        second because its pod is deleted, which the plugin must see by itself."""
        deadline = time.monotonic() + self._patience_s
        waiting = {claimed.ref["uid"]: claimed for claimed in claims if claimed.args.get("binds")}
        while waiting:
            await self._world.serving()  # the kill of an earlier step may come as late as this
            for uid, claimed in list(waiting.items()):
                claim = await self._world.kube.get(RESOURCE_CLAIMS, claimed.ref["name"], TEAM)
                if binding_failure(claim) is not None:
                    self.outcome.seen["given up by the node"] += 1
                    await self._delete(claimed)
                elif not waiting_results(claim):
                    await self._bind(claimed)
                else:
                    continue
                del waiting[uid]
            if waiting and time.monotonic() > deadline:
                raise Violation(
                    f"no answer for pods that wait for {[claimed.ref['name'] for claimed in waiting.values()]}"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _bind(self, claimed: Claimed) -> None:
        self._answered += 1
        if self._answered % 2:
            self.outcome.seen["bound"] += 1
            claimed.wanted = claimed.asked = True
            await self._until_answered("prepare", [claimed])
        else:
            self.outcome.seen["prepared and given up"] += 1
            await self._delete(claimed)

    # -- claims

    async def _claim(
        self, claim: int, devices: list[JsonObject], config: Any, admin: bool, domain: int, binds: bool = False
    ) -> None:
        if await self._may_choose(devices, admin):
            domain %= max(1, len(self._domains))
            args = {"devices": devices, "config": config, "admin": admin, "domain": domain, "binds": binds}
            self._claims[claim] = await self._allocated(claim, args)

    async def _may_choose(self, devices: list[JsonObject], admin: bool, but: Claimed | None = None) -> bool:
        """Whether the scheduler may: what has become of earlier steps is not known when a sequence is planned.

        A claim that was to be moved may still have its devices, and a changing GPU another mode. For that, the pod
        waits a little.
        """
        world, names = self._world, {device["name"] for device in devices}
        if not admin and not self._are_free(names, but):
            self.outcome.seen["claim for a device that another has"] += 1
            return False
        for _ in range(_PENDING_LOOKS if world.changing else 0):
            if names <= await world.offered():
                return True
            await asyncio.sleep(_PENDING_S)
        if world.changing:
            self.outcome.seen["claim for a device that is not offered"] += 1
        return not world.changing

    def _are_free(self, names: set[str], but: Claimed | None) -> bool:
        by_name = {device.name: device for device in self._world.devices}
        claims = [
            claimed
            for claimed in self._claims.values()
            if claimed.exists and claimed.here and not claimed.args["admin"]
        ]
        taken = [
            by_name[device["name"]] for claimed in claims if claimed is not but for device in claimed.args["devices"]
        ]
        return all(fits(by_name[name], taken) for name in names)

    @property
    def _domains(self) -> list[str]:
        return [domain.metadata.uid for domain in self._world.domains]

    async def _allocated(self, number: int, args: Mapping[str, Any]) -> Claimed:
        """As the scheduler does it."""
        kube, name = self._world.kube, f"claim-{number}"
        requests = [f"r{index}" for index in range(len(args["devices"]))]
        created = await kube.create(RESOURCE_CLAIMS, claim(name, TEAM, requests))
        claimed = Claimed(args, {"namespace": TEAM, "name": name, "uid": created["metadata"]["uid"]})
        await self._allocate(claimed)
        return claimed

    async def _allocate(self, claimed: Claimed) -> None:
        args, name = claimed.args, claimed.ref["name"]
        results = []
        for index, device in enumerate(args["devices"]):
            more: JsonObject = {"adminAccess": True} if args["admin"] else {}
            if device["kind"] == "share":
                share = f"00000000-0000-4000-8000-{len(self._claims):012d}"
                more |= {"shareID": share} | ({"consumedCapacity": c} if (c := device["consumed"]) else {})
            if args["binds"] and device.get("binds"):
                more |= {"bindingConditions": [BINDING_READY], "bindingFailureConditions": [BINDING_FAILED]}
            pool = NODE if claimed.here else "elsewhere"
            results.append(result(device["name"], f"r{index}", pool=pool, driver=claimed.driver, **more))
        reserved = [{"resource": "pods", "name": f"pod-{name}", "uid": f"uid-{name}"}]
        status = {"allocation": allocation(*results, config=self._configs(args)), "reservedFor": reserved}
        await self._world.kube.merge_patch(
            RESOURCE_CLAIMS, name, {"status": status}, namespace=TEAM, subresource="status"
        )

    def _configs(self, args: Mapping[str, Any]) -> list[JsonObject]:
        parameters, driver = args["config"], GPU_DRIVER
        if args["devices"][0]["kind"] == "channel":
            uid = self._domains[args["domain"]]
            parameters, driver = {"kind": "ComputeDomainChannelConfig", "domainID": uid}, COMPUTE_DOMAIN_DRIVER
        if parameters is None:
            return []
        opaque = {"driver": driver, "parameters": {"apiVersion": CONFIG_API_VERSION, **parameters}}
        return [{"source": "FromClaim", "requests": ["r0"], "opaque": opaque}]

    async def _deallocate(self, claimed: Claimed) -> None:
        """What was said about the devices goes with the allocation."""
        patch = {"status": {"allocation": None, "reservedFor": None, "devices": None}}
        await self._world.kube.merge_patch(
            RESOURCE_CLAIMS, claimed.ref["name"], patch, namespace=TEAM, subresource="status"
        )

    async def _delete(self, claimed: Claimed) -> None:
        """As when the last pod is gone: deallocated, then deleted."""
        claimed.exists = False
        with suppress(NotFound):
            await self._deallocate(claimed)
            await self._world.kube.delete(RESOURCE_CLAIMS, claimed.ref["name"], namespace=TEAM)

    async def _move(self, claim: int, devices: list[JsonObject]) -> None:
        """The scheduler gives a claim up that kubelet does not have, and chooses other devices; none: elsewhere."""
        claimed = self._claims.get(claim)
        if claimed is None or not claimed.exists or claimed.wanted or not claimed.released or claimed.turn.locked():
            return
        if not await self._may_choose(devices, admin=False, but=claimed):
            return
        await self._deallocate(claimed)
        claimed.asked, claimed.here = False, bool(devices)
        claimed.args = {**claimed.args, "devices": devices or claimed.args["devices"]}
        claimed.allocations += 1
        self.outcome.seen["moved"] += 1
        await self._allocate(claimed)

    async def _forget(self, claim: int) -> None:
        if claim in self._claims and self._claims[claim].exists:
            await self._delete(self._claims[claim])

    async def _prepare(self, claims: list[int], goes_on_after: float | None = None) -> None:
        known = [self._claims[number] for number in claims if number in self._claims]
        chosen = [claimed for claimed in known if claimed.exists and claimed.here]
        for claimed in chosen:
            claimed.wanted, claimed.asked, claimed.released = True, True, False
        await self._begin("prepare", chosen, goes_on_after)

    async def _unprepare(self, claims: list[int], goes_on_after: float | None = None) -> None:
        chosen = [self._claims[number] for number in claims if number in self._claims and self._claims[number].asked]
        for claimed in chosen:
            claimed.wanted = False
        await self._begin("unprepare", chosen, goes_on_after)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # -- kubelet's calls

    async def _begin(self, method: str, chosen: list[Claimed], goes_on_after: float | None) -> None:
        await self._world.serving()
        calls = [
            asyncio.create_task(self._call(method, batch))
            for driver in (GPU_DRIVER, COMPUTE_DOMAIN_DRIVER)
            if (batch := [claimed for claimed in chosen if claimed.driver == driver])
        ]
        for call in calls:
            self._follow(call)
        if calls:
            await asyncio.wait(calls, timeout=goes_on_after)
            for call in calls:
                if call.done():
                    call.result()

    def _follow(self, task: asyncio.Task[Any]) -> None:
        """Its error, if it has one, is met when everything settles."""
        self._calls.add(task)
        task.add_done_callback(lambda done: None if done.cancelled() or done.exception() else self._calls.discard(done))

    async def _call(self, method: str, batch: list[Claimed]) -> dict[str, str]:
        """The errors by UID; "" for what was done. Answers of prepare are compared with the CDI files."""
        for claimed in sorted(batch, key=lambda claimed: claimed.ref["uid"]):
            await claimed.turn.acquire()
        try:
            self.outcome.calls += 1
            return await self._answer(method, batch)
        finally:
            for claimed in batch:
                claimed.turn.release()

    async def _answer(self, method: str, batch: list[Claimed]) -> dict[str, str]:
        world, boots = self._world, self._world.boots
        allocations = [claimed.allocations for claimed in batch]
        full = _METHODS[method]
        try:
            plugin = world.registry.newest(batch[0].driver)
            answer = await plugin.call(full, [claimed.ref for claimed in batch], _CALL_S)
        except (NodeNotReady, Unreachable) as error:
            return {claimed.ref["uid"]: str(error) for claimed in batch}
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return {claimed.ref["uid"]: "the instance went, and its connection with it" for claimed in batch}
        errors = {}
        for claimed, number in zip(batch, allocations, strict=True):
            uid = claimed.ref["uid"]
            if uid not in answer.claims:
                raise Violation(f"{method} does not answer for claim {uid}")
            errors[uid] = answer.claims[uid].error
            if "internal error" in errors[uid]:
                raise Violation(f"{method}: {errors[uid]}")
            if method == "unprepare" and not errors[uid] and not claimed.wanted:
                claimed.released = True
            as_it_was = claimed.exists and boots == world.boots and number == claimed.allocations
            if method == "prepare" and not errors[uid] and as_it_was:
                self._check_answer(claimed, answer.claims[uid].devices)
        return errors

    def _check_answer(self, claimed: Claimed, devices: Any) -> None:
        names = sorted(device.device_name for device in devices)
        if names != sorted(device["name"] for device in claimed.args["devices"]):
            raise Violation(f"prepare of {claimed.ref['name']} answers devices {names}")
        ids = [cdi_id for device in devices for cdi_id in device.cdi_device_ids]
        if len(ids) < len(names):
            raise Violation(f"prepare of {claimed.ref['name']} answers CDI devices {ids} for {names}")
        if unkept := oracle.unkept(self._world.place, ids):
            raise Violation(f"prepare of {claimed.ref['name']}: {unkept}")

    async def _until_answered(self, method: str, claims: list[Claimed]) -> None:
        """Kubelet tries again until it is done."""
        rest = claims
        deadline = time.monotonic() + self._patience_s
        while rest:
            await self._world.serving()
            errors: dict[str, str] = {}
            for driver in (GPU_DRIVER, COMPUTE_DOMAIN_DRIVER):
                if batch := [claimed for claimed in rest if claimed.driver == driver]:
                    errors |= await self._call(method, batch)
            rest = [
                claimed
                for claimed in rest
                if errors[claimed.ref["uid"]] and not await self._is_given_up(claimed, errors)
            ]
            if rest and time.monotonic() > deadline:
                raise Violation(f"{method} still fails {self._patience_s:.0f} s after the last fault: {errors}")
            if rest:
                # A GPU that answers again is trusted after it has been well for a while; kubelet waits longer.
                self._world.control.later(_RETRY_S)
                await asyncio.sleep(0.1)

    async def _is_given_up(self, claimed: Claimed, errors: Mapping[str, str]) -> bool:
        """A claim that only observes a GPU keeps no mode: its device may go before it is prepared. The answer says that
        pod and claim are to be deleted, which is done."""
        if not claimed.args["admin"] or not claimed.exists or "has no device" not in errors[claimed.ref["uid"]]:
            return False
        if {device["name"] for device in claimed.args["devices"]} <= await self._world.offered():
            return False
        self.outcome.seen["observed device that went with the mode"] += 1
        await self._delete(claimed)
        return True

    # -- what the oracle says

    async def _look(self, *, at_rest: bool = False) -> None:
        await self._world.collect()
        groups = {
            claimed.ref["uid"]: group_of(claimed.ref["uid"], claimed.args, self._domains)
            for claimed in self._claims.values()
        }
        problems = [*oracle.conflicts(self._world.place, groups), *self._witnessed]
        if at_rest:
            problems += oracle.phantoms(self._world.place)
        if problems:
            raise Violation("; ".join(problems))

    async def _at_rest(self) -> None:
        """No claim is there. What a release could not undo at once, the plugin retries; a mode, it switches."""
        deadline = time.monotonic() + self._patience_s
        while left := await self._left():
            await self._look()
            if time.monotonic() > deadline:
                raise Violation("left behind: " + "; ".join(left))
            await asyncio.sleep(_PAUSE_S)

    async def _left(self) -> list[str]:
        """What is left of claims. Daemons last and when nothing else is left: all of /proc is read for them."""
        place = self._world.place
        left = [*oracle.leftovers(place, self._world.expected()), *await self._remembered()]
        return left or [f"MPS daemon {pid}" for pid in oracle.daemons(place)]

    async def _remembered(self) -> list[str]:
        """Claims that the controller, the journal or the record of reports still has."""
        journal = JournalFile(self._world.place.state).current()
        reported = Reported(self._world.place.state)
        # Of two instances the last to write wins; the next write, or the next start, corrects that.
        drivers = () if self._world.two_instances else (GPU_DRIVER, COMPUTE_DOMAIN_DRIVER)
        said_of = [uid for driver in drivers for uid in reported.read(f"status of {driver}")]
        holds = [hold for hold in journal.holds if not isinstance(hold, SwitchedMode) or not self._world.modes_on]
        return [
            *(f"the controller still names {device['name']}" for device in await self._world.named()),
            *(f"the journal still has {entry.claim}" for entry in journal.held.values()),
            *(f"the journal still has {described(hold)}" for hold in holds),
            *(f"the record of reports still has {self._named(uid)}" for uid in said_of),
        ]

    def _named(self, uid: str) -> str:
        return next((claimed.ref["name"] for claimed in self._claims.values() if claimed.ref["uid"] == uid), uid)

    # -- faults

    async def _kill(self) -> None:
        await self._world.kill_plugins()

    async def _kill_in(self, changes: int) -> None:
        self._world.control.set(changes=changes)

    async def _stop(self) -> None:
        await self._world.serving()
        await self._world.stop_plugin(self._world.main)

    async def _roll(self) -> None:
        """A newer instance beside the old one, which ends a little later."""
        await self._world.serving()
        old = self._world.main
        await self._world.start_plugin(new_pod=True)
        await self._world.serving()
        self._follow(asyncio.create_task(self._world.stop_plugin(old)))

    async def _reboot(self, renumber: bool) -> None:
        await self._world.reboot(renumber=renumber)

    async def _damage(self, file: str, how: str) -> None:
        """While no plugin runs, one of its two records is spoiled. Nobody knows what was in both, so never both."""
        await self._world.kill_plugins()
        path = self._world.place.state / file
        spoiled_still = (name for name, content in self._spoiled.items() if self._record(name) == content)
        if not path.exists() or set(spoiled_still) - {file}:
            return
        content = path.read_bytes()
        middle = len(content) // 2
        spoiled = {
            "halve": content[:middle],
            "zero": bytes(len(content)),
            "flip": content[:middle] + bytes(byte ^ 4 for byte in content[middle : middle + 1]) + content[middle + 1 :],
        }
        path.unlink() if how == "lose" else path.write_bytes(spoiled[how])
        self._spoiled[file] = self._record(file)

    def _record(self, name: str) -> bytes | None:
        path = self._world.place.state / name
        return path.read_bytes() if path.exists() else None

    async def _disk(self, folder: str, error: str) -> None:
        number = getattr(errno, error)
        self._world.control.set(**{folder: number})

    async def _clock(self, offset_s: int) -> None:
        self._world.control.set(clock_s=offset_s)

    async def _api(self, mode: str) -> None:
        await self._world.front.set(mode)

    async def _rotate(self) -> None:
        await self._world.front.rotate()

    async def _nvml(self, gpu: int, call: str, code: int, times: int | None) -> None:
        fail_call(self._world.host, gpu, call, code, times=times)

    async def _hang(self, gpu: int, call: str, delay_s: float) -> None:
        slow_call(self._world.host, gpu, call, delay_s)

    async def _lose(self, gpu: int, code: int) -> None:
        self._world.host.lose_gpu(gpu, code)

    async def _busy(self, gpu: int) -> None:
        self._world.host.attach_client(gpu, name="campaign")

    async def _policy(self, spec: JsonObject) -> None:
        await self._world.set_policy(spec)

    async def _modes(self, on: bool, resets: Literal["nvml", "nvidia-smi"], waits_s: float) -> None:
        """A policy lets the driver switch MIG modes, or no longer. Waits until it has, and no longer than `waits_s`."""
        world = self._world
        world.host.set_resets(resets)
        await world.set_modes(on=on)
        for _ in range(int(waits_s / _PAUSE_S)):
            if oracle.standing(world.place) == world.expected():
                return
            await asyncio.sleep(_PAUSE_S)

    async def _controller(self) -> None:
        await self._world.restart_controller()
