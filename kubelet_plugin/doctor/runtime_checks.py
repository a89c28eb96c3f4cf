"""The check of a node's container runtime: whether it hands out what CDI files say, from where they are. Pure.

`kubelet_plugin.doctor.checks` has it among the others; `kubelet_plugin.doctor.runtime_config` reads what is configured.
"""

import posixpath
from collections.abc import Iterator

from dra_driver.doctor.findings import Check, Finding, Trouble, Verdict, ok
from kubelet_plugin.doctor.runtime_config import CONTAINERD
from kubelet_plugin.doctor.seen import NodeSeen, RuntimeSeen

_DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")
"""Which containerd and CRI-O read when nothing is set."""

_CONFIG_BROKEN = Trouble("broken", Verdict.PROBLEM, "{why}", "put the file right, then restart {runtime}")
_CDI_OFF = Trouble(
    "cdi-off",
    Verdict.PROBLEM,
    "CDI is off: containers with GPUs do not start",
    "set `enable_cdi = true` in {file}, then: systemctl restart containerd",
)
_CDI_BY_DEFAULT = Trouble(
    "cdi-not-set",
    Verdict.WARNING,
    "enable_cdi is not set, and containerd is {version}: CDI is on by default only from 2.0 on",
    'set `enable_cdi = true` below `[plugins."io.containerd.grpc.v1.cri"]` in {file}, then: systemctl restart'
    " containerd",
)
_OTHER_DIRS = Trouble(
    "other-folders",
    Verdict.PROBLEM,
    "reads CDI files in {dirs}, and the plugin writes them into {ours}",
    "add {ours} to `cdi_spec_dirs` and restart {runtime}; or set `kubeletPlugin.cdiRoot` to one of its folders",
)
_NVIDIA_DEFAULT = Trouble(
    "nvidia-by-default",
    Verdict.WARNING,
    "its default runtime is {default}: images with NVIDIA_VISIBLE_DEVICES=all get GPUs that no claim gave them",
    "make runc (or crun) the default again, and use a RuntimeClass where NVIDIA's runtime is needed",
)
_NO_RUNTIME = Trouble(
    "not-found",
    Verdict.UNKNOWN,
    "no configuration of containerd or CRI-O, and no socket of one, was found",
    "see your runtime's documentation for the Container Device Interface, and that it reads {ours}",
)


def _runtime(node: NodeSeen) -> Iterator[Finding]:
    if node.simulated:
        yield ok("the node is simulated, and so is its container runtime")
        return
    if not node.runtimes:
        yield _NO_RUNTIME.at(ours=node.cdi_root)
    for one in node.runtimes:
        found = list(_runtime_troubles(one, node.cdi_root))
        yield from found or [ok(f"{one.name}{f' {one.version}' if one.version else ''} reads {node.cdi_root}")]


def _runtime_troubles(one: RuntimeSeen, ours: str) -> Iterator[Finding]:
    about = f"{one.name} ({one.file})" if one.file else one.name
    file = one.file or "/etc/containerd/config.toml"
    if one.problem is not None:
        yield _CONFIG_BROKEN.at(about, why=one.problem, runtime=one.name)
        return
    if one.cdi is False:
        yield _CDI_OFF.at(about, file=file)
    elif one.name == CONTAINERD and one.cdi is None and not _has_cdi_by_default(one.version):
        yield _CDI_BY_DEFAULT.at(about, version=one.version or "of a version that is not known here", file=file)
    dirs = one.spec_dirs or _DEFAULT_DIRS
    if _canonical(ours) not in map(_canonical, dirs):
        yield _OTHER_DIRS.at(about, dirs=", ".join(dirs), ours=ours, runtime=one.name)
    if one.default_runtime is not None and one.default_runtime.startswith("nvidia"):
        yield _NVIDIA_DEFAULT.at(about, default=one.default_runtime)


def _has_cdi_by_default(version: str | None) -> bool:
    major = (version or "").partition(".")[0]
    return major.isdecimal() and int(major) >= 2


def _canonical(folder: str) -> str:
    """/var/run is /run on every distribution with systemd."""
    path = posixpath.normpath(folder)
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


RUNTIME = Check(
    "node-runtime",
    "what the configuration of containerd or CRI-O says of CDI.",
    _runtime,
    (_CONFIG_BROKEN, _CDI_OFF, _CDI_BY_DEFAULT, _OTHER_DIRS, _NVIDIA_DEFAULT, _NO_RUNTIME),
)
