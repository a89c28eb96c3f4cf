"""The checks of what makes a node's containers: the hook program, and the container runtime, which must hand out what
CDI files say, from where they are. Pure.

`kubelet_plugin.doctor.checks` has them among the others; `kubelet_plugin.doctor.runtime_config` reads what is
configured.
"""

import posixpath
from collections.abc import Iterator

from dra_driver.cdi.runtimes import GROUPS_SINCE, reads
from dra_driver.doctor.findings import Check, Finding, Trouble, Verdict, ok
from kubelet_plugin.doctor.runtime_config import CONTAINERD
from kubelet_plugin.doctor.seen import NodeSeen, RuntimeSeen

_NO_HOOK = Trouble(
    "none",
    Verdict.PROBLEM,
    "no program finishes containers: {why}. They lack CUDA forward compatibility and the linker's cache, and may make"
    " device nodes",
    "install the NVIDIA container toolkit 1.18 or newer on the node, or use an image of the plugin that has"
    " nvidia-cdi-hook",
)
_HOOK_OFF = Trouble(
    "off",
    Verdict.WARNING,
    "`kubeletPlugin.cdiHook` is `none`: containers lack CUDA forward compatibility and the linker's cache, and may make"
    " device nodes",
    "take the value away, so that a program is looked for, and the plugin's own is used where the host has none",
)
_HOOK_LACKS = Trouble(
    "old",
    Verdict.WARNING,
    "containers are finished by {program} {version}, which lacks {lacks}",
    "upgrade the NVIDIA container toolkit to 1.18 or newer, or use an image of the plugin that has nvidia-cdi-hook",
)


def _hook(node: NodeSeen) -> Iterator[Finding]:
    hook = node.hook
    if node.simulated:
        yield ok("the node is simulated: its containers need no hooks")
    elif hook.mode == "off":
        yield _HOOK_OFF.at()
    elif hook.program is None:
        yield _NO_HOOK.at(why=hook.problem or "there is none")
    elif hook.lacks:
        yield _HOOK_LACKS.at(program=hook.program, version=hook.version, lacks=", ".join(hook.lacks))
    else:
        yield ok(f"containers are finished by {hook.program} {hook.version}")


HOOK = Check(
    "node-hook",
    "which nvidia-cdi-hook or nvidia-ctk finishes containers, the host's or the plugin's, and what it can.",
    _hook,
    (_NO_HOOK, _HOOK_OFF, _HOOK_LACKS),
)

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
_OLD_CDI = Trouble(
    "old-cdi",
    Verdict.WARNING,
    "{version} reads CDI files up to {readable}, and groups of device nodes need {groups}: programs that become another"
    " user in their container cannot open /dev/dri",
    "upgrade to containerd 1.7.16 or CRI-O 1.30, or newer",
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
    if one.readable_cdi is not None and not reads(one.readable_cdi, GROUPS_SINCE):
        yield _OLD_CDI.at(about, version=one.version, readable=one.readable_cdi, groups=GROUPS_SINCE)
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
    (_CONFIG_BROKEN, _CDI_OFF, _CDI_BY_DEFAULT, _OTHER_DIRS, _OLD_CDI, _NVIDIA_DEFAULT, _NO_RUNTIME),
)
