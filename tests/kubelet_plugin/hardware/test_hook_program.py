import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import toolkit
from support.driver_tree import DriverTree
from support.rows import rows

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware import hook_program as hooks
from kubelet_plugin.hardware import host_programs
from kubelet_plugin.hardware.hook_program import (
    HookChoice,
    HookMode,
    HookPrograms,
    InstalledHook,
    ShippedHook,
    hook_program,
)
from kubelet_plugin.hardware.host_programs import ProgramOutput, asking
from kubelet_plugin.hardware.sysfs import Seen

OLDEST = {"create-symlinks", "update-ldcache"}
COMPAT = {*OLDEST, "enable-cuda-compat"}
EVERY = {*COMPAT, "disable-device-node-modification"}
NEWEST = {*EVERY, "update-application-profile"}

RELEASES = {
    "1.12.1/nvidia-ctk": OLDEST,
    "1.14.6/nvidia-ctk": OLDEST,
    "1.15.0/nvidia-ctk": OLDEST,
    "1.16.2/nvidia-cdi-hook": OLDEST,
    "1.16.2/nvidia-ctk": OLDEST,
    "1.17.4/nvidia-cdi-hook": OLDEST,
    "1.17.4/nvidia-ctk": OLDEST,
    "1.17.8/nvidia-cdi-hook": COMPAT,
    "1.17.8/nvidia-ctk": COMPAT,
    "1.18.2/nvidia-cdi-hook": EVERY,
    "1.18.2/nvidia-ctk": EVERY,
    "1.19.1/nvidia-cdi-hook": EVERY,
    "1.19.1/nvidia-ctk": EVERY,
    "1.20.0/nvidia-cdi-hook": NEWEST,
    "1.20.0/nvidia-ctk": NEWEST,
}
WITHOUT_LDCONFIG_PATH = ("1.11", "1.12", "1.14")


# What a program can do


def test_a_program_that_vanishes_while_it_is_looked_at_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is being replaced."""
    monkeypatch.setattr(HookPrograms, "_file", lambda *_: tmp_path / "gone")
    choice = HookPrograms(DriverTree(tmp_path).host).find(Seen())
    assert choice.mode is HookMode.NONE
    assert "cannot be read: No such file" in (choice.problem or "")


@rows("name", RELEASES)
def test_each_release_is_used_for_what_it_has(name: str) -> None:
    release, program = name.split("/")
    hook = hook_program(f"/usr/bin/{program}", "/sbin/ldconfig", toolkit.recorded_ask(release, program))
    assert hook.version == release
    assert hook.sub_commands.keys() == RELEASES[name]
    assert hook.arguments == ((program, "hook") if program == "nvidia-ctk" else (program,))
    assert hook.places_libraries
    has_flag = "--ldconfig-path" in hook.sub_commands["update-ldcache"]
    assert has_flag is not release.startswith(WITHOUT_LDCONFIG_PATH)


def test_every_release_that_was_recorded_is_looked_at() -> None:
    assert toolkit.recorded().keys() == {"1.11.0/nvidia-ctk", *RELEASES}


def test_a_release_whose_links_are_written_otherwise_is_not_used() -> None:
    with pytest.raises(NodeNotReady, match=r"is of release 1\.11"):
        hook_program("/usr/bin/nvidia-ctk", "/sbin/ldconfig", toolkit.recorded_ask("1.11.0", "nvidia-ctk"))


@toolkit.NEEDED
@pytest.mark.parametrize("path", toolkit.programs() or [Path()], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_record_is_what_the_programs_answer(path: Path) -> None:
    recorded = toolkit.recorded()[f"{path.parent.name}/{path.name}"]
    assert toolkit.answers_of(path) == {question: list(answer) for question, answer in recorded.items()}


def test_a_release_that_runs_a_fixed_ldconfig_makes_no_cache_where_the_host_has_another() -> None:
    hook = hook_program("/usr/bin/nvidia-ctk", "/usr/sbin/ldconfig", toolkit.recorded_ask("1.14.6", "nvidia-ctk"))
    assert hook.sub_commands.keys() == {"create-symlinks"}
    assert not hook.places_libraries
    newer = hook_program("/usr/bin/nvidia-ctk", "/usr/sbin/ldconfig", toolkit.recorded_ask("1.15.0", "nvidia-ctk"))
    assert newer.places_libraries


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"--version": ProgramOutput(1, "no such library\n")}, "ends with status 1 and says no such library"),
        ({"--help": ProgramOutput(127, "")}, "ends with status 127 and says nothing"),
        ({"--help": ProgramOutput(0, "hello\n")}, "lists none of the hooks"),
        ({"update-ldcache --help": ProgramOutput(3, "")}, "update-ldcache --help` ends with status 3"),
    ],
)
def test_a_program_that_does_not_say_what_it_can_is_not_used(changed: dict[str, ProgramOutput], why: str) -> None:
    recorded = toolkit.recorded_ask("1.18.2", "nvidia-cdi-hook")

    def ask(words: Sequence[str]) -> ProgramOutput:
        return changed.get(" ".join(words[1:])) or recorded(words)

    with pytest.raises(NodeNotReady, match=why):
        hook_program("/usr/bin/nvidia-cdi-hook", "/sbin/ldconfig", ask)


# Which program is used


class Host:
    """A host whose programs answer as releases did; `found` is what the plugin chooses there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = DriverTree(folder / "host")
        self.tree.file("/sbin/ldconfig")
        self.image = folder / "image" / "nvidia-cdi-hook"
        self.state_dir = folder / "host" / "state"
        self.releases: dict[str, str | NodeNotReady] = {}
        self.questions: list[tuple[str, ...]] = []
        monkeypatch.setattr(hooks, "asking", lambda root: self._answer)

    def has(self, path: str, release: str | NodeNotReady) -> None:
        self.tree.file(path, f"{release}")
        self.releases[path] = release

    def ships(self, release: str | NodeNotReady) -> ShippedHook:
        self.image.parent.mkdir(exist_ok=True)
        self.image.write_text(f"{release}")
        self.releases[self.shipped.path] = release
        return self.shipped

    @property
    def shipped(self) -> ShippedHook:
        return _Below(self.tree, self.state_dir, self.image)

    def choice(self, configured: str | None = None, *, shipped: ShippedHook | None = None) -> HookChoice:
        return self.programs(configured, shipped).find(Seen())

    def programs(self, configured: str | None = None, shipped: ShippedHook | None = None) -> HookPrograms:
        return HookPrograms(self.tree.host, configured, shipped)

    def _answer(self, words: Sequence[str]) -> ProgramOutput:
        self.questions.append(tuple(words))
        release = self.releases[words[0]]
        if isinstance(release, NodeNotReady):
            raise release
        return toolkit.recorded_ask(release, Path(words[0]).name)(words)


class _Below(ShippedHook):
    """The host's root is a folder here, so its paths are others than ours."""

    def __init__(self, tree: DriverTree, folder: Path, image_file: Path) -> None:
        super().__init__(folder, image_file)
        self._root = tree.root

    @property
    def path(self) -> str:
        return f"/{self._file.relative_to(self._root)}"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_a_program_of_the_host_that_can_all_goes_first(host: Host) -> None:
    host.has("/usr/local/nvidia/toolkit/nvidia-cdi-hook", "1.18.2")
    choice = host.choice(shipped=host.ships("1.20.0"))
    assert (choice.mode, choice.problem, choice.missing) == (HookMode.HOST, None, ())
    assert choice.program is not None
    assert choice.program.path == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    assert not host.state_dir.exists()


def test_a_host_without_a_program_gets_that_of_the_image(host: Host) -> None:
    choice = host.choice(shipped=host.ships("1.20.0"))
    assert (choice.mode, choice.missing) == (HookMode.SHIPPED, ())
    assert choice.program is not None
    assert choice.program.path == "/state/nvidia-cdi-hook"
    placed = host.state_dir / "nvidia-cdi-hook"
    assert placed.read_text() == "1.20.0"
    assert placed.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("old", ["1.14.6", "1.17.8"])
def test_a_program_that_lacks_a_hook_makes_way_for_that_of_the_image(host: Host, old: str) -> None:
    host.has("/usr/bin/nvidia-ctk", old)
    choice = host.choice(shipped=host.ships("1.20.0"))
    assert choice.mode is HookMode.SHIPPED
    assert "disable-device-node-modification" in (choice.problem or "")


def test_without_one_in_the_image_an_old_one_is_better_than_none(host: Host) -> None:
    host.has("/usr/bin/nvidia-ctk", "1.17.8")
    choice = host.choice(shipped=host.shipped)
    assert choice.mode is HookMode.HOST
    assert choice.missing == ("disable-device-node-modification",)
    assert "plugin's image" in (choice.problem or "")


def test_a_host_without_ldconfig_goes_without_the_linkers_cache_whatever_program_it_has(host: Host) -> None:
    host.tree.remove("/sbin/ldconfig")
    host.has("/usr/bin/nvidia-cdi-hook", "1.20.0")
    choice = host.choice(shipped=host.ships("1.20.0"))
    assert (choice.mode, choice.missing) == (HookMode.HOST, ("update-ldcache",))
    warning = hooks.hook_warning(choice)
    assert warning is not None
    assert "needs an ldconfig" in warning.message
    assert "install glibc's ldconfig" in warning.message


def test_a_program_that_cannot_be_asked_makes_way_too(host: Host) -> None:
    host.has("/usr/bin/nvidia-cdi-hook", NodeNotReady("cannot be started", about="program"))
    assert host.choice(shipped=host.ships("1.20.0")).mode is HookMode.SHIPPED
    alone = host.choice()
    assert (alone.mode, alone.program) == (HookMode.NONE, None)
    assert "cannot be started" in (alone.problem or "")


def test_a_host_and_an_image_without_a_program_leave_none_and_the_reason(host: Host) -> None:
    choice = host.choice(shipped=host.shipped)
    assert (choice.mode, choice.program) == (HookMode.NONE, None)
    assert "the host has no nvidia-cdi-hook" in (choice.problem or "")
    assert "build it with the project's Dockerfile" in (choice.problem or "")


def test_a_host_that_does_not_execute_what_the_plugin_puts_there_says_so(host: Host) -> None:
    choice = host.choice(shipped=host.ships(NodeNotReady("cannot be started on the host: Permission denied")))
    assert choice.mode is HookMode.NONE
    assert "Permission denied" in (choice.problem or "")


def test_the_configured_program_is_used_whatever_it_can(host: Host) -> None:
    host.has("/usr/bin/nvidia-cdi-hook", "1.20.0")
    host.has("/opt/nvidia-ctk", "1.14.6")
    choice = host.choice("/opt/nvidia-ctk", shipped=host.ships("1.20.0"))
    assert choice.mode is HookMode.HOST
    assert choice.program is not None
    assert choice.program.path == "/opt/nvidia-ctk"


def test_a_configured_program_that_is_missing_is_an_error(host: Host) -> None:
    with pytest.raises(NodeNotReady, match="does not exist on the host") as caught:
        host.choice("/opt/nvidia-cdi-hook", shipped=host.ships("1.20.0"))
    assert caught.value.about == "file /opt/nvidia-cdi-hook"


def test_the_settings_may_ask_for_none(host: Host) -> None:
    host.has("/usr/bin/nvidia-cdi-hook", "1.20.0")
    assert host.choice("none", shipped=host.ships("1.20.0")) == HookChoice(HookMode.OFF)
    assert host.questions == []


def test_a_program_is_asked_again_only_when_its_file_changed(host: Host) -> None:
    host.has("/usr/bin/nvidia-cdi-hook", "1.18.2")
    programs = host.programs()
    first = programs.find(Seen())
    asked = len(host.questions)
    assert programs.find(Seen()) == first
    assert len(host.questions) == asked
    host.tree.remove("/usr/bin/nvidia-cdi-hook")
    host.has("/usr/bin/nvidia-cdi-hook", "1.20.0")
    second = programs.find(Seen()).program
    assert second is not None
    assert second.version == "1.20.0"


def test_a_program_that_was_being_installed_is_asked_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU Operator's is a script that names another file."""
    host.has("/usr/bin/nvidia-cdi-hook", NodeNotReady("ends with status 127"))
    programs = host.programs()
    assert programs.find(Seen()).mode is HookMode.NONE
    host.releases["/usr/bin/nvidia-cdi-hook"] = "1.19.1"
    assert programs.find(Seen()).mode is HookMode.NONE
    monkeypatch.setattr(hooks, "_ASK_AGAIN_S", -1.0)
    assert programs.find(Seen()).mode is HookMode.HOST


def test_a_program_that_appears_or_goes_is_noticed(host: Host) -> None:
    host.tree.folder("/usr/bin")
    host.tree.settle()
    seen = Seen()
    assert host.programs().find(seen).mode is HookMode.NONE
    assert seen.unchanged()
    host.has("/usr/bin/nvidia-cdi-hook", "1.18.2")
    assert not seen.unchanged()


# The program of the image


def test_the_images_program_takes_the_place_of_another_release_at_once_and_once(host: Host) -> None:
    host.state_dir.mkdir()
    placed = host.state_dir / "nvidia-cdi-hook"
    placed.write_text("1.18.2")
    left = host.state_dir / ".nvidia-cdi-hook.0123456789ab.tmp"
    left.write_text("half")
    shipped = host.ships("1.20.0")
    shipped.install()
    assert placed.read_text() == "1.20.0"
    assert sorted(path.name for path in host.state_dir.iterdir()) == ["nvidia-cdi-hook"]
    # A newer plugin, which started since, decides.
    placed.write_text("1.21.0")
    shipped.install()
    assert placed.read_text() == "1.21.0"
    placed.unlink()
    shipped.install()
    assert placed.read_text() == "1.20.0"


def test_a_program_that_is_there_already_is_not_written_again(host: Host) -> None:
    placed = host.state_dir / "nvidia-cdi-hook"
    host.ships("1.20.0").install()
    written = placed.stat().st_ino
    host.ships("1.20.0").install()
    assert placed.stat().st_ino == written
    placed.chmod(0o644)
    host.ships("1.20.0").install()
    assert placed.stat().st_mode & 0o111


def test_who_only_looks_puts_nothing_on_the_host(host: Host) -> None:
    looking = InstalledHook(host.state_dir)
    with pytest.raises(NodeNotReady, match="is not there"):
        looking.install()
    host.ships("1.20.0").install()
    looking.install()


# Asking on the host


@pytest.fixture
def system(tmp_path: Path) -> DriverTree:
    """A host with a shell and its C library, and nothing else."""
    if os.geteuid() != 0:
        pytest.skip("only root may change its root")
    tree = DriverTree(tmp_path / "system")
    shell = Path("/bin/sh").resolve()
    linked = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    libraries = [word for line in linked.splitlines() for word in line.split() if word.startswith("/")]
    for file, place in ((shell, "/bin/sh"), *((Path(path), path) for path in libraries)):
        tree.path(place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tree.path(place))
        tree.path(place).chmod(0o755)
    return tree


WRAPPER = """\
PATH=/usr/local/nvidia/toolkit:$PATH \\
\t/usr/local/nvidia/toolkit/nvidia-cdi-hook.real \\
\t\t"$@"
"""


def test_the_gpu_operators_wrapper_is_asked_as_the_host_would_run_it(system: DriverTree) -> None:
    """A script of the host's shell that names another file of the host; nothing of it works in the plugin's container,
    which has no program to change the root, and no variables."""
    system.program("/usr/local/nvidia/toolkit/nvidia-cdi-hook", WRAPPER)
    system.program(
        "/usr/local/nvidia/toolkit/nvidia-cdi-hook.real", 'case "$1" in --version) echo "version 1.19.1: $PATH";; esac'
    )
    answer = asking(system.root)(["/usr/local/nvidia/toolkit/nvidia-cdi-hook", "--version"])
    assert answer == ProgramOutput(0, "version 1.19.1: /usr/local/nvidia/toolkit:/usr/sbin:/usr/bin:/sbin:/bin\n")


@toolkit.NEEDED
def test_a_real_program_behind_the_operators_wrapper_is_used(system: DriverTree) -> None:
    assert toolkit.FOLDER is not None
    system.program("/usr/local/nvidia/toolkit/nvidia-cdi-hook", WRAPPER)
    shutil.copy(
        toolkit.FOLDER / "1.19.1" / "nvidia-cdi-hook",
        system.path("/usr/local/nvidia/toolkit/nvidia-cdi-hook.real"),
    )
    system.file("/sbin/ldconfig")
    choice = HookPrograms(system.host).find(Seen())
    assert choice.mode is HookMode.HOST, choice.problem
    assert choice.program is not None
    assert choice.program.sub_commands.keys() == EVERY


@toolkit.NEEDED
def test_a_real_program_of_the_image_is_used_where_the_host_has_none(system: DriverTree, tmp_path: Path) -> None:
    assert toolkit.FOLDER is not None
    system.file("/sbin/ldconfig")
    shipped = _Below(system, system.path("/state"), toolkit.FOLDER / "1.20.0" / "nvidia-cdi-hook")
    choice = HookPrograms(system.host, shipped=shipped).find(Seen())
    assert (choice.mode, choice.missing) == (HookMode.SHIPPED, ()), choice.problem
    assert choice.program is not None
    assert (choice.program.path, choice.program.version) == ("/state/nvidia-cdi-hook", "1.20.0")


def test_what_cannot_be_started_says_why(system: DriverTree) -> None:
    ask = asking(system.root)
    with pytest.raises(NodeNotReady, match="No such file or directory"):
        ask(["/usr/bin/nvidia-cdi-hook", "--version"])
    system.file("/usr/bin/nvidia-cdi-hook", "not executable")
    with pytest.raises(NodeNotReady, match="Permission denied"):
        ask(["/usr/bin/nvidia-cdi-hook", "--version"])


def test_a_program_that_hangs_is_not_waited_for(system: DriverTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_programs, "ANSWER_WITHIN_S", 0.3)
    system.program("/usr/bin/nvidia-cdi-hook", "(kill -STOP $$); kill -STOP $$")
    with pytest.raises(NodeNotReady, match="has not ended"):
        asking(system.root)(["/usr/bin/nvidia-cdi-hook", "--version"])
