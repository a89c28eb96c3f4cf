"""Where the driver's daemons listen: nvidia-persistenced, which keeps idle GPUs initialised, nvidia-fabricmanager.

The effect that lends GPUs to virtual machines and `dractl doctor` enter here.
"""

from kubelet_plugin.hardware.sysfs import HostFiles


def daemon_socket(host: HostFiles, driver_root: str | None, daemon: str = "nvidia-persistenced") -> str | None:
    """The host path of its socket; None when there is none, and so no daemon.

    A driver container runs its own daemons: then the socket is in `/run` below the driver root.
    """
    below_root = [f"{driver_root.rstrip('/')}/run"] if driver_root is not None else []
    for folder in (*below_root, "/run", "/var/run"):
        path = f"{folder}/{daemon}/socket"
        if host.resolve(path) is not None:
            return path
    return None
