"""GPUs that claims of another DRA driver have on this node, by the CDI files that it wrote for them.

Two drivers that offer the same GPU do not see each other's allocations: NVIDIA's own driver that was uninstalled under
running pods, one that somebody installed beside this one, or a release of this one under another name. What they share
is the folder of CDI files, whose names are those that the CDI library recommends. Read at each prepare, never written.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from dra_driver.cdi.edits import claim_kind
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

_CLAIM_FILE = re.compile(r"k8s\.(?P<driver>.+)-claim_(?P<uid>[^_]+)\.(?:yaml|yml|json)")
_GPU_NODE = re.compile(rb"/dev/nvidia(\d+)\b")


class OtherClaims:
    """Of all DRA drivers but `drivers` of this process, in `folder` (/var/run/cdi)."""

    def __init__(self, folder: Path, drivers: Collection[str]) -> None:
        self._folder = folder
        self._ours = tuple(f"{claim_kind(driver).replace('/', '-')}_" for driver in drivers)

    def gpus(self, minors: Collection[int]) -> Mapping[int, str]:
        """Who has it, as a sentence about the GPU, by the GPU's minor number. A file that cannot be read may have any
        of `minors`. Never raises: a folder that is not there holds no files."""
        found: dict[int, str] = {}
        for driver, uid, file in self._files():
            sentence = (
                f"is in claim UID {uid} of another driver, {driver}, which offers the same GPUs; end that claim's pods,"
                f" and keep one of the drivers off this node (when the claim is gone: remove {file})"
            )
            try:
                named = {int(one) for one in _GPU_NODE.findall(file.read_bytes())}
            except FileNotFoundError:
                continue
            except OSError as error:
                named, sentence = (
                    set(minors),
                    f"may be in a claim of another driver: {file} cannot be read: {error.strerror}",
                )
            for minor in named.intersection(minors):
                found.setdefault(minor, sentence)
        return found

    def _files(self) -> Iterator[tuple[str, str, Path]]:
        try:
            entries = sorted(self._folder.iterdir())
        except OSError:
            return
        for file in entries:
            match = _CLAIM_FILE.fullmatch(file.name)
            if match is None or match["driver"] == COMPUTE_DOMAIN_DRIVER:
                continue
            if not (file.suffix == ".json" and file.name.startswith(self._ours)):
                yield match["driver"], match["uid"], file
