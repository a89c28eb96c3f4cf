"""Jobs and CronJobs: which pods or Jobs they want now, and when they are done. Pure.

Left out: policies for failures, successes and single indexes, and time zones of CronJobs. Source: the controllers of
Kubernetes 1.36.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from dra_driver.api.meta import JOBS, JsonObject, wire_time
from dra_driver.simulation.pods import is_being_deleted
from dra_driver.simulation.workloads.workload_plan import (
    WorkloadPlan,
    active,
    age_key,
    child_of,
    conditions_of,
    holds,
    labeled,
    pod_of,
    ready_count,
    staying,
)

_INDEX = "batch.kubernetes.io/job-completion-index"


def job(owner: JsonObject, pods: Sequence[JsonObject], now: datetime) -> WorkloadPlan:
    """Pods until enough have succeeded, each index once when the Job is Indexed; all end when too many have failed."""
    spec, running = owner["spec"], active(pods)
    if holds(owner, "Complete", "Failed"):
        return _after_the_end(owner, running, now)
    indexed = spec.get("completionMode") == "Indexed"
    succeeded = [pod for pod in pods if _phase(pod) == "Succeeded"]
    failed = sum(_phase(pod) == "Failed" for pod in pods)
    done = len({_index(pod) for pod in succeeded}) if indexed else len(succeeded)
    completions, parallelism = spec.get("completions"), spec.get("parallelism", 1)
    # Without a number of completions, pods share a queue of work: the first that succeeds finds it empty.
    enough = done >= completions if completions is not None else bool(done) and not running
    wanted = min(parallelism, completions - done) if completions is not None else parallelism * (not done)
    end = _end(owner, failed, enough, now)
    if end is not None or spec.get("suspend"):
        wanted = 0
    create: list[JsonObject] = []
    if indexed:
        busy = {_index(pod) for pod in (*running, *succeeded)}
        free = [str(index) for index in range(completions or 0) if str(index) not in busy]
        create = [_pod_of_index(owner, index) for index in free[: max(wanted - len(running), 0)]]
    else:
        create = [pod_of(owner, spec["template"], f"{owner['metadata']['name']}-", {})] * max(wanted - len(running), 0)
    counts = {"active": len(running) if end is None else 0, "succeeded": done, "failed": failed}
    status: JsonObject = {name: count or None for name, count in counts.items()}
    status["ready"] = ready_count(running)
    status["terminating"] = sum(is_being_deleted(pod) and _phase(pod) in ("Pending", "Running") for pod in pods)
    status["uncountedTerminatedPods"] = {}
    if not spec.get("suspend"):
        status["startTime"] = (owner.get("status") or {}).get("startTime") or wire_time(now)
    if indexed:
        status["completedIndexes"] = ",".join(sorted({_index(pod) for pod in succeeded}, key=int)) or None
    suspended = ("Suspended", bool(spec.get("suspend")), "JobSuspended", "Job suspended")
    known = {item["type"] for item in (owner.get("status") or {}).get("conditions") or ()}
    shown = conditions_of(owner, now, suspended, keep=True) if spec.get("suspend") or "Suspended" in known else []
    if end is not None:
        shown += conditions_of(owner, now, end)
        if end[0] == "Complete":
            status["completionTime"] = wire_time(now)
    if shown:
        status["conditions"] = shown
    surplus = tuple(sorted(running, key=age_key, reverse=True)[: max(len(running) - wanted, 0)])
    deadline = spec.get("activeDeadlineSeconds")
    return WorkloadPlan(tuple(create), surplus, status=status, again_s=deadline if end is None else None)


def _end(owner: JsonObject, failed: int, enough: bool, now: datetime) -> tuple[str, bool, str, str] | None:
    """The condition with which the Job ends now."""
    spec, started = owner["spec"], (owner.get("status") or {}).get("startTime")
    if enough:
        return "Complete", True, "CompletionsReached", "Reached expected number of succeeded pods"
    if failed > spec.get("backoffLimit", 6):
        return "Failed", True, "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and started and now >= datetime.fromisoformat(started) + timedelta(seconds=deadline):
        return "Failed", True, "DeadlineExceeded", "Job was active longer than specified deadline"
    return None


def _after_the_end(owner: JsonObject, running: Sequence[JsonObject], now: datetime) -> WorkloadPlan:
    lifetime_s = owner["spec"].get("ttlSecondsAfterFinished")
    if lifetime_s is None:
        return WorkloadPlan(delete=tuple(running))
    ended = max(item["lastTransitionTime"] for item in owner["status"]["conditions"])
    left_s = (datetime.fromisoformat(ended) + timedelta(seconds=lifetime_s) - now).total_seconds()
    return WorkloadPlan(delete=(owner,)) if left_s <= 0 else WorkloadPlan(delete=tuple(running), again_s=left_s)


def _pod_of_index(owner: JsonObject, index: str) -> JsonObject:
    name, template, label = owner["metadata"]["name"], owner["spec"]["template"], {_INDEX: index}
    env = [("JOB_COMPLETION_INDEX", index)]
    pod = pod_of(owner, template, f"{name}-{index}-", label, annotations=label, env=env)
    pod["spec"].setdefault("hostname", f"{name}-{index}")
    return pod


def _index(pod: JsonObject) -> str:
    return str((pod["metadata"].get("labels") or {}).get(_INDEX, ""))


def _phase(pod: JsonObject) -> str:
    return (pod.get("status") or {}).get("phase") or "Pending"


def cron_job(owner: JsonObject, jobs: Sequence[JsonObject], now: datetime) -> WorkloadPlan:
    """A Job at each time of the schedule; of those that ended, the newest few stay."""
    spec, running = owner["spec"], [item for item in staying(jobs) if not holds(item, "Complete", "Failed")]
    last = (owner.get("status") or {}).get("lastScheduleTime") or owner["metadata"]["creationTimestamp"]
    due, coming = _times(spec["schedule"], datetime.fromisoformat(last), now)
    policy = spec.get("concurrencyPolicy", "Allow")
    starts = due is not None and not spec.get("suspend") and not (policy == "Forbid" and running)
    create: tuple[JsonObject, ...] = ()
    if due is not None and starts:
        template = labeled(spec["jobTemplate"], {})
        metadata = {key: template["metadata"][key] for key in ("labels", "annotations")}
        name = f"{owner['metadata']['name']}-{int(due.timestamp()) // 60}"
        create = (child_of(owner, JOBS, name, metadata, template["spec"]),)
    outdated: list[JsonObject] = list(running) if starts and policy == "Replace" else []
    limits = (("Complete", "successfulJobsHistoryLimit", 3), ("Failed", "failedJobsHistoryLimit", 1))
    for condition, field, most in limits:
        ended = [item for item in staying(jobs) if holds(item, condition)]
        outdated += ended[: max(len(ended) - spec.get(field, most), 0)]
    references = [
        {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "namespace": item["metadata"]["namespace"]}
        | {key: item["metadata"][key] for key in ("name", "uid", "resourceVersion")}
        for item in running
    ]
    status: JsonObject = {"active": references or None}
    if starts and due is not None:
        status["lastScheduleTime"] = wire_time(due)
    again_s = max((coming - now).total_seconds(), 0.1) if coming is not None else None
    return WorkloadPlan(create, tuple(outdated), status=status, again_s=again_s)


_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MACROS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_NAMES = {
    name: str(number)
    for names, first in (("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC", 1), ("SUN MON TUE WED THU FRI SAT", 0))
    for number, name in enumerate(names.split(), first)
}
_LOOK_AHEAD = timedelta(days=1)


def cron_fields(schedule: str) -> tuple[frozenset[int], ...]:
    """Minutes, hours, days of the month, months, and days of the week (0 to 6). Raises ValueError."""
    parts = _MACROS.get(schedule.strip(), schedule).upper().split()
    if len(parts) != len(_FIELDS):
        raise ValueError(f"expected exactly 5 fields, found {len(parts)}: [{schedule}]")
    return tuple(
        frozenset(
            number % 7 if limits == _FIELDS[4] else number
            for item in part.split(",")
            for number in _span(item, *limits)
        )
        for part, limits in zip(parts, _FIELDS, strict=True)
    )


def _span(item: str, least: int, most: int) -> range:
    text, _, step = item.partition("/")
    low, _, high = ("", "", "") if text in ("*", "?") else text.partition("-")
    first = int(_NAMES.get(low, low)) if low else least
    last = int(_NAMES.get(high, high)) if high else most if step or not low else first
    if not least <= first <= last <= most:
        raise ValueError(f"{item} is not within {least} and {most}")
    return range(first, last + 1, int(step or 1))


def _times(schedule: str, last: datetime, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The newest time of the schedule after `last` that has come, and the next one; None when it is over a day away."""
    minutes, hours, days, months, weekdays = cron_fields(schedule)
    anyday = len(days) == 31 or len(weekdays) == 7
    due, moment = None, max(last, now - _LOOK_AHEAD).astimezone(UTC).replace(second=0, microsecond=0)
    while (moment := moment + timedelta(minutes=1)) <= now + _LOOK_AHEAD:
        of_month, of_week = moment.day in days, moment.isoweekday() % 7 in weekdays
        # cron: when both days are restricted, either one is enough.
        fits = (of_month and of_week) if anyday else (of_month or of_week)
        if fits and moment.minute in minutes and moment.hour in hours and moment.month in months:
            if moment > now:
                return due, moment
            due = moment
    return due, None
