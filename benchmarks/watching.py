"""How long `dractl get` takes in a cluster with many nodes, and whether `dractl top` and `dractl ui` stutter there.

    python benchmarks/watching.py [--nodes 1000] [--changes 50] [-o json]

Answers that were encoded before play the API server, so that what is measured is `dractl`. Each node has eight H100s,
of which claims of pods hold five, and every fiftieth node has an unhealthy one. `dractl top` runs in a pseudo terminal
while so many claims a second come and go. Now and then a key is pressed, and the time until its effect is drawn counts.
"""

import argparse
import asyncio
import fcntl
import json
import os
import pty
import resource
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web
from controller_scale import GPUS, facts, name_of

from dra_driver.api.inventory import DriverFacts, NodeInventorySpec, summary_of
from dra_driver.api.meta import NODE_INVENTORIES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.api.policy import PublishingPolicy
from dra_driver.checking.knowledge import objects_of_inventory
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.features import ALL_FEATURES

HELD = 5


def objects(nodes: int) -> dict[Resource, list[JsonObject]]:
    """The cluster, by kind."""
    found: dict[Resource, list[JsonObject]] = {
        kind: [] for kind in (NODES, NODE_INVENTORIES, RESOURCE_SLICES, RESOURCE_CLAIMS, PODS)
    }
    driver = DriverFacts(version="580.126.09", cuda_version="13.0", root="/")
    for node in range(nodes):
        name, gpus = name_of(node), facts(node)
        spec = NodeInventorySpec(
            node_name=name, boot_id="b", driver=driver, gpus=gpus, summary=summary_of(driver, gpus, [])
        )
        found[NODES].append({"metadata": _metadata(name)})
        found[NODE_INVENTORIES].append({"metadata": _metadata(name), "spec": spec.to_wire()})
        slices = objects_of_inventory(spec, name, PublishingPolicy(), {}, ALL_FEATURES)
        for number, slice_ in enumerate(item for item in slices if item["kind"] == RESOURCE_SLICES.kind):
            for device in slice_["spec"].get("devices") or ():
                if node % 50 == 0 and device["name"] == gpus[-1].name:
                    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
                    device["taints"] = [taint]
            found[RESOURCE_SLICES].append(slice_ | {"metadata": _metadata(f"{name}-{number}")})
        for gpu in gpus[:HELD]:
            job = f"job-{node}-{gpu.name}"
            device = {"request": "gpu", "driver": GPU_DRIVER, "pool": name, "device": gpu.name}
            found[RESOURCE_CLAIMS].append(_claim(job, device))
            found[PODS].append(_pod(job, name))
    return found


def _metadata(name: str, namespace: str | None = None) -> JsonObject:
    common = {"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": "2026-11-01T00:00:00Z"}
    return common | ({"namespace": namespace} if namespace else {})


def _claim(name: str, device: JsonObject) -> JsonObject:
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
    return {
        "metadata": _metadata(name, "team-a"),
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {
            "allocation": {"devices": {"results": [device]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
        },
    }


def _pod(name: str, node: str) -> JsonObject:
    container = {"name": "main", "image": "ubuntu:24.04", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"nodeName": node, "resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": [container]}
    return {"metadata": _metadata(name, "team-a"), "spec": spec, "status": {"phase": "Running"}}


class Answers:
    """Encoded objects by path; a watch of claims gets changes, others get nothing."""

    def __init__(self, found: dict[Resource, list[JsonObject]], changes_per_s: float) -> None:
        self._kinds = {kind.path(): kind for kind in found}
        self._items = {kind.path(): [json.dumps(item).encode() for item in items] for kind, items in found.items()}
        self._claims = found[RESOURCE_CLAIMS]
        self._pause_s = 1 / changes_per_s

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "36"})
        if request.path not in self._items:
            missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            return web.json_response(missing, status=404)
        return await self._watch(request) if "watch" in request.query else self._page(request)

    def _page(self, request: web.Request) -> web.Response:
        items, kind = self._items[request.path], self._kinds[request.path]
        start, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        more = {"continue": str(start + limit)} if start + limit < len(items) else {}
        head = {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": {"resourceVersion": "1", **more},
        }
        body = json.dumps(head).encode()[:-1] + b', "items": [' + b",".join(items[start : start + limit]) + b"]}"
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if self._kinds[request.path] != RESOURCE_CLAIMS:
            await asyncio.Event().wait()
        for number in count(2):
            if request.transport is None or request.transport.is_closing():
                break
            claim = self._claims[number * 7919 % len(self._claims)]
            held = {} if number % 2 else claim["status"]
            changed = {**claim, "metadata": {**claim["metadata"], "resourceVersion": str(number)}, "status": held}
            await response.write(json.dumps({"type": "MODIFIED", "object": changed}).encode() + b"\n")
            await asyncio.sleep(self._pause_s)
        return response


@contextmanager
def serving(answers: Answers, folder: Path) -> Iterator[Path]:
    """The answers in a thread; gives a kubeconfig."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    address: list[str] = []

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answers.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True).start()
    ready.wait()
    kubeconfig = folder / "kubeconfig"
    config: dict[str, Any] = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": address[0]}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    kubeconfig.write_text(json.dumps(config))
    yield kubeconfig


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    wall_s: float


def get(kind: str, kubeconfig: Path, rounds: int = 3) -> Cost:
    """The best of some rounds: the first read files from disk."""
    command = [sys.executable, "-m", "dra_driver.cli", "get", kind, "--kubeconfig", str(kubeconfig)]
    costs = []
    for _ in range(rounds):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        costs.append((round(cpu, 2), round(time.monotonic() - started, 2)))
    return Cost(*map(min, zip(*costs, strict=True)))


@dataclass(frozen=True)
class Watched:
    first_frame_s: float
    all_nodes_s: float
    key_ms_median: float
    key_ms_worst: float
    """Of the keys that were pressed after all nodes were known, while claims changed."""
    loading_key_ms_worst: float
    """Of those before."""
    cpu_percent: float
    rss_mib: float


class Terminal:
    """`dractl top` in a pseudo terminal, and what it wrote."""

    def __init__(self, kubeconfig: Path) -> None:
        self.descriptor, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dra_driver.cli", "top", "--kubeconfig", str(kubeconfig)],
            stdin=inside, stdout=inside, stderr=inside, env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(inside)

    def read(self, timeout_s: float) -> str:
        """What comes within the time; empty if nothing does."""
        ready, _, _ = select.select([self.descriptor], [], [], timeout_s)
        return os.read(self.descriptor, 1 << 16).decode(errors="replace") if ready else ""

    def key_ms(self, key: str, position: str) -> float:
        """From the key until the position that it leads to is drawn."""
        started, text = time.monotonic(), ""
        os.write(self.descriptor, key.encode())
        while position not in text:
            text = text[-4096:] + self.read(5.0)
        return round((time.monotonic() - started) * 1000, 1)


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def rss_mib(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def top(kubeconfig: Path, nodes: int) -> Watched:
    terminal, started, text, first, loading = Terminal(kubeconfig), time.monotonic(), "", 0.0, [0.0]
    whole = f"{nodes * GPUS} GPUs on {nodes} nodes · "
    while whole not in text or "reading" in text.rpartition(whole)[2][:100]:
        text = text[-20000:] + terminal.read(5.0)
        if not first and "GPUs on" in text:
            first = time.monotonic() - started
        elif first and len(loading) < 30 and "1 of " in text:
            os.write(terminal.descriptor, b"g")
            pressed = time.monotonic()
            text += terminal.read(30.0)
            loading.append((time.monotonic() - pressed) * 1000)
            time.sleep(0.1)
    known = time.monotonic() - started
    keys, cpu, begun = [], cpu_s(terminal.process.pid), time.monotonic()
    for number in range(40):
        down = number % 2 == 0
        keys.append(terminal.key_ms("j" if down else "k", f"{2 if down else 1} of {nodes}"))
        until = time.monotonic() + 0.25
        while (left := until - time.monotonic()) > 0:
            terminal.read(left)
    used = 100 * (cpu_s(terminal.process.pid) - cpu) / (time.monotonic() - begun)
    rss = rss_mib(terminal.process.pid)
    os.write(terminal.descriptor, b"q")
    terminal.process.wait(10)
    return Watched(
        round(first, 2),
        round(known, 2),
        statistics.median(keys),
        max(keys),
        round(max(loading), 1),
        round(used, 1),
        round(rss, 1),
    )


@dataclass(frozen=True)
class Served:
    """Of `dractl ui`, while claims change. A page has all that changed on it sent in one event."""

    all_nodes_s: float
    first_byte_ms_median: float
    first_byte_ms_worst: float
    page_kib: int
    event_bytes_median: float
    cpu_percent: float
    rss_mib: float


def ui(kubeconfig: Path, nodes: int, seconds: float = 20.0) -> Served:
    command = [sys.executable, "-m", "dra_driver.cli", "ui", "--port", "0", "--kubeconfig", str(kubeconfig)]
    process, started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True), time.monotonic()
    assert process.stdout is not None
    root, _, key = process.stdout.readline().strip().partition("/enter?key=")

    def asked(path: str, accept: str = "text/html") -> Any:
        headers = {"Authorization": f"Bearer {key}", "Accept": accept}
        return urllib.request.urlopen(urllib.request.Request(f"{root}{path}", headers=headers))

    page = b""
    while f"{nodes * GPUS} GPUs on {nodes} nodes".encode() not in page or b"reading" in page or b"to look at" in page:
        page = asked("/").read()
    known, firsts = time.monotonic() - started, []
    for _ in range(20):
        begun = time.monotonic()
        answer = asked("/")
        firsts.append((time.monotonic() - begun) * 1000)
        page = answer.read()
    cpu, begun, events = cpu_s(process.pid), time.monotonic(), []
    stream = asked("/", "text/event-stream")
    while time.monotonic() - begun < seconds:
        line = stream.readline()
        events += [len(line)] if line.startswith(b"data:") else []
    used = 100 * (cpu_s(process.pid) - cpu) / (time.monotonic() - begun)
    rss = rss_mib(process.pid)
    process.terminate()
    process.wait(10)
    return Served(
        round(known, 2),
        round(statistics.median(firsts), 1),
        round(max(firsts), 1),
        len(page) // 1024,
        statistics.median(events[1:] or [0]),  # the first event has the whole page
        round(used, 1),
        round(rss, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--changes", type=float, default=50.0, help="of claims, in a second")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    arguments = parser.parse_args()
    answers = Answers(objects(arguments.nodes), arguments.changes)
    with tempfile.TemporaryDirectory() as folder, serving(answers, Path(folder)) as kubeconfig:
        figures: dict[str, Any] = {
            f"get {kind}": asdict(get(kind, kubeconfig)) for kind in ("nodes", "devices", "claims")
        }
        figures["top"] = asdict(top(kubeconfig, arguments.nodes))
        figures["ui"] = asdict(ui(kubeconfig, arguments.nodes))
    if arguments.output == "json":
        print(json.dumps({"nodes": arguments.nodes, **figures}))
    else:
        for name, values in figures.items():
            print(f"{name}: {', '.join(f'{key} {value}' for key, value in values.items())}")


if __name__ == "__main__":
    main()
