"""Cases of the CEL specification, from a clone of google/cel-spec: expressions without variables, and what they are."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

CLONE = "GPU_DRA_TEST_CEL_SPEC"
"""Names the folder."""

FAILS = "fails"


@dataclass(frozen=True)
class Case:
    """`value` is a Python value, types as `("type", name)`, a map as a list of pairs; or FAILS."""

    name: str
    expression: str
    value: object


def cases(clone: Path) -> Iterator[Case]:
    """Those without variables, containers and unknowns, whose values are no messages."""
    file_class = _file_class(clone)
    for path in sorted((clone / "tests/simple/testdata").glob("*.textproto")):
        text = path.read_text().replace("\\?", "?")  # an escape that this reader does not know
        file = text_format.Parse(text, file_class(), descriptor_pool=file_class.DESCRIPTOR.file.pool)
        for section in file.section:
            for test in section.test:
                if case := _case(f"{path.stem}/{section.name}/{test.name}", test):
                    yield case


def _file_class(clone: Path) -> Any:
    """The specification's own definition of its files, compiled."""
    protos = [str(path.relative_to(clone / "proto")) for path in sorted((clone / "proto/cel/expr").rglob("*.proto"))]
    wanted = [name for name in protos if "conformance_service" not in name]
    known = resources.files("grpc_tools") / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{clone / 'proto'}", f"-I{known}", "--include_imports"]
    done = subprocess.run([*command, "-o/dev/stdout", *wanted], capture_output=True, check=True)
    pool = descriptor_pool.DescriptorPool()
    for proto in descriptor_pb2.FileDescriptorSet.FromString(done.stdout).file:
        pool.Add(proto)
    name = "cel.expr.conformance.test.SimpleTestFile"
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _case(name: str, test: Any) -> Case | None:
    if test.type_env or test.bindings or test.container or test.disable_check or test.disable_macros or test.check_only:
        return None
    result = test.WhichOneof("result_matcher")
    if result in ("eval_error", "any_eval_errors"):
        return Case(name, test.expr, FAILS)
    if result in ("unknown", "any_unknowns"):
        return None
    value = test.typed_result.result if result == "typed_result" else test.value
    try:
        return Case(name, test.expr, _plain(value) if result is not None else True)
    except LookupError:
        return None


def _plain(value: Any) -> object:
    """Raises LookupError for a message."""
    kind = value.WhichOneof("kind")
    match kind:
        case "null_value":
            return None
        case "list_value":
            return [_plain(item) for item in value.list_value.values]
        case "map_value":
            return [(_plain(entry.key), _plain(entry.value)) for entry in value.map_value.entries]
        case "type_value":
            return "type", value.type_value
        case "uint64_value":
            return "uint", value.uint64_value
        case "object_value" | "enum_value":
            raise LookupError(kind)
    return getattr(value, kind)
