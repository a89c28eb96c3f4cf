"""Containers made by the real `runc` from what our CDI specs say, on a host with a driver that is only files."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from support.runc import runc

from dra_driver.cdi.inject import ContainerDescription, SpecFile, SpecFiles, decode, inject
from dra_driver.cdi.model import CdiSpec, DeviceNode, Hook, Mount, encode, qualified_name

BUSYBOX = Path(shutil.which("busybox") or "/bin/busybox")
_TOOLS = ("gcc", "unshare", "ldconfig")

_PARAMS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"
_HOST = """\
set -e
mount -t tmpfs tmpfs /proc/driver
mkdir /proc/driver/nvidia
printf %s "$PARAMS" > /proc/driver/nvidia/params
exec "$RUNC" --root "$1" run --bundle "$2" "$3"
"""
"""In mounts of its own: what the kernel module shows on a real host."""


def needed() -> None:
    """Skips the test where something is missing."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in _TOOLS if shutil.which(name, path=path) is None]
    missing += [] if BUSYBOX.exists() else ["a static busybox"]
    runc()
    if missing:
        pytest.skip(f"not on the PATH: {', '.join(missing)}")


def library(path: Path, soname: str) -> None:
    """A real library, which ldconfig takes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=b"int nothing;", check=True)


@dataclass
class Bundle:
    """A container to be: a root file system with a shell, and its configuration."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "rootfs"

    @classmethod
    def of(cls, folder: Path) -> "Bundle":
        bundle = cls(folder)
        for name in ("bin", "etc/ld.so.conf.d", "proc", "dev", "sys", "tmp", "run"):
            (bundle.root / name).mkdir(parents=True)
        shutil.copy(BUSYBOX, bundle.root / "bin" / "busybox")
        (bundle.root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
        # Releases from 1.14 on leave images alone that have no cache.
        subprocess.run(["ldconfig", "-r", str(bundle.root)], check=True, env={"PATH": "/usr/sbin:/sbin"})
        return bundle

    def run(self, spec: CdiSpec, script: str) -> subprocess.CompletedProcess[str]:
        """What `script` prints in a container with all devices of `spec`, as a runtime reads it from its file."""
        written = decode(encode(spec))
        files = SpecFiles((SpecFile(PurePosixPath("claim.json"), 0, written),))
        names = [qualified_name(written.kind, device.name) for device in written.devices]
        config = _config(inject(ContainerDescription(), names, files), script)
        (self.folder / "config.json").write_text(json.dumps(config))
        words = [str(self.folder / "state"), str(self.folder), f"gpu-dra-{os.getpid()}-{id(self):x}"]
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _HOST, "sh", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "PARAMS": _PARAMS, "RUNC": runc()},
            timeout=60,
        )

    def cached(self, soname: str) -> list[str]:
        """Where the linker's cache of the container has it, best first."""
        listed = subprocess.run(
            ["ldconfig", "-p", "-C", str(self.root / "etc/ld.so.cache")],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
        )
        lines = [line.strip() for line in listed.stdout.splitlines()]
        return [line.rpartition(" => ")[2] for line in lines if line.startswith(f"{soname} ")]


def _config(container: ContainerDescription, script: str) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0, "additionalGids": list(container.additional_gids)},
            "args": ["/bin/busybox", "sh", "-c", script],
            "env": ["PATH=/bin", *container.env],
            "cwd": "/",
            "capabilities": {kind: ["CAP_MKNOD"] for kind in ("bounding", "effective", "permitted")},
        },
        "root": {"path": "rootfs"},
        "mounts": [
            # The host's, so that what stands for the kernel module is in it.
            {"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            *map(_mount, container.mounts),
        ],
        "hooks": {"createContainer": [_hook(hook) for hook in container.hooks]},
        "linux": {
            "namespaces": [{"type": "mount"}, {"type": "ipc"}],
            "devices": list(map(_device, container.device_nodes)),
        },
    }


def _mount(mount: Mount) -> dict[str, object]:
    kind = mount.type or "bind"
    options: Sequence[str] = mount.options
    return {"destination": mount.container_path, "type": kind, "source": mount.host_path, "options": list(options)}


def _hook(hook: Hook) -> dict[str, object]:
    assert hook.hook_name == "createContainer"
    return {"path": hook.path, "args": list(hook.args), "env": list(hook.env)}


def _device(node: DeviceNode) -> dict[str, object]:
    return {"path": node.path, "type": node.type, "major": node.major, "minor": node.minor, "fileMode": 0o666}
