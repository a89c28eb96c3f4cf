"""Where each number of a profile or a MIG table comes from: the map `sources` of its file, and `sources.yaml`.

The map has, for each source, the fields that it confirms. A field may have several sources; one without a source is
an error when the file is read. `calculated` is the source of what nobody has published. `docs/hardware.md` is written
from here (`docs/from_code/hardware.py`), and tests compare the numbers with the sources themselves.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

type Sources = Mapping[str, tuple[str, ...]]
"""Fields by the name of their source."""

CALCULATED = "calculated"


class Source(BaseModel):
    """`by`: read on hardware by others; said by NVIDIA; said by another model of the hardware; or by nobody but us."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["hardware", "nvidia", "model", "us"]
    title: str
    url: str | None = None


@cache
def known_sources() -> Mapping[str, Source]:
    """The sources of `sources.yaml` by name, in the order of the file."""
    import yaml

    text = files(__package__).joinpath("sources.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Source]).validate_python(yaml.safe_load(text))


def confirmed(sources: Sources, field: str) -> tuple[str, ...]:
    """The names of the sources of a field; empty when it has none, or is calculated."""
    return tuple(name for name, fields in sources.items() if field in fields and name != CALCULATED)


def check_sources(sources: Sources, fields: Iterable[str], more: Collection[str] = ()) -> None:
    """Raise ValueError unless each of `fields` has a source; `more` are names that a source may have, too."""
    wanted = set(fields)
    named = [field for names in sources.values() for field in names]
    problems = [
        *(f"there is no source {name} in sources.yaml" for name in sorted(set(sources) - set(known_sources()))),
        *(f"sources: there is no field {field} in this file" for field in sorted(set(named) - wanted - set(more))),
        *(f"sources: {field} has no source; write one, or `calculated`" for field in sorted(wanted - set(named))),
        *(
            f"sources: {field} is calculated and has a source, too; remove one of them"
            for field in sorted(set(sources.get(CALCULATED, ())))
            if confirmed(sources, field)
        ),
    ]
    if problems:
        raise ValueError("; ".join(problems))
