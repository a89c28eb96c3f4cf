"""Generates `generated/` from `protos/`: `python -m dra_driver.kube.kubelet_api.generate`. Needs grpcio-tools."""

import sys
from pathlib import Path

_HERE = Path(__file__).parent
_PROTOS = _HERE / "protos"


def generate(into: Path) -> int:
    """Runs protoc for every file; returns its exit status."""
    from grpc_tools import protoc

    files = sorted(str(path) for path in _PROTOS.glob("*.proto"))
    return int(protoc.main(["protoc", f"-I{_PROTOS}", f"--python_out={into}", f"--pyi_out={into}", *files]))


if __name__ == "__main__":
    sys.exit(generate(_HERE / "generated"))
