"""Opaque configs of claims and classes: decoded as the node would, for each kind of device that they can meet."""

from collections.abc import Iterator, Sequence

from dra_driver.api.config import CONFIG_KINDS, DEVICE_CONFIGS, DOMAIN_CONFIGS, DeviceConfig
from dra_driver.api.meta import JsonObject
from dra_driver.api.opaque import config_for, kind_of, listed_configs, written_config
from dra_driver.api.resource import AllocatedConfig, Opaque
from dra_driver.checking import codes
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import CheckReport
from dra_driver.checking.fit import Wish, kinds_of, wishes_of
from dra_driver.checking.knowledge import Knowledge
from dra_driver.checking.manifests import ClaimPart, Manifests
from dra_driver.checking.selectors import fix_of, suggested_in
from dra_driver.errors import InvalidConfig
from dra_driver.features import Feature, Gates, check_strategy
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.phrases import is_misspelled, meant

_KINDS: dict[str, type[DeviceConfig]] = dict(zip(("gpu", "mig", "vfio"), DEVICE_CONFIGS, strict=True))


def check_configs(configs: Sequence[JsonObject], path: str, report: CheckReport, knowledge: Knowledge) -> bool:
    """Each for itself; whether all for our drivers are right. `path` is that of the list."""
    right, ours = True, knowledge.driver
    # With the gate off, another driver may keep domains and configs, by its own rules.
    judged = (ours, COMPUTE_DOMAIN_DRIVER) if Feature.COMPUTE_DOMAINS in knowledge.gates else (ours,)
    for index, config in enumerate(configs):
        opaque, where = config.get("opaque") or {}, f"{path}[{index}].opaque"
        driver = opaque.get("driver")
        if driver in judged:
            taken = DEVICE_CONFIGS if driver == ours else DOMAIN_CONFIGS
            right &= _check_parameters(opaque.get("parameters"), f"{where}.parameters", report, taken, knowledge.gates)
        elif isinstance(driver, str) and driver != COMPUTE_DOMAIN_DRIVER:
            guess = meant(driver, (ours, COMPUTE_DOMAIN_DRIVER))
            if guess:
                message = f"no driver {driver!r} is known{guess}"
                severity = Severity.ERROR if is_misspelled(driver, guess.split("`")[1]) else None
                report.find(codes.UNKNOWN_DRIVER, f"{where}.driver", message, fix=fix_of(guess), severity=severity)
    return right


def _check_parameters(
    parameters: object, path: str, report: CheckReport, taken: Sequence[type[DeviceConfig]], gates: Gates
) -> bool:
    """`taken` are the kinds that devices of the driver take."""
    if not isinstance(parameters, dict):
        return False  # that it is missing, or no map, was said already
    try:
        kind = kind_of(parameters, field=path)
        described = next((item for item in taken if item.kind == kind), None)
        if described is None:
            message = f"{kind} is for {CONFIG_KINDS[kind].devices}, which are devices of another driver"
            report.find(codes.CONFIG_KIND, f"{path}.kind", message)
            return False
        written_config(parameters, described, field=path)
        strategy = (parameters.get("sharing") or {}).get("strategy")
        if strategy is not None:
            check_strategy(strategy, gates, field=f"{path}.sharing.strategy")
        if described in DOMAIN_CONFIGS and "domainID" not in parameters:
            report.find(codes.CONFIG, f"{path}.domainID", "is missing; must be the UID of a ComputeDomain")
            return False
    except InvalidConfig as error:
        for field, message in _problems(error, path):
            report.find(codes.CONFIG, field, message, fix=suggested_in(message))
        return False
    return True


def _problems(error: InvalidConfig, path: str) -> Iterator[tuple[str, str]]:
    """Field and message of each problem; the texts of several have the field before the message."""
    if len(error.problems) <= 1:
        yield error.field or path, error.message
        return
    for text in error.problems:
        field, colon, message = text.partition(": ")
        yield (field, message) if colon else (path, text)


def check_configs_of_claim(part: ClaimPart, manifests: Manifests) -> None:
    """The claim's configs against the devices that its requests can get, together with those of the classes."""
    path, knowledge = f"{part.path}.devices.config", manifests.knowledge
    if not check_configs(part.listed("config"), path, part.report, knowledge) or not knowledge.sites:
        return
    for wish in wishes_of(part, manifests):
        _check_request(part, wish, knowledge)


def _check_request(part: ClaimPart, wish: Wish, knowledge: Knowledge) -> None:
    """A config that fits none of the devices is an error, one that fits some of them a warning."""
    listed, places = _stack(part, wish)
    configs = listed_configs(listed, knowledge.driver)
    if not any(config.source == "FromClaim" and wish.name.covered_by(config.requests) for config in configs):
        return
    kinds = kinds_of(wish.expressions, knowledge)
    failed: dict[str, list[tuple[str, str]]] = {}
    for kind in sorted(kinds & _KINDS.keys()):
        try:
            config_for(wish.name, configs, _KINDS[kind])
        except InvalidConfig as error:
            failed[kind] = list(_problems(error, wish.path))
    severity = None if len(failed) == len(kinds) else Severity.WARNING
    for kind, problems in failed.items():
        for field, message in problems:
            place = _place(field, places, wish.path)
            text = message if severity is None else f"on devices of type {kind}: {message}"
            code = codes.CONFIG_KIND if place.endswith(".kind") else codes.CONFIG
            if not part.report.has(place):
                part.report.find(code, place, text, severity=severity)


def _stack(part: ClaimPart, wish: Wish) -> tuple[list[AllocatedConfig], list[str]]:
    """As an allocation would list them, and where each one is written; those of the class count as the request's."""
    configs = [
        AllocatedConfig(source="FromClass", requests=[str(wish.name)], opaque=config.opaque)
        for config in wish.device_class.spec.config
    ]
    places = [f"{wish.path}.deviceClassName" for _ in configs]
    for index, item in enumerate(part.listed("config")):
        opaque = item.get("opaque") or {}
        if isinstance(opaque.get("parameters"), dict) and isinstance(opaque.get("driver"), str):
            inner = Opaque(driver=opaque["driver"], parameters=opaque["parameters"])
            configs.append(AllocatedConfig(source="FromClaim", requests=list(item.get("requests") or ()), opaque=inner))
            places.append(f"{part.path}.devices.config[{index}].opaque.parameters")
    return configs, places


def _place(field: str, places: Sequence[str], otherwise: str) -> str:
    """From the path in an allocation to that in the claim."""
    for index, place in enumerate(places):
        prefix = f"status.allocation.devices.config[{index}].opaque.parameters"
        if field.startswith(prefix):
            return place if place.endswith("deviceClassName") else place + field.removeprefix(prefix)
    return otherwise
