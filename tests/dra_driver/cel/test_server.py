"""The version and the gates of a server decide what its selectors can say."""

import pytest
from support.rows import rows

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelError, CelRuntimeError, CelTypeError
from dra_driver.cel.functions import Server

SHARED = "device.allowMultipleAllocations"
LOOP = "device.attributes['a.example'].models.exists(m, m == 'H100')"
INCLUDES = "device.attributes['a.example'].models.includes('H100')"


def knows(server: Server, expression: str) -> bool:
    try:
        compile_selector(expression, server)
    except CelError:
        return False
    return True


@rows(
    "server, known",
    [
        (Server.of(34, stored=False), []),
        (Server.of(34), [SHARED]),
        (Server.of(35, stored=False), []),
        (Server.of(36, stored=False), [SHARED]),
        (Server.of(36), [SHARED, INCLUDES]),
        (Server.of(36, stored=False, list_attributes=True), [SHARED, LOOP, INCLUDES]),
        (Server.of(37, stored=False), [SHARED]),
        (Server.of(38, stored=False), [SHARED, INCLUDES]),
    ],
)
def test_each_server_knows_what_came_before_it(server: Server, known: list[str]) -> None:
    assert [name for name in (SHARED, LOOP, INCLUDES) if knows(server, name)] == known


def test_a_function_of_a_later_version_is_refused_with_the_version_that_has_it() -> None:
    with pytest.raises(CelTypeError, match=r"unknown method `includes`; it can be used from Kubernetes 1\.37 on"):
        compile_selector(INCLUDES, Server.of(34))


def test_an_attribute_is_no_list_where_the_gate_is_off() -> None:
    with pytest.raises(CelTypeError, match="one value while DRAListTypeAttributes is off"):
        compile_selector(LOOP)


_LISTS = CelDevice(
    "a.example",
    Device.of(
        {
            "name": "gpu",
            "attributes": {
                "models": {"strings": ["A100", "H100"]},
                "sizes": {"ints": [1, 2]},
                "flags": {"bools": [True]},
                "versions": {"versions": ["1.2.3"]},
                "type": {"string": "gpu"},
            },
        }
    ),
)


@rows(
    "expression",
    [
        LOOP,
        INCLUDES,
        "device.attributes['a.example'].type.includes('gpu') && !device.attributes['a.example'].type.includes('mig')",
        "'A100' in device.attributes['a.example'].models && device.attributes['a.example'].models.size() == 2",
        "device.attributes['a.example'].sizes.sum() == 3 && device.attributes['a.example'].flags == [true]",
        "device.attributes['a.example'].versions[0].isLessThan(semver('2.0.0'))",
        "!device.attributes['a.example'].models.includes(1)",
    ],
)
def test_lists_are_attributes_where_the_gate_is_on(expression: str) -> None:
    assert compile_selector(expression, Server.of(36, list_attributes=True)).matches(_LISTS)


def test_a_scheduler_without_the_gate_gives_up_on_a_device_with_a_list() -> None:
    with pytest.raises(CelRuntimeError, match="unsupported attribute value"):
        compile_selector("device.driver == 'a.example'").matches(_LISTS)
    assert compile_selector("device.driver == 'a.example'", Server.of(37)).matches(_LISTS)


def test_only_lists_of_a_device_s_length_can_be_searched_with_includes() -> None:
    server = Server.of(36, list_attributes=True)
    for length in (48, 50):
        selector = compile_selector(f"[{', '.join(map(str, range(length)))}].includes({length - 1})", server)
        if length == 48:
            assert selector.matches(_LISTS)
        else:
            with pytest.raises(CelRuntimeError, match="longer than 48 values"):
                selector.matches(_LISTS)
