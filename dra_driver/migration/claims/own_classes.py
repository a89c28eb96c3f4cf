"""DeviceClasses of names that a person chose for claims (decision `classes`), where nobody is known to have
them: the driver's chart makes them, of values. Pure.

They select what the chart's own classes of that kind select; a class that is there is what somebody made of it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.templates import class_name
from dra_driver.migration.model import Migration, Options, Want
from dra_driver.migration.understand.labels import quoted


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    usual: str
    condition: str


def classes_to_make(wants: Iterable[Want], known: Collection[str], options: Options) -> list[JsonObject]:
    """As `deviceClasses.extra` of the chart's values lists them: name and spec; by name."""
    attributes = f"device.attributes[{quoted(options.driver)}]"
    shared = f"{attributes}.type in ['gpu', 'mig'] && {attributes}.sharing in ['time-slicing', 'mps']"
    usual = Options()
    kinds = (
        _Kind(options.gpu_class, usual.gpu_class, f"{attributes}.type == 'gpu'"),
        _Kind(options.mig_class, usual.mig_class, f"{attributes}.type == 'mig'"),
        _Kind(options.shared_class, usual.shared_class, shared),
        _Kind(options.vfio_class, usual.vfio_class, f"{attributes}.type == 'vfio'"),
    )
    named = {class_name(want, options) for want in wants if want.device_class is None}
    of_the_chart = {one.usual for one in kinds}
    found: list[JsonObject] = []
    for name in sorted(named - of_the_chart - set(known)):
        conditions = [one.condition for one in kinds if one.name == name]
        if len(conditions) == 1:  # what one class for several kinds is to select nobody said
            expression = f"device.driver == {quoted(options.driver)} && {conditions[0]}"
            found.append({"name": name, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
    return found


def made_by_values(migration: Migration) -> dict[str, JsonObject]:
    """The classes that the chart makes of these values, as objects, by name."""
    listed: Any = ((migration.chart_values or {}).get("deviceClasses") or {}).get("extra") or ()
    return {
        one["name"]: {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": one["name"]},
            "spec": one["spec"],
        }
        for one in listed
    }
