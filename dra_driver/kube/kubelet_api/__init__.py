"""The kubelet's gRPC APIs for DRA plugins and pod resources: messages, and the names of services and methods.
`claim_v1` is separate: it has the written parts of a ResourceClaim in the API server's protobuf form, for
`dra_driver.kube.envelope` and `kubelet_plugin.reporting.claim_devices`.

The `.proto` files in `protos/` are written by hand from the field numbers that Kubernetes documents; `generated/` is
protoc's output (`make generate`), committed and compared by a test. Method handlers are registered by name, so no
service stubs are generated.
"""

REGISTRATION = "pluginregistration.Registration"
DRA_V1 = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH_V1 = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1 = "v1alpha1.DRAResourceHealth"
POD_RESOURCES_V1 = "v1.PodResourcesLister"

PLUGIN_TYPE = "DRAPlugin"
"""`type` of a DRA plugin's registration."""

SUPPORTED_VERSIONS = ("v1.DRAPlugin", HEALTH_V1, HEALTH_V1ALPHA1)
"""Services of a plugin, newest first; the kubelet uses the first known one of each kind. Each kubelet that reads claims
of resource.k8s.io/v1, from 1.34 on, has `v1.DRAPlugin`."""
