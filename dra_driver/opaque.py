"""The opaque config of one request of an allocated claim, combined from all that apply to it.

An allocation carries the configs of the used DeviceClasses and of the claim, each with the requests it is for; none
means all, and a request's name covers its alternatives (`request/alternative`), which can be named alone, too. Configs
for other drivers are not ours to read.

**Precedence.** The claim's configs lie above those of its classes, and of equals the later one above the earlier one;
how narrowly a config names its requests does not matter. They are combined *field by field*: what the upper one has
written holds, what it has left out (or null) is as the lower one has it. A map, like the memory limits by device, is
one field. An upper config that has another `strategy` leaves the lower one's settings behind, since they are for the
other strategy; settings given for another strategy than the one that holds at their place are refused.

**Kinds.** A config that names the request must be of the kind that its device wants; one for all requests applies
where its kind fits and is passed over elsewhere, so that one claim can configure GPUs and MIG devices. A class's
configs name all requests of the class, be they for GPUs or MIG devices: one of the class's configs must fit.

Source: kubernetes' DeviceClaimConfiguration and DeviceAllocationConfiguration; precedence as in NVIDIA's own driver,
which takes the first config whole and misses alternatives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dra_driver.api.config import DeviceConfig, combined, kind_of, meant_for, written_config
from dra_driver.api.fields import Problems, together
from dra_driver.api.resource import AllocatedConfig
from dra_driver.api.sharing import Written
from dra_driver.errors import InvalidConfig
from dra_driver.names import RequestName

_PRECEDENCE = {"FromClaim": 0, "FromClass": 1}


@dataclass(frozen=True, slots=True)
class ListedConfig:
    """A config of our driver, not decoded yet. `field` is the path of its parameters in the claim."""

    source: Literal["FromClass", "FromClaim"]
    requests: tuple[str, ...]
    parameters: dict[str, Any]
    field: str


def listed_configs(configs: Sequence[AllocatedConfig], driver: str) -> tuple[ListedConfig, ...]:
    """Those for `driver`, highest precedence first; `configs` is `status.allocation.devices.config` as it is."""
    last_first = [
        ListedConfig(
            config.source,
            tuple(config.requests),
            config.opaque.parameters,
            f"status.allocation.devices.config[{index}].opaque.parameters",
        )
        for index, config in reversed(list(enumerate(configs)))
        if config.opaque is not None and config.opaque.driver == driver
    ]
    return tuple(sorted(last_first, key=lambda config: _PRECEDENCE[config.source]))


def config_for[C: DeviceConfig](request: RequestName, configs: Sequence[ListedConfig], kind: type[C], default: C) -> C:
    """The config of a request whose device wants configs of `kind`; `default` when nobody wrote one.

    `configs` are as `listed_configs` gave them. Each one that covers the request must be right, also when others hide
    all of it; one that covers only other requests is not looked at. Raises InvalidConfig (final) with all problems.
    """
    covering = [config for config in configs if request.covered_by(config.requests)]
    applying: list[Written] = []
    problems: Problems = []
    for config in reversed(covering):
        try:
            applying += _applying(request, config, covering, kind)
        except InvalidConfig as error:
            problems.append(error)
    if problems:
        raise together(problems)
    return combined(applying, kind) if applying else default


def _applying(
    request: RequestName, config: ListedConfig, covering: Sequence[ListedConfig], kind: type[DeviceConfig]
) -> list[Written]:
    """The config, decoded; nothing when it is for devices of another kind and was not written for this request."""
    found = kind_of(config.parameters, field=config.field)
    if found == kind.kind:
        return [written_config(config.parameters, kind, field=config.field)]
    if not config.requests or (config.source == "FromClass" and _class_fits(covering, kind)):
        return []
    raise InvalidConfig(
        f"{found} is for {meant_for(found)}, but request `{request}` was given one of the {meant_for(kind.kind)}; "
        f"use {kind.kind}, or leave the config out",
        field=f"{config.field}.kind",
    )


def _class_fits(covering: Sequence[ListedConfig], kind: type[DeviceConfig]) -> bool:
    return any(config.source == "FromClass" and config.parameters.get("kind") == kind.kind for config in covering)
