"""The CDI files of this driver's claims, in a folder that other programs use too, and the files of device metadata.

`kubelet_plugin.prepare.execute` writes and removes files here, repair lists and compares them. A file belongs to this
driver when its name says so. No other file is ever read, changed or removed, except one that NVIDIA's own driver of the
same name wrote for a claim that ends. Calls block. Every failure is a `NodeNotReady` that names the file.

Nothing here is flushed to the disk: /var/run lies in memory, and where it does not, what a power failure takes is
written again before it is used, because no claim of an earlier boot counts as prepared.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from os.path import isdir, isfile
from pathlib import Path

from dra_driver.cdi.edits import claim_kind
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.runtime.files import (
    StagedFile,
    make_folder,
    names,
    read_if_present,
    remove,
    remove_temporaries,
    stage,
)
from kubelet_plugin.prepare.metadata import RequestMetadata, host_name, spec_name

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
        sentences: dict[int, str] = {}
        for driver, uid, file in self._files():
            sentence = (
                f"is in claim UID {uid} of another driver, {driver}, which offers the same GPUs; end that claim's pods,"
                f" and keep one of the drivers off this node (when the claim is gone: remove {file})"
            )
            try:
                named = {int(item) for item in _GPU_NODE.findall(file.read_bytes())}
            except FileNotFoundError:
                continue
            except OSError as error:
                named = set(minors)
                sentence = f"may be in a claim of another driver: {file} cannot be read: {error.strerror}"
            for minor in named.intersection(minors):
                sentences.setdefault(minor, sentence)
        return sentences

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


_ENDING = ".json"
_OF_BEFORE = ".yaml"
"""The ending of NVIDIA's own driver, which has our name."""


METADATA_FOLDER = "dra-device-metadata"
"""Below the plugin's own folder. Kubernetes' helper for drivers has folders of that name, with folders in them."""


class _MetadataFiles:
    """Device metadata in `folder`, one file per request of a claim, and the CDI files in `cdi` that mount them.

    A CDI file has the name that Kubernetes' helper gives it, so the metadata file alone says that it is this driver's.
    That file is therefore there before the CDI file and after it.
    """

    def __init__(self, folder: Path, cdi: Path, driver: str) -> None:
        self._folder = str(folder)
        self._cdi = str(cdi)
        self._driver = driver

    def stage(self, claim_uid: str, files: Collection[RequestMetadata]) -> list[StagedFile]:
        if files:
            make_folder(self._folder)
        wanted = [(self._file(claim_uid, item.request), item.content) for item in files]
        wanted += [(self._spec(claim_uid, item.request), item.spec) for item in files]
        staged: list[StagedFile] = []
        for path, content in wanted:
            try:
                staged.append(stage(path, content, flushed=False))
            except NodeNotReady:
                for file in staged:
                    file.discard()
                raise
        return staged

    def read(self, claim_uid: str) -> tuple[RequestMetadata, ...]:
        """What is missing is empty."""
        return tuple(
            RequestMetadata(
                request,
                read_if_present(self._file(claim_uid, request)) or b"",
                read_if_present(self._spec(claim_uid, request)) or b"",
            )
            for _, request in self._there(self._folder, "", claim_uid)
        )

    def drop(self, claim_uid: str, *, but: Collection[str]) -> None:
        for folder, prefix in ((self._cdi, f"{self._driver}_metadata_"), (self._folder, "")):
            for uid, request in self._there(folder, prefix, claim_uid):
                if request not in but:
                    remove(f"{folder}/{prefix}{uid}_{request}{_ENDING}")

    def claims(self) -> frozenset[str]:
        return frozenset(uid for uid, _ in self._there(self._folder, ""))

    def remove_leftovers(self) -> tuple[Path, ...]:
        prefix = f"{self._driver}_metadata_"
        return (*remove_temporaries(Path(self._folder), ""), *remove_temporaries(Path(self._cdi), prefix))

    def _file(self, claim_uid: str, request: str) -> str:
        return f"{self._folder}/{host_name(claim_uid, request)}"

    def _spec(self, claim_uid: str, request: str) -> str:
        return f"{self._cdi}/{spec_name(self._driver, claim_uid, request)}"

    def _there(self, folder: str, prefix: str, claim_uid: str | None = None) -> Iterator[tuple[str, str]]:
        """UID and request of the files whose names begin with `prefix`, sorted; of one claim, or of all."""
        beginning = prefix if claim_uid is None else f"{prefix}{claim_uid}_"
        for name in names(folder):
            if name.startswith(beginning) and name.endswith(_ENDING) and isfile(f"{folder}/{name}"):
                uid, _, request = name.removeprefix(prefix).removesuffix(_ENDING).rpartition("_")
                if uid and claim_uid in (None, uid):
                    yield uid, request


class CdiFiles:
    """The files of `driver` in `folder` (/var/run/cdi), named `k8s.gpu.nvidia.com-claim_<claim UID>.json`.

    The name follows the CDI library's recommendation for short-lived specs: vendor, class, and what it belongs to.
    `metadata` is the folder of device metadata, None for a driver without.
    """

    def __init__(self, folder: Path, driver: str, metadata: Path | None = None) -> None:
        self._folder = str(folder)
        self._prefix = f"{claim_kind(driver).replace('/', '-')}_"
        self._metadata = None if metadata is None else _MetadataFiles(metadata, folder, driver)

    @property
    def folder(self) -> Path:
        return Path(self._folder)

    def path(self, claim_uid: str) -> Path:
        """Where the claim's file is. Raises InvalidInput for a UID that would lead out of the folder."""
        return Path(self._file(claim_uid, _ENDING))

    def _file(self, claim_uid: str, ending: str) -> str:
        if "/" in claim_uid or "\0" in claim_uid:
            raise InvalidInput("cannot be the UID of a Kubernetes object", about=f"claim UID {claim_uid!r}")
        return f"{self._folder}/{self._prefix}{claim_uid}{ending}"

    def write(self, claim_uid: str, content: bytes) -> None:
        """Make the claim's file have this content, or leave it as it was. Raises NodeNotReady."""
        self.stage(claim_uid, content).publish()

    def stage(self, claim_uid: str, content: bytes) -> StagedFile:
        """Put the content beside its place, where no runtime reads it. Raises NodeNotReady."""
        self._make_folder()
        return stage(self._file(claim_uid, _ENDING), content, flushed=False)

    def stage_metadata(self, claim_uid: str, files: Collection[RequestMetadata]) -> list[StagedFile]:
        """The same for device metadata: first what containers get, then the CDI files that mount it. All or nothing."""
        if self._metadata is None:
            return []
        self._make_folder()
        return self._metadata.stage(claim_uid, files)

    def publish(self, staged: Collection[StagedFile]) -> None:
        """Let staged files take their places in this order. Raises NodeNotReady."""
        for index, file in enumerate(staged):
            try:
                file.publish()
            except NodeNotReady:
                for other in list(staged)[index + 1 :]:
                    other.discard()
                raise

    def read(self, claim_uid: str) -> bytes | None:
        """None when the claim has no file. Raises NodeNotReady when it cannot be read."""
        return read_if_present(self._file(claim_uid, _ENDING))

    def metadata(self, claim_uid: str) -> tuple[RequestMetadata, ...]:
        """The claim's device metadata; what of a request is missing is empty. Raises NodeNotReady."""
        return () if self._metadata is None else self._metadata.read(claim_uid)

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file and its device metadata; missing ones are fine. Raises NodeNotReady.

        A file that a power failure brings back belongs to no claim of the journal, and is removed at start. Claims that
        NVIDIA's own driver prepared before it was uninstalled end here, too: nothing else removes their file, and the
        file keeps their GPUs in use.
        """
        remove(self._file(claim_uid, _ENDING))
        remove(self._file(claim_uid, _OF_BEFORE))
        self.drop_metadata(claim_uid, but=())

    def drop_metadata(self, claim_uid: str, *, but: Collection[str]) -> None:
        """Remove the claim's device metadata for other requests than these. Raises NodeNotReady."""
        if self._metadata is not None:
            self._metadata.drop(claim_uid, but=but)

    def claims(self) -> frozenset[str]:
        """UIDs of the claims that have a file with any content. Raises NodeNotReady when a folder is unreadable."""
        return self._with_cdi_file() | (frozenset() if self._metadata is None else self._metadata.claims())

    def _with_cdi_file(self) -> frozenset[str]:
        try:
            names = [entry.name for entry in self.folder.iterdir()]
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise NodeNotReady(f"cannot be listed: {error.strerror}", about=f"folder {self.folder}") from error
        return frozenset(
            name.removeprefix(self._prefix).removesuffix(_ENDING)
            for name in names
            if name.startswith(self._prefix) and name.endswith(_ENDING)
        )

    def remove_leftovers(self) -> tuple[Path, ...]:
        """Remove temporary files of writes that were cut short; returns them. Raises NodeNotReady."""
        left = () if self._metadata is None else self._metadata.remove_leftovers()
        return (*remove_temporaries(self.folder, self._prefix), *left)

    def _make_folder(self) -> None:
        """Make the last part of the path: /var/run is empty after a boot, and runtimes do not make the folder.

        A missing parent means that the host's folder is not mounted, and no runtime would see a folder made here.
        """
        if isdir(self._folder):
            return
        folder = self.folder
        try:
            folder.mkdir()
            folder.chmod(0o755)  # regardless of the umask
        except FileExistsError:
            pass
        except FileNotFoundError as error:
            raise NodeNotReady(
                f"does not exist, and neither does {folder.parent}: is the host's folder mounted into the plugin's"
                " pod, and is this the folder that the container runtime reads?",
                about=f"folder {folder}",
            ) from error
        except OSError as error:
            raise NodeNotReady(f"cannot be created: {error.strerror}", about=f"folder {folder}") from error
