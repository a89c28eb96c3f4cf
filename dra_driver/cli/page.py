"""`-o html`: the GPUs of a cluster as one static page, to mail or to keep. Pure.

The page loads nothing and runs no script. It follows the reader's choice of dark or light. States have words and
patterns beside their colors, and each bar has a text for screen readers.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import groupby

from dra_driver.api.core import Pod
from dra_driver.cli.bars import Cell, Mark
from dra_driver.cli.seen import NodeOverview
from dra_driver.cli.usage import PublishedGpu, short_product, why_waiting
from dra_driver.phrases import how_many
from dra_driver.terminal import gibibytes

_WORDS = {Mark.FREE: "free", Mark.CLOSED: "blocked", Mark.TAINTED: "tainted", Mark.SEVERAL: "several claims"}
_CLASSES = {Mark.FREE: "free", Mark.CLOSED: "blocked", Mark.TAINTED: "tainted", Mark.SEVERAL: "used"}
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f5f7fa; --line: #cfd6df; --text: #17202b; --soft: #5a6675;
  --used: #2f6fde; --blocked: #9aa4b1; --bad: #c62828; --bad-card: #fdecec; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --back: #10151b; --card: #182029; --line: #303c49; --text: #e4e9ef;
  --soft: #97a4b3; --used: #5b93f5; --blocked: #55616f; --bad: #ff7b72; --bad-card: #331517; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1.5rem; background: var(--back); color: var(--text);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .15rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); } .warn { color: var(--warn); }
article { display: grid; grid-template-columns: minmax(9rem, 16rem) 1fr; gap: 1rem; padding: .8rem 0;
  border-top: 1px solid var(--line); }
ul { list-style: none; margin: 0; padding: 0; } .gpus { display: flex; flex-wrap: wrap; gap: .5rem; }
.gpu { width: 9.5rem; padding: .45rem; border: 1px solid var(--line); border-radius: .4rem; background: var(--card); }
.gpu.unhealthy { border-color: var(--bad); background: var(--bad-card); }
.gpu p { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.cells { display: flex; height: .9rem; border-radius: .2rem; overflow: hidden; }
.cells i { border: 1px solid var(--line); } .cells i + i { border-left: 2px solid var(--card); }
.used { background: var(--used); } .blocked { background: var(--blocked); }
.tainted, .unhealthy .free { background: repeating-linear-gradient(45deg, var(--bad) 0 4px, transparent 4px 8px); }
@media (max-width: 40rem) { article { grid-template-columns: 1fr; } }
"""


@dataclass(frozen=True, slots=True)
class GpuMap:
    """What the page shows, in this order."""

    nodes: Sequence[NodeOverview]
    waiting: Sequence[Pod]


def page(shown: GpuMap, now: datetime) -> str:
    """A whole document."""
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>GPUs</title><style>{_STYLE}</style></head><body>",
        f"<header><h1>GPUs</h1>{_summary(shown)}",
        f'<p class="soft">Made by dractl at {now.isoformat(timespec="seconds")}.</p></header><main>',
        *_waiting(shown.waiting),
        *(part for node in shown.nodes for part in _node(node)),
        "</main></body></html>",
    ]
    return "\n".join(lines)


def _summary(shown: GpuMap) -> str:
    gpus = [gpu for node in shown.nodes for gpu in node.gpus]
    states = Counter(gpu.state for gpu in gpus)
    unhealthy = sum(gpu.unhealthy for gpu in gpus)
    parts = [
        f"{how_many(len(gpus), 'GPU')} on {how_many(len(shown.nodes), 'node')}",
        *(f"{count} {state}" for state, count in states.items()),
    ]
    if unhealthy:
        parts.append(f'<strong class="bad">{unhealthy} unhealthy</strong>')
    if shown.waiting:
        parts.append(f'<strong class="warn">{how_many(len(shown.waiting), "pod")} waiting</strong>')
    return f"<p>{' · '.join(parts)}</p>"


def _waiting(pods: Sequence[Pod]) -> Iterator[str]:
    if pods:
        yield "<section><h2>Waiting pods</h2><ul>"
        for pod in pods:
            yield f'<li class="warn">{escape(str(pod))}: {escape(why_waiting(pod))}</li>'
        yield "</ul></section>"


def _node(node: NodeOverview) -> Iterator[str]:
    products = Counter(short_product(gpu.whole.attribute("productName")) for gpu in node.gpus)
    yield f"<article><div><h2>{escape(node.name)}</h2>"
    yield from (f'<p class="soft">{count} × {escape(product)}</p>' for product, count in products.items())
    yield f"<p>{node.free} of {len(node.gpus)} GPUs free</p>"
    yield from (f'<p class="bad">{escape(problem)}</p>' for problem in node.problems)
    yield '</div><ul class="gpus">'
    for gpu in node.gpus:
        yield from _gpu(gpu)
    yield "</ul></article>"


def _gpu(gpu: PublishedGpu) -> Iterator[str]:
    claims = list(dict.fromkeys(holder.claim for _, holder in gpu.held))
    state = "unhealthy" if gpu.unhealthy else gpu.state
    runs = [(cell, len(list(run))) for cell, run in groupby(gpu.cells)]
    bars = "".join(f'<i class="{_class(cell)}" style="flex:{size}"></i>' for cell, size in runs)
    words = ", ".join(f"{size} {_WORDS[cell] if isinstance(cell, Mark) else cell}" for cell, size in runs)
    title = escape("; ".join((*claims, *gpu.taints)))
    yield f'<li class="gpu{" unhealthy" if gpu.unhealthy else ""}" title="{title}">'
    yield f'<div class="cells" role="img" aria-label="{escape(f"memory slices: {words}")}">{bars}</div>'
    yield f"<p><strong>{escape(', '.join(claims) or state)}</strong></p>"
    about = ", ".join([*([state] if claims else []), gibibytes(gpu.memory_bytes())])
    yield f'<p class="soft">{escape(gpu.name)}</p><p class="soft">{escape(about)}</p></li>'


def _class(cell: Cell) -> str:
    return _CLASSES[cell] if isinstance(cell, Mark) else "used"
