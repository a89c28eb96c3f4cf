"""What `dractl doctor --prove` tries, and what came of each. Pure; the node's part and the cluster's pods make these.

A check judges what it sees; a proof does something and looks at what comes of it. Each ends as `pass`, `fail`, or `not
tried` with the reason.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from textwrap import wrap

from dra_driver.api.meta import JsonObject

_NAME_WIDTH = 17


class ProofResult(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_TRIED = "not tried"


class ProofChange(StrEnum):
    """What a proof may change for a moment, when somebody asks for it."""

    MIG = "mig"
    VFIO = "vfio"
    IMEX = "imex"


@dataclass(frozen=True, slots=True)
class Proof:
    """`reason` is a sentence, also of what passed; `fix` is empty when there is nothing to do. `texts` are answers of
    programs, for the archive; `seconds` is how long it took."""

    name: str
    outcome: ProofResult
    reason: str
    fix: str = ""
    seconds: float | None = None
    texts: Mapping[str, str] = field(default_factory=dict)

    def to_data(self) -> JsonObject:
        return {
            "name": self.name,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "fix": self.fix or None,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "texts": dict(self.texts),
        }


def passed(reason: str, **texts: str) -> Proof:
    return Proof("", ProofResult.PASS, reason, texts=texts)


def failed(reason: str, fix: str, **texts: str) -> Proof:
    return Proof("", ProofResult.FAIL, reason, fix, texts=texts)


def not_tried(reason: str, fix: str = "") -> Proof:
    return Proof("", ProofResult.NOT_TRIED, reason, fix)


ON_NODE: tuple[tuple[str, str], ...] = (
    ("gpu-list", "NVML lists the same GPUs and MIG devices as the driver's `nvidia-smi -L`"),
    ("mig-tables", "NVML has the same MIG profiles and placements as `nvidia-smi mig -lgip` and `-lgipp`"),
    ("events", "a 1 s wait for GPU events lasts 1 s"),
    ("look", "reading all GPUs of the node takes less than 5 s"),
    ("compute-mode", "the compute mode of each idle GPU can be set to its current value"),
    ("time-slice", "the time slice of each idle GPU can be set to its current value"),
    ("mps", "an MPS daemon starts in its own folder, answers, and stops without leftovers"),
    ("cdi-version", "the container runtime reads the CDI version that the plugin writes"),
    ("hook", "a hook program is available for containers, unless it was disabled"),
    ("mig-device", "with `--also mig`: a MIG device is created, listed and destroyed"),
    ("vfio", "with `--also vfio`: a GPU is bound to vfio-pci and back"),
    ("imex-channel", "with `--also imex`: an IMEX channel can be opened"),
)
"""By name, in the order in which they are tried: what is proven."""

IN_PODS: tuple[tuple[str, str], ...] = (
    ("pod-gpu", "root in a pod with a GPU: CUDA starts, lists exactly the claim's GPU, and allocates memory"),
    ("pod-gpu-user", "the same as a non-root user"),
    ("pod-mig", "root in a pod with a MIG device; with `--also mig`, also one that must be created first"),
    ("pod-mig-user", "the same as a non-root user"),
    ("pod-shared", "root in a pod with a share of a GPU; or with a whole GPU and an MPS daemon, if none is shared"),
    ("pod-shared-user", "the same as a non-root user"),
)


def count(proofs: Iterable[Proof], outcome: ProofResult) -> int:
    return sum(proof.outcome is outcome for proof in proofs)


def summary(proofs: Sequence[Proof]) -> str:
    """`18 proofs: 12 passed, 1 failed, 5 not tried`"""
    words = {ProofResult.PASS: "passed", ProofResult.FAIL: "failed", ProofResult.NOT_TRIED: "not tried"}
    parts = [f"{number} {word}" for outcome, word in words.items() if (number := count(proofs, outcome))]
    return f"{len(proofs)} proofs: {', '.join(parts)}"


def lines(proofs: Iterable[Proof], width: int) -> Iterator[str]:
    """One for each; of a failure as many as its reason and fix need. The reason of what is not tried is cut: the
    archive has all of it."""
    for proof in proofs:
        head = f"{proof.outcome.value:<10}{proof.name:<{_NAME_WIDTH}}"
        if proof.outcome is ProofResult.FAIL:
            yield from _folded(head, proof.reason, width)
            if proof.fix:
                yield from _folded(f"{'':{len(head)}}fix: ", proof.fix, width)
        else:
            room = max(width - len(head), 40)
            reason = " ".join(proof.reason.split())
            yield head + (reason if len(reason) <= room else reason[: room - 1] + "…")


def _folded(head: str, text: str, width: int) -> Iterator[str]:
    folded = wrap(" ".join(text.split()), max(width - len(head), 40), break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(folded or [""]):
        yield f"{head if not number else ' ' * len(head)}{line}"
