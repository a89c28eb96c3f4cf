"""Resources whose names somebody chose: a DeviceClass answers to one, or the device plugin's configuration
gives it to the GPUs of some products, or to the MIG devices of some profiles. Pure.

`dra_driver.migration.surroundings` collects both; a class goes before a configuration, for it says what is so.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dra_driver.allocation.extended import class_by_resource
from dra_driver.api.resource import DeviceClass
from dra_driver.checking.fit import class_expressions
from dra_driver.migration.labels import quoted
from dra_driver.migration.meaning import Own
from dra_driver.migration.model import Options, What
from dra_driver.migration.plugin_config import PluginConfig

_MIG = re.compile(r"\.type\s*==\s*['\"]mig['\"]|\.profile\b")
_VFIO = re.compile(r"\.type\s*==\s*['\"]vfio['\"]")


def own_names(classes: Sequence[DeviceClass], configs: Iterable[PluginConfig], options: Options) -> Mapping[str, Own]:
    """By resource. Classes of other drivers' devices are passed over."""
    return {**dict(_of_configs(configs, options)), **dict(_of_classes(classes, options))}


def _of_configs(configs: Iterable[PluginConfig], options: Options) -> Iterator[tuple[str, Own]]:
    attributes = f"device.attributes[{quoted(options.driver)}]"
    for config in configs:
        for one in config.patterns:
            attribute = f"{attributes}.{'profile' if one.of_mig else 'productName'}"
            expressions = (_fits(attribute, one.pattern), *(f"!{_fits(attribute, other)}" for other in one.before))
            what = What.MIG if one.of_mig else What.GPU
            yield one.resource, Own(what, None, expressions)


def _fits(attribute: str, pattern: str) -> str:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return f"{attribute}.matches({quoted(f'^{expression}$')})"


def _of_classes(classes: Sequence[DeviceClass], options: Options) -> Iterator[tuple[str, Own]]:
    ours = {one.metadata.name: one for one in classes if any(options.driver in text for text in class_expressions(one))}
    for resource, name in class_by_resource(ours.values()).items():
        text = " ".join(class_expressions(ours[name]))
        what = What.VFIO if _VFIO.search(text) else What.MIG if _MIG.search(text) else What.GPU
        yield resource, Own(what, name)
