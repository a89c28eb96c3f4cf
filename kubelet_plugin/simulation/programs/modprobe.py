"""nvidia-modprobe of a simulated node: makes device nodes that are missing, or belong to something else.

Options and silence are those of the real program: it says nothing, and its status is 1 when it could not make a node.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence

from kubelet_plugin.simulation.programs.node import RootedNode

_DEV_FOLDERS = {"operator": ("/dev", "/run/nvidia/driver/dev")}
_MAJOR = 195


def main(arguments: Sequence[str]) -> int:
    root, *words = arguments
    node = RootedNode(root)
    state = node.read()
    if not state["driver"]["loaded"]:
        return 1
    if re.search(r"^ModifyDeviceFiles: 0$", _text(f"{root}/proc/driver/nvidia/params"), re.MULTILINE):
        return 0
    try:
        wanted = list(_wanted(words, _text(f"{root}/proc/devices")))
    except ValueError:
        sys.stderr.write("\nERROR: Invalid commandline, please run `nvidia-modprobe --help` for usage information.\n\n")
        return 1
    for folder in _DEV_FOLDERS.get(state["layout"], ("/dev",)):
        for name, major, minor in wanted:
            _make(f"{root}{folder}/{name}", major, minor)
    return 0


def _wanted(words: Sequence[str], devices: str) -> Iterator[tuple[str, int, int]]:
    """Names and numbers. Raises ValueError for options that the real program does not have."""
    minors = [int(word.removeprefix("-c=")) for word in words if word.startswith("-c=")]
    if [word for word in words if not word.startswith("-c=") and word not in ("-u", "-m")]:
        raise ValueError(words)
    if "-u" in words:
        for major in map(int, re.findall(r"^ *(\d+) nvidia-uvm$", devices, re.MULTILINE)):
            for minor in minors:
                yield from (("nvidia-uvm", major, minor), ("nvidia-uvm-tools", major, minor + 1))
    else:
        yield from (("nvidiactl" if minor == 255 else f"nvidia{minor}", _MAJOR, minor) for minor in minors)
    if "-m" in words:
        yield ("nvidia-modeset", _MAJOR, 254)


def _make(path: str, major: int, minor: int) -> None:
    """As `kubelet_plugin.hardware.sysfs.described_node`, which needs more than the standard library."""
    text = f"simulated device node c {major}:{minor} 0666\n"
    if _text(path) != text:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
