"""Workloads that a person named, on the command line: which they are, and what is wanted of them. Pure."""

from fnmatch import fnmatchcase

from dra_driver.api.documents import Document
from dra_driver.migration.model import Options, StrategyOption


def strategy_of(document: Document, options: Options) -> StrategyOption:
    """What was asked for this workload."""
    own = [strategy for name, strategy in options.strategy_of if is_named(document, name)]
    return own[-1] if own else options.strategy


def shared_group(document: Document, options: Options) -> tuple[str, ...] | None:
    """Those with whom it has the same devices, as they were named; None: it has its own."""
    groups = (
        shared_claim for shared_claim in options.shared_claims if any(is_named(document, name) for name in shared_claim)
    )
    return next(groups, None)


def is_named(document: Document, name: str) -> bool:
    """Whether a person means it: `name`, `Kind/name` or `Kind/namespace/name`, where `*` stands for anything.

    Where files do not say the namespace it is any, and two parts can be namespace and name, too: `search/*`.
    """
    wanted = name.split("/")
    if len(wanted) > 3 or not fnmatchcase(document.name, wanted[-1]):
        return False
    kind = document.kind.lower()
    if len(wanted) == 3:
        return fnmatchcase(kind, wanted[0].lower()) and _in(document, wanted[1])
    return len(wanted) == 1 or fnmatchcase(kind, wanted[0].lower()) or _in(document, wanted[0], said=True)


def _in(document: Document, namespace: str, *, said: bool = False) -> bool:
    """`said`: the file must say it."""
    if not document.namespace:
        return not said
    return fnmatchcase(document.namespace, namespace)
