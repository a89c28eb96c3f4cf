"""Writes docs/pictures/top.svg: `dractl top` on a simulated cluster while a GPU fails and comes back. `make pictures`.

The screens are those of the program. An SVG without scripts shows them one after the other.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from rich.console import Console, Group
from rich.terminal_theme import SVG_EXPORT_THEME as THEME
from rich.text import Text

from dra_driver import bundled
from dra_driver.api.meta import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli.simulated import scenario
from dra_driver.cli.tables.following import Following
from dra_driver.cli.tables.seen import FOLLOWED, Board
from dra_driver.cli.top.screen import Screen, Size, TopView, frame, pressed
from dra_driver.errors import DriverError
from dra_driver.kubernetes import CURRENT
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode, parse_nodes

PICTURE = Path(__file__).with_suffix(".svg")
NODES = "dgx-h100:2,l40s:2,t4"
RUNNING = ("by-memory-and-architecture", "nvlink-pair", "one-gpu", "time-slicing-one-claim", "two-containers-one-claim")
SIZE = Size(120, 14)
_LIMIT_S = 150.0
"""A GPU that is back counts as healthy after a minute."""
_SETTLE_S = 1.5
"""What belongs to a screen may come a moment later."""
_ALL_NODES = 1000
_EDGE_PX = 14


@dataclass(frozen=True)
class Shown:
    """A screen, the caption below it, and how long it stays."""

    lines: Sequence[Text]
    caption: str
    seconds: float


@asynccontextmanager
async def running_examples(nodes: Sequence[SimulatedNode], names: Iterable[str]) -> AsyncIterator[SimulatedCluster]:
    """A cluster on which these examples run, as far as they can."""
    with tempfile.TemporaryDirectory(prefix="dractl-", dir="/tmp") as folder:
        async with SimulatedCluster.running(Path(folder), nodes) as cluster:
            for name in names:
                example = scenario.read_scenario(bundled.FEATURES_FOLDER / name)
                await scenario.apply(cluster.kube, example)
                with suppress(DriverError):
                    await scenario.wait_running(cluster, example, _LIMIT_S)
            yield cluster


async def simulate(cluster: SimulatedCluster, *words: str) -> None:
    """Let something happen to a node, as `dractl simulate` does."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    command = (sys.executable, "-m", "dra_driver.cli", "simulate", *words)
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait() != 0:
        raise RuntimeError(f"dractl simulate {' '.join(words)} failed")


class _Top:
    """What `dractl top` shows of a cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._board = Board(GPU_DRIVER, CURRENT)
        self._screen = Screen()
        self.following = Following(cluster.kube, FOLLOWED, on_change=self._board.learn)

    def press(self, key: str) -> None:
        after = pressed(key, self._screen, self._view())
        self._screen = after or self._screen

    async def shows(self, *words: str, without: str | None = None) -> Sequence[Text]:
        """The screen that has all these words. Raises TimeoutError."""
        async with asyncio.timeout(_LIMIT_S):
            while True:
                text = "\n".join(line.plain for line in self._lines())
                if all(word in text for word in words) and (without is None or without not in text):
                    await asyncio.sleep(_SETTLE_S)
                    return self._lines()
                await asyncio.sleep(0.2)

    def _view(self) -> TopView:
        return TopView(self._board.known({}, ()), SIZE, {}, datetime.now(UTC))

    def _lines(self) -> Sequence[Text]:
        self._board.refresh(_ALL_NODES)
        return frame(self._screen, self._view()).lines


async def recorded() -> list[Shown]:
    async with running_examples(parse_nodes(NODES), RUNNING) as cluster:
        top = _Top(cluster)
        async with top.following.running():
            await top.following.until_read((RESOURCE_SLICES, RESOURCE_CLAIMS))
            return [shown async for shown in _story(top, cluster)]


async def _story(top: _Top, cluster: SimulatedCluster) -> AsyncIterator[Shown]:
    yield Shown(await top.shows("6 in use"), "All GPUs are healthy. A line is a node, a block a GPU", 3)
    await simulate(cluster, "dgx-h100-1", "lose-gpu", "3")
    failed = await top.shows("1 unhealthy")
    yield Shown(failed, "A GPU falls off the bus: its node comes first, with the problem", 4)
    top.press("enter")
    opened = await top.shows("CLAIMS", "unhealthy")
    yield Shown(opened, "Enter opens the node: the failed GPU, and who used it", 4)
    await simulate(cluster, "dgx-h100-1", "return-gpu", "3")
    top.press("escape")
    repaired = await top.shows("NODE", without="unhealthy")
    yield Shown(repaired, "The GPU was repaired: its node offers it again", 4)


def moving_picture(screens: Sequence[Shown], size: Size = SIZE) -> str:
    """An SVG that shows the screens one after the other, again and again. Rich draws the text of each."""
    total = sum(shown.seconds for shown in screens)
    rules, groups, begin = [], [], 0.0
    width, height = round(size.width * 12.2) + 2 * _EDGE_PX, round((size.height + 2) * 24.4) + 2 * _EDGE_PX
    for number, shown in enumerate(screens):
        console = Console(file=StringIO(), record=True, width=size.width, color_system="truecolor")
        console.print(Group(*shown.lines))
        drawn = console.export_svg(code_format="{styles}\0{lines}\0{backgrounds}{matrix}", unique_id=f"s{number}")
        styles, lines, text = drawn.split("\0")
        start, end = 100 * begin / total, 100 * (begin + shown.seconds) / total
        begin += shown.seconds
        visible = f"{start:.2f}%{{opacity:1}}" + (f"{end:.2f}%{{opacity:0}}" if number + 1 < len(screens) else "")
        rules.append(f"{styles}@keyframes k{number}{{0%{{opacity:{int(not number)}}}{visible}}}")
        rules.append(f".g{number}{{animation:k{number} {total:g}s step-end infinite}}")
        caption = f'<text class="caption" y="{round((size.height + 1.5) * 24.4)}">{escape(shown.caption)}</text>'
        groups.append(f'<defs>{lines}</defs><g class="g{number}" opacity="{int(not number)}">{text}{caption}</g>')
    captions = quoteattr("; ".join(shown.caption for shown in screens))
    style = (
        'text{font:20px/1 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}'
        ".caption{fill:#9fd0ff}@media (prefers-reduced-motion:reduce){g{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label={captions}>\n'
        f"<style>{style}{''.join(rules)}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{THEME.background_color.hex}"/>\n'
        f'<g transform="translate({_EDGE_PX} {_EDGE_PX})">\n{"".join(groups)}\n</g>\n</svg>\n'
    )


def main() -> None:
    PICTURE.write_text(moving_picture(asyncio.run(recorded())), encoding="utf-8")
    print(f"{PICTURE} ({PICTURE.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    main()
