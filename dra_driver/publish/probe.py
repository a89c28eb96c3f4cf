"""Finds out what of a ResourceSlice the API server keeps, by creations that are not carried out."""

from dra_driver.api.meta import RESOURCE_SLICES
from dra_driver.errors import Rejected
from dra_driver.kube.client import Kube
from dra_driver.slices.features import ServerFeatures, kept_features, probe

_INVALID = 422


async def server_features(kube: Kube, driver: str, node: str | None) -> ServerFeatures:
    """Asks once, and a second time where the server does not know counter sets in slices of their own.

    `node`: see `dra_driver.slices.features.probe`. Raises ClusterError when the server gives no answer, or does not let
    us create slices.
    """
    try:
        return await _asked(kube, driver, node, counters_apart=True)
    except Rejected as error:
        if error.status != _INVALID:
            raise
    return await _asked(kube, driver, node, counters_apart=False)


async def _asked(kube: Kube, driver: str, node: str | None, *, counters_apart: bool) -> ServerFeatures:
    sent = probe(driver, node, counters_apart=counters_apart)
    answer = await kube.create(RESOURCE_SLICES, sent, dry_run=True)
    return kept_features(answer, counters_apart=counters_apart)
