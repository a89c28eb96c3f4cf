"""A real kube-apiserver with etcd, from the binaries that KUBEBUILDER_ASSETS names (the envtest convention).

Each server gets free ports, a temporary folder and a random token, and is ended by its process. Garbage collection
and the end of namespaces are the work of kube-controller-manager on a real cluster: it is started too when its binary
lies beside the others.
"""

import os
import secrets
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import versions
from support.ports import free_port

ASSETS = "KUBEBUILDER_ASSETS"
_START_LIMIT_S = 90.0


def assets_folder() -> Path:
    """The folder with etcd and kube-apiserver; skips the test when it is not named or not complete."""
    folder = os.environ.get(ASSETS)
    if not folder:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver to compare with")
    for name in ("etcd", "kube-apiserver"):
        if not (Path(folder) / name).exists():
            pytest.skip(f"{ASSETS}={folder} has no {name}")
    if shutil.which("openssl") is None:
        pytest.skip("a real kube-apiserver needs a key for its tokens, and openssl to make it is not installed")
    return Path(folder)


@dataclass
class RealApiServer:
    """Addresses and credentials of running processes. `has_controllers`: kube-controller-manager runs beside it."""

    url: str
    token: str
    ca_file: Path
    folder: Path
    has_controllers: bool
    gates: Mapping[str, bool] = field(default_factory=dict)
    """What was switched, as --feature-gates."""
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _commands: dict[str, list[str]] = field(default_factory=dict)

    @property
    def gates_flag(self) -> tuple[str, ...]:
        """The same for every component."""
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in self.gates.items())
        return (f"--feature-gates={gates}",) if gates else ()

    def ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    @property
    def api_server(self) -> "subprocess.Popen[bytes]":
        return self._processes["apiserver"]

    def start_api_server(self) -> None:
        """The one that ended, where it was. etcd has everything."""
        spawn(self, "apiserver", self._commands["apiserver"])

    def stop(self) -> None:
        """Ends all processes, the ones started last first. Nothing of theirs is kept, so none gets time for its end:
        an API server without its etcd takes all that it is given."""
        for process in reversed(self._processes.values()):
            process.kill()
        for process in self._processes.values():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_ETCD_BYTES = 8 << 30
"""What etcd's documentation names as the most; its default of 2 GiB is too little for slices of 5,000 nodes."""


def start(
    assets: Path,
    folder: Path,
    feature_gates: Mapping[str, bool] | None = None,
    apis: str = "",
    *,
    own_defaults: bool = False,
    flags: Sequence[str] = (),
) -> RealApiServer:
    """Starts etcd and kube-apiserver, waits until it answers, and gives it a controller manager when there is one.

    `feature_gates` are switched in what the newest version has on, or in the server's `own_defaults`; `apis` is
    kube-apiserver's --runtime-config: APIs that are off by default; `flags` are more of its flags.
    """
    gates = dict(feature_gates or {})
    gates = gates if own_defaults else versions.gates_on(versions.real_minor(assets), gates)
    folder.mkdir(parents=True, exist_ok=True)
    key, tokens, token = folder / "sa.key", folder / "tokens.csv", secrets.token_hex(16)
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    tokens.write_text(f"{token},admin,admin,system:masters\n")
    etcd_url, peer_url, port = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}", free_port()
    server = RealApiServer(f"https://127.0.0.1:{port}", token, folder / "certs/apiserver.crt", folder, False, gates)
    etcd = ["--data-dir", str(folder / "etcd"), "--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url]
    etcd += ["--listen-peer-urls", peer_url, "--log-level", "error", "--quota-backend-bytes", str(_ETCD_BYTES)]
    spawn(server, "etcd", [str(assets / "etcd"), *etcd])
    spawn(
        server,
        "apiserver",
        [str(assets / "kube-apiserver"), *_apiserver_flags(folder, etcd_url, port, server.gates_flag, apis), *flags],
    )
    try:
        _wait_until_ready(server)
    except BaseException:
        server.stop()
        raise
    if (assets / "kube-controller-manager").exists():
        _start_controllers(server, assets, key)
    return server


def _apiserver_flags(folder: Path, etcd_url: str, port: int, gates: Sequence[str], apis: str) -> list[str]:
    flags = {
        "etcd-servers": etcd_url,
        "secure-port": str(port),
        "bind-address": "127.0.0.1",
        "cert-dir": str(folder / "certs"),
        "service-account-key-file": str(folder / "sa.key"),
        "service-account-signing-key-file": str(folder / "sa.key"),
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-cluster-ip-range": "10.0.0.0/24",
        "authorization-mode": "Node,RBAC",
        "token-auth-file": str(folder / "tokens.csv"),
        "disable-admission-plugins": "ServiceAccount",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
    }
    if apis:
        flags["runtime-config"] = apis
    return [*(f"--{name}={value}" for name, value in flags.items()), *gates]


def spawn(server: RealApiServer, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
    """Starts a process that ends with the server; its output is in the server's folder."""
    with (server.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    server._processes[name], server._commands[name] = process, command
    return process


def _wait_until_ready(server: RealApiServer) -> None:
    """A controller manager that starts sooner gives up after ten seconds of an unhealthy server."""
    end = time.monotonic() + _START_LIMIT_S
    missing = ["/healthz", "/api/v1/namespaces/default"]
    while time.monotonic() < end:
        if any(process.poll() is not None for process in server._processes.values()):
            break
        request = urllib.request.Request(server.url + missing[0], headers={"Authorization": f"Bearer {server.token}"})
        try:
            with urllib.request.urlopen(request, context=server.ssl_context(), timeout=5):
                del missing[0]
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        if not missing:
            return
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(server.folder.glob("*.log")))
    raise RuntimeError(f"the real kube-apiserver did not become ready:\n{logs}")


def _start_controllers(server: RealApiServer, assets: Path, key: Path) -> None:
    kubeconfig = server.folder / "kubeconfig"
    write_kubeconfig(server, kubeconfig)
    flags = {
        "kubeconfig": str(kubeconfig),
        "service-account-private-key-file": str(key),
        "controllers": ",".join(
            (
                "garbage-collector-controller",
                "namespace-controller",
                "daemonset-controller",
                "resourcequota-controller",
                "clusterrole-aggregation-controller",
            )
        ),
        "leader-elect": "false",
        "secure-port": "0",
    }
    command = [str(assets / "kube-controller-manager"), *(f"--{name}={value}" for name, value in flags.items())]
    spawn(server, "controllers", [*command, *server.gates_flag])
    server.has_controllers = True


def write_kubeconfig(server: RealApiServer, path: Path) -> None:
    """A kubeconfig with the administrator's token."""
    path.write_text(f"""
apiVersion: v1
kind: Config
clusters: [{{name: real, cluster: {{server: "{server.url}", certificate-authority: "{server.ca_file}"}}}}]
users: [{{name: admin, user: {{token: "{server.token}"}}}}]
contexts: [{{name: real, context: {{cluster: real, user: admin}}}}]
current-context: real
""")
