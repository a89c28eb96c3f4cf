"""How fast device selectors are: compiled, evaluated for a device, and explained, on one core.

    python benchmarks/cel.py [--seconds 1] [-o json]

Time is the processor's, so other work on the machine does not count. Compiling is measured with a text that was never
seen before; a scheduler compiles each selector once.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.explain.failing import failing_parts

SELECTORS = {
    "one attribute": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
    "false at once": "device.driver == 'other.example.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
    "memory": "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
    "bound domain": "cel.bind(gpu, device.attributes['gpu.nvidia.com'], gpu.type == 'gpu' && gpu.sm >= 100)",
    "pattern": "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('h[12]00')",
    "loop": "['A100', 'H100'].exists(name, device.attributes['gpu.nvidia.com'].productName.contains(name))",
}
DEVICE = CelDevice(
    "gpu.nvidia.com",
    Device.of(
        {
            "name": "gpu-0",
            "attributes": {
                "type": {"string": "gpu"},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "sm": {"int": 132},
                "cudaComputeCapability": {"version": "9.0.0"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
    ),
)


@dataclass(frozen=True)
class Figures:
    selector: str
    evaluations_per_s: int
    compile_us: float
    explain_us: float
    cost: int
    """As the API server estimates it; the limit is a million."""


def repeated(work: Callable[[], object], seconds: float) -> float:
    """Seconds of processor time that one call takes."""
    rounds, spent = 1, 0.0
    while spent < seconds:
        rounds *= 2
        begin = time.process_time()
        for _ in itertools.repeat(None, rounds):
            work()
        spent = time.process_time() - begin
    return spent / rounds


def measured(name: str, expression: str, seconds: float) -> Figures:
    selector = compile_selector(expression)
    numbers = itertools.count()

    def compiled() -> None:
        compile_selector(f"{expression} && {next(numbers)} >= 0")

    def explained() -> None:
        failing_parts(expression, DEVICE)

    return Figures(
        name,
        round(1 / repeated(lambda: selector.matches(DEVICE), seconds)),
        round(repeated(compiled, seconds) * 1e6, 1),
        round(repeated(explained, seconds) * 1e6, 1),
        selector.cost,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="processor time for each figure, at least")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    figures = [measured(name, expression, options.seconds) for name, expression in SELECTORS.items()]
    if options.output == "json":
        print(json.dumps([asdict(row) for row in figures]))
        return
    print(f"{'selector':<16}{'evaluations/s':>15}{'compile':>12}{'explain':>12}{'cost':>8}")
    for figure in figures:
        times = f"{figure.compile_us:>9} µs{figure.explain_us:>9} µs"
        print(f"{figure.selector:<16}{figure.evaluations_per_s:>15,}{times}{figure.cost:>8}")


if __name__ == "__main__":
    main()
