"""What publishers say of their pools: to the log, and to Prometheus."""

from collections.abc import Sequence
from dataclasses import asdict

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from dra_driver.errors import ClusterError, InvalidInput
from dra_driver.slices.features import ServerFeatures

_log = structlog.get_logger(__name__)


class Narrator:
    """Logs what happens to pools, and counts it in `registry`, if there is one. A process has one, which all of its
    publishers share."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._writes = Counter("gpu_dra_slice_writes", "Writes of ResourceSlices.", ["verb"], registry=registry)
        self._failures = Counter(
            "gpu_dra_slice_write_failures", "Writes that the API server refused or did not answer.", registry=registry
        )
        self._not_understood = Counter(
            "gpu_dra_inventories_not_understood", "Inventories that made no sense.", registry=registry
        )
        self._lost = Counter(
            "gpu_dra_slices_not_stored_as_sent", "Slices of which the API server dropped fields.", registry=registry
        )
        self._keeps = Gauge(
            "gpu_dra_api_server_keeps", "1 for what the API server keeps of slices.", ["feature"], registry=registry
        )
        self._questions = Counter(
            "gpu_dra_plugins_asked", "Plugins asked whether they live, because slices were missing.", registry=registry
        )

    def wrote(self, pool: str, verb: str, devices: int) -> None:
        """One write succeeded: `verb` is create, update or delete; `devices` are those of the slice now."""
        _log.info("slice written", pool=pool, verb=verb, devices=devices)
        self._writes.labels(verb).inc()

    def refused(self, pool: str, error: ClusterError, retry_s: float) -> None:
        """A write failed and is tried again."""
        _log.warning("pool not published", pool=pool, error=str(error), retry_s=round(retry_s, 1))
        self._failures.inc()

    def not_understood(self, pool: str, error: InvalidInput) -> None:
        """The inventory is invalid; the pool stays unchanged."""
        _log.error("the inventory cannot be parsed; its pool stays unchanged", pool=pool, error=str(error))
        self._not_understood.inc()

    def understood(self, pool: str, notes: Sequence[str]) -> None:
        """The inventory was read; `notes` says which GPUs or attributes are not published, and why."""
        for note in notes:
            _log.warning("not published as reported", pool=pool, note=note)

    def lost_fields(self, pool: str, fields: Sequence[str]) -> None:
        """The API server dropped or altered fields; what it made of them is accepted."""
        _log.error("the API server did not store all that was published", pool=pool, fields=list(fields))
        self._lost.inc()

    def server_keeps(self, features: ServerFeatures) -> None:
        """What the API server keeps of slices was found out, or changed."""
        _log.info("what the API server keeps of slices decides what is published", features=str(features))
        for feature, is_stored in asdict(features).items():
            self._keeps.labels(feature).set(is_stored)

    def server_unknown(self, error: ClusterError, retry_s: float) -> None:
        """It could not be found out, and is tried again; until it is known nothing is published."""
        _log.warning("the API server does not say what it keeps of slices", error=str(error), retry_s=round(retry_s, 1))

    def asking(self, pool: str) -> None:
        """Slices are missing and nothing proves that the plugin lives: it is asked."""
        _log.info("slices are missing, asking the plugin whether it lives", pool=pool)
        self._questions.inc()
