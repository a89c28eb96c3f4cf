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
from dra_driver.migration.plugin_config import MIG_RESOURCE, NamedPattern, PluginConfig

_MIG = re.compile(r"\.type\s*==\s*['\"]mig['\"]|\.profile\b")
_VFIO = re.compile(r"\.type\s*==\s*['\"]vfio['\"]")


def own_names(classes: Sequence[DeviceClass], configs: Iterable[PluginConfig], options: Options) -> Mapping[str, Own]:
    """By resource. Classes of other drivers' devices are passed over."""
    return {**dict(_of_configs(configs, options)), **dict(_of_classes(classes, options))}


def selectors_of(patterns: Sequence[NamedPattern], options: Options) -> tuple[str, ...]:
    """CEL that is true of the devices that one of these fits, and none that was tried before. `patterns` are of one
    name, and all of products or all of profiles; without any it is true of all devices."""
    alternatives = [tuple(_conditions(one, options)) for one in patterns]
    if not all(alternatives):
        return ()
    if len(alternatives) < 2:
        return alternatives[0] if alternatives else ()
    return (" || ".join(f"({' && '.join(one)})" for one in alternatives),)


def _conditions(one: NamedPattern, options: Options) -> Iterator[str]:
    attribute = f"device.attributes[{quoted(options.driver)}].{'profile' if one.of_mig else 'productName'}"
    if one.pattern != "*":
        yield _fits(attribute, one.pattern)
    for other in one.before:
        yield f"!{_fits(attribute, other)}"


def _of_configs(configs: Iterable[PluginConfig], options: Options) -> Iterator[tuple[str, Own]]:
    for config in configs:
        for resource in dict.fromkeys(one.resource for one in config.patterns):
            named = [one for one in config.patterns if one.resource == resource]
            of_mig = all(one.of_mig for one in named)
            selectors = selectors_of([one for one in named if one.of_mig == of_mig], options)
            own = Own(What.MIG if of_mig else What.GPU, None, selectors)
            yield from ((name, own) for name in {resource, _shared(config, resource)})
        for resource, sharing in (config.sharing or {}).items():
            if sharing.called and all(one.resource != resource for one in config.patterns):
                yield sharing.called, Own(What.MIG if resource.startswith(MIG_RESOURCE) else What.GPU)


def _shared(config: PluginConfig, resource: str) -> str:
    """What shares of it are called."""
    sharing = (config.sharing or {}).get(resource)
    return resource if sharing is None else sharing.name_of(resource)


def _fits(attribute: str, pattern: str) -> str:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return f"{attribute}.matches({quoted(f'^{expression}$')})"


def _of_classes(classes: Sequence[DeviceClass], options: Options) -> Iterator[tuple[str, Own]]:
    ours = {one.metadata.name: one for one in classes if any(options.driver in text for text in class_expressions(one))}
    for resource, name in class_by_resource(ours.values()).items():
        text = " ".join(class_expressions(ours[name]))
        what = What.VFIO if _VFIO.search(text) else What.MIG if _MIG.search(text) else What.GPU
        yield resource, Own(what, name)
