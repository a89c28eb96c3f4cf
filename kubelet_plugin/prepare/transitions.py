"""The journal's transitions: each is a decision on the journal as it is at that moment. Pure.

`kubelet_plugin.prepare.execute` commits them, in the order that it describes; `kubelet_plugin.prepare.store` applies
each to the journal on disk, which another instance may have written. So nothing here relies on what the caller saw.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from dra_driver.errors import DeviceInUse, DriverError, Help, Move, NodeNotReady
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    SwitchedMode,
    described,
    gpus_of,
    rests_on,
)
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import (
    BindingStage,
    Entry,
    Held,
    ModeChanging,
    admitted,
    left_behind,
    needed,
    without_claim,
)

type Transition = Callable[[Journal], Journal]


class Outdated(DriverError):
    """The journal changed since it was looked at: look again."""

    help = Help(
        Move.NO_ONE,
        "The journal changed while a claim was worked on.",
        "Nothing: the plugin checks it again at once.",
    )


def with_entry(entry: Entry) -> Transition:
    """The claim holds these devices, or the transition raises HeldByOther."""
    return lambda journal: replace(journal, held=admitted_to(journal, _as_known(journal, entry)))


def admitted_to(journal: Journal, entry: Entry) -> Held:
    """The claims of the journal and this one. Raises HeldByOther or LeftBehind.

    While entries may be missing, holds that no entry lists belong to them; then only lost claims are prepared.
    Raises ModeChanging while the MIG mode of a GPU is being switched, also for admin access: a program would be in the
    way of the reset.
    """
    changing = {hold.gpu.uuid: hold for hold in mode_changes(journal)}
    for device in entry.devices:
        if device.gpu_uuid in changing:
            raise ModeChanging(
                f"{described(changing[device.gpu_uuid])}: it is not ready yet; the kubelet tries again",
                about=str(entry.claim),
            )
    return admitted(journal.held, entry, None if journal.incomplete else journal.holds)


def mode_changes(journal: Journal) -> tuple[SwitchedMode, ...]:
    """GPUs whose MIG mode is being switched by a reset; or was, by a process that was killed."""
    return tuple(
        hold
        for hold, record in journal.holds.items()
        if isinstance(hold, SwitchedMode) and record.state is not HoldState.MADE
    )


def claims_on(journal: Journal, gpu: GpuIdentity) -> tuple[str, ...]:
    """The claims that have a device of the GPU, sorted; also those that only observe it."""
    return tuple(
        sorted(
            f"{entry.claim.namespace}/{entry.claim.name}"
            for entry in journal.held.values()
            if any(device.gpu_uuid == gpu.uuid for device in entry.devices)
        )
    )


def mode_change_begun(hold: SwitchedMode, state: HoldState, boot_id: str) -> Transition:
    """The GPU's mode is being switched: on (INTENT), or off (UNDOING). From now on no claim gets the GPU.

    Raises DeviceInUse while a claim has the GPU, also to observe it, or has left something on it; NodeNotReady while
    one may have it.
    """

    def change(journal: Journal) -> Journal:
        users = claims_on(journal, hold.gpu)
        left = [described(other) for other in journal.holds if other != hold and hold.gpu in gpus_of(other)]
        if journal.incomplete:
            raise NodeNotReady("the journal may lack claims that have it", about=str(hold.gpu))
        if users or left:
            raise DeviceInUse(f"is in use: {', '.join(users or left)}", about=str(hold.gpu))
        record = journal.holds.get(hold, HoldRecord(state, boot_id))
        return _recorded(journal, hold, replace(record, state=state, boot_id=boot_id))

    return change


def mode_change_ended(hold: SwitchedMode, *, on: bool) -> Transition:
    """The mode is `on`, because of this driver; or it is off, and there is nothing to remember."""

    def change(journal: Journal) -> Journal:
        record = journal.holds.get(hold)
        if record is None:
            return journal
        if on:
            return _recorded(journal, hold, replace(record, state=HoldState.MADE))
        return replace(journal, holds={other: known for other, known in journal.holds.items() if other != hold})

    return change


def released(claim_uid: str) -> Transition:
    """The claim holds nothing; for one without holds."""
    return lambda journal: replace(journal, held=without_claim(journal.held, claim_uid))


def begun(entry: Entry, intents: Mapping[Hold, Made]) -> Transition:
    """The claim holds these devices, and its holds must be made; `intents` are the facts of those that are new.

    Raises Outdated when one of them is new and has none.
    """

    def change(journal: Journal) -> Journal:
        held = admitted_to(journal, _as_known(journal, entry))
        new = [hold for hold in entry.holds if hold not in journal.holds]
        if not set(new) <= intents.keys():
            raise Outdated("a hold was taken back meanwhile", about=str(entry.claim))
        records = {hold: HoldRecord(HoldState.INTENT, entry.boot_id, intents[hold]) for hold in new}
        return replace(journal, held=held, holds={**journal.holds, **records})

    return change


def intended(hold: Hold, entry: Entry) -> Transition:
    """The hold is being made, in the boot of the entry. Raises NodeNotReady.

    What is known of how it was before is kept; ids of an instance that was there before would mislead.
    """

    def change(journal: Journal) -> Journal:
        _check_still_held(journal, entry)
        record = journal.holds.get(hold)
        if record is None:
            raise NodeNotReady(f"{described(hold)} was lost from the journal", about=str(entry.claim))
        if record.state is HoldState.INTENT and record.boot_id == entry.boot_id:
            return journal
        facts = Made() if isinstance(hold, GpuInstance | ComputeInstance) else record.made
        return _recorded(journal, hold, replace(record, state=HoldState.INTENT, boot_id=entry.boot_id, made=facts))

    return change


def made(hold: Hold, entry: Entry, facts: Made) -> Transition:
    """The hold is as it must be."""

    def change(journal: Journal) -> Journal:
        record = journal.holds.get(hold, HoldRecord(HoldState.INTENT, entry.boot_id))
        known = record.made.with_facts(facts)
        return _recorded(journal, hold, replace(record, state=HoldState.MADE, boot_id=entry.boot_id, made=known))

    return change


def finished(entry: Entry) -> Transition:
    """The entry with the digest of its CDI file, all its holds being made. Raises NodeNotReady."""

    def change(journal: Journal) -> Journal:
        _check_still_held(journal, entry)
        return replace(journal, held={**journal.held, entry.claim.uid: _as_known(journal, entry)})

    return change


def asked_for(entry: Entry) -> Transition:
    """The kubelet gets an answer about a claim that was prepared ahead. Raises NodeNotReady if it was released."""

    def change(journal: Journal) -> Journal:
        _check_still_held(journal, entry)
        now = replace(journal.held[entry.claim.uid], binding=BindingStage.ASKED)
        return replace(journal, held={**journal.held, entry.claim.uid: now})

    return change


def releasing(claim_uid: str) -> Transition:
    """The claim is on its way out, and so are the holds that only it needs."""

    def change(journal: Journal) -> Journal:
        entry = journal.held.get(claim_uid)
        if entry is None:
            return journal
        held = {**journal.held, claim_uid: replace(entry, releasing=True)}
        return _undoing(replace(journal, held=held), to_undo(journal, entry, frozenset()))

    return change


def undoing(hold: Hold, *, but: str | None) -> Transition:
    """The hold is being undone, unless an entry other than that of the claim with UID `but` lists it."""

    def change(journal: Journal) -> Journal:
        if hold not in journal.holds or needed(journal.held, hold, but=but):
            return journal
        return _undoing(journal, [hold])

    return change


def to_undo(journal: Journal, entry: Entry, undone: Collection[Hold]) -> tuple[Hold, ...]:
    """The holds that go with the entry: no other entry lists them, and they are not `undone`, or were made again since.

    Holds that were left behind need some of them: these are left, too.
    """
    bearing = _bearing(journal)
    return tuple(
        hold
        for hold in entry.holds
        if hold in journal.holds
        and hold not in bearing
        and not needed(journal.held, hold, but=entry.claim.uid)
        and not (hold in undone and journal.holds[hold].state is HoldState.UNDOING)
    )


def gone(claim_uid: str, undone: Collection[Hold], out_of_reach: Collection[Hold] = ()) -> Transition:
    """The claim no longer holds anything, and what was `undone` of its holds is forgotten.

    Unless it is now the last one that needs another hold: then it stays until that hold is undone. Holds that are
    `out_of_reach` could not be undone, and do not keep the claim: their records stay, as those of holds left behind.
    """

    def change(journal: Journal) -> Journal:
        entry = journal.held.get(claim_uid)
        if entry is None:
            return journal
        remaining = to_undo(journal, entry, {*undone, *out_of_reach})
        if remaining:
            return _undoing(journal, remaining)
        held = without_claim(journal.held, claim_uid)
        left = {*out_of_reach, *_bearing(journal)}
        mine = {hold for hold in entry.holds if not needed(held, hold) and hold not in left}
        return replace(
            journal, held=held, holds={hold: record for hold, record in journal.holds.items() if hold not in mine}
        )

    return change


def forgotten(holds: Collection[Hold]) -> Transition:
    """These holds, which were undone, no longer have a record, unless an entry lists them now."""

    def change(journal: Journal) -> Journal:
        remaining = {
            hold: record for hold, record in journal.holds.items() if hold not in holds or needed(journal.held, hold)
        }
        return replace(journal, holds=remaining)

    return change


def _bearing(journal: Journal) -> frozenset[Hold]:
    """What the holds that no entry lists rest on."""
    bases = (rests_on(hold) for hold in left_behind(journal.held, journal.holds))
    return frozenset(hold for hold in bases if hold is not None)


def _as_known(journal: Journal, entry: Entry) -> Entry:
    """`entry` as asked for by the kubelet if it was asked for before, perhaps at another instance of the plugin."""
    known = journal.held.get(entry.claim.uid)
    if entry.binding is BindingStage.AHEAD and known is not None and known.binding is not BindingStage.AHEAD:
        return replace(entry, binding=BindingStage.ASKED)
    return entry


def _check_still_held(journal: Journal, entry: Entry) -> None:
    current = journal.held.get(entry.claim.uid)
    if current is None or current.releasing:
        raise NodeNotReady("was released while it was prepared", about=str(entry.claim))


def _undoing(journal: Journal, holds: Collection[Hold]) -> Journal:
    records = {hold: replace(journal.holds[hold], state=HoldState.UNDOING) for hold in holds}
    return replace(journal, holds={**journal.holds, **records})


def _recorded(journal: Journal, hold: Hold, record: HoldRecord) -> Journal:
    return replace(journal, holds={**journal.holds, hold: record})
