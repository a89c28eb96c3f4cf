"""The real Helm (its Go library, from PyPI) against API servers: what a chart becomes, and what a release does.

There is no dry run in the package, so to render is to install into a simulated API server, which is quick and shows
what a real one would say of each object. Helm blocks, and so do these functions: a simulated server lives in a thread.
"""

import asyncio
import base64
import gzip
import json
import os
import pickle
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import helm_sdkpy as helm
import yaml
from support.asking_api_server import AskingApiServer
from support.observed_api import ObservedApiServer

from dra_driver.api.meta import Resource
from dra_driver.errors import Unreachable
from dra_driver.kube.client import Endpoint, Kube, endpoint_from

CHART = Path(__file__).parents[2] / "charts" / "gpu-dra-driver"
NAMESPACE = "gpu-dra"
RELEASE = "gpu-dra-driver"
_PATIENCE_S = 60.0

HelmError = helm.HelmError

type Object = dict[str, Any]

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True)
class Release:
    """What Helm says after an action. `hooks` are not part of `objects`."""

    revision: int
    manifest: str
    objects: tuple[Object, ...]
    hooks: tuple[Object, ...]
    notes: str

    def all(self, kind: str) -> list[Object]:
        return [obj for obj in self.objects if obj["kind"] == kind]

    def object(self, kind: str, name: str | None = None) -> Object:
        (match,) = [obj for obj in self.all(kind) if name is None or obj["metadata"]["name"] == name]
        return match


class Helm:
    """Helm with a kubeconfig. Every refusal is a HelmError."""

    def __init__(self, kubeconfig: Path, *, namespace: str = NAMESPACE, release: str = RELEASE) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._release = release

    @property
    def _config(self) -> helm.Configuration:
        """Each action has its own, as each command of `helm` has: one remembers what kinds the cluster had."""
        return helm.Configuration(namespace=self._namespace, kubeconfig=str(self._kubeconfig))

    def install(self, values: Mapping[str, Any] | None = None, *, chart: Path = CHART, **options: Any) -> Release:
        options = {"wait": False, "create_namespace": True, **options}
        action = helm.Install(self._config)
        return _release(asyncio.run(action.run(self._release, str(chart), values=dict(values or {}), **options)))

    def upgrade(self, values: Mapping[str, Any] | None = None, *, chart: Path = CHART, **options: Any) -> Release:
        """With these values alone: those of the release before are forgotten."""
        options = {"wait": False, "reset_values": True, **options}
        action = helm.Upgrade(self._config)
        return _release(asyncio.run(action.run(self._release, str(chart), values=dict(values or {}), **options)))

    def rollback_to(self, revision: int) -> Release:
        """To an earlier revision, as a new one: chart and values are those that Helm stored with it, in a Secret.

        The library's own rollback ends with "wait strategy not set" (helm-sdkpy 0.1.32) and leaves a pending revision.
        What is rendered here is the same, since a chart renders the same for the same values on the same cluster.
        """
        name = f"sh.helm.release.v1.{self._release}.v{revision}"
        (secret,) = [
            candidate
            for candidate in Cluster(self._kubeconfig).objects("v1", "Secret")
            if candidate["metadata"]["name"] == name and candidate["metadata"]["namespace"] == self._namespace
        ]
        stored = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
        with tempfile.TemporaryDirectory() as folder:
            return self.upgrade(stored.get("config"), chart=_written(stored["chart"], Path(folder) / "chart"))

    def values(self) -> Mapping[str, Any]:
        """What was given with the last revision."""
        values: Mapping[str, Any] = asyncio.run(helm.GetValues(self._config).run(self._release))
        return values

    def uninstall(self, *, timeout_s: int = 60) -> None:
        asyncio.run(helm.Uninstall(self._config).run(self._release, wait=False, timeout=timeout_s))

    def test(self) -> Mapping[str, Any]:
        outcome: Mapping[str, Any] = asyncio.run(helm.ReleaseTest(self._config).run(self._release))
        return outcome

    def lint(self) -> Mapping[str, Any]:
        report: Mapping[str, Any] = asyncio.run(helm.Lint(self._config).run(str(CHART)))
        return report

    def package(self, folder: Path, chart: Path = CHART) -> Path:
        return Path(asyncio.run(helm.Package(self._config).run(str(chart), str(folder))))


def _release(answer: Mapping[str, Any]) -> Release:
    return Release(
        revision=answer["version"],
        manifest=answer["manifest"],
        objects=_documents(answer["manifest"]),
        hooks=tuple(document for hook in answer.get("hooks") or () for document in _documents(hook["manifest"])),
        notes=answer["info"].get("notes", ""),
    )


def _written(chart: Mapping[str, Any], folder: Path) -> Path:
    """A chart as Helm stores it, as a folder again."""
    files = {"Chart.yaml": yaml.safe_dump(chart["metadata"]), "values.yaml": yaml.safe_dump(chart["values"])}
    encoded = [*chart["templates"], *(chart.get("files") or ())]
    contents = {name: text.encode() for name, text in files.items()}
    contents |= {file["name"]: base64.b64decode(file["data"]) for file in encoded}
    contents["values.schema.json"] = base64.b64decode(chart["schema"])
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def _documents(text: str) -> tuple[Object, ...]:
    return tuple(obj for part in f"\n{text}".split("\n---\n") if (obj := pickle.loads(_parsed(part))))


@lru_cache(1 << 10)
def _parsed(document: str) -> bytes:
    """Pickled, so that each test gets an object of its own: most documents of a chart are alike in all its releases."""
    return pickle.dumps(yaml.load(document, _LOADER))


class Cluster:
    """What is stored on an API server of either kind, asked by an administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    @cached_property
    def _endpoint(self) -> Endpoint:
        return endpoint_from(self.kubeconfig)

    def kube[T](self, do: Callable[[Kube], Awaitable[T]]) -> T:
        async def done() -> T:
            async with Kube(self._endpoint) as kube:
                return await do(kube)

        return asyncio.run(done())

    def create(self, obj: Mapping[str, Any]) -> Object:
        """An object that is there, and a claim with what it was given, which servers take apart."""
        resource, metadata = resource_of(obj["apiVersion"], obj["kind"]), obj["metadata"]
        created = self.kube(lambda kube: kube.create(resource, dict(obj)))
        if obj["kind"] != "ResourceClaim" or "status" not in obj:
            return created
        status, where = {"status": obj["status"]}, metadata["namespace"]
        return self.kube(
            lambda kube: kube.merge_patch(resource, metadata["name"], status, namespace=where, subresource="status")
        )

    def delete(self, obj: Mapping[str, Any]) -> None:
        resource, metadata = resource_of(obj["apiVersion"], obj["kind"]), obj["metadata"]
        self.kube(lambda kube: kube.delete(resource, metadata["name"], namespace=metadata.get("namespace")))

    def objects(self, api_version: str, kind: str) -> list[Object]:
        """All objects of a kind, of every namespace."""
        listing = self.kube(lambda kube: kube.list(resource_of(api_version, kind)))
        # The items of a list leave out what the list says.
        return [{"apiVersion": api_version, "kind": kind, **item} for item in listing.items]

    def names(self) -> set[str]:
        """`Kind namespace/name` of everything that somebody may have left behind."""
        return self._named(lambda metadata: True)

    def left_of(self, before: set[str], *expected: str) -> set[str]:
        """What is there beside these names, when it is what is expected, or does not become that within a minute.

        A real server deletes in the background: definitions after their objects, and what others own after its owner.
        """
        return _until(lambda: self.names() - before, lambda left: left == {*expected})

    def settle(self) -> None:
        """Wait until no object is on its way out: its name cannot be used before."""
        ending = _until(lambda: self._named(lambda metadata: "deletionTimestamp" in metadata), lambda left: not left)
        assert not ending, f"still being deleted: {ending}"

    def _named(self, wanted: Callable[[Object], bool]) -> set[str]:
        async def listed(kube: Kube) -> set[str]:
            return {
                f"{resource.kind} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
                for resource in _KINDS.values()
                if resource.kind not in ("Event", "Namespace")
                for obj in (await kube.list(resource)).items
                # The API server's own, which comes some seconds after its start.
                if obj["metadata"].get("namespace") != "kube-system" and obj["metadata"]["name"] != "kubernetes"
                if wanted(obj["metadata"])
            }

        return self.kube(listed)


def _until(look: Callable[[], set[str]], ends: Callable[[set[str]], bool]) -> set[str]:
    """What `look` sees last."""
    deadline = time.monotonic() + _PATIENCE_S
    while not ends(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return seen


_KINDS = {
    (type_.resource.api_version, type_.resource.kind): type_.resource
    for type_ in ObservedApiServer().registry
    if type_.resource.group != "events.k8s.io" and "review" not in type_.marks
}


def resource_of(api_version: str, kind: str) -> Resource:
    """A built-in type; or a custom one, by the way in which plurals are usually made."""
    group, _, version = api_version.rpartition("/")
    plural = kind.lower() if kind.endswith("s") else f"{kind.lower()}s"
    namespaced = kind not in ("SecurityContextConstraints", "NodeInventory")
    plural = "nodeinventories" if kind == "NodeInventory" else plural
    return _KINDS.get((api_version, kind)) or Resource(group, version, plural, kind, namespaced)


class _Server(ObservedApiServer, AskingApiServer):
    """Observed, and asks the admission webhooks that a release configures."""


class ServerThread(Cluster):
    """A simulated API server in a thread of its own."""

    def __init__(self, kubeconfig: Path, **options: Any) -> None:
        super().__init__(kubeconfig)
        self.server = _Server(**options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.call(self.server.start())
        self.server.kubeconfig(kubeconfig)
        self._forget_kinds()

    def _forget_kinds(self) -> None:
        """Helm keeps for hours which kinds the server at an address has, and ports are used again."""
        address = self.server.url.removeprefix("http://").replace(":", "_")
        for folder in (os.environ.get("KUBECACHEDIR"), Path.home() / ".kube" / "cache"):
            shutil.rmtree(Path(folder or "") / "discovery" / address, ignore_errors=True)

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine where the server runs."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self) -> None:
        self.call(self.server.stop())
        self._forget_kinds()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def jobs_run(cluster: Cluster, run: Callable[[list[str]], None]) -> Iterator[None]:
    """In place of nodes: each new Job's arguments are given to `run`, and the Job succeeds if that does."""
    over = threading.Event()
    seen: set[str] = set()

    def work() -> None:
        while not over.wait(0.1):
            try:
                jobs = cluster.objects("batch/v1", "Job")
            except Unreachable:
                continue  # the machine is busy
            for job in jobs:
                if job["metadata"]["uid"] not in seen:
                    seen.add(job["metadata"]["uid"])
                    run(job["spec"]["template"]["spec"]["containers"][0]["args"])
                    _succeeded(cluster, job)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def _succeeded(cluster: Cluster, job: Object) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": now, "lastTransitionTime": now}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
    metadata, resource = job["metadata"], resource_of("batch/v1", "Job")
    cluster.kube(
        lambda kube: kube.merge_patch(
            resource, metadata["name"], {"status": status}, namespace=metadata["namespace"], subresource="status"
        )
    )


@contextmanager
def simulated_server(**options: Any) -> Iterator[ServerThread]:
    """An empty simulated API server while the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        thread = ServerThread(Path(folder) / "kubeconfig", **options)
        try:
            yield thread
        finally:
            thread.stop()
