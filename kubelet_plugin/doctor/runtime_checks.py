"""The checks of what makes a node's containers: the hook program, and the container runtime, which must hand out what
CDI files say, from where they are. Pure.

`kubelet_plugin.doctor.checks` has them among the others; `kubelet_plugin.doctor.runtime_config` reads what is
configured.
"""

import posixpath
from collections.abc import Iterator

from dra_driver.cdi.runtimes import GROUPS_SINCE, reads
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, ok
from kubelet_plugin.doctor.runtime_config import CONTAINERD
from kubelet_plugin.doctor.seen import NodeSeen, RuntimeSeen

_NO_HOOK = Trouble(
    "none",
    Verdict.PROBLEM,
    "no hook program is available: {why}. Containers lack CUDA forward compatibility and the linker cache, and may"
    " create device nodes",
    "install NVIDIA container toolkit 1.18 or newer on the node, or use a plugin image that includes nvidia-cdi-hook",
)
_HOOK_OFF = Trouble(
    "off",
    Verdict.WARNING,
    "`kubeletPlugin.cdiHook` is `none`: containers lack CUDA forward compatibility and the linker cache, and may"
    " create device nodes",
    "remove the setting; the plugin then uses the hook program of the host, or its own if the host has none",
)
_HOOK_LACKS = Trouble(
    "old",
    Verdict.WARNING,
    "the hook program {program} {version} does not support {lacks}",
    "upgrade the NVIDIA container toolkit to 1.18 or newer, or use a plugin image that includes nvidia-cdi-hook",
)


def _hook(node: NodeSeen) -> Iterator[Diagnosis]:
    hook = node.hook
    if node.simulated:
        yield ok("the node is simulated: its containers need no hooks")
    elif hook.mode == "off":
        yield _HOOK_OFF.at()
    elif hook.program is None:
        yield _NO_HOOK.at(why=hook.problem or "none was found")
    elif hook.lacks:
        yield _HOOK_LACKS.at(program=hook.program, version=hook.version, lacks=", ".join(hook.lacks))
    else:
        yield ok(f"hook program {hook.program} {hook.version}")


HOOK = Check(
    "node-hook",
    "which hook program containers use, nvidia-cdi-hook or nvidia-ctk of the host or the plugin, and its features.",
    _hook,
    (_NO_HOOK, _HOOK_OFF, _HOOK_LACKS),
)

_DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")
"""Which containerd and CRI-O read when nothing is set."""

_CONFIG_BROKEN = Trouble("broken", Verdict.PROBLEM, "{why}", "correct the file, then restart {runtime}")
_CDI_OFF = Trouble(
    "cdi-off",
    Verdict.PROBLEM,
    "CDI is off: containers with GPUs do not start",
    "set `enable_cdi = true` in {file}, then: systemctl restart containerd",
)
_CDI_BY_DEFAULT = Trouble(
    "cdi-not-set",
    Verdict.WARNING,
    "enable_cdi is not set, and the version of containerd is {version}: CDI is on by default only in 2.0 and newer",
    'set `enable_cdi = true` under `[plugins."io.containerd.grpc.v1.cri"]` in {file}, then: systemctl restart'
    " containerd",
)
_OTHER_DIRS = Trouble(
    "other-folders",
    Verdict.PROBLEM,
    "reads CDI files from {dirs}, but the plugin writes them to {cdi_root}",
    "add {cdi_root} to `cdi_spec_dirs` and restart {runtime}; or set `kubeletPlugin.cdiRoot` to one of these folders",
)
_OLD_CDI = Trouble(
    "old-cdi",
    Verdict.WARNING,
    "{version} reads CDI files up to version {readable}, but device group IDs need {groups}: programs that switch"
    " to another user inside the container cannot open /dev/dri",
    "upgrade to containerd 1.7.16 or CRI-O 1.30, or newer",
)
_NVIDIA_DEFAULT = Trouble(
    "nvidia-by-default",
    Verdict.WARNING,
    "the default runtime is {default}: images with NVIDIA_VISIBLE_DEVICES=all get GPUs without a claim",
    "set runc (or crun) as the default runtime, and select NVIDIA's runtime with a RuntimeClass where pods need it",
)
_NO_RUNTIME = Trouble(
    "not-found",
    Verdict.UNKNOWN,
    "found no configuration and no socket of containerd or CRI-O",
    "check in your runtime's documentation that it supports the Container Device Interface and reads {cdi_root}",
)


def _runtime(node: NodeSeen) -> Iterator[Diagnosis]:
    if node.simulated:
        yield ok("the node is simulated, and so is its container runtime")
        return
    if not node.runtimes:
        yield _NO_RUNTIME.at(cdi_root=node.cdi_root)
    for runtime in node.runtimes:
        findings = list(_runtime_troubles(runtime, node.cdi_root))
        yield from findings or [
            ok(f"{runtime.name}{f' {runtime.version}' if runtime.version else ''} reads {node.cdi_root}")
        ]


def _runtime_troubles(runtime_seen: RuntimeSeen, cdi_root: str) -> Iterator[Diagnosis]:
    about = f"{runtime_seen.name} ({runtime_seen.file})" if runtime_seen.file else runtime_seen.name
    file = runtime_seen.file or "/etc/containerd/config.toml"
    if runtime_seen.problem is not None:
        yield _CONFIG_BROKEN.at(about, why=runtime_seen.problem, runtime=runtime_seen.name)
        return
    if runtime_seen.cdi is False:
        yield _CDI_OFF.at(about, file=file)
    elif runtime_seen.name == CONTAINERD and runtime_seen.cdi is None and not _has_cdi_by_default(runtime_seen.version):
        yield _CDI_BY_DEFAULT.at(about, version=runtime_seen.version or "unknown", file=file)
    dirs = runtime_seen.spec_dirs or _DEFAULT_DIRS
    if _canonical(cdi_root) not in map(_canonical, dirs):
        yield _OTHER_DIRS.at(about, dirs=", ".join(dirs), cdi_root=cdi_root, runtime=runtime_seen.name)
    if runtime_seen.readable_cdi is not None and not reads(runtime_seen.readable_cdi, GROUPS_SINCE):
        yield _OLD_CDI.at(about, version=runtime_seen.version, readable=runtime_seen.readable_cdi, groups=GROUPS_SINCE)
    if runtime_seen.default_runtime is not None and runtime_seen.default_runtime.startswith("nvidia"):
        yield _NVIDIA_DEFAULT.at(about, default=runtime_seen.default_runtime)


def _has_cdi_by_default(version: str | None) -> bool:
    major = (version or "").partition(".")[0]
    return major.isdecimal() and int(major) >= 2


def _canonical(folder: str) -> str:
    """/var/run is /run on every distribution with systemd."""
    path = posixpath.normpath(folder)
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


RUNTIME = Check(
    "node-runtime",
    "the CDI settings of containerd or CRI-O.",
    _runtime,
    (_CONFIG_BROKEN, _CDI_OFF, _CDI_BY_DEFAULT, _OTHER_DIRS, _OLD_CDI, _NVIDIA_DEFAULT, _NO_RUNTIME),
)
