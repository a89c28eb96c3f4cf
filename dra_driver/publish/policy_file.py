"""The policy as a file, from a ConfigMap for instance; read once, when its host starts."""

from pathlib import Path

from dra_driver.api.policy import PublishingPolicy, decode_policy
from dra_driver.errors import InvalidInput
from dra_driver.features import Gates


def read_policy(path: Path | None, gates: Gates = Gates.DEFAULT) -> PublishingPolicy:
    """The policy in `path`; without one everything is published. Raises InvalidInput that names file and fields, also
    when the policy asks for what a feature gate has switched off."""
    if path is None:
        return PublishingPolicy.EVERYTHING
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", about=f"policy {path}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"cannot be read: {error}", about=f"policy {path}") from error
    policy = decode_policy(text, about=f"policy {path}")
    refused = [
        f"{field}: needs feature gate {feature}, which is off; switch it on (--feature-gates {feature}=true), or leave"
        " this out"
        for field, feature in policy.features
        if feature not in gates
    ]
    if refused:
        raise InvalidInput("; ".join(refused), about=f"policy {path}", problems=refused)
    return policy
