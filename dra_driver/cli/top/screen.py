"""What a terminal of some size shows of what is known, and what a key means there. Pure.

A screen is a path: all nodes, a node's GPUs, a GPU's claims, a claim's pods; or the pods that wait, and why one of them
does. The selected row is remembered by its name, so that it stays selected while rows come, go and move.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from rich.text import Text

from dra_driver.cli.tables.bars import Mark, drawn, letters, small
from dra_driver.cli.tables.seen import KnownGpus, NodeOverview, uses
from dra_driver.cli.tables.usage import PublishedGpu, claim_rows, short_product, why_waiting
from dra_driver.phrases import how_many
from dra_driver.terminal import Row, Sheet, Shown, age_cell, gibibytes, shortened

WAITING = "waiting pods"
"""The first part of the path to pods that wait; no node has a name with a space."""
_HEAD, _FOOT = 3, 1
"""Lines above and below the rows: title, summary and headings; keys."""
_BAR_WIDTHS = (8, 4, 2, 1)
_LONGEST_NAME = 32
_REST = 27
"""Characters of a line that bars leave for what is not the node's name: what is free, and a problem."""


class Sort(StrEnum):
    PROBLEMS = "problems first"
    NAME = "name"
    FREE = "most free first"
    USE = "most used first"


@dataclass(frozen=True, slots=True)
class Screen:
    """`path` are names of what was opened. `typing`: keys go to the filter."""

    path: tuple[str, ...] = ()
    selected: tuple[str | None, ...] = (None,)
    """A row for each level that is open; None for the first."""
    sort: Sort = Sort.PROBLEMS
    filter: str = ""
    typing: bool = False

    @property
    def explaining(self) -> str | None:
        """The waiting pod to explain, as `namespace/name`."""
        return self.path[1] if len(self.path) == 2 and self.path[0] == WAITING else None


@dataclass(frozen=True, slots=True)
class Size:
    width: int
    height: int

    @property
    def rows(self) -> int:
        return max(self.height - _HEAD - _FOOT, 1)


@dataclass(frozen=True, slots=True)
class Level:
    """What a path leads to: names of rows in order, and how each is shown."""

    title: str
    names: Sequence[str]
    row: Callable[[str], Row]
    empty: str
    drop: Sequence[str] = ()
    least: Mapping[str, int] = field(default_factory=dict)
    opens: bool = True
    """Whether rows can be opened."""


@dataclass(frozen=True, slots=True)
class TopView:
    """What there is to show, and on which terminal. `explained` are lines by waiting pod."""

    known: KnownGpus
    size: Size
    explained: Mapping[str, Sequence[str]]
    now: datetime


# -- keys


def pressed(key: str, screen: Screen, view: TopView) -> Screen | None:
    """The screen after a key; None to end. Keys are characters, or names: up, down, enter, escape and so on."""
    if screen.typing:
        return _typed(key, screen)
    level = level_of(screen, view)
    place = _place(level, screen)
    match key:
        case "q":
            return None
        case "escape" | "left" | "h" | "backspace" if screen.path:
            return replace(screen, path=screen.path[:-1], selected=screen.selected[:-1])
        case "escape" | "left" | "h" | "backspace":
            return replace(screen, filter="")
        case "enter" | "right" | "l" if level.names and level.opens:
            name = level.names[place]
            return replace(screen, path=(*screen.path, name), selected=(*screen.selected[:-1], name, None))
        case "/":
            return replace(screen, typing=True) if not screen.path else screen
        case "s":
            sorts = list(Sort)
            return replace(screen, sort=sorts[(sorts.index(screen.sort) + 1) % len(sorts)])
        case "w":
            return screen if screen.path[:1] == (WAITING,) else Screen((WAITING,), (None, None), screen.sort)
    page, every = view.size.rows, len(level.names)
    step = {
        "up": -1, "k": -1, "down": 1, "j": 1, "pagedown": page, " ": page, "pageup": -page, "home": -every, "g": -every,
        "end": every, "G": every,
    }.get(key)  # fmt: skip
    if step is None or not level.names:
        return screen
    name = level.names[min(max(place + step, 0), every - 1)]
    return replace(screen, selected=(*screen.selected[:-1], name))


def _typed(key: str, screen: Screen) -> Screen:
    if key == "enter":
        return replace(screen, typing=False)
    if key == "escape":
        return replace(screen, typing=False, filter="")
    text = screen.filter[:-1] if key == "backspace" else screen.filter + (key if len(key) == 1 else "")
    return replace(screen, filter=text, selected=(None,))


def _place(level: Level, screen: Screen) -> int:
    name = screen.selected[-1]
    return level.names.index(name) if name in level.names else 0


# -- what is shown


@dataclass(frozen=True, slots=True)
class Frame:
    """The lines of the whole terminal, and the nodes that are on it."""

    lines: Sequence[Text]
    nodes: Sequence[str]


def frame(screen: Screen, view: TopView) -> Frame:
    level, size = level_of(screen, view), view.size
    place = _place(level, screen)
    start = max(0, min(place - size.rows // 2, len(level.names) - size.rows))
    visible = level.names[start : start + size.rows]
    sheet = Sheet([level.row(name) for name in visible], "", drop=level.drop, least=level.least)
    lines = sheet.lines(size.width) if visible else [Text(), Text(level.empty, style="dim")]
    if visible and screen.explaining is None:
        lines[1 + place - start].stylize("reverse")
    position = f"{place + 1} of {len(level.names)}" if len(level.names) > size.rows else ""
    body = [_title(level.title, position, size.width), _summary(view.known, size.width), *lines]
    body += [Text()] * (size.height - _FOOT - len(body))
    lines = [*body[: size.height - _FOOT], Text(shortened(_help(screen, level), size.width), style="dim")]
    return Frame(lines, visible if not screen.path else screen.path[:1])


def _title(title: str, position: str, width: int) -> Text:
    title = shortened(title, max(width - len(position) - 1, 1))
    return Text(f"{title}{position.rjust(width - len(title))}", style="bold")


def _summary(known: KnownGpus, width: int) -> Text:
    pods = len(known.waiting)
    parts = [
        (f"{how_many(known.gpus, 'GPU')} on {how_many(len(known.nodes), 'node')}", ""),
        (f"{known.states['free']} free", ""),
        (f"{known.states['in use']} in use", ""),
        *([(f"{known.states['partly']} partly", "")] if known.states["partly"] else []),
        *([(f"{known.unhealthy} unhealthy", "bold red")] if known.unhealthy else []),
        *([(f"{how_many(pods, 'pod')} waiting", "bold yellow")] if pods else []),
        *((note, "dim") for note in known.notes),
    ]
    text = Text(" · ").join(Text(part, style=style) for part, style in parts)
    text.truncate(width, overflow="ellipsis")
    return text


def _help(screen: Screen, level: Level) -> str:
    if screen.typing:
        return f"filter: {screen.filter}_  (Enter keeps it, Esc clears it)"
    keys = ["↑↓ move", *(["Enter open"] if level.opens else []), *(["Esc back"] if screen.path else [])]
    if not screen.path:
        keys += [f"/ filter{f': {screen.filter}' if screen.filter else ''}", f"s sort: {screen.sort}"]
    keys += ["q quit"] if screen.path[:1] == (WAITING,) else ["w waiting pods", "q quit"]
    return "  ".join(keys)


# -- levels


def level_of(screen: Screen, view: TopView) -> Level:
    """What the path leads to; if what it names is gone, an empty level."""
    known = view.known
    if not screen.path:
        return _nodes(screen, known, view.size)
    if screen.path[0] == WAITING:
        return _waiting(known, view.now) if len(screen.path) == 1 else _explanation(screen.path[1], view.explained)
    node = known.nodes.get(screen.path[0])
    gpus = node.gpus if node is not None else ()
    if node is None or len(screen.path) == 1:
        return _gpus(screen.path[0], gpus, known)
    gpu = next((gpu for gpu in gpus if gpu.name == screen.path[1]), None)
    if gpu is None or len(screen.path) == 2:
        return _claims("/".join(screen.path[:2]), gpu)
    return _pods(screen.path[2], known, view.now)


def _nodes(screen: Screen, known: KnownGpus, size: Size) -> Level:
    nodes = sorted_nodes(known, screen.filter, screen.sort)
    names = [node.name for node in nodes]
    most = max((len(node.gpus) for node in nodes), default=0)
    longest = min(max(map(len, names), default=0), _LONGEST_NAME)
    room = size.width - longest - _REST
    width = next((width for width in _BAR_WIDTHS if most * (width + 1) <= room), _BAR_WIDTHS[-1])
    return Level(
        "Nodes",
        names,
        lambda name: _node_row(known.nodes[name], known, width),
        "No node has reported GPUs yet." if not screen.filter else f"Nothing matches {screen.filter!r}.",
        drop=("USE", "PRODUCT", "PROBLEMS"),
        least={"NODE": longest, "GPUS": most * (width + 1) - 1, "FREE": 5, "USE": 4},
    )


def sorted_nodes(known: KnownGpus, filter_: str, sort: Sort) -> list[NodeOverview]:
    """Those that the filter finds; by name where the order is the same."""
    wanted = filter_.lower()
    nodes = [node for node in known.nodes.values() if not wanted or wanted in node.searched]
    return sorted(nodes, key=lambda node: (_rank(node, sort, known), node.name))


def _rank(node: NodeOverview, sort: Sort, known: KnownGpus) -> float:
    if sort is Sort.PROBLEMS:
        return -2 * node.unhealthy - (1 if node.problems else 0)
    if sort is Sort.FREE:
        return -node.free
    return -(_use(node.gpus, known) or 0) if sort is Sort.USE else 0


def _use(gpus: Sequence[PublishedGpu], known: KnownGpus) -> float | None:
    """The mean of those that are known."""
    values = [known.use[gpu.uuid] for gpu in gpus if gpu.uuid in known.use]
    return sum(values) / len(values) if values else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


def _node_row(node: NodeOverview, known: KnownGpus, width: int) -> Row:
    bars = Text(" ").join(small(gpu.cells, width, unhealthy=gpu.unhealthy) for gpu in node.gpus)
    use = {"USE": _percent(_use(node.gpus, known))} if known.use else {}
    problems = Text("; ".join(node.problems) or "-", style="red" if node.unhealthy else "")
    return {
        "NODE": Shown(Text(node.name, style="red" if node.unhealthy else ""), node.name),
        "GPUS": Shown(bars, None),
        "FREE": f"{node.free}/{len(node.gpus)}",
        **use,
        "PRODUCT": ", ".join(map(short_product, node.products)),
        "PROBLEMS": Shown(problems, None),
    }


def _gpus(node: str, gpus: Sequence[PublishedGpu], known: KnownGpus) -> Level:
    cells = [cell for gpu in gpus for cell in gpu.cells if not isinstance(cell, Mark)]
    letter_of = letters([*cells, *(holder.claim for gpu in gpus for _, holder in gpu.held)])
    by_name = {gpu.name: gpu for gpu in gpus}
    unhealthy = sum(gpu.unhealthy for gpu in gpus)
    return Level(
        f"Node {node}: {len(gpus)} GPUs{f', {unhealthy} unhealthy' if unhealthy else ''}",
        list(by_name),
        lambda name: _gpu_row(by_name[name], letter_of, known),
        "This node no longer has GPUs.",
        drop=("PRODUCT", "MEMORY", "LEFT", "USE"),
    )


def _gpu_row(gpu: PublishedGpu, letter_of: Mapping[str, str], known: KnownGpus) -> Row:
    use = {"USE": _percent(known.use.get(gpu.uuid))} if known.use else {}
    return {
        "GPU": gpu.name,
        "SLICES": Shown(drawn(gpu.cells, letter_of, colored=False), None),
        "STATE": Shown(Text(gpu.drawn_state, style="red" if gpu.unhealthy else ""), None),
        **use,
        "MEMORY": gibibytes(gpu.memory_bytes()),
        "PRODUCT": short_product(gpu.whole.attribute("productName")),
        "CLAIMS": tuple(f"{letter_of[claim]} {claim}" for claim in gpu.claims),
        "LEFT": gpu.left()[:1],
        "TAINTS": gpu.taints,
    }


def _claims(title: str, gpu: PublishedGpu | None) -> Level:
    rows = claim_rows([gpu] if gpu is not None else [])
    empty = "No claim has this GPU or a part of it."
    return Level(f"GPU {title}", list(rows), rows.__getitem__, empty, drop=("TAKES",))


def _pods(claim: str, known: KnownGpus, now: datetime) -> Level:
    pods = {name: pod for name, pod in known.pods.items() if uses(pod, claim)}

    def row(name: str) -> Row:
        pod = pods[name]
        return {
            "POD": name,
            "PHASE": pod.status.phase or "-",
            "RESTARTS": pod.restarts,
            "AGE": age_cell(pod.metadata.creation_timestamp, now),
            "CONTAINERS": tuple(container.name for container in pod.spec.containers),
            "MESSAGE": "-" if pod.ready or pod.is_done else pod.why_not_ready(),
        }

    empty = "No pod uses this claim."
    return Level(f"Claim {claim}", sorted(pods), row, empty, drop=("RESTARTS", "CONTAINERS"), opens=False)


def _waiting(known: KnownGpus, now: datetime) -> Level:
    def row(name: str) -> Row:
        pod = known.waiting[name]
        return {"POD": name, "AGE": age_cell(pod.metadata.creation_timestamp, now), "REASON": why_waiting(pod)}

    return Level("Waiting pods", sorted(known.waiting), row, "No pod with claims waits for a node.")


def _explanation(pod: str, explained: Mapping[str, Sequence[str]]) -> Level:
    lines = explained.get(pod, ("Asking the cluster what it has, and trying each node…",))
    names = [str(number) for number in range(len(lines))]
    return Level(f"Pod {pod}", names, lambda name: {"": lines[int(name)] or " "}, "", opens=False)
