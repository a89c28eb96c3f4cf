// Writes device metadata with Kubernetes' own helper for DRA drivers, and prints what it answers to kubelet. It reads from
// standard input a JSON object: `driver`, `folder` (the plugin's data), `cdi` (the folder of CDI files), `claims` (each with
// the ResourceClaim, and its devices as the driver prepared them), and `released` (UIDs of those that end afterwards).
// Built in a source tree of Kubernetes 1.36:
//
//	mkdir cmd/metadata-helper && cp metadata_helper.go cmd/metadata-helper/main.go && go build -mod=vendor ./cmd/metadata-helper
package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

type device struct {
	Requests   []string
	Pool       string
	Device     string
	CDI        []string
	Attributes map[string]resourceapi.DeviceAttribute
}

type order struct {
	Driver, Folder, CDI string
	Claims              []struct {
		Claim   resourceapi.ResourceClaim
		Devices []device
	}
	Released []string
}

type driver struct{ prepared map[types.UID]kubeletplugin.PrepareResult }

func (d driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	result := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		result[claim.UID] = d.prepared[claim.UID]
	}
	return result, nil
}

func (d driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	result := map[types.UID]error{}
	for _, claim := range claims {
		result[claim.UID] = nil
	}
	return result, nil
}

func (d driver) HandleError(_ context.Context, err error, message string) { panic(message + ": " + err.Error()) }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	var o order
	check(json.NewDecoder(os.Stdin).Decode(&o))
	d := driver{map[types.UID]kubeletplugin.PrepareResult{}}
	var objects []runtime.Object
	prepare, release := &drapb.NodePrepareResourcesRequest{}, &drapb.NodeUnprepareResourcesRequest{}
	for i := range o.Claims {
		claim := &o.Claims[i].Claim
		objects = append(objects, claim)
		var result kubeletplugin.PrepareResult
		for _, item := range o.Claims[i].Devices {
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests: item.Requests, PoolName: item.Pool, DeviceName: item.Device, CDIDeviceIDs: item.CDI,
				Metadata: &kubeletplugin.DeviceMetadata{Attributes: item.Attributes},
			})
		}
		d.prepared[claim.UID] = result
		asked := &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
		prepare.Claims = append(prepare.Claims, asked)
		for _, uid := range o.Released {
			if uid == string(claim.UID) {
				release.Claims = append(release.Claims, asked)
			}
		}
	}
	socket := filepath.Join(o.Folder, "dra.sock")
	helper, err := kubeletplugin.Start(context.Background(), d,
		kubeletplugin.KubeClient(fake.NewClientset(objects...)),
		kubeletplugin.DriverName(o.Driver),
		kubeletplugin.NodeName("node"),
		kubeletplugin.RegistrationService(false),
		kubeletplugin.PluginDataDirectoryPath(o.Folder),
		kubeletplugin.EnableDeviceMetadata(true),
		kubeletplugin.MetadataVersions(v1alpha1.SchemeGroupVersion),
		kubeletplugin.CDIDirectory(o.CDI),
	)
	check(err)
	connection, err := grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}))
	check(err)
	client := drapb.NewDRAPluginClient(connection)
	answer, err := client.NodePrepareResources(context.Background(), prepare)
	check(err)
	if len(release.Claims) > 0 {
		_, err = client.NodeUnprepareResources(context.Background(), release)
		check(err)
	}
	ids := map[string][][]string{}
	for uid, claim := range answer.Claims {
		ids[uid] = [][]string{}
		for _, item := range claim.Devices {
			ids[uid] = append(ids[uid], item.CdiDeviceIds)
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(ids))
	helper.Stop()
}
