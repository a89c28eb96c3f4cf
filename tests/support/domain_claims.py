"""One node's claims of ComputeDomains, with an API server, domains and hardware that a test sets."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from support.claims import FakeClaims, a_claim, a_config, node_facts
from support.prepared import given_nodes, no_host_node, no_mig_nodes

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.cdi.edits import DriverFiles
from dra_driver.cdi.model import Mount
from dra_driver.kube.client import Listing, WatchEvent
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, CONFIG_API_VERSION, ClaimRef
from kubelet_plugin.domains.readiness import DomainReader
from kubelet_plugin.domains.service import DomainClaims, DomainHost
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.claim_reads import ClaimReader
from kubelet_plugin.prepare.journal import DomainClaim
from kubelet_plugin.prepare.known_node import ContainerFiles
from kubelet_plugin.prepare.listener import ClaimListener, Operation
from kubelet_plugin.prepare.store import JournalStore

NODE = "tray-1"
DRIVER_NAMESPACE = "gpu-dra-driver"
HARDWARE = Mount("/nodes/1/sim", "/nodes/1/sim", ("ro",))
FILES = DriverFiles("580.105.08", "aarch64", (), (), ("/usr/lib64",), (), (), (), ())


class Heard(ClaimListener):
    """What was told of operations."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def ended(self, operation: Operation) -> None:
        self.operations.append(operation)


class FakeDomains:
    """ComputeDomains of an API server; `change` is seen by those who watch."""

    def __init__(self) -> None:
        self.objects: dict[str, JsonObject] = {}
        self.watched = asyncio.Event()
        self._queues: list[asyncio.Queue[WatchEvent]] = []

    def put(self, uid: str, namespace: str = "team", **parts: Any) -> None:
        metadata = {
            "name": uid,
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": "1",
            **parts.pop("metadata", {}),
        }
        spec = {"channel": {"resourceClaimTemplate": {"name": "t"}}, "numNodes": parts.pop("num_nodes", 0)}
        self.objects[uid] = {"metadata": metadata, "spec": spec, "status": parts}
        for queue in self._queues:
            queue.put_nowait(WatchEvent("MODIFIED", self.objects[uid]))

    async def list(
        self, resource: Resource, *, namespace: str | None = None, field_selector: str | None = None
    ) -> Listing:
        claims = [obj for obj in self.objects.values() if namespace in (None, obj["metadata"]["namespace"])]
        return Listing(claims, "1")

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        field_selector: str | None = None,
        resource_version: str,
    ) -> AsyncGenerator[WatchEvent, None]:
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._queues.append(queue)
        self.watched.set()
        while True:
            yield await queue.get()


class FactsOfNode:
    def __init__(self) -> None:
        self.facts: NodeFacts = node_facts(1)


def host_of(folder: Path) -> HostFiles:
    texts = {
        "proc/devices": "Character devices:\n234 nvidia-caps-imex-channels\n511 nvidia-caps\n",
        "proc/driver/nvidia/params": "ImexChannelCount: 5\n",
        "proc/driver/nvidia/capabilities/fabric-imex-mgmt": "DeviceFileMinor: 9\nDeviceFileMode: 256\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return HostFiles(folder)


class Node:
    """One node's service with everything around it, which outlives a restart of the plugin."""

    def __init__(self, folder: Path) -> None:
        self.api, self.domains = FakeClaims(), FakeDomains()
        self.journal = JournalStore(folder / "state")
        (folder / "cdi").mkdir()
        self.cdi = CdiFiles(folder / "cdi", COMPUTE_DOMAIN_DRIVER)
        self.host = host_of(folder / "host")
        self.readable: str | None = None
        self.host_imex: Callable[[], str | None] | None = None
        self.takes_late_peers = True
        self.heard = Heard()

    def plugin(self, *, patience_s: float = 5.0, sweep_interval_s: float = 600.0) -> DomainClaims:
        node = DomainHost(
            name=NODE,
            namespace=DRIVER_NAMESPACE,
            host=self.host,
            facts=FactsOfNode(),
            container_files=lambda facts: ContainerFiles(FILES, given_nodes({}), no_mig_nodes, no_host_node),
            readable=lambda: self.readable,
            host_imex=self.host_imex,
            daemon_mounts=(HARDWARE,),
        )
        reader = DomainReader(cast(Any, self.domains), NODE, lambda: self.takes_late_peers, patience_s=patience_s)
        return DomainClaims(
            ClaimReader(self.api), reader, self.journal, self.cdi, node, self.heard, sweep_interval_s=sweep_interval_s
        )

    @property
    def held(self) -> Mapping[str, DomainClaim]:
        return self.journal.current.domains

    def claim(
        self, name: str, domain: str, device: str = "channel-0", *, namespace: str = "team", **config: Any
    ) -> ClaimRef:
        kind = "ComputeDomainDaemonConfig" if device == "daemon-0" else "ComputeDomainChannelConfig"
        parameters = {"apiVersion": CONFIG_API_VERSION, "kind": kind, "domainID": domain, **config}
        ref = ClaimRef(namespace, name, f"uid-of-{name}")
        result = {"request": "channel", "driver": COMPUTE_DOMAIN_DRIVER, "pool": NODE, "device": device}
        return self.api.put(a_claim(ref, result, configs=[a_config(parameters, driver=COMPUTE_DOMAIN_DRIVER)]))

    def ready(self, domain: str, **parts: Any) -> None:
        entry = {"name": NODE, "index": 0, "status": "Ready", "ipAddress": "10.0.0.1", "cliqueID": "rack.1"}
        self.domains.put(domain, **{"status": "Ready", "nodes": [entry], **parts})

    def file(self, ref: ClaimRef) -> JsonObject | None:
        content = self.cdi.read(ref.uid)
        return None if content is None else json.loads(content)
