"""kubelet is written in Go: what its gRPC sends as `:authority` over a unix socket must never matter to us."""

from pathlib import Path

import pytest
from support import raw_http2
from support.plugin import running_plugin

from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2, registration_pb2

AUTHORITIES = [
    pytest.param("localhost", id="grpc-go-with-a-unix-target"),
    pytest.param("", id="an-empty-one"),
    pytest.param("%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu.nvidia.com-reg.sock", id="an-escaped-path"),
    pytest.param("/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock", id="a-path"),
    pytest.param("unix:///var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock", id="a-target"),
]


@pytest.mark.parametrize("authority", AUTHORITIES)
async def test_the_registration_socket_answers_whatever_the_authority(authority: str, folder: Path) -> None:
    async with running_plugin(folder) as plugin:
        answer = await raw_http2.call(
            plugin.sockets.registration, f"/{kubelet_api.REGISTRATION}/GetInfo", b"", authority=authority
        )
    assert registration_pb2.PluginInfo.FromString(answer).name == "gpu.nvidia.com"


@pytest.mark.parametrize("authority", AUTHORITIES)
async def test_the_dra_socket_answers_whatever_the_authority(authority: str, folder: Path) -> None:
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=[dra_v1_pb2.Claim(namespace="default", uid="u-1", name="gpu")]
    )
    async with running_plugin(folder) as plugin:
        answer = await raw_http2.call(
            plugin.sockets.dra,
            f"/{kubelet_api.DRA_V1}/NodePrepareResources",
            request.SerializeToString(),
            authority=authority,
        )
    assert list(dra_v1_pb2.NodePrepareResourcesResponse.FromString(answer).claims) == ["u-1"]
