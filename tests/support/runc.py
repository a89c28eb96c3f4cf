"""Containers of the real runc, for what only a kernel and a runtime can show.

GPU_DRA_TEST_RUNC names it, or PATH has it.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dra_driver.api.meta import JsonObject
from dra_driver.cdi.model import DeviceNode

_SYSTEM = ("usr", "bin", "lib", "lib64")


def runc() -> str:
    """Its path; skips the test where there is none, or no right to start containers."""
    program = os.environ.get("GPU_DRA_TEST_RUNC") or shutil.which("runc")
    if program is None:
        pytest.skip("no runc: install it, or set GPU_DRA_TEST_RUNC to its path")
    if os.geteuid() != 0:
        pytest.skip("only root starts containers with device nodes")
    return program


def shell_in_container(
    folder: Path, command: str, context: JsonObject, node: DeviceNode
) -> subprocess.CompletedProcess[str]:
    """Run `/bin/sh -c command` in a container with this securityContext and device node, on this system's files."""
    root = folder / "root"
    mounts: list[JsonObject] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    ]
    for name in ("proc", "dev", *_SYSTEM):
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
        elif host.is_dir():
            (root / name).mkdir(parents=True)
            if name in _SYSTEM:
                source = {"type": "bind", "source": str(host), "options": ["rbind", "ro"]}
                mounts.append({"destination": f"/{name}", **source})
    (folder / "config.json").write_text(json.dumps(_config(root, mounts, command, context, node)))
    state = ("--root", str(folder / "state"))
    return subprocess.run(
        [runc(), *state, "run", "--bundle", str(folder), folder.name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _config(root: Path, mounts: list[JsonObject], command: str, context: JsonObject, node: DeviceNode) -> JsonObject:
    assert context["capabilities"]["drop"] == ["ALL"]
    capabilities = [f"CAP_{name}" for name in context["capabilities"].get("add", [])]
    numbers: dict[str, Any] = {"type": node.type, "major": node.major, "minor": node.minor}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": context["runAsUser"], "gid": 0},
            "args": ["/bin/sh", "-c", command],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": not context["allowPrivilegeEscalation"],
        },
        "root": {"path": str(root), "readonly": context["readOnlyRootFilesystem"]},
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}],
            "devices": [{"path": node.path, **numbers, "fileMode": node.file_mode, "uid": 0, "gid": 0}],
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}, {"allow": True, **numbers, "access": node.permissions}]
            },
        },
    }
