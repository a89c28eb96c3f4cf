"""MIG of every simulated GPU model, as the inventory has it."""

from typing import Any

from support.inventories import gpu, mig

from dra_driver.api.inventory import GpuFacts, MigFacts, MigProfileFacts
from kubelet_plugin.simulation.profiles import load_mig_table, mig_table_names

MODELS = mig_table_names()


def table_profiles(model: str) -> list[MigProfileFacts]:
    return [
        MigProfileFacts(
            name=row.name,
            id=row.id,
            slices=row.slices,
            memory_bytes=row.memory_mib * 2**20,
            multiprocessors=row.multiprocessors,
            copy_engines=row.copy_engines,
            decoders=row.decoders,
            encoders=row.encoders,
            jpeg_engines=row.jpeg_engines,
            ofa_engines=row.ofa_engines,
            size=row.size,
            starts=list(row.starts),
            max_instances=row.max_instances,
        )
        for row in sorted(load_mig_table(model).profiles, key=lambda row: row.id)
    ]


def table_mig(model: str, **facts: Any) -> MigFacts:
    return mig(profiles=table_profiles(model), **facts)


def gpu_of(model: str, number: int = 0, **facts: Any) -> GpuFacts:
    """A GPU with the MIG profiles of `model`; everything else is as of an H100."""
    return gpu(number, **{"mig": table_mig(model), **facts})
