"""A selector is evaluated once for all devices that it cannot tell apart, and says of each what it says of it alone."""

import random

from support.allocation import DRIVER, attribute
from support.rows import rows

from dra_driver.allocation.selection import AttributeRead, Failure, SelectorFacts, Selectors, reads
from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, CompiledSelector, compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.cel.functions import CURRENT, Server
from dra_driver.cel.parser import parse

OWN = f"device.attributes['{DRIVER}']"
KIND, SIZE = AttributeRead("attributes", DRIVER, "kind"), AttributeRead("attributes", DRIVER, "size")


@rows(
    "expression, expected",
    [
        ("true", ()),
        (f"device.driver == '{DRIVER}' && device.allowMultipleAllocations", ()),
        (f"{OWN}.kind == 'a' && {OWN}.size > 1", (KIND, SIZE)),
        (f"has({OWN}.kind) || {OWN}['size'] == 2", (KIND, SIZE)),
        (f"{OWN}.?kind.orValue('x') == 'x'", (KIND,)),
        (
            f"device.capacity['{DRIVER}'].memory.isLessThan(quantity('1Gi'))",
            (AttributeRead("capacity", DRIVER, "memory"),),
        ),
        (f"['a', 'b'].exists(x, {OWN}.kind == x)", (KIND,)),
        (f"{OWN}.exists(x, x == 'kind')", None),
        (f"'{DRIVER}' in device.attributes", None),
        (f"cel.bind(a, {OWN}, a.kind == 'a')", None),
        (f"device.attributes[?'{DRIVER}'].hasValue()", None),
        ("device.attributes[device.driver].kind == 'a'", None),
    ],
)
def test_what_an_expression_reads_is_seen_in_its_text(
    expression: str, expected: tuple[AttributeRead, ...] | None
) -> None:
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


def outcome(selectors: Selectors, expression: str, driver: str, device: Device) -> bool | str:
    answer = selectors.question((expression,)).verdict(SelectorFacts(driver, device))
    return str(answer.error) if isinstance(answer, Failure) else answer


def alone(expression: str, driver: str, device: Device) -> bool | str:
    try:
        return compile_selector(expression).matches(CelDevice(driver, device))
    except CelError as error:
        return str(error)


@rows("expression", EXPRESSIONS)
def test_every_device_gets_the_answer_that_it_would_get_alone(expression: str) -> None:
    random_ = random.Random(expression)
    selectors = Selectors(CURRENT)
    for _ in range(300):
        driver, device = random_.choice([DRIVER, "other.example.com"]), a_device(random_)
        assert outcome(selectors, expression, driver, device) == alone(expression, driver, device), device


def lists(*values: str) -> Device:
    return Device.of({"name": "x", "attributes": {"kind": {"string": "a"}, "models": {"strings": list(values)}}})


def test_no_answer_depends_on_what_was_asked_before() -> None:
    """A list is unreadable for 1.36, whatever the selector reads, and whether a device without one was asked first."""
    selectors, expression = Selectors(CURRENT), f"{OWN}.kind == 'a'"
    plain = Device.of({"name": "x", "attributes": {"kind": {"string": "a"}}})
    for _ in range(2):
        assert selectors.question((expression,)).verdict(SelectorFacts(DRIVER, plain)) is True
        failure = selectors.question((expression,)).verdict(SelectorFacts(DRIVER, lists("A100")))
        assert isinstance(failure, Failure) and "models: unsupported attribute value" in str(failure.error)


def test_devices_with_different_lists_are_told_apart() -> None:
    selectors = Selectors(Server.of(36, list_attributes=True))
    expression = f"{OWN}.models.exists(m, m == 'A100')"
    answers = [
        selectors.question((expression,)).verdict(SelectorFacts(DRIVER, lists(model)))
        for model in ("A100", "T4", "A100")
    ]
    assert answers == [True, False, True]


def test_a_list_is_read_by_a_scheduler_that_knows_lists() -> None:
    assert Selectors(Server.of(37)).question(("true",)).verdict(SelectorFacts(DRIVER, lists("A100"))) is True


def test_every_selector_fails_on_a_device_that_has_an_attribute_without_a_value() -> None:
    device = Device.of({"name": "x", "attributes": {"kind": {}}})
    failure = Selectors(Server.of(37)).question(("true",)).verdict(SelectorFacts(DRIVER, device))
    assert isinstance(failure, Failure) and "kind: unsupported attribute value" in str(failure.error)


def test_a_selector_that_does_not_compile_is_compiled_once() -> None:
    compiled: list[str] = []

    def counting(expression: str, server: Server) -> CompiledSelector:
        compiled.append(expression)
        return compile_selector(expression, server)

    selectors = Selectors(CURRENT, counting)
    for name in ("a", "b", "c"):
        device = Device.of({"name": name, "attributes": {"kind": {"string": name}}})
        for expressions in (("nothing > 1",), ("true", "nothing > 1")):
            assert isinstance(selectors.question(expressions).verdict(SelectorFacts(DRIVER, device)), Failure)
    assert compiled == ["nothing > 1", "true"]
