"""Jobs and CronJobs: pods until enough have succeeded or too many have failed, and Jobs when it is time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.workloads import WorkloadWorld

from dra_driver.simulation.workloads.batch import cron_fields, cron_job


def conditions(world: WorkloadWorld) -> set[str]:
    return {item["type"] for item in world.owner["status"].get("conditions") or () if item["status"] == "True"}


def running(world: WorkloadWorld) -> list[Any]:
    return [pod for pod in world.pods if pod["status"]["phase"] == "Running"]


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
def test_a_job_runs_its_pods_until_each_has_succeeded(mode: str) -> None:
    world = WorkloadWorld("Job", parallelism=2, completions=5, completionMode=mode)
    world.settle()
    most = 0
    while "Complete" not in conditions(world):
        most = max(most, len(running(world)))
        world.end(running(world)[0], "Succeeded")
        world.settle()
    assert (len(world.pods), most, world.owner["status"]["succeeded"]) == (5, 2, 5)
    indexes = [pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index") for pod in world.pods]
    assert indexes == (list("01234") if mode == "Indexed" else [None] * 5)


def test_an_index_that_failed_runs_again() -> None:
    world = WorkloadWorld("Job", parallelism=2, completions=2, completionMode="Indexed")
    world.settle()
    world.end(world.pods[1], "Failed")
    world.settle()
    (again,) = (pod for pod in running(world) if pod is not world.pods[0])
    assert again["spec"]["containers"][0]["env"] == [{"name": "JOB_COMPLETION_INDEX", "value": "1"}]


def test_a_job_fails_with_too_many_pods_and_ends_the_others() -> None:
    world = WorkloadWorld("Job", parallelism=2, completions=2, backoffLimit=1)
    world.settle()
    for _ in range(2):
        assert not conditions(world)
        world.end(running(world)[0], "Failed")
        world.settle()
    assert conditions(world) == {"Failed"}
    assert not running(world)


def test_pods_of_a_suspended_job_end_and_come_back() -> None:
    world = WorkloadWorld("Job", parallelism=2, completions=2, suspend=True)
    world.settle()
    assert (world.pods, conditions(world)) == ([], {"Suspended"})
    world.owner["spec"]["suspend"] = False
    world.settle()
    assert (len(world.pods), conditions(world)) == (2, set())
    world.owner["spec"]["suspend"] = True
    world.settle()
    assert not world.pods


def test_a_job_ends_at_its_deadline_and_is_removed_after_its_time() -> None:
    world = WorkloadWorld("Job", parallelism=1, completions=1, activeDeadlineSeconds=60, ttlSecondsAfterFinished=30)
    world.settle()
    world.now += timedelta(seconds=59)
    world.settle()
    assert world.pods
    world.now += timedelta(seconds=1)
    world.settle()
    assert (conditions(world), world.pods) == ({"Failed"}, [])
    world.now += timedelta(seconds=30)
    world.settle()
    assert not world.objects


def cron(world: WorkloadWorld) -> list[str]:
    return [job["metadata"]["name"] for job in world.of("Job")]


def test_a_cron_job_makes_a_job_at_each_time_and_keeps_the_newest() -> None:
    job = {"spec": {"template": {"spec": {"containers": []}}, "parallelism": 1, "completions": 1}}
    world = WorkloadWorld("CronJob", schedule="*/2 * * * *", jobTemplate=job, successfulJobsHistoryLimit=2)
    made = []
    for _ in range(6):
        world.now += timedelta(minutes=1)
        world.settle()
        for pod in running(world):
            made.append(pod["metadata"]["name"])
            world.end(pod, "Succeeded")
        world.settle()
    assert (len(made), len(cron(world))) == (3, 2)
    minutes = int(datetime(2026, 1, 1, 0, 6, tzinfo=UTC).timestamp()) // 60
    assert cron(world) == [f"a-{minutes - 2}", f"a-{minutes}"]


@pytest.mark.parametrize(("policy", "jobs"), [("Allow", 3), ("Forbid", 1), ("Replace", 1)])
def test_a_cron_job_with_a_job_that_still_runs(policy: str, jobs: int) -> None:
    job = {"spec": {"template": {"spec": {"containers": []}}, "parallelism": 1, "completions": 1}}
    world = WorkloadWorld("CronJob", schedule="* * * * *", jobTemplate=job, concurrencyPolicy=policy)
    for _ in range(3):
        world.now += timedelta(minutes=1)
        world.settle()
    assert len(cron(world)) == jobs
    assert (f"a-{int(world.now.timestamp()) // 60}" in cron(world)) is (policy != "Forbid")


def test_a_cron_job_says_when_to_look_again() -> None:
    owner = WorkloadWorld("CronJob", schedule="30 4 * * *", jobTemplate={}).owner
    plan = cron_job(owner, (), datetime(2026, 1, 1, 4, 29, 15, tzinfo=UTC))
    assert (plan.create, plan.again_s) == ((), 45)


def test_schedules() -> None:
    minutes, hours, _, months, weekdays = cron_fields("*/20,5 8-10 * jan MON-FRI/2")
    assert (minutes, hours, months, weekdays) == ({0, 5, 20, 40}, {8, 9, 10}, {1}, {1, 3, 5})
    assert cron_fields("@hourly")[0] == {0}
    assert cron_fields("0 0 * * 7")[4] == {0}
    for text in ("* * * *", "60 * * * *", "a * * * *", "5-1 * * * *"):
        with pytest.raises(ValueError, match=r"."):
            cron_fields(text)
