"""Decodes and combines opaque configs (`dra_driver.api.config`). Pure.

Decoding is strict, because an ignored misspelled field is a setting that its author relies on. An error names the
path of the field, what is allowed there, and what was probably meant; all problems are listed at once.

A config of a claim and one of its class make one together, so decoding has two steps: `written_config` reads one
config, `combined` makes the config that applies. `config_for` does both for one request of an allocated claim.

**Precedence.** An allocation carries the configs of the used DeviceClasses and of the claim, each with its requests;
none means all, and the name of a request covers its alternatives (`request/alternative`), which can also be named.
Configs of the claim override those of its classes, and a later config overrides an earlier one of the same source; how
narrowly a config names its requests does not matter. Configs are combined *field by field*: a field that the overriding
config leaves out (or null) keeps its value. A map, such as the memory limits by device, is one field. A config with
another `strategy` drops the earlier settings, because they belong to the other strategy; settings given for a strategy
that does not apply at their place are refused.

**Kinds.** A config that names the request must be of the kind for its device; one for all requests applies where its
kind fits, so that one claim can configure GPUs and MIG devices. The configs of a class name all requests of the class:
one of them must fit.

Source: DeviceClaimConfiguration and DeviceAllocationConfiguration, resource.k8s.io/v1; precedence as in NVIDIA's own
driver, which takes the first config whole and misses alternatives.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import ValidationError

from dra_driver.api.config import BLOCK_OF, CONFIG_KINDS, PER_DEVICE, DeviceConfig, adapter
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import AllocatedConfig, DeviceClaim
from dra_driver.errors import InvalidConfig
from dra_driver.names import CONFIG_API_VERSION, RequestName
from dra_driver.phrases import listed, meant, shown

type Problems = list[InvalidConfig]


def kind_of(parameters: object, *, field: str) -> str:
    """The kind of config in an opaque `parameters` object; `field` is its path, for errors.

    Raises InvalidConfig (final) when it is not an object, of another API version, or of a kind that does not exist.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidConfig("must be an object with `apiVersion`, `kind`", field=field)
    version = parameters.get("apiVersion")
    if version != CONFIG_API_VERSION:
        raise InvalidConfig(f"is {shown(version)}; must be `{CONFIG_API_VERSION}`", field=f"{field}.apiVersion")
    kind = parameters.get("kind")
    if not isinstance(kind, str) or kind not in CONFIG_KINDS:
        allowed = f"must be one of {listed(CONFIG_KINDS)}{meant(kind, CONFIG_KINDS)}"
        raise InvalidConfig(f"is {shown(kind)}; {allowed}", field=f"{field}.kind")
    return kind


@dataclass(frozen=True, slots=True)
class PartialConfig:
    """One config as it was written: valid by itself, but maybe only a part of what applies. `field` is its path, `tree`
    its fields without those that are null."""

    tree: JsonObject
    field: str


def written_config(parameters: Mapping[str, object], kind: type[DeviceConfig], *, field: str) -> PartialConfig:
    """A config that `kind_of` says is of this kind, on its own. `field` is the path of `parameters`, for errors.

    Raises InvalidConfig (final) with all problems, which no other config of a claim can correct.
    """
    tree = _without_null({name: value for name, value in parameters.items() if name not in ("apiVersion", "kind")})
    problems: Problems = []
    try:
        adapter(kind.kind).validate_python(tree, context=kind.uuid_prefix)
    except ValidationError as error:
        # What is missing here may be in another config.
        errors = [item for item in error.errors(include_url=False) if item["type"] != "missing"]
        problems += [_problem(kind, field, item["loc"], item["type"], item["msg"], item["input"]) for item in errors]
    partial = PartialConfig(tree, field)
    problems += _of_another_strategy([partial])
    if problems:
        raise InvalidConfig.of_all(problems)
    return partial


def _without_null(tree: JsonObject) -> JsonObject:
    """Null is the same as left out, as everywhere in Kubernetes."""
    return {
        name: _without_null(value) if isinstance(value, dict) and name != PER_DEVICE else value
        for name, value in tree.items()
        if value is not None
    }


_MUST = {
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be a map from devices to quantities, like `{'0': 8Gi}`",
    **dict.fromkeys(
        ("int_type", "int_from_float", "greater_than_equal", "less_than_equal"),
        "must be a whole number from 0 to 100",
    ),
}


def _problem(
    kind: type[DeviceConfig], field: str, location: tuple[int | str, ...], type_: str, message: str, value: object
) -> InvalidConfig:
    """An error of pydantic in the driver's wording: what is wrong, what is allowed, and a likely correction."""
    path, outer, block = field, _schema(kind.kind), _schema(kind.kind)
    for name in map(str, location):
        if name == "[key]":
            continue
        outer, block = block, _fields(block).get(name, {})
        path += f".{name}" if "properties" in outer else f"[{name}]"
    if type_ == "unexpected_keyword_argument":
        known, name = _fields(outer), str(location[-1])
        allowed = f"{'must be one of' if len(known) > 1 else 'the only one is'} {listed(known)}"
        deeper = next(_paths_to(name, outer), None)
        guess = meant(name, known) or (f"; did you mean `{deeper}`?" if deeper is not None else "")
        return InvalidConfig(f"unknown field; {allowed}{guess}", field=path)
    must = _MUST.get(type_) or message.removeprefix("Value error, ")
    if type_ == "literal_error":
        must = f"must be one of {listed(block['enum'])}{meant(value, block['enum'])}"
    if type_ == "dataclass_type":
        must = f"must be an object with {listed(_fields(block))}"
    if isinstance(value, str) and value.isdecimal() and type_ == "int_type":
        must += ", without quotes"
    return InvalidConfig(f"is {shown(value)}; {must}" if must.startswith("must ") else must, field=path)


@cache
def _schema(kind: str) -> JsonObject:
    """Of a config, without null and references. Remembered, because each wrong field of a config asks again."""
    whole = adapter(kind).json_schema()
    return _resolved(whole, whole.get("$defs", {}))


def _resolved(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    options = [option for option in schema.get("anyOf", [schema]) if option != {"type": "null"}]
    reference = options[0].get("$ref")
    block: JsonObject = definitions[reference.rpartition("/")[2]] if reference is not None else options[0]
    if "properties" not in block:
        return block
    fields = {name: _resolved(inner, definitions) for name, inner in block["properties"].items()}
    return {**block, "properties": fields}


def _fields(block: JsonObject) -> dict[str, JsonObject]:
    """Of a part of a schema, by wire name and in order."""
    fields: dict[str, JsonObject] = block.get("properties", {})
    return fields


def _paths_to(name: str, block: JsonObject) -> Iterator[str]:
    """For a field that was written too far out, which indentation does."""
    for own, inner in _fields(block).items():
        yield from (f"{own}.{name}" for _ in (1,) if name in _fields(inner))
        yield from (f"{own}.{path}" for path in _paths_to(name, inner))


# -- several configs


def combined[C: DeviceConfig](configs: Sequence[PartialConfig], kind: type[C]) -> C:
    """One config of all, which are given lowest precedence first; no config is the default of the kind.

    Raises InvalidConfig (final) with all problems: a sharing without a strategy, or settings of another strategy than
    the one that they are given for.
    """
    problems = [*_without_strategy(configs), *_of_another_strategy(configs)]
    if problems:
        raise InvalidConfig.of_all(problems)
    tree: JsonObject = {}
    for partial in configs:
        tree = over(partial.tree, tree)
    if "sharing" in tree:
        sharing = tree["sharing"]
        block = BLOCK_OF[sharing["strategy"]]
        tree["sharing"] = {"strategy": sharing["strategy"], block: sharing.get(block, {})}
    config: C = adapter(kind.kind).validate_python(tree, context=kind.uuid_prefix)
    return config


def over(upper: JsonObject, lower: JsonObject) -> JsonObject:
    """`upper` where it has a value, else `lower`, block by block. Associative: a stack of configs has one meaning."""
    merged = dict(lower)
    for name, value in upper.items():
        below = lower.get(name)
        is_block = isinstance(value, dict) and name != PER_DEVICE
        merged[name] = over(value, below) if is_block and isinstance(below, dict) else value
    return merged


def _without_strategy(configs: Sequence[PartialConfig]) -> Problems:
    sharings = [(config, config.tree["sharing"]) for config in configs if "sharing" in config.tree]
    if not sharings or any("strategy" in sharing for _, sharing in sharings):
        return []
    last, _ = sharings[-1]
    field = f"{last.field}.sharing.strategy"
    return [InvalidConfig(f"is missing; must be one of {listed(BLOCK_OF)}", field=field)]


def _of_another_strategy(configs: Sequence[PartialConfig]) -> Problems:
    """Settings of a strategy that does not apply where they are written: they would have no effect."""
    problems: Problems = []
    strategy, by = None, ""
    for config in configs:
        sharing = config.tree.get("sharing")
        sharing = sharing if isinstance(sharing, dict) else {}
        if isinstance(sharing.get("strategy"), str):
            strategy, by = sharing["strategy"], config.field
        for other, block in BLOCK_OF.items():
            if strategy in BLOCK_OF and other != strategy and block in sharing:
                where = "" if by == config.field else f" ({by}.sharing.strategy)"
                message = (
                    f"is for strategy `{other}`, but the strategy is `{strategy}`{where}; leave it out, or change the"
                    " strategy"
                )
                problems.append(InvalidConfig(message, field=f"{config.field}.sharing.{block}"))
    return problems


# -- the configs of an allocation


@dataclass(frozen=True, slots=True)
class ListedConfig:
    """A config for this driver, not decoded yet. `field` is the path of its parameters, where they were written."""

    source: Literal["FromClass", "FromClaim"]
    requests: tuple[str, ...]
    parameters: dict[str, Any]
    field: str


def listed_configs(
    configs: Sequence[AllocatedConfig], driver: str, devices: DeviceClaim | None = None
) -> tuple[ListedConfig, ...]:
    """Those for `driver`, highest precedence first; `configs` is `status.allocation.devices.config` as it is.

    `devices` is the claim's `spec.devices`; without it, `field` is a path in the allocation.
    """
    last_first = [
        ListedConfig(config.source, tuple(config.requests), config.opaque.parameters, _field(index, config, devices))
        for index, config in reversed(list(enumerate(configs)))
        if config.opaque is not None and config.opaque.driver == driver
    ]
    return tuple(sorted(last_first, key=lambda config: config.source == "FromClass"))


def _field(index: int, config: AllocatedConfig, devices: DeviceClaim | None) -> str:
    """Of the parameters: in the claim or the class from which the scheduler copied them, as far as that is known."""
    place = f"status.allocation.devices.config[{index}]"
    if devices is None:
        pass
    elif config.source == "FromClaim":
        copy = (config.requests, config.opaque)
        copies = [n for n, written in enumerate(devices.config) if (written.requests, written.opaque) == copy]
        place = f"spec.devices.config[{copies[0]}]" if copies else place
    else:
        ways = [way for request in devices.requests for way in request.ways]
        classes = {spec.device_class_name for name, spec in ways if name.covered_by(config.requests)}
        place = f"DeviceClass {min(classes)}: spec.config" if len(classes) == 1 else place
    return f"{place}.opaque.parameters"


def config_for[C: DeviceConfig](request: RequestName, configs: Sequence[ListedConfig], kind: type[C]) -> C:
    """The config of a request whose device needs the given `kind`; without any, the default.

    `configs` are as `listed_configs` gave them. Each config that covers the request must be valid, even if others
    override it completely. Raises InvalidConfig (final) with all problems.
    """
    covering = [config for config in configs if request.covered_by(config.requests)]
    applying: list[PartialConfig] = []
    problems: Problems = []
    for config in reversed(covering):
        try:
            applying += _applying(request, config, covering, kind)
        except InvalidConfig as error:
            problems.append(error)
    if problems:
        raise InvalidConfig.of_all(problems)
    return combined(applying, kind)


def _applying(
    request: RequestName, config: ListedConfig, covering: Sequence[ListedConfig], kind: type[DeviceConfig]
) -> list[PartialConfig]:
    """The config, decoded; nothing when it is for devices of another kind and was not written for this request."""
    written = kind_of(config.parameters, field=config.field)
    if written == kind.kind:
        return [written_config(config.parameters, kind, field=config.field)]
    of_class = [other.parameters.get("kind") for other in covering if other.source == "FromClass"]
    if not config.requests or (config.source == "FromClass" and kind.kind in of_class):
        return []
    raise InvalidConfig(
        f"{written} is for {CONFIG_KINDS[written].devices}, but request `{request}` was given one of the"
        f" {kind.devices}; use {kind.kind}, or leave the config out",
        field=f"{config.field}.kind",
    )
