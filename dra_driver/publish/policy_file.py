"""The policy as a file, from a ConfigMap for instance; read once, when its host starts."""

from pathlib import Path

from dra_driver.api.policy import PublishingPolicy, decode_policy
from dra_driver.errors import InvalidInput


def read_policy(path: Path | None) -> PublishingPolicy:
    """The policy in `path`; without one everything is published. Raises InvalidInput that names file and fields."""
    if path is None:
        return PublishingPolicy.EVERYTHING
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", about=f"policy {path}") from error
    return decode_policy(text, about=f"policy {path}")
