"""Objects that count, and the workloads that they count: what becomes of both."""

from typing import Any

import yaml
from support.migration import GPU, documents_of, limits, meaning_of, pod, pod_of

from dra_driver.api.meta import JsonObject
from dra_driver.migration.counts.quotas import QuotaResult, rewrite
from dra_driver.migration.demands import reading
from dra_driver.migration.model import Choice, MigratedWorkload, MigrationTarget, Options
from dra_driver.migration.text.edited import changed, plain
from dra_driver.migration.understand.meaning import Meaning

PLAIN = meaning_of("version: v1\nflags: {migStrategy: mixed}\n")
MIG = "nvidia.com/mig-1g.5gb"
CLAIMS, EXTENDED, LEAVE = MigrationTarget.CLAIMS, MigrationTarget.EXTENDED, MigrationTarget.LEAVE


def workload(
    target: MigrationTarget,
    amounts: JsonObject | None = None,
    namespace: str = "team",
    meaning: Meaning = PLAIN,
    **more: Any,
) -> MigratedWorkload:
    obj = pod(limits(amounts or {GPU: 1}), **more)
    obj["metadata"]["namespace"] = namespace
    at = pod_of(obj)
    return MigratedWorkload(at, reading.demands(at, meaning, Options()), Choice(target, "as the test has it."))


def done(
    obj: JsonObject,
    *targets: MigrationTarget | MigratedWorkload,
    meaning: Meaning = PLAIN,
    options: Options | None = None,
) -> tuple[JsonObject, QuotaResult]:
    """The object afterwards, and what was said."""
    workloads = [workload(target) if isinstance(target, MigrationTarget) else target for target in targets]
    (document,) = documents_of(obj)
    result = rewrite([document], workloads, meaning, options or Options(), [document])
    after = yaml.safe_load(yaml.safe_dump(obj))
    for edits in result.edits.values():
        after = plain(changed(after, edits))
    return after, result
