"""Resources whose names somebody chose: a DeviceClass answers to them. Pure."""

import re
from collections.abc import Mapping, Sequence

from dra_driver.allocation.placement import class_by_resource
from dra_driver.api.resource import DeviceClass
from dra_driver.checking.fit import class_expressions
from dra_driver.migration.model import Options, What
from dra_driver.migration.understand.meaning import Own

_MIG = re.compile(r"\.type\s*==\s*['\"]mig['\"]|\.profile\b")
_VFIO = re.compile(r"\.type\s*==\s*['\"]vfio['\"]")


def own_names(classes: Sequence[DeviceClass], options: Options) -> Mapping[str, Own]:
    """By resource. Classes of other drivers' devices are passed over."""
    ours = {one.metadata.name: one for one in classes if any(options.driver in text for text in class_expressions(one))}
    found: dict[str, Own] = {}
    for resource, name in class_by_resource(ours.values()).items():
        text = " ".join(class_expressions(ours[name]))
        what = What.VFIO if _VFIO.search(text) else What.MIG if _MIG.search(text) else What.GPU
        found[resource] = Own(what, name)
    return found
