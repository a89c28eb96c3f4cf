"""What plans make of texts: edits of all that stands in one text, and new objects in front of it. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dra_driver.api.documents import Document
from dra_driver.authoring.writing import Noted, written
from dra_driver.migration.claims.plans import Plan
from dra_driver.migration.model import Edit, NewObject, Options, Put
from dra_driver.migration.text.edit import Rewriting, rewritten
from dra_driver.migration.text.splices import Splice, spliced
from dra_driver.migration.text.tree import header_length
from dra_driver.migration.write.undo import remembered


def edited(plans: Iterable[Plan], options: Options) -> Rewriting:
    """What is to be put where, for plans of one text. Raises EditRefused when one edit of them cannot be made."""
    edits: dict[Document, tuple[Edit, ...]] = {}
    for plan in plans:
        wanted = plan.all_edits
        if wanted and options.keep_undo:
            wanted = (*wanted, remembered(plan.document.obj, wanted))
        for one in plan.embedded:
            inner = [splice for some in _by_text(one.plans) for splice in edited(some, options).splices]
            text = spliced(one.text, inner)[one.lines :]
            if text != one.text[one.lines :]:
                wanted = (*wanted, Put(one.path, text))
        if wanted:
            edits[plan.document] = wanted
    return rewritten(edits) if edits else Rewriting((), ())


def _by_text(plans: Iterable[Plan]) -> list[list[Plan]]:
    together: Mapping[int, list[Plan]] = defaultdict(list)
    for plan in plans:
        together[plan.document.written.start].append(plan)
    return list(together.values())


def in_front_of(document: Document, objects: Sequence[NewObject]) -> Splice:
    """New objects in front of the text that needs them, as documents of their own, and below the header of a file."""
    place = document.written
    new = objects_text(objects)
    text = f"---\n{new}" if place.text.startswith("---") else f"{new}---\n"
    start = place.start + header_length(place.text)
    return Splice(start, start, text)


def objects_text(objects: Sequence[NewObject]) -> str:
    """YAML documents, each below a comment that says what it is for."""
    return written([Noted(one.reason, one.obj) for one in objects])
