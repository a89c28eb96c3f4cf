"""A real kube-scheduler and claim controller beside a real API server of their own.

Needs kube-scheduler and kube-controller-manager beside the binaries that KUBEBUILDER_ASSETS names.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support import real_api_server
from support.real_api_server import RealApiServer, spawn, write_kubeconfig
from support.versions import real_minor

from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.endpoint import endpoint_from


def start(
    folder: Path,
    feature_gates: Mapping[str, bool] | None = None,
    controllers: Sequence[str] = (),
    *,
    scheduler: bool = True,
    flags: Sequence[str] = (),
) -> RealApiServer:
    """A server with scheduler and claim controller; skips the test when a binary is missing.

    `feature_gates` and `controllers` are switched on besides. `flags` are for the controllers. Without `scheduler` a
    caller starts it later.
    """
    assets = real_api_server.assets_folder()
    for name in ("kube-scheduler", "kube-controller-manager"):
        if not (assets / name).exists():
            pytest.skip(f"{assets} has no {name}")
    # A scheduler of 1.34 with device taints waits for ever where their rules are not served. With shares, it ends when
    # a request's second device is in a slice of one: it looks for the capacity of that slice's second device.
    gates = {"DRAConsumableCapacity": False} if real_minor(assets) < 35 else {}
    gates |= feature_gates or {}
    server = real_api_server.start(assets, folder, gates, apis="resource.k8s.io/v1alpha3=true")
    write_kubeconfig(server, folder / "kubeconfig")
    if scheduler:
        start_scheduler(server)
    claims = [*_common(server), f"--controllers={','.join(('resourceclaim-controller', *controllers))}", *flags]
    spawn(server, "claims", [str(assets / "kube-controller-manager"), *claims])
    return server


def start_scheduler(server: RealApiServer, *flags: str) -> "subprocess.Popen[bytes]":
    """It ends with the server."""
    program = real_api_server.assets_folder() / "kube-scheduler"
    return spawn(server, "scheduler", [str(program), *_common(server), *flags])


def _common(server: RealApiServer) -> list[str]:
    kubeconfig = server.folder / "kubeconfig"
    return [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0", *server.gates_flag]


def client(server: RealApiServer) -> Kube:
    endpoint: Endpoint = endpoint_from(server.folder / "kubeconfig")
    return Kube(endpoint)
