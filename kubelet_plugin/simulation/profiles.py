"""What kinds of nodes can be simulated: profiles of nodes, and MIG tables of GPU models.

Files in `profiles/` and `mig/` have a map `sources`: for each source in `sources.yaml`, the fields that it confirms
(`docs/from_code/hardware.py`); tests compare the numbers with the sources themselves. A node's state names its MIG
table and does not repeat it, because the state is read before every answer. Columns of a table are those of the
driver's own listing of profiles.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dra_driver.bundled import read_yaml
from dra_driver.errors import InvalidInput

type Sources = Mapping[str, tuple[str, ...]]
"""Fields by the name of their source."""

DOUBLE_MEMORY = 9
"""NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2: one compute slice with the memory of two."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Engines(_Data):
    """What instances of one GPU share out among themselves, besides memory slices."""

    memory_mib: int = Field(alias="mib")
    multiprocessors: int = Field(alias="sm")
    copy_engines: int = Field(alias="ce")
    decoders: int = Field(alias="dec")
    encoders: int = Field(alias="enc")
    jpeg_engines: int = Field(alias="jpg")
    ofa_engines: int = Field(alias="ofa")

    @property
    def amounts(self) -> tuple[int, ...]:
        """All of them, in the order of the fields."""
        return tuple(getattr(self, name) for name in Engines.model_fields)


class MigProfile(Engines):
    """One kind of GPU instance. `kind` is NVML's enumeration, `id` what placements and creation want instead."""

    name: str
    kind: int
    id: int
    slices: int = Field(alias="g")
    max_instances: int = Field(alias="max")
    size: int
    """Memory slices that one takes."""
    starts: tuple[int, ...] = Field(alias="at")


class MigTable(_Data):
    """One file of `mig/`: what a GPU can be divided into. `totals` is what it can share out in MIG mode, on some
    models less than the chip has."""

    memory_slices: int
    totals: Engines
    profiles: tuple[MigProfile, ...]
    sources: Sources

    def profile(self, profile_id: int) -> MigProfile | None:
        return next((profile for profile in self.profiles if profile.id == profile_id), None)

    def named(self, name: str) -> MigProfile:
        """Raises InvalidInput that lists the profiles of this GPU model."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        known = ", ".join(profile.name for profile in self.profiles)
        raise InvalidInput(f"this GPU model has no such profile; there are {known}", about=f"MIG profile {name}")


def mig_table_names() -> tuple[str, ...]:
    """The GPU models there are tables for, sorted."""
    return _names("mig")


@cache
def load_mig_table(name: str) -> MigTable:
    """The table called `name`. Raises InvalidInput when there is none, or when it is not one."""
    return _loaded(MigTable, "mig", "table", name, f"MIG table {name}")


def _names(folder: str) -> tuple[str, ...]:
    names = (entry.name for entry in files(__package__).joinpath(folder).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def _loaded[M: BaseModel](model: type[M], folder: str, what: str, name: str, about: str) -> M:
    if name not in _names(folder):
        raise InvalidInput(f"no such {what}; there are {', '.join(_names(folder))}", about=about)
    text = files(__package__).joinpath(folder, f"{name}.yaml").read_text(encoding="utf-8")
    try:
        return model.model_validate(read_yaml(text))
    except ValidationError as error:
        raise InvalidInput(str(error), about=about) from error


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class NvlinkModel(_Model):
    """Links of every GPU. `version` is NVML's enumeration (6 is 4.0); without switches each link leads to a peer."""

    links: int
    version: int
    switches: int = 0


class GpuModel(_Model):
    """What all GPUs of a node share. None: NVML answers NOT_SUPPORTED. Numbers are NVML's own (enumerations, mW)."""

    name: str
    brand: int
    architecture: int
    compute_capability: tuple[int, int]
    cores: int | None
    memory_mib: int | None
    pci_device: int
    pci_subsystem: int
    pci_class: int = 0x030200
    power_limit_mw: int | None
    pcie_generation: int | None
    pcie_width: int | None = 16
    addressing_mode: int | None = None
    ecc: bool | None = None
    mig: str | None = None
    """The name of the table that says what instances such a GPU can have; None when it cannot be divided."""
    vbios: str
    nvlink: NvlinkModel | None = None


class GpuPlace(_Model):
    """Where one GPU sits: PCI address, root complex, NUMA node; and N of its /dev/nvidiaN.

    `module` is NVML's module id: the place on a base board, and often the same for all cards of a PCIe server.
    """

    address: str
    root: str
    numa: int
    minor: int
    module: int | None = None


class FabricModel(_Model):
    """`nodes` machines share one cluster UUID and clique; 0: NVLink does not leave the machine (zero UUID).

    `summary` and `mask` are of a healthy fabric: NVML's enumeration and bits, 0 on GPUs that say nothing of it.
    """

    nodes: int = 0
    clique: int = 0
    summary: int = 0
    mask: int = 0


class DriverModel(_Model):
    """`missing`: functions that this driver's library does not have, by their C names."""

    version: str
    cuda: int
    missing: list[str] = Field(default_factory=list)


class Profile(_Model):
    """One file of `profiles/`: a kind of node. GPUs are in NVML's index order."""

    description: str
    machine: Literal["x86_64", "aarch64"] = "x86_64"
    driver: DriverModel
    gpu: GpuModel
    fabric: FabricModel | None = None
    gpus: list[GpuPlace]
    sources: Sources


def profile_names() -> tuple[str, ...]:
    """The kinds of nodes there are, sorted."""
    return _names("profiles")


@cache
def load_profile(name: str) -> Profile:
    """The profile called `name`. Raises InvalidInput that lists the names there are."""
    return _loaded(Profile, "profiles", "profile", name, f"profile {name}")
