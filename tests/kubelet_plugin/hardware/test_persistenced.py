"""The persistence daemon's socket, of a host's own driver and of one in a container."""

from pathlib import Path

import pytest

from kubelet_plugin.hardware.layouts import daemon_socket
from kubelet_plugin.hardware.sysfs import HostFiles


@pytest.mark.parametrize(
    ("sockets", "driver_root", "expected"),
    [
        ([], "/run/nvidia/driver", None),
        (["/run"], "/", "/run/nvidia-persistenced/socket"),
        (["/var/run"], None, "/var/run/nvidia-persistenced/socket"),
        (["/run/nvidia/driver/run"], "/run/nvidia/driver", "/run/nvidia/driver/run/nvidia-persistenced/socket"),
        (["/run/nvidia/driver/run"], "/", None),
        (["/run"], "/home/kubernetes/bin/nvidia", "/run/nvidia-persistenced/socket"),
        (["/run", "/opt/driver/run"], "/opt/driver/", "/opt/driver/run/nvidia-persistenced/socket"),
    ],
)
def test_it_is_looked_for_below_the_driver_root_and_then_on_the_host(
    tmp_path: Path, sockets: list[str], driver_root: str | None, expected: str | None
) -> None:
    for folder in sockets:
        socket = tmp_path / folder.lstrip("/") / "nvidia-persistenced" / "socket"
        socket.parent.mkdir(parents=True)
        socket.touch()
    assert daemon_socket(HostFiles(tmp_path), driver_root) == expected
