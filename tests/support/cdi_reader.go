// Reads CDI files as a container runtime does, with the CDI library that the runtime's release is built with, and prints
// what a container of user 1000 gets. For CDI libraries before 0.6.2 the import is that of
// github.com/container-orchestrated-devices/container-device-interface. Built in a source tree of containerd 1.7:
//
//	mkdir cmd/cdi-reader && cp cdi_reader.go cmd/cdi-reader/main.go && go build -mod=vendor -o containerd-1.7.16 ./cmd/cdi-reader
package main

import (
	"encoding/json"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(os.Args[1]), cdi.WithAutoRefresh(false))
	if err != nil {
		panic(err)
	}
	spec := &oci.Spec{Process: &oci.Process{User: oci.User{UID: 1000, GID: 1000}}, Linux: &oci.Linux{}}
	unresolved, _ := cache.InjectDevices(spec, os.Args[2:]...)
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"unresolved": unresolved,
		"devices":    spec.Linux.Devices,
		"gids":       spec.Process.User.AdditionalGids,
	})
}
