"""Containers of the simulation that really run: what their processes get, and what their probes lead to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio

from dra_driver.cdi.inject import ContainerDescription
from dra_driver.cdi.model import DeviceNode, Mount
from dra_driver.simulation.cluster import pod_addresses
from dra_driver.simulation.kubelet.containers import ContainerProgram, Containers, ContainerStanding
from dra_driver.simulation.kubelet.pods import environment, looks_like, status_of

SHELL = ContainerProgram(
    ("/bin/sh", "-c"), folders={"/state": "STATE"}, files={"/etc/hosts": "HOSTS"}, environment={"EXTRA": "1"}
)


def pod(script: str, **container: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "pod", "namespace": "default", "uid": "uid", "labels": {"app": "x"}},
        "spec": {"nodeName": "node", "containers": [{"name": "main", "command": ["known", script], **container}]},
        "status": {"podIP": "127.1.2.3", "podIPs": [{"ip": "127.1.2.3"}]},
    }


def probe(script: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"command": ["known", script]}, "periodSeconds": 0.05, "timeoutSeconds": 5, **more}


@pytest_asyncio.fixture
async def containers(tmp_path: Path) -> AsyncIterator[Containers]:
    started = Containers(tmp_path, {"known": SHELL})
    yield started
    await started.stop_all()


def start(containers: Containers, manifest: dict[str, Any], described: ContainerDescription | None = None) -> None:
    assert containers.are_real(manifest)
    containers.start(manifest, {"main": described or ContainerDescription()}, lambda: None)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - a process does it
            await asyncio.sleep(0.02)


def standing(containers: Containers) -> ContainerStanding:
    return containers.standings("uid")["main"]


async def test_a_process_has_what_the_manifest_cdi_and_the_program_give_it_and_nothing_else(
    containers: Containers, tmp_path: Path
) -> None:
    described = ContainerDescription(
        env=("OWN=a=b",),
        device_nodes=(DeviceNode("/dev/nvidia0"), DeviceNode("/dev/nvidiactl")),
        mounts=(Mount("/bin/true", "/usr/bin/nvidia-imex"), Mount("/etc/passwd", "/etc/other")),
    )
    start(containers, pod('nvidia-imex && echo "$OWN,$EXTRA,$SIMULATED_DEVICES,$HOME," && /bin/sleep 60'), described)
    await until(lambda: containers.log("uid", "main") == "a=b,1,/dev/nvidia0:/dev/nvidiactl,,\n")
    place = tmp_path / "uid" / "main"
    assert [path.name for path in (place / "bin").iterdir()] == ["nvidia-imex"]
    assert "127.1.2.3\tmain" in (place / "etc-hosts").read_text()
    assert (place / "state").is_dir()
    await until(lambda: standing(containers) == ContainerStanding(ready=True, started=True))
    (pid,) = containers.pids("uid")
    await containers.stop("uid")
    assert not Path(f"/proc/{pid}").exists() and not place.exists()
    assert containers.standings("uid") == {}


async def test_readiness_follows_its_probe_once_startup_has_succeeded(containers: Containers) -> None:
    startup, ready = probe('test -e "$STATE/started"', failureThreshold=1000), probe('test -e "$STATE/ready"')
    start(
        containers,
        pod('echo "$STATE"; /bin/sleep 60', startupProbe=startup, readinessProbe={**ready, "failureThreshold": 1}),
    )
    await until(lambda: containers.log("uid", "main").endswith("\n"))
    state = Path(containers.log("uid", "main").splitlines()[0])
    (state / "ready").touch()
    assert standing(containers) == ContainerStanding()
    (state / "started").touch()
    await until(lambda: standing(containers).ready)
    (state / "ready").unlink()
    await until(lambda: not standing(containers).ready)
    assert standing(containers) == ContainerStanding(started=True)


async def test_a_container_that_ends_or_does_not_answer_is_started_again(containers: Containers) -> None:
    liveness = probe('test ! -e "$STATE/dead"', failureThreshold=2)
    script = 'echo run; test -e "$STATE/once" && /bin/sleep 60; : > "$STATE/once"; : > "$STATE/dead"; exit 3'
    start(containers, pod(script, livenessProbe=liveness))
    await until(lambda: standing(containers).restarts >= 2)
    assert containers.log("uid", "main").count("run\n") >= 2


def test_unknown_commands_do_not_run(tmp_path: Path) -> None:
    node = Containers(tmp_path, {"known": SHELL})
    assert not node.are_real({"spec": {"containers": [{"name": "a", "command": ["known"]}, {"name": "b"}]}})


def test_the_status_shows_how_containers_stand() -> None:
    manifest = pod("")
    waiting = {"main": ContainerStanding(restarts=2, waiting="CrashLoopBackOff")}
    shown = status_of(manifest, [[]], "now", waiting)
    (container,) = shown["containerStatuses"]
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert (container["ready"], container["restartCount"]) == (False, 2)
    assert {condition["type"]: condition["status"] for condition in shown["conditions"]}["Ready"] == "False"
    after = {**manifest, "status": {**manifest["status"], **shown}}
    assert looks_like(after, status_of(after, [[]], "later", waiting))
    patch = status_of(after, [[]], "later", {"main": ContainerStanding(ready=True, started=True, restarts=2)})
    assert not looks_like(after, patch) and patch["containerStatuses"][0]["ready"]


def test_variables_come_from_the_manifest_and_from_fields_that_have_a_value() -> None:
    names = {
        "PLAIN": {"value": "x"},
        "NODE": {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        "IP": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        "IPS": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}},
        "HOST": {"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        "LABEL": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        "NONE": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a/b']"}}},
        "SECRET": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    }
    container = {"env": [{"name": name, **value} for name, value in names.items()]}
    assert list(environment(pod(""), container)) == [
        "PLAIN=x",
        "NODE=node",
        "IP=127.1.2.3",
        "IPS=127.1.2.3",
        "LABEL=x",
        "NONE=",
    ]


def test_two_clusters_have_no_address_in_common() -> None:
    with pod_addresses() as first, pod_addresses() as second:
        assigned = {new() for new in (first, second) for _ in range(300)}
    assert len(assigned) == 600
