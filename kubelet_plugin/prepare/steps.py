"""The vocabulary of steps that prepare a claim; each knows its way back, and what the journal remembers of it.

`kubelet_plugin.prepare.plan` makes steps, `kubelet_plugin.prepare.execute` carries them out. A step is a value: it can
be printed and compared. What the journal remembers is enough to undo the step after a restart, without the claim
object, the hardware or anything else.

The one step *restores*: it makes something look as the journal says, may be repeated at any time, and whether it was
carried out can be seen. What changes hardware is of another sort, needs an intent and a result of its own in the
journal, and may be shared by claims: see `kubelet_plugin.prepare.holds`.
"""

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RemoveCdiFile:
    """Remove a claim's CDI file; nothing to do when there is none."""

    claim_uid: str

    def __str__(self) -> str:
        return f"remove the CDI file of claim {self.claim_uid}"


@dataclass(frozen=True, slots=True)
class CdiFileRecord:
    """The journal's memory of `WriteCdiFile`: the SHA-256 of the file's bytes, in hex."""

    digest: str
    extra: str = ""
    """Fields of a newer release, as a JSON object; empty when there are none."""

    def undo(self, claim_uid: str) -> RemoveCdiFile:
        return RemoveCdiFile(claim_uid)


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """A step of a newer release: what it did is not known here, so it cannot be undone here."""

    kind: str
    extra: str


type StepRecord = CdiFileRecord | UnknownRecord


@dataclass(frozen=True, slots=True)
class WriteCdiFile:
    """Make a claim's CDI file have this content."""

    claim_uid: str
    content: bytes = field(repr=False)

    @property
    def record(self) -> CdiFileRecord:
        return CdiFileRecord(digest_of(self.content))

    @property
    def undo(self) -> RemoveCdiFile:
        return RemoveCdiFile(self.claim_uid)

    def __str__(self) -> str:
        return f"write the CDI file of claim {self.claim_uid} ({len(self.content)} bytes, {self.record.digest[:12]})"


type Step = WriteCdiFile
type Undo = RemoveCdiFile


def digest_of(content: bytes) -> str:
    """How a file's content is compared with what the journal remembers of it."""
    return hashlib.sha256(content).hexdigest()
