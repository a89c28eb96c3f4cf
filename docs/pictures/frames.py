"""Frames of a terminal as one picture that moves: an SVG without scripts. Pure.

A frame is text as a program wrote it to the terminal, with colors as escape sequences.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from rich.color import Color
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME as THEME
from rich.text import Text

_CHARACTER_PX, _LINE_PX, _EDGE_PX = 8.4, 18, 14
_HOME = "\x1b[H"
_NO_COLOR = re.compile(r"\x1b\[(?![0-9;]*m)[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Frame:
    """What the terminal showed for `seconds`, and a caption below it."""

    text: str
    caption: str
    seconds: float


def last_frame(output: str) -> str:
    """The last whole frame of what a program wrote that draws each from the upper left corner."""
    *_, before, last = output.split(_HOME) if output.count(_HOME) > 1 else ("", "", output)
    # The last one may still be incomplete: a frame ends where the next begins, or has as many lines.
    chosen = last if last.count("\n") >= before.count("\n") else before
    return _NO_COLOR.sub("", chosen).replace("\r", "").rstrip("\n")


def moving_picture(frames: Sequence[Frame], columns: int, lines: int) -> str:
    """An SVG that shows the frames one after the other, again and again."""
    width = round(columns * _CHARACTER_PX + 2 * _EDGE_PX)
    height = (lines + 2) * _LINE_PX + 2 * _EDGE_PX
    total = sum(frame.seconds for frame in frames)
    rules, groups, begin = [], [], 0.0
    for number, frame in enumerate(frames):
        start, end = 100 * begin / total, 100 * (begin + frame.seconds) / total
        hidden = f"0%{{opacity:0}}{start:.2f}%{{opacity:0}}" if number else ""
        rules.append(
            f"@keyframes k{number}{{{hidden}{start + 0.01 if number else 0:.2f}%{{opacity:1}}{end:.2f}%{{opacity:1}}"
            + (f"{end + 0.01:.2f}%{{opacity:0}}100%{{opacity:0}}}}" if end < 99.98 else "}")
            + f".f{number}{{animation:k{number} {total:g}s step-end infinite}}"
        )
        groups.append(f'<g class="f{number}" opacity="{0 if number else 1}">{_drawn(frame, lines)}</g>')
        begin += frame.seconds
    plain, back = THEME.foreground_color.hex, THEME.background_color.hex
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="'
        + escape("; ".join(frame.caption for frame in frames), {'"': "&quot;"})
        + f'">\n<style>text{{font:14px/1 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:{plain};'
        + "white-space:pre}.c{fill:#9fd0ff}"
        + "".join(rules)
        + "@media (prefers-reduced-motion:reduce){g{animation:none!important}}</style>\n"
        + f'<rect width="100%" height="100%" rx="8" fill="{back}"/>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )


def _drawn(frame: Frame, lines: int) -> str:
    rows = [_line(text, number) for number, text in enumerate(frame.text.split("\n")[:lines])]
    y = _EDGE_PX + (lines + 1.6) * _LINE_PX
    caption = f'<text class="c" x="{_EDGE_PX}" y="{y:g}">{escape(frame.caption)}</text>'
    return "".join(filter(None, rows)) + caption


def _line(text: str, number: int) -> str:
    y = _EDGE_PX + (number + 0.8) * _LINE_PX
    backs, parts, column = [], [], 0
    for words, style in _segments(text):
        color, back = _colors(style)
        x = _EDGE_PX + column * _CHARACTER_PX
        if back is not None:
            top = y - 0.75 * _LINE_PX
            size = f'width="{len(words) * _CHARACTER_PX:g}" height="{_LINE_PX}"'
            backs.append(f'<rect x="{x:g}" y="{top:g}" {size} fill="{back}"/>')
        if words.strip():
            shown = "".join(
                (f' fill="{color}"' if color else "", ' font-weight="bold"' if style.bold else "",
                 ' opacity=".6"' if style.dim else "")
            )  # fmt: skip
            # Each part has its place, because fonts differ in the width of blocks and bars.
            length = f'{len(words) * _CHARACTER_PX:g}" lengthAdjust="spacingAndGlyphs'
            parts.append(f'<tspan x="{x:g}" textLength="{length}"{shown}>{escape(words)}</tspan>')
        column += len(words)
    return "".join(backs) + (f'<text y="{y:g}">{"".join(parts)}</text>' if parts else "")


def _segments(text: str) -> Iterator[tuple[str, Style]]:
    line = Text.from_ansi(text)
    at = 0
    for span in line.spans:
        if span.start > at:
            yield line.plain[at : span.start], Style()
        style = span.style if isinstance(span.style, Style) else Style.parse(span.style)
        yield line.plain[span.start : span.end], style
        at = span.end
    if at < len(line.plain):
        yield line.plain[at:], Style()


def _colors(style: Style) -> tuple[str | None, str | None]:
    """Of characters and behind them; None: those of the terminal."""
    color, back = _hex(style.color, True), _hex(style.bgcolor, False)
    if style.reverse:
        return back or THEME.background_color.hex, color or THEME.foreground_color.hex
    return color, back


def _hex(color: Color | None, foreground: bool) -> str | None:
    return None if color is None or color.is_default else color.get_truecolor(THEME, foreground).hex
