"""`make campaign`: runs sequences for some minutes or up to a number, and keeps what is needed to run a failure again.

Environment: SEED (the first; by default from the clock), SEQUENCES, MINUTES, WORKERS, KEEP (a folder for failures), and
REPLAY (a kept file, or several). Exits with 1 when the product did what it must not.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from campaign.plan import LAYOUTS, Sequence_, sequence
from campaign.run import Outcome, run
from campaign.world import World, shim

_SHRINK_S = 90.0
_MOST_EVIDENCE = 400_000
"""Characters of a log or of the objects that are kept, the last ones."""
_LIFE = 400
"""Sequences after which a world is made again, so that what adds up is seen by the test of this and not by chance."""


class Worlds:
    """One world for each layout, made when it is needed, and again after a violation."""

    def __init__(self) -> None:
        self._stacks: dict[str, tuple[AsyncExitStack, World]] = {}
        self._used: Counter[str] = Counter()

    async def of(self, layout: str) -> World:
        if self._used[layout] >= _LIFE:
            await self.drop(layout)
        if layout not in self._stacks:
            stack = AsyncExitStack()
            world = await stack.enter_async_context(World.running(layout, random.Random(layout)))
            self._stacks[layout] = stack, world
        self._used[layout] += 1
        return self._stacks[layout][1]

    async def drop(self, layout: str) -> None:
        self._used[layout] = 0
        if layout in self._stacks:
            stack, _ = self._stacks.pop(layout)
            await stack.aclose()

    async def close(self) -> None:
        for layout in list(self._stacks):
            await self.drop(layout)


async def campaign(
    worlds: Worlds, first: int, step: int, sequences: int, ends_at: float
) -> AsyncIterator[tuple[Sequence_, Outcome, World]]:
    """Seeds `first`, `first + step`, ... until there were so many, or it is time."""
    for number in range(sequences):
        if time.monotonic() >= ends_at:
            return
        seed = first + number * step
        layout = sorted(LAYOUTS)[seed % len(LAYOUTS)]
        world = await worlds.of(layout)
        planned = sequence(seed, layout, world.devices)
        yield planned, await run(world, planned), world


async def shrunken(worlds: Worlds, failed: Sequence_) -> tuple[Sequence_, bool]:
    """The sequence without steps that it also fails without, in fresh worlds; False when it does not fail again."""
    ends_at = time.monotonic() + _SHRINK_S

    async def fails(candidate: Sequence_) -> bool:
        outcome = await run(await worlds.of(failed.layout), candidate)
        if outcome.violation is not None:
            await worlds.drop(failed.layout)
        return outcome.violation is not None

    await worlds.drop(failed.layout)
    if not await fails(failed):
        return failed, False
    smallest, position = failed, len(failed.steps) - 1
    while position >= 0 and time.monotonic() < ends_at:
        fewer = replace(smallest, steps=smallest.steps[:position] + smallest.steps[position + 1 :])
        if await fails(fewer):
            smallest = fewer
        position -= 1
    return smallest, True


def keep(
    folder: Path, failed: Sequence_, smallest: Sequence_, again: bool, outcome: Outcome, evidence: Mapping[str, str]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = {"violation": outcome.violation, "fails again": again, **smallest.to_data(), "all": failed.to_data()}
    (folder / f"{failed.seed}.json").write_text(json.dumps(data, indent=1))
    for name, text in evidence.items():
        (folder / f"{failed.seed}.{name}").write_text(text[-_MOST_EVIDENCE:])
    print(f"VIOLATION seed {failed.seed} ({failed.layout}): {outcome.violation}")
    print(f"  fails again alone: {again}; make campaign REPLAY={folder / f'{failed.seed}.json'}")
    for step in smallest.steps:
        print(f"  - {step}")
    sys.stdout.flush()


async def work(first: int, step: int, sequences: int, minutes: float, folder: Path) -> int:
    worlds, totals, violations = Worlds(), Outcome(), 0
    count, began = 0, time.monotonic()
    try:
        async for planned, outcome, world in campaign(worlds, first, step, sequences, began + 60 * minutes):
            count += 1
            totals.calls += outcome.calls
            totals.faults += outcome.faults
            totals.seen += outcome.seen
            if outcome.violation is not None:
                violations += 1
                evidence = await world.evidence()
                smallest, again = await shrunken(worlds, planned)
                keep(folder, planned, smallest, again, outcome, evidence)
                print(f"{count} sequences", flush=True)
            if "LOG" in os.environ:
                steps = "; ".join(map(str, planned.steps))
                print(f"{planned.seed} {planned.layout}: {outcome.seconds:.2f} s, {outcome.calls} calls: {steps}")
            if count % 100 == 0:
                rate = 60 * count / (time.monotonic() - began)
                print(f"{count} sequences, {rate:.0f} a minute, {violations} violations", flush=True)
    finally:
        await worlds.close()
    seconds = time.monotonic() - began
    result = {"sequences": count, "violations": violations, "calls": totals.calls, "seconds": round(seconds)}
    print(
        "RESULT " + json.dumps(result | {"faults": dict(totals.faults.most_common()), "seen": totals.seen}), flush=True
    )
    return violations


async def replay(files: list[Path]) -> int:
    violations = 0
    for file in files:
        worlds = Worlds()
        planned = Sequence_.of({name: json.loads(file.read_text())[name] for name in ("seed", "layout", "steps")})
        try:
            world = await worlds.of(planned.layout)
            outcome = await run(world, planned)
            print(f"{file}: {outcome.violation or 'no violation'} ({outcome.seconds:.1f} s)", flush=True)
            if outcome.violation and "LOG" in os.environ:
                print(world.node.log.read_text())
            violations += outcome.violation is not None
        finally:
            await worlds.close()
    return violations


def main() -> int:
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    # Whoever ends it ends its worlds, too: a hundred processes would slow the next campaign down until it fails.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = os.environ.get
    if given("REPLAY"):
        return min(1, asyncio.run(replay([Path(path) for path in given("REPLAY", "").split()])))
    folder = Path(given("KEEP") or "campaign-failures")
    seed = int(given("SEED") or int(time.time()) % 10**8)
    workers, minutes = int(given("WORKERS") or 2), float(given("MINUTES") or 10)
    sequences = int(given("SEQUENCES") or 10**9)
    if "WORKER" in os.environ:
        number = int(os.environ["WORKER"])
        return min(1, asyncio.run(work(seed + number, workers, sequences, minutes, folder)))
    print(
        f"seed {seed}, {workers} workers, {minutes:g} minutes; disks and clocks: {'yes' if shim() else 'no C compiler'}"
    )
    sys.stdout.flush()
    share = -(-sequences // workers)
    environment = {**os.environ, "SEED": str(seed), "SEQUENCES": str(share), "MINUTES": str(minutes)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "campaign"], env={**environment, "WORKERS": str(workers), "WORKER": str(n)}
        )
        for n in range(workers)
    ]
    try:
        return max(process.wait() for process in processes)
    finally:
        for process in processes:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
