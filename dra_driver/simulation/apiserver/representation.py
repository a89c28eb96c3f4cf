"""The form in which a client wants objects: as they are, as tables, or only their metadata (the Accept header)."""

from collections.abc import Callable
from datetime import datetime

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.apiserver import protobuf
from dra_driver.simulation.apiserver.lists import Page, list_document, list_metadata
from dra_driver.simulation.apiserver.requests import Target
from dra_driver.simulation.apiserver.store import Entry, encode
from dra_driver.simulation.apiserver.tables import TABLE_API_VERSION, TableForm, partial_metadata


class Representation:
    """One client's wish for one type. `now` is for the ages in tables."""

    def __init__(self, target: Target, accept: str, include_object: str, now: Callable[[], datetime]) -> None:
        self._target = target
        self._now = now
        self._accept = accept
        self._form = _wanted_form(accept)
        kind = target.kind
        custom = kind.columns if kind.custom else None
        self._table = TableForm(kind.key, kind.resource.api_version, custom, include_object or "Metadata")

    def object(self, entry: Entry) -> bytes:
        """One object."""
        api_version = self._target.kind.resource.api_version
        if self._form == "Table":
            return encode(self._table.table([entry], self._position(entry), self._now()))
        if self._form.startswith("PartialObjectMetadata"):
            return encode(partial_metadata(entry.obj))
        return entry.encoded(api_version)

    def protobuf(self, entry: Entry) -> bytes | None:
        """One object for a client that prefers it so; None when it does not, or there is no such form of the type."""
        if not self._accept.startswith(protobuf.CONTENT_TYPE):
            return None
        return protobuf.encode(entry.served_as(self._target.kind.resource.api_version))

    def list(self, page: Page) -> bytes:
        """A list or a page of one."""
        metadata = list_metadata(page)
        if self._form == "Table":
            return encode(self._table.table(page.entries, metadata, self._now()))
        if self._form.startswith("PartialObjectMetadata"):
            return encode(
                {
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": TABLE_API_VERSION,
                    "metadata": metadata,
                    "items": [partial_metadata(entry.obj) for entry in page.entries],
                }
            )
        return list_document(self._target, page)

    def watch_encoder(self) -> Callable[[Entry], bytes]:
        """For the events of one stream: of tables, only the first has a header."""
        if self._form != "Table":
            return self.object
        header = True

        def encoder(entry: Entry) -> bytes:
            nonlocal header
            table = self._table.table([entry], self._position(entry), self._now(), header=header)
            header = False
            return encode(table)

        return encoder

    def _position(self, entry: Entry) -> JsonObject:
        return {"resourceVersion": entry.obj["metadata"]["resourceVersion"]}


def _wanted_form(accept: str) -> str:
    """The first acceptable entry of an Accept header that names a form we have; empty for plain objects."""
    for entry in accept.split(","):
        media, *parameters = (part.strip() for part in entry.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        if media not in ("application/json", "application/*", "*/*"):
            continue
        if "as" not in values:
            return ""
        if values.get("g") == "meta.k8s.io" and values.get("v") == "v1":
            return values["as"]
    return ""
