"""The container runtime's part: the spec files of the CDI folders as they are now."""

from collections.abc import Sequence
from pathlib import Path

from dra_driver.cdi.inject import SPEC_SUFFIXES, SpecFile, SpecFiles
from dra_driver.cdi.reading import decode
from dra_driver.errors import InvalidInput


def read_folders(folders: Sequence[Path]) -> SpecFiles:
    """All valid specs; a bad file is left out with its reason and does not hide the others."""
    files, unreadable = [], {}
    for priority, folder in enumerate(folders):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix not in SPEC_SUFFIXES:
                continue
            try:
                files.append(SpecFile(path, priority, decode(path.read_bytes(), about=str(path))))
            except FileNotFoundError:
                continue
            except (InvalidInput, OSError) as error:
                unreadable[str(path)] = str(error)
    return SpecFiles(tuple(files), unreadable)
