"""What the containers of a pod ask for in the old way, as devices. Pure."""

from dra_driver.migration.model import Demand, Options, Path, PodReading, PodSpecAt, Want, What
from dra_driver.migration.surroundings import Meaning


def demands(pod: PodSpecAt, meaning: Meaning, options: Options) -> PodReading:
    """All that one pod asks for."""
    found: list[Demand] = []
    for container in pod.containers:
        amounts: dict[str, object] = {}
        removes: list[Path] = []
        for name in ("limits", "requests"):
            if isinstance(given := container.resources.get(name), dict) and "nvidia.com/gpu" in given:
                amounts[name] = given["nvidia.com/gpu"]
                removes.append((*container.resources_path, name, "nvidia.com/gpu"))
        amount = amounts.get("limits", amounts.get("requests"))
        if amount is not None and int(str(amount)) > 0:
            want = Want(What.GPU, int(str(amount)))
            found.append(Demand((container,), want, removes=tuple(removes), resource="nvidia.com/gpu"))
    return PodReading(tuple(found))
