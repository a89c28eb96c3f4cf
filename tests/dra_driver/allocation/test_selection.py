"""A selector is evaluated once for all devices that it cannot tell apart, and says of each what it says of it alone."""

import random

import pytest
from support.allocation import DRIVER, attribute

from dra_driver.allocation.selection import ClassSelector, Read, reads
from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.cel.parser import parse

OWN = f"device.attributes['{DRIVER}']"
KIND, SIZE = Read("attributes", DRIVER, "kind"), Read("attributes", DRIVER, "size")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("true", ()),
        (f"device.driver == '{DRIVER}' && device.allowMultipleAllocations", ()),
        (f"{OWN}.kind == 'a' && {OWN}.size > 1", (KIND, SIZE)),
        (f"has({OWN}.kind) || {OWN}['size'] == 2", (KIND, SIZE)),
        (f"{OWN}.?kind.orValue('x') == 'x'", (KIND,)),
        (f"device.capacity['{DRIVER}'].memory.isLessThan(quantity('1Gi'))", (Read("capacity", DRIVER, "memory"),)),
        (f"['a', 'b'].exists(x, {OWN}.kind == x)", (KIND,)),
        (f"{OWN}.exists(x, x == 'kind')", None),
        (f"'{DRIVER}' in device.attributes", None),
        (f"cel.bind(a, {OWN}, a.kind == 'a')", None),
        (f"device.attributes[?'{DRIVER}'].hasValue()", None),
        ("device.attributes[device.driver].kind == 'a'", None),
    ],
)
def test_what_an_expression_reads_is_seen_in_its_text(expression: str, expected: tuple[Read, ...] | None) -> None:
    assert reads(parse(expression)) == expected


EXPRESSIONS = [
    f"{OWN}.kind == 'a'",
    f"{OWN}.kind == 'a' && {OWN}.size >= 2",
    f"has({OWN}.kind) || {OWN}.size == 1",
    f"device.attributes['other.example.com'].kind == 'a' || device.driver != '{DRIVER}'",
    f"device.capacity['{DRIVER}'].memory == quantity('1Gi')",
    "device.allowMultipleAllocations",
    f"cel.bind(a, {OWN}, a.kind == 'a')",
]


def a_device(random_: random.Random) -> Device:
    values = {
        "kind": random_.choice(["a", "b", 1, True]),
        "size": random_.choice([1, 2, "2"]),
        f"{DRIVER}/kind": "a",
        "other.example.com/kind": random_.choice(["a", "b"]),
    }
    attributes = {name: attribute(value) for name, value in values.items() if random_.random() < 0.5}
    items = list(attributes.items())
    random_.shuffle(items)
    capacity = {"memory": {"value": random_.choice(["1Gi", "1024Mi", "2Gi"])}} if random_.random() < 0.7 else {}
    shareable = {"allowMultipleAllocations": True} if random_.random() < 0.5 else {}
    return Device.of({"name": "x", "attributes": dict(items), "capacity": capacity, **shareable})


def outcome(selector: ClassSelector, driver: str, device: Device) -> bool | str:
    try:
        return selector.matches(driver, device)
    except CelError as error:
        return str(error)


def alone(expression: str, driver: str, device: Device) -> bool | str:
    try:
        return compile_selector(expression).matches(CelDevice(driver, device))
    except CelError as error:
        return str(error)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_device_gets_the_answer_that_it_would_get_alone(expression: str) -> None:
    random_ = random.Random(expression)
    selector = ClassSelector(expression)
    for _ in range(300):
        driver, device = random_.choice([DRIVER, "other.example.com"]), a_device(random_)
        assert outcome(selector, driver, device) == alone(expression, driver, device), device
