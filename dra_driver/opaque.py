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

from dra_driver.api.config import GPU_CONFIG, GpuConfig, decode_gpu_config, kind_of, meant_for
from dra_driver.api.resource import AllocatedConfig
from dra_driver.errors import InvalidConfig
from dra_driver.names import RequestName

_PRECEDENCE = {"FromClass": 0, "FromClaim": 1}
_FIELD = "status.allocation.devices.config"


@dataclass(frozen=True, slots=True)
class _Candidate:
    precedence: tuple[int, int]
    config: GpuConfig


def gpu_config_for(request: RequestName, configs: Sequence[AllocatedConfig], *, driver: str, about: str) -> GpuConfig:
    """The config of a request whose device is a full GPU; the default when nobody wrote one.

    `configs` is `status.allocation.devices.config`, in its order. Everything that covers the request must be right,
    also when something of higher precedence hides it. Raises InvalidConfig (final) with all problems together;
    `about` names the claim.
    """
    candidates: list[_Candidate] = []
    problems: list[InvalidConfig] = []
    for index, config in enumerate(configs):
        if config.opaque is None or config.opaque.driver != driver or not request.covered_by(config.requests):
            continue
        field = f"{_FIELD}[{index}].opaque.parameters"
        try:
            decoded = _decoded(config.opaque.parameters, field, named=bool(config.requests), request=request)
        except InvalidConfig as error:
            problems.append(error)
            continue
        if decoded is not None:
            candidates.append(_Candidate((_PRECEDENCE[config.source], index), decoded))
    if problems:
        raise _together(problems, about)
    return max(candidates, key=lambda one: one.precedence).config if candidates else GpuConfig()


def _decoded(parameters: dict[str, object], field: str, *, named: bool, request: RequestName) -> GpuConfig | None:
    """None for a config that is for other devices than GPUs and was not written for this request."""
    kind = kind_of(parameters, field=field)
    if kind == GPU_CONFIG:
        return decode_gpu_config(parameters, field=field)
    if not named:
        return None
    raise InvalidConfig(
        f"{kind} is for {meant_for(kind)}, but request `{request}` was given a full GPU; "
        f"use {GPU_CONFIG} or leave the config out (this version of the driver offers full GPUs only)",
        field=f"{field}.kind",
    )


def _together(problems: Sequence[InvalidConfig], about: str) -> InvalidConfig:
    first, *others = problems
    message = "; ".join([first.message, *(str(other) for other in others)])
    return InvalidConfig(
        message,
        about=about,
        field=first.field,
        problems=[text for one in problems for text in (one.problems or (str(one),))],
    )
