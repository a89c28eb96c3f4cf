"""Every check of a node is quiet about one that is well, and says what is wrong with one that is not."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.rows import rows

from dra_driver.api.inventory import Problem
from dra_driver.doctor.findings import Unread, Verdict, examined
from dra_driver.errors import InvalidInput
from kubelet_plugin.doctor.checks import CHECKS
from kubelet_plugin.doctor.part import NODE
from kubelet_plugin.doctor.seen import (
    CRIO,
    CdiFileSeen,
    EntrySeen,
    GpuSeen,
    HookSeen,
    JournalSeen,
    NodeSeen,
    RuntimeSeen,
    SocketSeen,
    XidSeen,
    imports,
    node_seen,
    runtime_seen,
)

CLAIM = EntrySeen("claim team-a/train", "uid-train", "boot-2", prepared=True, releasing=False)
GPU = GpuSeen("gpu-0a1b2c3d", "GPU-0a1b2c3d", "0000:1b:00.0", switched=True, fabric_state="Completed")
CONTAINERD = RuntimeSeen("containerd", "/etc/containerd/config.toml", "2.1.4", None, None, "runc")
WELL = NodeSeen(
    node="gpu-1",
    time=datetime(2026, 3, 1, tzinfo=UTC),
    boot_id="boot-2",
    driver="gpu.nvidia.com",
    simulated=False,
    root=True,
    kernel_module="580.126.09",
    nouveau=False,
    driver_version="580.126.09",
    library_version="580.126.09",
    driver_root="/",
    driver_problem=None,
    container_problem=None,
    gpus=(GPU,),
    problems=(),
    hook=HookSeen("host", "/usr/bin/nvidia-cdi-hook", "1.19.1"),
    persistenced=True,
    fabric_manager=True,
    mig_manager=False,
    imex_daemons=(),
    imex_unit=False,
    runtimes=(CONTAINERD,),
    cdi_root="/var/run/cdi",
    cdi_root_there=True,
    cdi_files=(CdiFileSeen("k8s.gpu.nvidia.com-claim_uid-train.json", "uid-train"),),
    journal=JournalSeen((CLAIM,)),
    registry="/var/lib/kubelet/plugins_registry",
    registry_there=True,
    sockets=(SocketSeen("/p/dra.sock", True), SocketSeen("/r/gpu.nvidia.com-reg.sock", True)),
    mps_left=(),
    xids=(XidSeen("0000:1b:00.0", 31, 2),),
    kernel_log=None,
    state_dir="/var/lib/kubelet/plugins/gpu.nvidia.com",
    free_bytes=10**9,
)


@dataclass(frozen=True)
class Case:
    code: str
    fields: dict[str, Any]


def runtime(**fields: Any) -> dict[str, Any]:
    return {"runtimes": (replace(CONTAINERD, **fields),)}


def gpu(**fields: Any) -> dict[str, Any]:
    return {"gpus": (replace(GPU, **fields),)}


CASES = [
    Case("node-rights/not-root", {"root": False}),
    Case("node-driver/no-driver", {"driver_problem": "DriverNotLoaded: no", "driver_version": None, "gpus": ()}),
    Case("node-driver/nouveau", {"nouveau": True}),
    Case("node-driver/versions", {"kernel_module": "570.86.15"}),
    Case("node-files/incomplete", {"container_problem": "/dev/nvidia-uvm is missing"}),
    Case("node-files/gpu", gpu(missing="its device node /dev/nvidia0 is missing")),
    Case("node-gpus/not-offered", {"problems": (Problem(subject="GPU 1", reason="GpuIsLost", message="gone"),)}),
    Case("node-hook/none", {"hook": HookSeen("none", problem="the host has none")}),
    Case("node-hook/off", {"hook": HookSeen("off")}),
    Case("node-hook/old", {"hook": HookSeen("host", "/usr/bin/nvidia-ctk", "1.14.6", ("enable-cuda-compat",))}),
    Case("node-persistence/off", {"persistenced": False}),
    Case("node-fabric/not-registered", gpu(fabric_state="InProgress")),
    Case("node-fabric/not-registered", gpu(fabric_status=3)),
    Case("node-fabric/no-fabric-manager", {**gpu(fabric_state=None), "fabric_manager": False}),
    Case("node-mig-manager/enabled", {"mig_manager": True}),
    Case("node-imex/runs", {"imex_daemons": ("nvidia-imex (812, nvidia-imex.service)",), "imex_unit": True}),
    Case("node-imex/enabled", {"imex_unit": True}),
    Case("node-runtime/broken", runtime(problem="is not valid TOML")),
    Case("node-runtime/cdi-off", runtime(cdi=False)),
    Case("node-runtime/cdi-not-set", runtime(version="1.7.28")),
    Case("node-runtime/cdi-not-set", runtime(version=None)),
    Case("node-runtime/other-folders", runtime(spec_dirs=("/etc/cdi",))),
    Case("node-runtime/old-cdi", runtime(version="1.7.15", cdi=True)),
    Case("node-runtime/old-cdi", {"runtimes": (RuntimeSeen("cri-o", "/etc/crio/crio.conf", "1.29.3", True),)}),
    Case("node-runtime/nvidia-by-default", runtime(default_runtime="nvidia")),
    Case("node-runtime/not-found", {"runtimes": ()}),
    Case("node-cdi-files/no-folder", {"cdi_root_there": False, "cdi_files": ()}),
    Case("node-cdi-files/invalid", {"cdi_files": (CdiFileSeen("a", "uid-train", "is invalid: kind"),)}),
    Case("node-cdi-files/orphan", {"cdi_files": (*WELL.cdi_files, CdiFileSeen("b", "uid-gone"))}),
    Case("node-cdi-files/missing", {"cdi_files": ()}),
    Case("node-journal/unreadable", {"journal": JournalSeen(problem="was written by a newer release")}),
    Case("node-journal/damaged", {"journal": JournalSeen((CLAIM,), damage=("checksum",))}),
    Case("node-journal/put-aside", {"journal": JournalSeen((CLAIM,), put_aside=True)}),
    Case("node-journal/earlier-boot", {"journal": JournalSeen((replace(CLAIM, boot_id="boot-1"),))}),
    Case("node-sockets/no-registry", {"registry_there": False}),
    Case("node-sockets/no-socket", {"sockets": ()}),
    Case("node-sockets/no-socket", {"sockets": WELL.sockets[:1]}),
    Case("node-sockets/nobody-listens", {"sockets": (WELL.sockets[0], SocketSeen("/r/reg.sock", False))}),
    Case("node-xids/xid", {"xids": (XidSeen("0000:1b:00.0", 79, 1),)}),
    Case("node-mps/left-over", {"mps_left": ("c-uid-gone",)}),
    Case("node-disk/full", {"free_bytes": 2**20}),
    Case("node-disk/no-folder", {"free_bytes": None}),
]


def troubles(seen: NodeSeen) -> set[str]:
    return {
        f"{diagnosis.check}/{diagnosis.trouble}"
        for diagnosis in examined(CHECKS, seen)
        if diagnosis.verdict is not Verdict.OK
    }


def test_a_node_that_is_well_is_well_by_every_check() -> None:
    diagnoses = examined(CHECKS, WELL)
    assert [diagnosis for diagnosis in diagnoses if diagnosis.verdict is not Verdict.OK] == []
    assert [named.check for named in diagnoses] == [named.name for named in CHECKS]


@rows("case", CASES)
def test_what_is_wrong_is_found_and_nothing_else(case: Case) -> None:
    seen = replace(WELL, **case.fields)
    assert troubles(seen) == {case.code}
    (diagnosis,) = [diagnosis for diagnosis in examined(CHECKS, seen) if diagnosis.verdict is not Verdict.OK]
    assert diagnosis.fix
    assert "{" not in diagnosis.sentence


def test_every_trouble_is_provoked_by_a_case() -> None:
    assert {case.code for case in CASES} == {
        f"{check.name}/{trouble.code}" for check in CHECKS for trouble in check.troubles
    }


@rows(
    "fields",
    [
        runtime(version="1.7.28", cdi=True),
        runtime(spec_dirs=("/run/cdi/",)),
        {"sockets": (SocketSeen("/p/dra-old.sock", False), *WELL.sockets)},
        {"journal": JournalSeen((replace(CLAIM, releasing=True),)), "cdi_files": ()},
        {**gpu(switched=False, fabric_state=None), "fabric_manager": False},
        {"simulated": True, "runtimes": ()},
        {"hook": HookSeen("shipped", "/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook", "1.20.0")},
    ],
)
def test_what_looks_odd_and_is_fine_is_not_told(fields: dict[str, Any]) -> None:
    assert troubles(replace(WELL, **fields)) == set()


def test_without_the_kernels_log_xids_are_not_known() -> None:
    seen = replace(WELL, kernel_log=Unread("the kernel log", "Operation not permitted", "read /dev/kmsg"))
    (diagnosis,) = [diagnosis for diagnosis in examined(CHECKS, seen) if diagnosis.check == "node-xids"]
    assert (diagnosis.verdict, diagnosis.sentence) == (Verdict.UNKNOWN, "you may not read /dev/kmsg")


def test_what_was_seen_survives_being_written() -> None:
    """With all that can be odd at once."""
    odd = replace(WELL, **{name: value for case in CASES for name, value in case.fields.items()})
    for seen in (WELL, odd):
        assert node_seen(json.loads(json.dumps(seen.to_wire()))) == seen
    assert NODE.findings(json.loads(json.dumps(WELL.to_wire()))) == examined(CHECKS, WELL)


def test_what_another_program_has_written_is_refused() -> None:
    with pytest.raises(InvalidInput, match="what was seen of a node"):
        node_seen({"node": "gpu-1"})


# -- configurations of container runtimes


def containerd(*texts: str, version: str | None = None) -> RuntimeSeen:
    files = {f"/etc/containerd/{number}.toml": text for number, text in enumerate(texts)}
    return runtime_seen("containerd", files, version)


def test_containerd_2_and_1_have_sections_of_their_own() -> None:
    new = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\ncdi_spec_dirs = ['/a']\n"
    assert containerd(new) == RuntimeSeen("containerd", "/etc/containerd/0.toml", "2", False, ("/a",), None)
    old = (
        'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n'
        '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'
    )
    assert containerd(old) == RuntimeSeen("containerd", "/etc/containerd/0.toml", None, True, None, "nvidia")


def test_imported_files_win() -> None:
    main = "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n[plugins.'io.containerd.cri.v1.runtime']\n"
    assert imports(main) == ("/etc/containerd/conf.d/*.toml",)
    drop_in = "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n"
    assert containerd(main + "enable_cdi = false\ncdi_spec_dirs = ['/a']\n", drop_in).cdi is True
    assert containerd(main + "cdi_spec_dirs = ['/a']\n", drop_in).spec_dirs == ("/a",)


@pytest.mark.parametrize("text", ["", "plugins = 3", "version = 3", "[plugins]\n'io.containerd.cri.v1.runtime' = 1"])
def test_whatever_is_not_set_keeps_its_default(text: str) -> None:
    seen = containerd(text)
    assert (seen.cdi, seen.spec_dirs, seen.default_runtime, seen.problem) == (None, None, None, None)


def test_what_is_no_toml_is_a_problem_and_no_crash() -> None:
    assert "not valid TOML" in (containerd("version = ").problem or "")
    assert "not valid TOML" in (runtime_seen(CRIO, {"/etc/crio/crio.conf": "["}, None).problem or "")
    assert imports("[") == ()


def test_crio_always_has_cdi() -> None:
    text = "[crio.runtime]\ncdi_spec_dirs = ['/etc/cdi', '/run/cdi']\ndefault_runtime = 'crun'\n"
    seen = runtime_seen(CRIO, {"/etc/crio/crio.conf": text}, "1.34.0")
    assert seen == RuntimeSeen("cri-o", "/etc/crio/crio.conf", "1.34.0", True, ("/etc/cdi", "/run/cdi"), "crun")
