import time
from pathlib import Path

import pytest
from support.driver_tree import DriverTree

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware import hook_program
from kubelet_plugin.hardware.hook_program import HookPrograms, sub_commands_of
from kubelet_plugin.hardware.seen import Seen

ALL = {
    "create-symlinks",
    "disable-device-node-modification",
    "enable-cuda-compat",
    "update-application-profile",
    "update-ldcache",
}

HELP = """\
NAME:
   NVIDIA CDI Hook - Command to structure files for usage inside a container

USAGE:
   NVIDIA CDI Hook [global options] [command [command options]]

COMMANDS:
   update-ldcache                    Update ldcache in a container by running ldconfig
   create-symlinks                   A hook to create symlinks in the container.
   chmod                             Set the permissions of folders in the container by running chmod.
   enable-cuda-compat, cudacompat    This hook ensures that CUDA compat libraries are found.
{more}   help, h                           Shows a list of commands or help for one command

GLOBAL OPTIONS:
   --debug, -d    Enable debug-level logging [$NVIDIA_CTK_DEBUG, $NVIDIA_CDI_DEBUG]
   --help, -h     show help
"""


def script(version: str, text: str, log: str = "/dev/null") -> str:
    return f"""\
echo "$@" >> {log}
case "$*" in
  *--version*) echo "NVIDIA CDI Hook version {version}"; echo "commit: 0123abc" ;;
  *) cat <<'TEXT'
{text}TEXT
  ;;
esac"""


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    tree = DriverTree(tmp_path / "host")
    tree.file("/sbin/ldconfig")
    return tree


def find(tree: DriverTree, configured: str | None = None) -> hook_program.HookProgram | None:
    return HookPrograms(tree.host, configured).find(Seen())


def test_a_host_without_a_program_has_none(tree: DriverTree) -> None:
    assert find(tree) is None


def test_the_program_says_what_it_can(tree: DriverTree) -> None:
    tree.program("/usr/bin/nvidia-cdi-hook", script("1.17.8", HELP.format(more="")))
    found = find(tree)
    assert found is not None
    assert found.path == "/usr/bin/nvidia-cdi-hook"
    assert found.arguments == ("nvidia-cdi-hook",)
    assert found.version == "1.17.8"
    assert found.sub_commands == {"create-symlinks", "update-ldcache", "enable-cuda-compat"}
    assert found.ldconfig == "/sbin/ldconfig"
    assert found.places_libraries


def test_a_newer_program_has_more(tree: DriverTree) -> None:
    more = "   disable-device-node-modification  Ensure that.\n   update-application-profile        Updates.\n"
    tree.program("/usr/bin/nvidia-cdi-hook", script("1.20.0", HELP.format(more=more)))
    found = find(tree)
    assert found is not None
    assert found.sub_commands == ALL


def test_nvidia_ctk_is_asked_for_its_hooks(tree: DriverTree, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tree.program("/usr/local/nvidia/toolkit/nvidia-ctk", script("1.14.6", HELP.format(more=""), str(log)))
    found = find(tree)
    assert found is not None
    assert found.path == "/usr/local/nvidia/toolkit/nvidia-ctk"
    assert found.arguments == ("nvidia-ctk", "hook")
    assert log.read_text().splitlines() == ["--version", "hook --help"]


def test_a_program_that_lists_nothing_is_known_by_its_version(tree: DriverTree) -> None:
    tree.program("/usr/bin/nvidia-cdi-hook", script("1.17.4", "usage: see the manual\n"))
    found = find(tree)
    assert found is not None
    assert found.sub_commands == {"create-symlinks", "update-ldcache"}


@pytest.mark.parametrize(
    ("version", "count"),
    [("1.0", 0), ("1.11", 2), ("1.17.4", 2), ("1.17.5", 3), ("1.18.0", 4), ("1.20.0", 5), ("2.0", 5)],
)
def test_each_sub_command_came_with_a_version(version: str, count: int) -> None:
    assert len(sub_commands_of(version)) == count


@pytest.mark.parametrize("body", ["exit 1", "echo hello", "kill -9 $$"])
def test_a_program_that_cannot_be_asked_is_not_used(tree: DriverTree, body: str) -> None:
    tree.program("/usr/bin/nvidia-cdi-hook", body)
    assert find(tree) is None


def test_a_file_that_is_no_program_is_not_used(tree: DriverTree) -> None:
    tree.file("/usr/bin/nvidia-cdi-hook", "not executable")
    assert find(tree) is None


def test_a_program_that_hangs_is_not_used_and_not_waited_for(tree: DriverTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_program, "_ANSWER_WITHIN_S", 0.3)
    tree.program("/usr/bin/nvidia-cdi-hook", "sleep 60 & wait")
    start = time.monotonic()
    assert find(tree) is None
    assert time.monotonic() - start < 30


def test_the_configured_program_goes_before_all_others(tree: DriverTree) -> None:
    for path in ("/usr/bin/nvidia-cdi-hook", "/opt/nvidia-cdi-hook"):
        tree.program(path, script("1.18.0", HELP.format(more="")))
    found = find(tree, "/opt/nvidia-cdi-hook")
    assert found is not None
    assert found.path == "/opt/nvidia-cdi-hook"


def test_a_configured_program_that_is_missing_is_an_error(tree: DriverTree) -> None:
    with pytest.raises(NodeNotReady, match="does not exist on the host") as caught:
        find(tree, "/opt/nvidia-cdi-hook")
    assert caught.value.about == "file /opt/nvidia-cdi-hook"


def test_without_an_ldconfig_on_the_host_libraries_are_not_placed_by_the_program(tree: DriverTree) -> None:
    tree.remove("/sbin/ldconfig")
    tree.program("/usr/bin/nvidia-cdi-hook", script("1.18.0", HELP.format(more="")))
    found = find(tree)
    assert found is not None
    assert found.ldconfig is None
    assert not found.places_libraries


def test_the_program_is_asked_again_only_when_its_file_changed(tree: DriverTree, tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = "/usr/bin/nvidia-cdi-hook"
    tree.program(path, script("1.17.8", HELP.format(more=""), str(log)))
    programs = HookPrograms(tree.host)
    first = programs.find(Seen())
    assert programs.find(Seen()) is first
    assert len(log.read_text().splitlines()) == 2
    tree.remove(path)
    tree.program(path, script("1.20.0-rc.1", HELP.format(more=""), str(log)))
    second = programs.find(Seen())
    assert second is not None
    assert second.version == "1.20.0"
    assert len(log.read_text().splitlines()) == 4


def test_a_program_that_appears_or_goes_is_noticed(tree: DriverTree) -> None:
    tree.folder("/usr/bin")
    tree.settle()
    seen = Seen()
    assert HookPrograms(tree.host).find(seen) is None
    assert seen.unchanged()
    tree.program("/usr/bin/nvidia-cdi-hook", script("1.18.0", HELP.format(more="")))
    assert not seen.unchanged()
