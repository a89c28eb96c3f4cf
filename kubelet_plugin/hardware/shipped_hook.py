"""Puts the `nvidia-cdi-hook` of the plugin's image on the host, where the container runtime can run it.

`kubelet_plugin.main` gives a `ShippedHook` to `kubelet_plugin.hardware.driver_root`. The file lies beside the plugin's
journal, a folder that the plugin has for itself and that the host can execute from (a kubelet's folder always is).

It has one name for all releases, and a new one takes its place at once: CDI files that name it stay right, and a
container that starts meanwhile runs the old program or the new one. During a rolling update the plugin that started
last decides. Uninstalling leaves it there, because pods keep their GPUs and their containers may start again.
"""

import sys
from pathlib import Path

from dra_driver.errors import NodeNotReady
from dra_driver.runtime.files import is_there, make_folder, read_if_present, remove_temporaries, write_durably

IN_IMAGE = Path(sys.prefix) / "libexec" / "nvidia-cdi-hook"
"""Where the Dockerfile puts it."""


class InstalledHook:
    """The one that a plugin has put into `folder`, for those who only look."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / IN_IMAGE.name

    @property
    def path(self) -> str:
        """Where it lies on the host."""
        return str(self._file)

    def install(self) -> None:
        """Nothing is written. Raises NodeNotReady when there is none, or when that cannot be seen."""
        if not is_there(self._file):
            raise NodeNotReady("is not there: no plugin of an image with nvidia-cdi-hook has run here", about=self.path)


class ShippedHook(InstalledHook):
    """The program of the plugin's image. `folder` has the same path here and on the host."""

    def __init__(self, folder: Path, image_file: Path = IN_IMAGE) -> None:
        super().__init__(folder)
        self._image_file = image_file
        self._installed = False

    def install(self) -> None:
        """Put it there, unless this process has done so. Raises NodeNotReady."""
        if self._installed and is_there(self._file):
            return
        content = read_if_present(self._image_file)
        if content is None:
            raise NodeNotReady("has no nvidia-cdi-hook: build it with the project's Dockerfile", about="plugin's image")
        if read_if_present(self._file) != content or not self._file.stat().st_mode & 0o111:
            make_folder(self._file.parent)
            remove_temporaries(self._file.parent, self._file.name)
            write_durably(self._file, content, mode=0o755)
        self._installed = True
