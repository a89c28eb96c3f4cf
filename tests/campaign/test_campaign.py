"""The campaign: its oracle is its own and catches what is planted, its plans are data, and some sequences hold."""

import ast
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from campaign import oracle, plan
from campaign.oracle import ADMIN, SHARED, Place
from campaign.plan import Device, Sequence_, Step, fits, sequence
from campaign.run import Running, run
from campaign.world import Violation, World, end_programs
from support.rows import examples

from dra_driver.names import gpu_device_names

DEVICES = (
    Device("gpu-a", "gpu", {"a": 1.0}),
    Device("gpu-b", "gpu", {"b/0": 1.0, "b/1": 1.0, "b/media": 1.0}),
    Device("gpu-b-mig-0", "mig", {"b/0": 1.0}, binds=True),
    Device("gpu-b-mig-0-me", "mig", {"b/0": 1.0, "b/media": 0.6}),
    Device("gpu-b-mig-1-me", "mig", {"b/1": 1.0, "b/media": 0.6}),
    Device("gpu-c", "share", {"c": 0.01}),
    Device("gpu-d-vfio", "vfio", {"d": 1.0}),
    Device("channel-0", "channel", {"channel-0": 1.0}),
)


def test_the_oracle_imports_nothing_of_what_it_judges() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(oracle.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).partition(".")[0])
    assert imported <= sys.stdlib_module_names - {"importlib", "runpy", "subprocess"}


def test_a_seed_is_a_sequence_and_each_fault_comes_up() -> None:
    faults: Counter[str] = Counter()
    for seed in range(400):
        planned = sequence(seed, "ampere", DEVICES)
        assert planned == sequence(seed, "ampere", DEVICES)
        assert Sequence_.of(json.loads(json.dumps(planned.to_data()))) == planned
        faults += Counter(step.do for step in planned.steps)
    assert plan._FAULTS.keys() <= faults.keys()


def test_the_plan_gives_no_device_to_two_claims_that_are_there() -> None:
    by_name = {device.name: device for device in DEVICES}
    for seed in range(200):
        live: dict[int, list[Device]] = {}
        for step in sequence(seed, "hopper", DEVICES).steps:
            if step.do == "move" or (step.do == "claim" and not step.args["admin"]):
                live[step.args["claim"]] = [by_name[device["name"]] for device in step.args["devices"]]
            elif step.do == "forget":
                live.pop(step.args["claim"], None)
            taken = Counter[str]()
            for devices in live.values():
                for device in devices:
                    taken.update(device.uses)
            assert max(taken.values(), default=0) < 1.01


def test_what_a_plugin_has_just_started_does_not_outlive_a_boot(tmp_path: Path) -> None:
    """It has the plugin's command line still, as between fork and exec."""
    script = "import os, time; (child := os.fork()) and print(child, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as plugin:
        assert plugin.stdout is not None
        child = int(plugin.stdout.readline())
        end_programs([plugin.pid], tmp_path)
        try:
            _ended, status = os.waitpid(plugin.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), "so it starts nothing more"
            deadline = time.monotonic() + 20
            while (state := _state(child)) != "Z" and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            plugin.kill()
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    assert state == "Z", "dead, and its parent could not take note"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


# -- the oracle, on a node of three GPUs


def cdi(place: Place, uid: str, *paths: str) -> None:
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
        "devices": [{"name": f"{uid}-x", "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}],
    }
    (place.cdi / f"k8s.gpu.nvidia.com-claim_{uid}.json").write_text(json.dumps(spec))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "cdi", tmp_path / "state", tmp_path / "host")
    for folder in (place.cdi, place.state, place.host / "sim"):
        folder.mkdir(parents=True)
    gpus: list[dict[str, object]] = [
        {"uuid": f"GPU-{minor}", "minor": minor, "address": f"0000:{minor}1:00.0", "mig": None, "instances": []}
        | {"compute_mode": 0, "time_slice": 0, "bound_to": "nvidia", "persistenced": True, "persistence_mode": 0}
        | {"clients": []}
        for minor in range(3)
    ]
    (place.host / "sim/state.json").write_text(json.dumps({"gpus": gpus}))
    for name, minor in (("gi1", 10), ("gi1/ci0", 11), ("gi2", 20), ("gi2/ci0", 21)):
        folder = place.host / "proc/driver/nvidia/capabilities/gpu1/mig" / name
        folder.mkdir(parents=True)
        (folder / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    (place.host / "sys/kernel/iommu_groups/7/devices/0000:21:00.0").mkdir(parents=True)
    return place


GPU_0, GPU_1, GPU_2 = ("/dev/nvidia0",), ("/dev/nvidia1",), ("/dev/nvidia2",)
PART_1 = (*GPU_1, "/dev/nvidia-caps/nvidia-cap10", "/dev/nvidia-caps/nvidia-cap11")
PART_2 = (*GPU_1, "/dev/nvidia-caps/nvidia-cap20", "/dev/nvidia-caps/nvidia-cap21")
VFIO_2 = ("/dev/vfio/7",)
CHANNEL = ("/dev/nvidia-caps-imex-channels/channel0",)


@pytest.mark.parametrize(
    ("first", "second", "groups", "caught"),
    [
        (GPU_0, GPU_0, ("one", "two"), True),
        (GPU_0, GPU_1, ("one", "two"), False),
        (GPU_0, GPU_0, (SHARED, SHARED), False),
        (GPU_0, GPU_0, (SHARED, "two"), True),
        (GPU_0, GPU_0, (ADMIN, "two"), False),
        (PART_1, PART_1, ("one", "two"), True),
        (PART_1, PART_2, ("one", "two"), False),
        (PART_1, GPU_1, ("one", "two"), True),
        (VFIO_2, GPU_2, ("one", "two"), True),
        (VFIO_2, GPU_0, ("one", "two"), False),
        (CHANNEL, CHANNEL, ("domain", "other domain"), True),
        (CHANNEL, CHANNEL, ("domain", "domain"), False),
    ],
)
def test_devices_in_two_hands_are_caught(
    place: Place, first: tuple[str, ...], second: tuple[str, ...], groups: tuple[str, str], caught: bool
) -> None:
    cdi(place, "uid-one", *first)
    cdi(place, "uid-two", *second)
    assert bool(oracle.conflicts(place, dict(zip(("uid-one", "uid-two"), groups, strict=True)))) == caught


def test_a_claim_that_nobody_knows_of_may_share_nothing(place: Place) -> None:
    cdi(place, "uid-one", *GPU_0)
    cdi(place, "stranger", *GPU_0)
    assert oracle.conflicts(place, {"uid-one": SHARED})


def test_what_is_left_is_caught(place: Place) -> None:
    start = oracle.standing(place)
    assert oracle.leftovers(place, start) == []
    cdi(place, "uid-one", *GPU_0)
    (place.state / ".health.json.7.tmp").touch()
    (place.state / "mps/GPU-0").mkdir(parents=True)
    state = json.loads((place.host / "sim/state.json").read_text())
    state["gpus"][2] |= {"compute_mode": 3, "bound_to": "vfio-pci"}
    (place.host / "sim/state.json").write_text(json.dumps(state))
    left = " ".join(oracle.leftovers(place, start))
    for words in ("CDI folder has", "temporary file", "MPS folder GPU-0", "compute mode of GPU-2", "kernel driver of"):
        assert words in left


def test_answers_and_files_that_disagree_are_caught(place: Place) -> None:
    cdi(place, "uid-one", *PART_1)
    assert oracle.unkept(place, ["k8s.gpu.nvidia.com/claim=uid-one-x"]) == []
    assert oracle.unkept(place, ["k8s.gpu.nvidia.com/claim=uid-one-y"])
    assert oracle.phantoms(place) == []
    cdi(place, "uid-two", *GPU_1, "/dev/nvidia-caps/nvidia-cap99")
    assert oracle.phantoms(place)


def set_mode(place: Place, gpu: int, current: int, pending: int) -> None:
    state = json.loads((place.host / "sim/state.json").read_text())
    state["gpus"][gpu]["mig"] = {"current": current, "pending": pending}
    (place.host / "sim/state.json").write_text(json.dumps(state))


@pytest.mark.parametrize(
    ("modes", "caught"),
    [
        ([(0, 0), (0, 0)], ""),
        ([(0, 0), (1, 1)], "MIG mode of 0000:01:00.0 became (1, 1) while"),
        ([(0, 0), (1, 1), (0, 0)], "MIG mode of 0000:01:00.0 became (1, 1) while"),
        ([(0, 1)], "while its MIG mode is being switched"),
    ],
)
def test_a_mode_that_is_switched_while_a_claim_has_the_gpu_is_caught(
    place: Place, modes: list[tuple[int, int]], caught: str
) -> None:
    set_mode(place, 1, 0, 0)
    witness = oracle.ModeWitness(["GPU-0", "GPU-1"])
    cdi(place, "uid-one", *GPU_0)
    cdi(place, "uid-two", *GPU_1)
    problems: list[str] = []
    for current, pending in modes:
        set_mode(place, 0, current, pending)
        problems += witness.look(place)
    assert caught in problems[0] if caught else not problems, problems
    assert not any("0000:11:00.0" in problem for problem in problems)


def test_a_mode_that_is_switched_between_two_claims_is_none_of_their_business(place: Place) -> None:
    """The second claim's file has the name of the first."""
    set_mode(place, 0, 0, 0)
    witness = oracle.ModeWitness(["GPU-0"])
    cdi(place, "uid-one", *GPU_0)
    assert witness.look(place) == []
    (file,) = place.cdi.iterdir()
    file.rename(place.state / "kept")  # so that the next file has another inode
    set_mode(place, 0, 1, 1)
    cdi(place, "uid-one", *GPU_0)
    assert witness.look(place) == []
    assert witness.switches == 1


SEEDS = (3, 8, 11)


def claimed(number: int, device: Device) -> Step:
    devices = [{"name": device.name, "kind": device.kind, "consumed": {}, "binds": device.binds}]
    args = {"claim": number, "devices": devices, "config": None, "admin": False, "domain": 0, "binds": device.binds}
    return Step("claim", args)


@pytest.mark.slow
async def test_a_few_sequences_hold_and_planted_violations_are_caught() -> None:
    """With real processes. `make campaign` runs as many as there is time for."""
    async with World.running("hopper", random.Random(0)) as world:
        for seed in SEEDS[: examples(len(SEEDS))]:
            outcome = await run(world, sequence(seed, "hopper", world.devices))
            assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
            assert outcome.calls

        planted = Running(world, patience_s=0.3)
        gpu = next(device for device in world.devices if device.kind == "gpu")
        await planted.do(claimed(0, gpu))
        await planted.do(Step("prepare", {"claims": [0]}))
        (file,) = world.place.cdi.glob("*-claim_*")
        second = file.with_name("k8s.gpu.nvidia.com-claim_00000000-0000-4000-8000-000000000000.json")
        second.write_bytes(file.read_bytes())
        with pytest.raises(Violation, match="both hold"):
            await planted.do(Step("wait", {"seconds": 0}))
        second.unlink()
        with world.host.edit() as state:
            state.gpus[2].compute_mode = 3
        with pytest.raises(Violation, match="compute mode of"):
            await planted.settle()
        await planted.close()


@pytest.mark.slow
async def test_modes_change_between_claims_and_a_change_during_a_claim_is_caught() -> None:
    """With real processes, as the test above."""
    async with World.running("ampere", random.Random(0)) as world:
        running = Running(world)
        name = gpu_device_names(world.uuids)[world.changing[0]]
        whole = next(device for device in world.devices if device.name == name)
        parts = [device for device in world.devices if device.name.startswith(f"{name}-mig-1g10gb-")]
        assert not whole.binds and all(part.binds and not fits(part, [whole]) for part in parts)
        await running.do(Step("modes", {"on": True, "resets": "nvml", "waits_s": 20.0}))
        for number, part in enumerate(parts[:3]):
            await running.do(claimed(number, part))
        await running.do(Step("move", {"claim": 0, "devices": []}))
        await running.settle()
        assert running.outcome.seen["moved"] == 1 and running.outcome.seen["mode switched"] >= 2
        assert running.outcome.seen["bound"] == running.outcome.seen["prepared and given up"] == 1
        await running.close()

        planted = Running(world)
        await planted.do(claimed(0, whole))
        await planted.do(Step("prepare", {"claims": [0]}))
        await planted.do(Step("wait", {"seconds": 0.2}))
        world.host.set_mig(0, 1)
        with pytest.raises(Violation, match=r"became \(1, 1\) while"):
            await planted.do(Step("wait", {"seconds": 0.2}))
        await planted.close()
