"""What is seen of a machine: a simulated host, with the plugin's folders filled as the plugin fills them."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.dractl import run
from support.mishaps import unload_driver

from dra_driver.cli.doctor import report_of_bundle
from dra_driver.doctor.findings import Diagnosis, Verdict
from dra_driver.doctor.node_part import NodeFile, NodePlaces, node_part
from dra_driver.names import GPU_DRIVER, ClaimRef
from kubelet_plugin.doctor.looking import LocalMachine
from kubelet_plugin.doctor.part import NODE
from kubelet_plugin.doctor.seen import NodeSeen, XidSeen
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.lifecycle import Entry
from kubelet_plugin.prepare.store import JOURNAL, JournalFile
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.state import Layout

UID = "11111111-0000-4000-8000-000000000001"
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": f"k8s.{GPU_DRIVER}/claim",
    "devices": [{"name": "gpu", "containerEdits": {"env": ["A=b"]}}],
}
XID = "3,1,2,-;NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=python, and the password=hunter2x9 of a program\n"


class Node:
    """A simulated host, and the places on it. Sockets are short paths."""

    def __init__(self, folder: Path, profile: str = "t4") -> None:
        self.host: SimulatedHost = create_host(folder / "host", profile)
        self.places = NodePlaces(
            self.host.root, folder / "kubelet", folder / "cdi", simulate=profile, driver=GPU_DRIVER
        )
        self.places.cdi_root.mkdir()
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        self.places.state_dir.mkdir(parents=True)
        self.log("")

    def log(self, text: str) -> None:
        self.host.root.joinpath("dev/kmsg").write_text(text)

    @property
    def boot_id(self) -> str:
        return self.host.root.joinpath("proc/sys/kernel/random/boot_id").read_text().strip()

    def prepare(self, uid: str = UID, *, boot_id: str | None = None, content: str | None = None) -> None:
        """As the plugin leaves a prepared claim."""
        claim = ClaimRef("team-a", "train", uid)
        entry = Entry(claim, boot_id or self.boot_id, (), "0" * 64)
        JournalFile(self.places.state_dir).transact(
            [lambda journal: replace(journal, held={**journal.held, uid: entry})]
        )
        CdiFiles(self.places.cdi_root, GPU_DRIVER).write(uid, (content or json.dumps(SPEC)).encode())

    def listen(self) -> list[socket.socket]:
        paths = (
            self.places.state_dir / "dra.sock",
            self.places.kubelet_root / "plugins_registry" / f"{GPU_DRIVER}-reg.sock",
        )
        opened = []
        for path in paths:
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(path))
            server.listen()
            opened.append(server)
        return opened

    def look(self) -> NodeSeen:
        return LocalMachine(self.places).look()

    def troubles(self) -> list[Diagnosis]:
        return [diagnosis for diagnosis in NODE.findings(NODE.look(self.places)) if diagnosis.verdict is not Verdict.OK]

    def codes(self) -> set[str]:
        return {f"{bad.check}/{bad.trouble}" for bad in self.troubles() if bad.check != "node-rights"}

    @property
    def arguments(self) -> list[str]:
        places = self.places
        return [
            *("--node", "--host-root", str(places.host_root), "--kubelet-root", str(places.kubelet_root)),
            *("--cdi-root", str(places.cdi_root), "--simulate", str(places.simulate)),
        ]


@pytest.fixture
def node() -> Iterator[Node]:
    # A folder of pytest would be too long for sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Node(Path(folder))


@pytest.fixture
def serving(node: Node) -> Iterator[Node]:
    """With a plugin that listens, and a claim that it has prepared."""
    node.prepare()
    sockets = node.listen()
    yield node
    for listening in sockets:
        listening.close()


def test_a_machine_with_a_plugin_that_serves_is_well(serving: Node) -> None:
    assert serving.codes() == set()
    seen = serving.look()
    assert (len(seen.gpus), seen.driver_version, seen.kernel_module) == (4, "550.163.01", "550.163.01")
    assert [(entry.claim, entry.prepared, entry.boot_id) for entry in seen.journal.entries] == [
        ("claim team-a/train", True, seen.boot_id)
    ]
    assert [file.claim_uid for file in seen.cdi_files] == [UID]
    assert [seen_socket.answers for seen_socket in seen.sockets] == [True, True]
    assert seen.persistenced


@pytest.mark.parametrize("layout", ["root", "operator"])
def test_the_drivers_daemons_are_looked_for_where_the_driver_is(tmp_path: Path, layout: Layout) -> None:
    """A driver container has its daemons' sockets in its own /run."""
    host = create_host(tmp_path, "dgx-a100-40", layout=layout)
    machine = LocalMachine(NodePlaces(host.root, simulate="dgx-a100-40"))
    seen = machine.look()
    assert (seen.persistenced, seen.fabric_manager) == (True, True)
    for name in ("nvidia-persistenced", "nvidia-fabricmanager"):
        host.path(host.driver_root / "run" / name / "socket").unlink()
    seen = machine.look()
    assert (seen.persistenced, seen.fabric_manager) == (False, False)


def test_what_is_broken_on_it_is_seen(serving: Node) -> None:
    for path in serving.host.root.joinpath("dev").glob("nvidia-uvm*"):
        path.unlink()
    serving.host.root.joinpath("run/nvidia-persistenced/socket").unlink()
    serving.host.lose_gpu(1)
    wanted_by = serving.host.root / "etc/systemd/system/multi-user.target.wants"
    wanted_by.mkdir(parents=True)
    (wanted_by / "nvidia-mig-manager.service").touch()
    serving.host.root.joinpath("sys/module/nouveau").mkdir(parents=True)
    serving.prepare("22222222-0000-4000-8000-000000000002", content='{"kind": "?"}')
    serving.prepare("33333333-0000-4000-8000-000000000003", boot_id="the-boot-before")
    CdiFiles(serving.places.cdi_root, GPU_DRIVER).write("gone", json.dumps(SPEC).encode())
    serving.places.state_dir.joinpath("mps", "of-nobody").mkdir(parents=True)
    serving.log(XID.format(79) + XID.format(13))
    assert serving.codes() == {
        "node-driver/nouveau",
        "node-files/incomplete",
        "node-gpus/not-offered",
        "node-persistence/off",
        "node-mig-manager/enabled",
        "node-cdi-files/invalid",
        "node-cdi-files/orphan",
        "node-journal/earlier-boot",
        "node-xids/xid",
        "node-mps/left-over",
    }
    assert serving.look().xids == (XidSeen("0000:3b:00.0", 13, 1), XidSeen("0000:3b:00.0", 79, 1))


def test_a_gpu_in_a_claim_of_another_driver_is_told(serving: Node) -> None:
    (serving.places.cdi_root / f"k8s.{GPU_DRIVER}-claim_theirs.yaml").write_text("- path: /dev/nvidia0\n")
    (diagnosis,) = [diagnosis for diagnosis in serving.troubles() if diagnosis.check == "node-files"]
    assert (
        diagnosis.trouble == "gpu" and "is in claim UID theirs of another driver, gpu.nvidia.com" in diagnosis.sentence
    )


def test_without_driver_plugin_and_folders_it_is_all_said_at_once() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        unload_driver(create_host(Path(folder) / "host", "t4"))
        places = NodePlaces(Path(folder) / "host", Path(folder) / "kubelet", Path(folder) / "cdi", simulate="t4")
        codes = {
            f"{diagnosis.check}/{diagnosis.trouble}"
            for diagnosis in NODE.findings(NODE.look(places))
            if diagnosis.trouble
        }
    assert codes - {"node-rights/not-root"} == {
        "node-driver/no-driver",
        "node-cdi-files/no-folder",
        "node-sockets/no-registry",
        "node-disk/no-folder",
    }


def test_without_the_rights_to_kubelets_folder_nothing_is_said_of_what_is_in_it(tmp_path: Path) -> None:
    """And nobody is advised to move a journal away that is only not readable for him."""
    places = NodePlaces(kubelet_root=tmp_path / "kubelet", cdi_root=tmp_path / "cdi")
    places.kubelet_root.mkdir()
    NODE.look(places)  # whatever has to be imported is
    with without_rights(places.kubelet_root):
        seen = NODE.look(places)
    verdicts = {diagnosis.check: diagnosis.verdict for diagnosis in NODE.findings(seen)}
    checks = ("node-rights", "node-journal", "node-sockets", "node-mps", "node-disk")
    assert {verdicts[name] for name in checks} == {Verdict.UNKNOWN}


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """As another user than root, to whom `folder` is closed."""
    user = os.geteuid()
    folder.chmod(0)
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o700)


def test_only_a_simulated_kernel_may_be_without_a_log(serving: Node) -> None:
    serving.host.root.joinpath("dev/kmsg").unlink()
    assert serving.codes() == set()
    real = LocalMachine(replace(serving.places, simulate=None))
    with pytest.raises(OSError, match="No such file"):
        list(real.kernel_lines())


def test_a_journal_that_lost_lines_is_damaged_and_what_is_left_is_seen(serving: Node) -> None:
    path = serving.places.state_dir / JOURNAL
    path.write_bytes(path.read_bytes() + b"something else\n")
    assert serving.codes() == {"node-journal/damaged"}
    assert len(serving.look().journal.entries) == 1


def test_a_socket_at_which_nobody_listens_is_told_from_one_that_serves(node: Node) -> None:
    for listening in node.listen():
        listening.close()
    assert node.codes() == {"node-sockets/nobody-listens"}


def test_containerd_and_its_imports_are_read_where_the_host_has_them(node: Node) -> None:
    folder = node.host.root / "etc/containerd"
    (folder / "conf.d").mkdir(parents=True)
    (folder / "config.toml").write_text("version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n")
    (folder / "conf.d" / "cdi.toml").write_text('[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n')
    (folder / "conf.d" / "cdi.bak").write_text('[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n')
    crio = node.host.root / "etc/crio/crio.conf.d"
    crio.mkdir(parents=True)
    (crio / "10.conf").write_text("[crio.runtime]\ncdi_spec_dirs = ['/etc/cdi']\n")
    containerd, other = node.look().runtimes
    assert (containerd.file, containerd.cdi) == ("/etc/containerd/config.toml", True)
    assert (other.name, other.spec_dirs) == ("cri-o", ("/etc/cdi",))


def test_a_runtime_that_only_has_a_socket_has_its_defaults(node: Node) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        path = Path(short) / "s"
        with closing(socket.socket(socket.AF_UNIX)) as server:
            server.bind(str(path))
            node.host.root.joinpath("run/containerd").mkdir()
            path.rename(node.host.root / "run/containerd/containerd.sock")
    (containerd,) = node.look().runtimes
    assert (containerd.name, containerd.file, containerd.cdi) == ("containerd", "", None)


def test_what_a_bundle_has_of_it_is_inventory_journal_cdi_files_the_drivers_lines_and_a_record(serving: Node) -> None:
    serving.log("6,1,2,-;something else\n" + XID.format(79))
    files = {file.name: file for file in node_part().files(serving.places)}
    cdi = f"node/cdi/k8s.{GPU_DRIVER}-claim_{UID}.json"
    assert set(files) == {"node/inventory.json", f"node/{JOURNAL}", cdi, "node/kernel.txt", "node/record.tar.gz"}
    assert all(file.problem is None for file in files.values())
    assert len(json.loads("".join(files["node/inventory.json"].lines))["spec"]["gpus"]) == 4
    assert json.loads("".join(files[cdi].lines)) == SPEC
    assert len(files["node/kernel.txt"].lines) == 1
    assert (files["node/record.tar.gz"].content or b"")[:2] == b"\x1f\x8b"
    serving.places.state_dir.joinpath(JOURNAL).unlink()
    (journal,) = [file for file in NODE.files(serving.places) if file.name == f"node/{JOURNAL}"]
    assert journal == NodeFile(f"node/{JOURNAL}", problem="No such file or directory")


def test_the_command_says_it_and_a_bundle_says_the_same_later(serving: Node, tmp_path: Path) -> None:
    serving.log(XID.format(79))
    answer = run("doctor", *serving.arguments, "-o", "json")
    assert answer.exit_code == 0, answer.output
    assert run("doctor", *serving.arguments, "--strict").exit_code == 1
    file = tmp_path / "bundle.tar.gz"
    assert run("bundle", *serving.arguments, "--archive", str(file), "--anonymize").exit_code == 0
    stored = report_of_bundle(file)
    verdicts = [
        (finding["check"], finding["verdict"], finding["trouble"]) for finding in json.loads(answer.stdout)["findings"]
    ]
    assert [(finding.check, finding.verdict.value, finding.trouble or None) for finding in stored.findings] == verdicts
    assert "names are anonymized" in stored.notes
