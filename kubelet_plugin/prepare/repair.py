"""Journal, files, hardware and the API disagree: what to do about each claim. Pure.

The service asks at start and from time to time, with what it found, and does what is answered. The states and standings
are those of `kubelet_plugin.prepare.lifecycle`. The table:

    state                    stands             unknown (API away)   stale
    PREPARED                 keep               keep                 release
    PREPARED, other content  rewrite            rewrite              release
    UNFINISHED               rewrite            rewrite              release
    … and `releasing`        release            release              release
    any, of an earlier boot  rewrite            wait for the API     release
    ORPHANED                 remove the file (while the journal is incomplete: wait for the API)

*Rewrite* makes the claim's entry and file what they would be if it were prepared now: device minors may be others after
a boot, the driver's files others after an upgrade. Its holds are made with it, again after a boot. When the hardware or
the driver's files are not there to do so, the claim waits. After a boot kubelet prepares the pods of this node again
but may start their containers first (kubernetes issue 141433), so the files are there again without waiting for that.

Records of holds that no entry lists are of entries that were lost: the holds are undone.

After damage to the journal, claims may hold devices that no entry speaks of. Then the scheduler's allocations are the
guard: the journal is completed from the claims in the API that are allocated to this node and have a CDI file, and
until that is done nothing is prepared and no file is removed. Nor is it while the kubelet has time to unprepare a claim
that has a file and is no longer allocated: of a force-deleted pod the containers may still run.
"""

from dataclasses import dataclass, field
from enum import Enum

from kubelet_plugin.prepare.holds import Records
from kubelet_plugin.prepare.lifecycle import ClaimStanding, Entry, FileDigests, JournalState, is_made, state_of
from kubelet_plugin.prepare.plan import Plan


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was repaired, and what must wait and is tried again; sentences for people."""

    done: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

    def __add__(self, other: "RepairReport") -> "RepairReport":
        return RepairReport(self.done + other.done, self.pending + other.pending)


class Action(Enum):
    KEEP = "keep"
    REWRITE = "rewrite"
    RELEASE = "release"
    REMOVE_FILE = "remove the file"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """Everything known about one claim UID. `files` are those that are there, None when there is none. `planned` is the
    digest of the CDI file as it would be written now, None when that is unknown: because of the `obstacle`, or before
    its holds are made. Device metadata alone is no reason to rewrite while it is as the journal says: it describes the
    devices as they were published when the claim was prepared."""

    uid: str
    entry: Entry | None
    files: FileDigests | None
    standing: ClaimStanding = ClaimStanding.UNKNOWN
    planned: str | None = None
    obstacle: str = ""
    records: Records = field(default_factory=dict)
    """Of all holds in the journal."""
    lost: frozenset[str] = frozenset()
    """UUIDs of its MIG devices that no longer exist."""
    plan: Plan | None = None
    """That would rewrite it, when there can be one."""


@dataclass(frozen=True, slots=True)
class Remedy:
    action: Action
    why: str


def remedy_for(finding: ClaimFinding, boot_id: str, *, incomplete: bool) -> Remedy:
    """One cell of the table. `boot_id` is the present one, `incomplete` that of the journal."""
    entry = finding.entry
    state = state_of(entry, finding.files, finding.records)
    if entry is None:
        return _without_entry(state, finding, incomplete)
    who = f"{entry.claim} (UID {entry.claim.uid})"
    if entry.releasing:
        return Remedy(Action.RELEASE, f"{who} was being released")
    if finding.standing.is_stale:
        return Remedy(Action.RELEASE, f"{who} {finding.standing.value}")
    if entry.boot_id != boot_id and finding.standing is ClaimStanding.UNKNOWN:
        return Remedy(Action.WAIT, f"{who} was prepared before the node booted and {finding.standing.value}")
    if finding.lost and finding.files is not None:
        # Its device nodes may be another claim's now, and a container that starts over would get them.
        return Remedy(Action.REMOVE_FILE, f"{who} lost {', '.join(sorted(finding.lost))}, so no container may start")
    reason = _reason_to_rewrite(entry, finding, state, boot_id)
    if reason is None:
        return Remedy(Action.KEEP, f"{who} is prepared")
    if finding.obstacle:
        return Remedy(Action.WAIT, f"{who} {reason}, and it cannot be written now: {finding.obstacle}")
    return Remedy(Action.REWRITE, f"{who} {reason}")


def _without_entry(state: JournalState, finding: ClaimFinding, incomplete: bool) -> Remedy:
    if state is JournalState.ABSENT:
        return Remedy(Action.KEEP, f"claim UID {finding.uid} has nothing here")
    if incomplete:
        return Remedy(
            Action.WAIT, f"the CDI file of claim UID {finding.uid} may belong to a claim lost from the journal"
        )
    return Remedy(Action.REMOVE_FILE, f"the CDI file of claim UID {finding.uid} belonged to no claim in the journal")


def _reason_to_rewrite(entry: Entry, finding: ClaimFinding, state: JournalState, boot_id: str) -> str | None:
    if entry.boot_id != boot_id:
        return "was prepared before the node booted"
    if not is_made(entry, finding.records):
        return "was not finished"
    if state is JournalState.UNFINISHED:
        return _altered(entry, finding.files)
    if finding.planned is not None and finding.planned != entry.cdi_digest:
        return "had a CDI file for other driver files or device nodes"
    return None


def _altered(entry: Entry, files: FileDigests | None) -> str:
    if files is None or files.cdi is None:
        return "had no CDI file"
    if files.cdi != entry.cdi_digest:
        return "had a CDI file that was altered"
    if entry.metadata is None:
        return "had device metadata that is not its own"
    return "had device metadata that was altered" if files.metadata else "had no device metadata"
