"""What a person reads is plain American technical English: none of the words of `old_words.yaml`."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import yaml
from support.pages import ROOT

WORDS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("old_words.yaml").read_text(encoding="utf-8"))
OLD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
READ = (
    "README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "docs", "examples", "deviceclasses", "charts",
    "controller", "dra_driver", "kubelet_plugin", "release",
)  # fmt: skip
NOT_YET: tuple[str, ...] = ()
"""What still has old words. An entry without them must go."""
NAME = re.compile(r"`[^`]+`|^#+ [a-z-]+$|^ *[a-z-]+:$")
"""What is not prose in Markdown and YAML: code, headings and keys that are one name."""
SUFFIXES = {".md", ".py", ".tpl", ".txt", ".yaml"}
PROSE = {tokenize.STRING, tokenize.FSTRING_MIDDLE, tokenize.COMMENT}


def old_words(path: Path) -> Iterator[tuple[int, str]]:
    """Line and word. Code in backticks in a page, and a text of one word in Python, are no prose."""
    text = path.read_text(encoding="utf-8")
    if not OLD.search(text):
        return
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in PROSE and " " in token.string.strip():
                yield from ((token.start[0], word) for word in OLD.findall(token.string))
    else:
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((number, word) for word in OLD.findall(NAME.sub("", line)))


def files(name: str) -> list[Path]:
    top = ROOT / name
    return [top] if top.is_file() else [path for path in sorted(top.rglob("*")) if path.suffix in SUFFIXES]


def test_no_old_words_where_people_read() -> None:
    wrong, waiting = [], set()
    for path in (path for name in READ for path in files(name)):
        where = path.relative_to(ROOT).as_posix()
        entry = next((entry for entry in NOT_YET if where.startswith(entry)), None)
        for line, word in old_words(path):
            if entry:
                waiting.add(entry)
            else:
                wrong.append(f"{where}:{line}: {word!r}")
    assert not wrong, "words to replace, see tests/docs/old_words.yaml:\n" + "\n".join(wrong)
    assert waiting == set(NOT_YET), f"NOT_YET names what has none: {sorted(set(NOT_YET) - waiting)}"


def test_an_old_word_is_noticed(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("A GPU is sick.\n", encoding="utf-8")
    module.write_text('told = "nobody"\nerror = "Nobody is told."  # it is made anew\n', encoding="utf-8")
    assert list(old_words(page)) == [(1, "sick")]
    assert list(old_words(module)) == [(2, "Nobody"), (2, "told"), (2, "anew")]
