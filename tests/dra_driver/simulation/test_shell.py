"""Commands in simulated containers: what they print of what the container got, and when a program has ended."""

import pytest

from dra_driver.simulation.kubelet.kubelet import gpus_seen
from dra_driver.simulation.kubelet.shell import (
    ContainerView,
    NotUnderstood,
    SmiGpu,
    described,
    exit_status,
    lifetime_s,
    run,
)

VIEW = ContainerView(
    hostname="engine-0",
    image="vllm",
    command=("vllm", "serve"),
    env=("A=b", "NVIDIA_VISIBLE_DEVICES=void"),
    files=("/dev/dri/card0", "/dev/nvidia0", "/dev/nvidiactl", "/usr/bin/nvidia-smi"),
    gpus=(
        SmiGpu("NVIDIA A30", "GPU-1"),
        SmiGpu("NVIDIA A30", "MIG-2", "1g.6gb", "GPU-9"),
        SmiGpu("NVIDIA A30", "MIG-3", "2g.12gb", "GPU-9"),
    ),
)
LIST = """GPU 0: NVIDIA A30 (UUID: GPU-1)
GPU 1: NVIDIA A30 (UUID: GPU-9)
  MIG 1g.6gb      Device  0: (UUID: MIG-2)
  MIG 2g.12gb     Device  1: (UUID: MIG-3)
"""


@pytest.mark.parametrize(
    ("command", "text", "status"),
    [
        (["nvidia-smi", "-L"], LIST, 0),
        (["bash", "-c", "nvidia-smi -L; trap 'exit 0' TERM; sleep 9999 & wait"], LIST, 0),
        (["/bin/sh", "-ec", "/usr/bin/nvidia-smi -L && exit 4"], LIST, 4),
        (["sh", "-c", "echo $A ${A}c"], "b bc\n", 0),
        (["sh", "-c", "env | grep NVIDIA\nhostname"], "NVIDIA_VISIBLE_DEVICES=void\nengine-0\n", 0),
        (["printenv", "A"], "b\n", 0),
        (["printenv", "B"], "", 1),
        (["ls", "-l", "/dev/nvidia?"], "/dev/nvidia0\n", 0),
        (["ls", "/dev"], "dri\nnvidia0\nnvidiactl\n", 0),
        (["ls", "/"], "dev\nusr\n", 0),
        (["ls", "/nowhere"], "ls: cannot access '/nowhere': No such file or directory\n", 2),
    ],
)
def test_what_a_command_prints(command: list[str], text: str, status: int) -> None:
    printed = run(VIEW, command)
    assert (printed.text, printed.status) == (text, status)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-c", "print()"],
        ["bash"],
        ["sh", "train.sh"],
        ["sh", "-c", "for i in 1 2; do echo $i; done"],
        ["sh", "-c", "echo $(date)"],
        ["sh", "-c", "echo a > b"],
        ["sh", "-c", "nvidia-smi || true"],
        ["sh", "-c", "echo 'open"],
        ["nvidia-smi", "-q"],
    ],
)
def test_what_is_not_understood_is_said_and_never_ends(command: list[str]) -> None:
    with pytest.raises(NotUnderstood):
        run(VIEW, command)
    assert lifetime_s(command) is None or command[0] == "nvidia-smi"


@pytest.mark.parametrize(
    ("command", "seconds", "status"),
    [
        (["sleep", "30s"], 30, 0),
        (["sh", "-c", "sleep 2; sleep 3; exit 7"], 5, 7),
        (["sh", "-c", "nvidia-smi -L"], 0, 0),
        (["false"], 0, 1),
        (["sleep", "infinity"], None, 0),
        (["sh", "-c", "sleep 5 & wait"], None, 0),
        ([], None, 0),
    ],
)
def test_when_a_program_ends_and_how(command: list[str], seconds: float | None, status: int) -> None:
    assert lifetime_s(command) == seconds
    assert exit_status(command) == status


def test_without_a_gpu_nvidia_smi_fails() -> None:
    assert run(ContainerView("h", "i", (), (), (), ()), ["nvidia-smi"]).status == 6


def test_a_program_that_does_not_run_is_described_by_what_it_would_see() -> None:
    text = described(VIEW)
    assert "image vllm does not run here" in text and "command: vllm serve\n" in text
    assert LIST in text and "device file: /dev/nvidia0\n" in text and "env: A=b\n" in text


@pytest.mark.parametrize("variable", ["NVIDIA_DRA_DEVICE_GPU_1_MIG_0", "NVIDIA_DRA_ADMIN_DEVICE_GPU_1_MIG_0"])
def test_a_partition_that_was_created_for_the_claim_has_the_uuid_that_its_container_got(variable: str) -> None:
    texts = {"type": "mig", "productName": "NVIDIA A30", "profile": "1g.6gb", "parentUUID": "GPU-1"}
    device = {"name": "gpu-1-mig-0", "attributes": {name: {"string": text} for name, text in texts.items()}}
    slices = [{"spec": {"pool": {"name": "node-1"}, "devices": [device]}}]
    seen = gpus_seen(slices, {("node-1", "gpu-1-mig-0")}, ["A=b", f"{variable}=MIG-2"])
    assert seen == (SmiGpu("NVIDIA A30", "MIG-2", "1g.6gb", "GPU-1"),)
