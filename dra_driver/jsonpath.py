"""`-o jsonpath=TEMPLATE`, as far as tables need it: `{[*].node}`, `{range [*]}{.claim}{"\\n"}{end}`; and the paths of
printer columns, as `.status.conditions[?(@.type=='Ready')].status`. Pure.

Of kubectl's templates this has fields, indices, `*`, filters that compare a field with a value, ranges, and text in
quotes. Source: https://kubernetes.io/docs/reference/kubectl/jsonpath/.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.errors import InvalidInput

_STEP = re.compile(
    r"""\.(?P<field>(?:[\w/-]|\\.)+) | \['(?P<quoted>[^']+)'\] | \[(?P<index>-?\d+)\] | (?P<all>\[\*\]|\.\*)
    | \[\?\(\s*@\.(?P<of>[\w-]+)\s*(?P<how>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|-?\d+|true|false|null)\s*\)\]""",
    re.VERBOSE,
)
_PART = re.compile(r"\{([^{}]*)\}")

type Step = tuple[str, str, str]
"""What kind of step, and what it is about: a field, an index, or a field and the value it is compared with."""


@dataclass(frozen=True, slots=True)
class Path:
    steps: tuple[Step, ...]

    def values(self, data: object) -> list[object]:
        """What it leads to, in order; empty if it leads nowhere."""
        values = [data]
        for step in self.steps:
            values = [result for value in values for result in _stepped(value, step)]
        return values


@dataclass(frozen=True, slots=True)
class Range:
    path: Path
    parts: "Sequence[Part]"


type Part = str | Path | Range


def read_template(text: str) -> tuple[Part, ...]:
    """Raises InvalidInput that names what is not understood. Without braces, the text is one path."""
    if not text.strip():
        raise InvalidInput("no template is given; write one such as jsonpath={[*].node}", about="jsonpath")
    words = _words(text if "{" in text else f"{{{text}}}")
    parts = tuple(_parts(words, text, inside=False))
    if (word := next(words, None)) is not None:
        raise _error(text, f"{{{word}}} has no range")
    return parts


def _words(text: str) -> Iterator[str | tuple[str]]:
    """What is in braces, and what is between them as a tuple."""
    end = 0
    for match in _PART.finditer(text):
        if match.start() > end:
            yield (text[end : match.start()],)
        yield match[1].strip()
        end = match.end()
    if end < len(text):
        yield (text[end:],)


def _parts(words: Iterator[str | tuple[str]], text: str, *, inside: bool) -> Iterator[Part]:
    for word in words:
        if isinstance(word, tuple):
            if not {"{", "}"}.isdisjoint(word[0]):
                raise _error(text, "a brace is not closed, or not opened")
            yield word[0]
        elif word == "end":
            if not inside:
                raise _error(text, "{end} has no {range}")
            return
        elif word.startswith("range "):
            yield Range(read_path(word.removeprefix("range "), text), tuple(_parts(words, text, inside=True)))
        elif word[:1] in ("'", '"'):
            yield _quoted(word, text)
        else:
            yield read_path(word, text)
    if inside:
        raise _error(text, "{range} has no {end}")


def _quoted(word: str, text: str) -> str:
    try:
        return str(json.loads(f'"{word[1:-1]}"'))
    except ValueError as error:
        raise _error(text, f"{word} is not a text") from error


def read_path(word: str, text: str) -> Path:
    """`text` is where it stands. Raises InvalidInput that names what is not understood."""
    rest = word.strip().removeprefix("$").removeprefix("@")
    if rest == ".":
        return Path(())
    steps: list[Step] = []
    while rest:
        match = _STEP.match(rest if rest[0] in ".[" else f".{rest}")
        if match is None:
            raise _error(text, f"{rest!r} is not understood; use fields, [N], [*] and [?(@.field==value)]")
        kind = "field" if match["quoted"] else str(match.lastgroup)
        field = re.sub(r"\\(.)", r"\1", match["field"] or "")
        about = match["quoted"] or field or match["index"] or match["of"] or ""
        steps.append((match["how"] or kind, about, match["value"] or ""))
        rest = rest[match.end() - (rest[0] not in ".[") :]
    return Path(tuple(steps))


def _stepped(value: object, step: Step) -> list[object]:
    kind, about, compared = step
    if kind == "field":
        return [value[about]] if isinstance(value, dict) and about in value else []
    items = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(items, list):
        return []
    if kind == "index":
        return items[int(about) :][:1]
    if kind == "all":
        return items
    wanted = compared[1:-1] if compared[0] in "'\"" else json.loads(compared)
    return [item for item in items if isinstance(item, dict) and (item.get(about) == wanted) is (kind == "==")]


def filled(parts: Sequence[Part], data: object) -> str:
    """The template with values of `data`; several of one path have spaces between."""
    return "".join(_filled(part, data) for part in parts)


def _filled(part: Part, data: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Range):
        return "".join(filled(part.parts, value) for value in part.path.values(data))
    return " ".join(value if isinstance(value, str) else json.dumps(value) for value in part.values(data))


def _error(text: str, problem: str) -> InvalidInput:
    return InvalidInput(problem, about=f"jsonpath {text}")
