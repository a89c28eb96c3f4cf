"""Which opaque config applies to which request of an allocated claim.

An allocation carries the configs of the used DeviceClasses and of the claim, each with the requests it is for; none
means all. For one request the claim's configs come before the class's, and of equals the last one written wins; the
winner applies whole, nothing is merged. Configs for other drivers are not ours to read. A config that names the
request must be of the kind that its device wants; one for all requests applies where its kind fits and is passed over
elsewhere, so that one claim can configure GPUs and partitions. Source: kubernetes' DeviceClaimConfiguration and
DeviceAllocationConfiguration; precedence as in NVIDIA's own driver, alternatives included, which that one misses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dra_driver.api.config import GpuConfig, decode_config, kind_of, meant_for
from dra_driver.api.resource import AllocatedConfig
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


def config_for[C: GpuConfig](request: RequestName, configs: Sequence[ListedConfig], kind: type[C], default: C) -> C:
    """The config of a request whose device wants configs of `kind`; `default` when nobody wrote one.

    `configs` are as `listed_configs` gave them. Each one that covers the request must be right, also when one of higher
    precedence hides it; one that covers only other requests is not looked at. Raises InvalidConfig (final) with all
    problems together.
    """
    applying: list[C] = []
    problems: list[InvalidConfig] = []
    for config in configs:
        if request.covered_by(config.requests):
            try:
                applying += _applying(request, config, kind)
            except InvalidConfig as error:
                problems.append(error)
    if problems:
        raise _together(problems)
    return applying[0] if applying else default


def _applying[C: GpuConfig](request: RequestName, config: ListedConfig, kind: type[C]) -> list[C]:
    """The decoded config; nothing when it is for devices of another kind and was not written for this request."""
    found = kind_of(config.parameters, field=config.field)
    if found == kind.kind:
        return [decode_config(config.parameters, kind, field=config.field)]
    if not config.requests:
        return []
    raise InvalidConfig(
        f"{found} is for {meant_for(found)}, but request `{request}` was given one of the {meant_for(kind.kind)}; "
        f"use {kind.kind}, or leave the config out",
        field=f"{config.field}.kind",
    )


def _together(problems: Sequence[InvalidConfig]) -> InvalidConfig:
    first, *others = problems
    return InvalidConfig(
        "; ".join([first.message, *(str(other) for other in others)]),
        field=first.field,
        problems=[text for one in problems for text in (one.problems or (str(one),))],
    )
