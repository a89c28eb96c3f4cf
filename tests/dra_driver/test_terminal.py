"""Tables: they fit the terminal, and lose what matters least first."""

from io import StringIO
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from dra_driver.errors import DriverError, InvalidInput, NoSuchObject, Unreachable
from dra_driver.terminal import (
    SafeConsole,
    Sheet,
    Shown,
    Status,
    echo,
    fitting,
    plain_errors,
    print_exactly,
    print_rows,
    print_table,
    shortened,
    stop,
)

SHEET = Sheet(
    [{"NODE": "gpu-node-with-a-long-name-0001", "GPUS": 8, "PRODUCT": "H100", "PROBLEMS": ("GPU 1: it is lost",)}],
    "nothing",
    drop=("PRODUCT", "GPUS"),
)


@rows(
    "width, row",
    [
        (None, "gpu-node-with-a-long-name-0001  8     H100     GPU 1: it is lost"),
        (60, "gpu-node-with…ng-name-0001  8     H100     GPU 1: it is lost"),
        (46, "gpu-node-w…-name-0001  8     GPU 1: it is lost"),
        (40, "gpu-node…me-0001  8     GPU 1: it is lo…"),
        (35, "gpu-node…me-0001  GPU 1: it is lost"),
        (20, "gpu-…0001  GPU 1: i…"),
    ],
)
def test_names_shorten_in_the_middle_and_columns_go_by_priority(width: int | None, row: str) -> None:
    assert SHEET.lines(width)[1].plain == row


WIDTHS = st.dictionaries(st.text("ABCDEF", min_size=1, max_size=9), st.integers(1, 80), min_size=1)


def test_a_column_keeps_its_least_width_as_long_as_another_can_give_way_or_go() -> None:
    natural = {"NODE": 20, "BARS": 40, "PRODUCT": 14}
    assert fitting(natural, ("PRODUCT",), 60, {"BARS": 40}) == {"NODE": 18, "BARS": 40}
    assert fitting(natural, ("PRODUCT",), 30, {"BARS": 40}) == {"NODE": 14, "BARS": 14}


@given(WIDTHS, st.integers(20, 200), st.randoms())
def test_a_table_is_never_wider_than_the_terminal_and_no_narrower_than_it_must_be(
    natural: dict[str, int], width: int, order: Random
) -> None:
    natural = {name: max(size, len(name)) for name, size in natural.items()}
    drop = order.sample(sorted(natural), len(natural) - 1)
    widths = fitting(natural, drop, width)
    used = sum(widths.values()) + 2 * (len(widths) - 1)
    assert used <= width or set(widths.values()) == {1}
    if widths != natural and len(widths) == len(natural):
        assert used == width
    dropped = [name for name in drop if name not in widths]
    assert dropped == drop[: len(dropped)]


@given(st.text("ab -", max_size=40), st.integers(1, 40))
def test_what_is_shortened_has_the_width_and_says_so(text: str, width: int) -> None:
    short = shortened(text, width)
    assert short == text if len(text) <= width else len(short) == width and "…" in short


def test_programs_get_all_columns_by_names_of_their_own() -> None:
    sheet = Sheet([{"LARGEST MIG": None, "AGE": Shown("3d", "2026")}], "", keys={"AGE": "created"}, wide=("AGE",))
    assert sheet.data() == [{"largestMig": None, "created": "2026"}]
    assert sheet.lines(None)[0].plain == "LARGEST MIG"


@pytest.mark.parametrize(
    ("error", "status"),
    [(NoSuchObject("m"), Status.NO), (InvalidInput("m"), Status.USAGE), (Unreachable("m"), Status.UNREACHABLE)],
)
def test_a_name_that_does_not_exist_is_the_answer_no(error: DriverError, status: Status) -> None:
    with pytest.raises(SystemExit) as ended, plain_errors():
        raise error
    assert ended.value.code == status


ROWS = [
    ("manifests/overlays/production/deployment.yaml:21:13", "warning", "no DeviceClass provides nvidia.com/gpu.shared"),
    ("a.yaml:1:1", "error", "is a list"),
]


@rows(
    "width, first",
    [
        (130, ["PLACE" + " " * 48 + "SEVERITY  WHAT", f"{ROWS[0][0]}  warning   {ROWS[0][2]}"]),
        (80, ["PLACE" + " " * 48 + "SEVERITY", "    WHAT", f"{ROWS[0][0]}  warning", f"    {ROWS[0][2]}"]),
        (40, ["PLACE  SEVERITY", "    WHAT", f"{ROWS[0][0]}  warning", "    no DeviceClass provides"]),
        (3, ["PLACE  SEVERITY", "    WHAT", f"{ROWS[0][0]}  warning", "    no", "    DeviceClass"]),
    ],
)
def test_a_sentence_stands_below_its_row_where_its_column_would_be_too_narrow(
    width: int, first: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "24")  # Rich ignores COLUMNS alone in a dumb terminal
    monkeypatch.setenv("TERM", "dumb")
    print_table(("PLACE", "SEVERITY", "WHAT"), ROWS)
    assert [line.rstrip() for line in terminal.getvalue().splitlines()][: len(first)] == first


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_line_for_each_row_without_spaces_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("PLACE", "SEVERITY", "WHAT"), ROWS)
    assert capsys.readouterr().out.splitlines()[-1] == "a.yaml:1:1" + " " * 43 + "error     is a list"


@rows(
    "width, lines",
    [
        (
            None,
            ["PLACE        SEVERITY  WHAT", "日本.yaml:1  error     is a list, not an object with apiVersion and kind"],
        ),
        (
            60,
            [
                "PLACE        SEVERITY",
                "    WHAT",
                "日本.yaml:1  error",
                "    is a list, not an object with apiVersion and kind",
            ],
        ),
    ],
)
def test_a_wide_character_takes_two_columns(
    width: int | None, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = StringIO() if width is None else Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "dumb")
    sentence = "is a list, not an object with apiVersion and kind"
    print_table(("PLACE", "SEVERITY", "WHAT"), [("日本.yaml:1", "error", sentence)])
    assert [line.rstrip() for line in screen.getvalue().splitlines()] == lines


def test_a_watch_never_waits_in_a_pager(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("pydoc.pager", lambda text: terminal.write("in a pager"))
    monkeypatch.setenv("LINES", "5")
    nodes = Sheet([{"NODE": f"node-{number}"} for number in range(9)], "nothing")
    print_rows(nodes)
    assert terminal.getvalue() == "in a pager"
    print_rows(nodes, paged=False)
    assert "node-8" in terminal.getvalue()


HOSTILE = "\x1b[2J\x1b]0;title\x07\r\x9b2J\u202etxt"
SHOWN = r"\x1b[2J\x1b]0;title\x07\r\x9b2J\u202etxt"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_a_cluster_says_never_commands_the_terminal(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's selector, or the message of a condition, may have any characters."""
    out = Terminal() if is_terminal else StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", "dumb")
    echo(HOSTILE)
    print_rows(Sheet([{"NAME": HOSTILE}], "nothing"), paged=False)
    print_table(("NAME", "WHAT"), [("a", HOSTILE)])
    assert out.getvalue().count(SHOWN) == 3
    assert {character for character in out.getvalue() if not character.isprintable()} == {"\n"}


def test_errors_and_styles_do_not_command_the_terminal_either(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = Terminal()
    console = SafeConsole(file=errors, force_terminal=True, color_system="standard", highlight=False)
    monkeypatch.setattr("dra_driver.terminal.messages", console)
    with pytest.raises(SystemExit):
        stop(f"claim {HOSTILE}\tand\nmore", Status.NO)
    console.print("bold", style="bold")
    first, second, bold = errors.getvalue().splitlines()
    assert first.startswith(r"error: claim \x1b[2J\x1b]0;title") and second == "more"
    assert bold == "\x1b[1mbold\x1b[0m"


@pytest.mark.parametrize(("is_terminal", "printed"), [(True, "a\\x1b[2J\\u202eb\n"), (False, "a\x1b[2J\u202eb\n")])
def test_data_is_exact_for_programs_and_safe_on_a_terminal(
    is_terminal: bool, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of `dractl get -o jsonpath` and `dractl migrate --diff`."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    print_exactly("a\x1b[2J\u202eb\n")
    assert capsys.readouterr().out == printed


def test_words_in_brackets_stay_in_messages(capsys: pytest.CaptureFixture[str]) -> None:
    """As of `dractl get devices --node 'gpu[red]'`."""
    print_rows(Sheet([], "No devices match --node gpu[red]."))
    assert capsys.readouterr().err == "No devices match --node gpu[red].\n"
