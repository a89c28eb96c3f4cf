"""What `dractl` costs in a cluster with many nodes, and whether `dractl top` and `dractl ui` stutter there.

    python benchmarks/views.py [--nodes 1000,5000] [--changes 50] [--rounds 3] [--json FILE]

Answers that were encoded before play the API server, so that what is measured is `dractl`. Each node has eight H100s,
of which claims of pods hold five, and every fiftieth node has an unhealthy one. One pod waits, because it requests nine
GPUs. Commands that end are run several times, and the best time counts. `dractl top` runs in a pseudo terminal while so
many claims a second come and go. Now and then a key is pressed, and the time until its effect is drawn counts.

`allocate` and `explain` offline read one file with all slices.
"""

import argparse
import asyncio
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from _many_nodes import GPUS, name_of, spec_of
from _measured import PYTHON, Cost, Record, cost, memory_mib, processor_s
from aiohttp import web

from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.api.policy import PublishingPolicy
from dra_driver.checking.knowledge import objects_of_inventory
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.features import ALL_FEATURES

HELD = 5
WAITING = "job-that-waits"
SELECTOR = {
    "cel": {"expression": f"device.driver == '{GPU_DRIVER}' && device.attributes['{GPU_DRIVER}'].type == 'gpu'"}
}


COMMANDS = (
    "get nodes",
    "get devices",
    "get claims",
    "explain a waiting pod",
    "doctor",
    "bundle",
    "allocate offline",
    "explain offline",
)
UNITS = {
    **{f"{name}: {what}": "s" for name in COMMANDS for what in ("time", "processor")},
    "top: first screen": "s",
    "top: all nodes are shown": "s",
    "top: effect of a key, median": "ms",
    "top: effect of a key, slowest": "ms",
    "top: effect of a key while it reads, slowest": "ms",
    "top: processor": "% of a core",
    "top: memory": "MiB",
    "ui: first page": "s",
    "ui: all nodes are shown": "s",
    "ui: first byte, median": "ms",
    "ui: first byte, slowest": "ms",
    "ui: page": "KiB",
    "ui: a change, median": "bytes",
    "ui: processor": "% of a core",
    "ui: memory": "MiB",
}


def objects(nodes: int) -> dict[Resource, list[JsonObject]]:
    """The cluster, by kind."""
    objects_by_kind: dict[Resource, list[JsonObject]] = {
        kind: [] for kind in (NODES, NODE_INVENTORIES, RESOURCE_SLICES, RESOURCE_CLAIMS, PODS, DEVICE_CLASSES)
    }
    objects_by_kind[DEVICE_CLASSES].append({"metadata": _metadata("gpu.nvidia.com"), "spec": {"selectors": [SELECTOR]}})
    objects_by_kind[RESOURCE_CLAIMS].append(_claim(WAITING, None, count=HELD + 4))
    objects_by_kind[PODS].append(_pod(WAITING, None))
    for node in range(nodes):
        name, spec = name_of(node), spec_of(node)
        gpus = spec.gpus
        objects_by_kind[NODES].append({"metadata": _metadata(name)})
        objects_by_kind[NODE_INVENTORIES].append({"metadata": _metadata(name), "spec": spec.to_wire()})
        slices = objects_of_inventory(spec, name, PublishingPolicy(), {}, ALL_FEATURES)
        for number, slice_ in enumerate(item for item in slices if item["kind"] == RESOURCE_SLICES.kind):
            for device in slice_["spec"].get("devices") or ():
                if node % 50 == 0 and device["name"] == gpus[-1].name:
                    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
                    device["taints"] = [taint]
            objects_by_kind[RESOURCE_SLICES].append(slice_ | {"metadata": _metadata(f"{name}-{number}")})
        for gpu in gpus[:HELD]:
            job = f"job-{node}-{gpu.name}"
            device = {"request": "gpu", "driver": GPU_DRIVER, "pool": name, "device": gpu.name}
            objects_by_kind[RESOURCE_CLAIMS].append(_claim(job, device))
            objects_by_kind[PODS].append(_pod(job, name))
    return objects_by_kind


def _metadata(name: str, namespace: str | None = None) -> JsonObject:
    common = {"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": "2026-11-01T00:00:00Z"}
    return common | ({"namespace": namespace} if namespace else {})


def _claim(name: str, device: JsonObject | None, count: int = 1) -> JsonObject:
    """Without a device it is not allocated."""
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count}
    status = {
        "allocation": {"devices": {"results": [device]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
    }
    return {
        "metadata": _metadata(name, "team-a"),
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {} if device is None else status,
    }


def _pod(name: str, node: str | None) -> JsonObject:
    container = {"name": "main", "image": "ubuntu:24.04", "resources": {"claims": [{"name": "gpu"}]}}
    spec: JsonObject = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": [container]}
    where = {} if node is None else {"nodeName": node}
    phase = "Pending" if node is None else "Running"
    return {"metadata": _metadata(name, "team-a"), "spec": spec | where, "status": {"phase": phase}}


class Answers:
    """Encoded objects by path; a watch of claims gets changes, others get nothing."""

    def __init__(self, objects_by_kind: dict[Resource, list[JsonObject]], changes_per_s: float) -> None:
        self._kinds: dict[str, Resource] = {}
        self._items: dict[str, list[bytes]] = {}
        self._objects: dict[str, bytes] = {}
        for kind, items in objects_by_kind.items():
            encoded = [json.dumps(item).encode() for item in items]
            for namespace in (None, "team-a") if kind.namespaced else (None,):
                self._kinds[kind.path(namespace)], self._items[kind.path(namespace)] = kind, encoded
            for item, text in zip(items, encoded, strict=True):
                name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
                self._objects[kind.path(namespace, name)] = text
        self._claims = [item for item in objects_by_kind[RESOURCE_CLAIMS] if item["status"]]
        self._pause_s = 1 / changes_per_s

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
        if request.path in self._objects:
            return web.Response(body=self._objects[request.path], content_type="application/json")
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


def commands(rounds: int, kubeconfig: Path, cluster: Path, pods: tuple[Path, Path]) -> dict[str, Cost]:
    """What ends by itself, by name. `cluster` is a file with all slices; of the pods the first fits."""
    program = [PYTHON, "-m", "dra_driver.cli"]
    there, archive = ["--kubeconfig", str(kubeconfig)], cluster.with_name("bundle.tar.gz")
    fits, waits = map(str, pods)
    offline = ["--slices", str(cluster)]
    lines = (
        ["get", "nodes", *there],
        ["get", "devices", *there],
        ["get", "claims", *there],
        ["explain", "pod", WAITING, "-n", "team-a", *there],
        ["doctor", *there],
        ["bundle", "--archive", str(archive), *there],
        ["allocate", "-f", fits, *offline],
        ["explain", "-f", waits, *offline],
    )
    # Status 1 says that a pod does not fit, or that the installation has a problem.
    spent = (
        cost([*program, *line], rounds, expected=(0, 1), before=lambda: archive.unlink(missing_ok=True))
        for line in lines
    )
    return dict(zip(COMMANDS, spent, strict=True))


def offline_files(objects_by_kind: dict[Resource, list[JsonObject]], folder: Path) -> tuple[Path, tuple[Path, Path]]:
    """The slices and classes of the cluster; a pod that fits, and one that does not."""

    def written(name: str, *kinds: tuple[Resource, list[JsonObject]]) -> Path:
        items = [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for kind, items in kinds for item in items]
        path = folder / name
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        return path

    cluster = written("cluster.json", *((kind, objects_by_kind[kind]) for kind in (RESOURCE_SLICES, DEVICE_CLASSES)))
    fits, waits = (
        written(f"{name}.json", (RESOURCE_CLAIMS, [_claim(name, None, count)]), (PODS, [_pod(name, None)]))
        for name, count in (("fits", 1), ("waits", GPUS + 1))
    )
    return cluster, (fits, waits)


class Terminal:
    """`dractl top` in a pseudo terminal, and what it wrote."""

    def __init__(self, kubeconfig: Path) -> None:
        self.descriptor, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.process = subprocess.Popen(
            [PYTHON, "-m", "dra_driver.cli", "top", "--kubeconfig", str(kubeconfig)],
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


def top(kubeconfig: Path, nodes: int) -> dict[str, float]:
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
    keys, cpu, begun = [], processor_s(terminal.process.pid), time.monotonic()
    for number in range(40):
        down = number % 2 == 0
        keys.append(terminal.key_ms("j" if down else "k", f"{2 if down else 1} of {nodes}"))
        until = time.monotonic() + 0.25
        while (left := until - time.monotonic()) > 0:
            terminal.read(left)
    used = 100 * (processor_s(terminal.process.pid) - cpu) / (time.monotonic() - begun)
    rss = memory_mib(terminal.process.pid)
    os.write(terminal.descriptor, b"q")
    # It cannot end while what it draws is not read.
    with suppress(OSError):
        while terminal.read(20.0):
            pass
    terminal.process.wait(10)
    return {
        "top: first screen": first,
        "top: all nodes are shown": known,
        "top: effect of a key, median": statistics.median(keys),
        "top: effect of a key, slowest": max(keys),
        "top: effect of a key while it reads, slowest": max(loading),
        "top: processor": used,
        "top: memory": rss,
    }


def ui(kubeconfig: Path, nodes: int, seconds: float = 20.0) -> dict[str, float]:
    """While claims change. A page has all that changed on it sent in one event."""
    command = [PYTHON, "-m", "dra_driver.cli", "ui", "--port", "0", "--kubeconfig", str(kubeconfig)]
    process, started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True), time.monotonic()
    assert process.stdout is not None
    root, _, key = process.stdout.readline().strip().partition("/enter?key=")

    def asked(path: str, accept: str = "text/html") -> Any:
        headers = {"Authorization": f"Bearer {key}", "Accept": accept}
        return urllib.request.urlopen(urllib.request.Request(f"{root}{path}", headers=headers))

    page = asked("/").read()
    first = time.monotonic() - started
    while f"{nodes * GPUS} GPUs on {nodes} nodes".encode() not in page or b"reading" in page or b"to look at" in page:
        page = asked("/").read()
    known, firsts = time.monotonic() - started, []
    for _ in range(20):
        begun = time.monotonic()
        answer = asked("/")
        firsts.append((time.monotonic() - begun) * 1000)
        page = answer.read()
    cpu, begun, events = processor_s(process.pid), time.monotonic(), []
    stream = asked("/", "text/event-stream")
    while time.monotonic() - begun < seconds:
        line = stream.readline()
        events += [len(line)] if line.startswith(b"data:") else []
    used = 100 * (processor_s(process.pid) - cpu) / (time.monotonic() - begun)
    rss = memory_mib(process.pid)
    process.terminate()
    process.wait(10)
    return {
        "ui: first page": first,
        "ui: all nodes are shown": known,
        "ui: first byte, median": statistics.median(firsts),
        "ui: first byte, slowest": max(firsts),
        "ui: page": len(page) / 1024,
        "ui: a change, median": statistics.median(events[1:] or [0]),  # the first event has the whole page
        "ui: processor": used,
        "ui: memory": rss,
    }


def measure(nodes: int, changes: float, rounds: int) -> dict[str, float]:
    objects_by_kind = objects(nodes)
    answers = Answers(objects_by_kind, changes)
    with tempfile.TemporaryDirectory() as folder, serving(answers, Path(folder)) as kubeconfig:
        costs = commands(rounds, kubeconfig, *offline_files(objects_by_kind, Path(folder)))
        del objects_by_kind
        figures = {f"{name}: processor": spent.processor_s for name, spent in costs.items()}
        figures |= {f"{name}: time": spent.wall_s for name, spent in costs.items()}
        return {**figures, **top(kubeconfig, nodes), **ui(kubeconfig, nodes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1000,5000", help="sizes of clusters (default: %(default)s)")
    parser.add_argument("--changes", type=float, default=50.0, help="of claims, in a second")
    parser.add_argument("--rounds", type=int, default=3, help="of each command that ends")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after each size")
    options = parser.parse_args()
    record = Record(UNITS, options.json, kubernetes="played by this script")
    for nodes in map(int, options.nodes.split(",")):
        record.add(f"{nodes:,} nodes", measure(nodes, options.changes, options.rounds))


if __name__ == "__main__":
    main()
