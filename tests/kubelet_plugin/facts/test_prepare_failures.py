"""How long no claim gets a partition of a GPU after one could not be prepared: kubelet_plugin/facts/node_watch.py."""

from dra_driver.api.inventory import DOMAIN_SUBJECT
from dra_driver.errors import DriverError, HardwareError, NodeNotReady
from kubelet_plugin.facts.node_watch import PrepareFailures

GPUS = ["GPU-a", "GPU-b", "GPU-c"]
IN_USE = HardwareError("in use", about="GPU GPU-a")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def failed(failures: PrepareFailures) -> list[str]:
    return sorted(failures.conditions())


def after(*errors: tuple[str, DriverError]) -> PrepareFailures:
    failures = PrepareFailures()
    for gpu, error in errors:
        failures.add([gpu], error, GPUS)
    return failures


def test_a_failure_of_hardware_is_that_gpus() -> None:
    failures = after(("GPU-a", IN_USE), ("GPU-a", IN_USE))
    assert failed(failures) == ["GPU-a"]
    ((condition,),) = failures.conditions().values()
    assert (condition.type, condition.severity, condition.instance) == ("PrepareFailed", "Critical", "")
    assert condition.message == "GPU GPU-a: in use"


def test_a_second_gpu_or_an_error_of_the_node_counts_for_all() -> None:
    assert failed(after(("GPU-a", IN_USE), ("GPU-b", IN_USE))) == GPUS
    assert failed(after(("GPU-a", NodeNotReady("the disk is full")))) == GPUS


def test_it_ends_with_a_success_or_with_time() -> None:
    clock = Clock()
    failures = PrepareFailures(clock)
    failures.add(["GPU-a"], IN_USE, GPUS)
    assert not failures.remove(["GPU-b"])
    assert failures.remove(["GPU-a", "GPU-b"])
    assert failed(failures) == []
    failures.add(["GPU-a"], IN_USE, GPUS)
    clock.now = 299.0
    assert failed(failures) == ["GPU-a"]
    clock.now = 301.0
    assert failed(failures) == []
    failures.add(["GPU-b"], IN_USE, GPUS)
    assert failed(failures) == ["GPU-b"]


def test_a_channel_that_could_not_be_prepared_is_a_problem_for_a_while() -> None:
    clock = Clock()
    failures = PrepareFailures(clock)
    assert failures.problems() == ()
    failures.set_channels(NodeNotReady("its daemon is not ready"))
    (problem,) = failures.problems()
    assert (problem.subject, problem.message) == (DOMAIN_SUBJECT, "its daemon is not ready")
    clock.now = 301.0
    assert failures.problems() == ()
    failures.set_channels(NodeNotReady("its daemon is not ready"))
    failures.set_channels(None)
    assert failures.problems() == ()
