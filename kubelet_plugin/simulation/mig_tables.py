"""What GPU instances each GPU model can have: the tables `mig/*.yaml`, read when a simulated GPU is first asked.

A node's state names its table (`GpuModel.mig`) and does not repeat it: the state is read before every answer. Columns
are those of the driver's own listing of profiles; where a number does not come from hardware, the file says so.
"""

from functools import cache
from importlib.resources import files
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dra_driver.errors import InvalidInput
from kubelet_plugin.simulation.sources import CALCULATED, Sources, check_sources, confirmed

DOUBLE_MEMORY = 9
"""NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2: one compute slice with the memory of two."""

COLUMNS = ("name", "kind", "id", "max", "mib", "sm", "engines", "placements")
"""What of a profile has a source: for all profiles, for one (`1g.10gb.mib`), or for all that one line lists."""
_LISTED = frozenset({"name", "id", "max", "mib", "sm", "engines"})
"""Of these `nvidia-smi mig -lgip` has a line for each profile: its name is the key of them."""


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
        return (
            self.memory_mib,
            self.multiprocessors,
            self.copy_engines,
            self.decoders,
            self.encoders,
            self.jpeg_engines,
            self.ofa_engines,
        )


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
    """What a GPU can be divided into. `totals` is what it has to share out in MIG mode, less than the chip on some
    models."""

    memory_slices: int
    totals: Engines
    profiles: tuple[MigProfile, ...]

    def profile(self, profile_id: int) -> MigProfile | None:
        return next((profile for profile in self.profiles if profile.id == profile_id), None)

    def named(self, name: str) -> MigProfile:
        """Raises InvalidInput that lists the profiles of this GPU model."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        known = ", ".join(profile.name for profile in self.profiles)
        raise InvalidInput(f"this GPU model has no such profile; there are {known}", about=f"MIG profile {name}")

    @property
    def max_devices(self) -> int:
        return max(profile.max_instances for profile in self.profiles)


class SourcedMigTable(MigTable):
    """One file of `mig/`."""

    sources: Sources

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> Self:
        rows = [profile.name for profile in self.profiles]
        cells = [f"{row}.{column}" for row in rows for column in COLUMNS]
        check_sources(self.sources, (), {*rows, *COLUMNS, *cells})
        missing = [f"{row}.{column}" for row in rows for column in COLUMNS if not self.sources_of(row, column)]
        if missing:
            raise ValueError(f"sources: {', '.join(missing)} have no source; write one, or `calculated`")
        return self

    def sources_of(self, profile: str, column: str) -> tuple[str, ...]:
        """Where a number comes from: what is said of this number, else of the listed profile, else of the column."""
        keys = (f"{profile}.{column}", *([profile] if column in _LISTED else []), column)
        for key in keys:
            if names := confirmed(self.sources, key):
                return names
            if key in self.sources.get(CALCULATED, ()):
                return (CALCULATED,)
        return ()


def mig_table_names() -> tuple[str, ...]:
    """The GPU models there are tables for, sorted."""
    names = (entry.name for entry in files(__package__).joinpath("mig").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


@cache
def load_mig_table(name: str) -> SourcedMigTable:
    """The table called `name`. Raises InvalidInput when there is none, or when it is not one."""
    import yaml

    place = files(__package__).joinpath("mig", f"{name}.yaml")
    if not place.is_file():
        raise InvalidInput(f"no such table; there are {', '.join(mig_table_names())}", about=f"MIG table {name}")
    document: dict[str, Any] = yaml.safe_load(place.read_text(encoding="utf-8"))
    try:
        return SourcedMigTable.model_validate(document)
    except ValidationError as error:
        raise InvalidInput(str(error), about=f"MIG table {name}") from error
