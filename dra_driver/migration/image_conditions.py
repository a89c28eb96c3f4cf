"""Conditions of images (NVIDIA_REQUIRE_*), which the NVIDIA container runtime checked, as CEL. Pure."""

import re

from dra_driver.migration.labels import quoted
from dra_driver.quantity import padded_version

_CONDITION = re.compile(r"(cuda|driver|arch|brand)(>=|<=|!=|>|<|=)([A-Za-z0-9.]+)")
_ATTRIBUTES = {"cuda": "cudaDriverVersion", "driver": "driverVersion", "arch": "cudaComputeCapability"}


def requirement(value: str, own: str) -> str | None:
    """CEL of `cuda>=12.2 brand=tesla,driver>=470`: blanks are OR, commas AND. `own` is the map of attributes.

    None: it is not understood. Source: the NVIDIA container runtime, NVIDIA_REQUIRE_*.
    """
    alternatives = []
    for words in value.split():
        parts = [_condition(word, own) for word in words.split(",") if word]
        if not parts or None in parts:
            return None
        alternatives.append(" && ".join(part for part in parts if part is not None))
    if not alternatives:
        return None
    if len(alternatives) == 1:
        return alternatives[0]
    return " || ".join(f"({one})" for one in alternatives)


def _condition(word: str, own: str) -> str | None:
    match = _CONDITION.fullmatch(word)
    if match is None:
        return None
    name, operator, text = match.groups()
    sign = "==" if operator == "=" else operator
    if name == "brand":
        if sign not in ("==", "!="):
            return None
        return f"has({own}.brand) && {own}.brand.lowerAscii() {sign} {quoted(text.lower())}"
    version = padded_version(text)
    if version is None:
        return None
    attribute = f"{own}.{_ATTRIBUTES[name]}"
    return f"has({attribute}) && {attribute}.compareTo(semver({quoted(str(version))})) {sign} 0"
