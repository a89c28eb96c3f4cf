package allocatortesting

// Takes the place of upstream's RunTestAllocator: writes its cases and the allocator's answers instead of checking them.

import (
	"context"
	"encoding/json"
	"os"
	"sort"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured/internal"
)

type newAllocatorFunc = func(
	context.Context, Features, AllocatedState, DeviceClassLister, []*resourceapi.ResourceSlice, *cel.Cache,
) (Allocator, error)

var written = []map[string]any{}

func RunTestAllocator(t *testing.T, _ Features, newAllocator newAllocatorFunc, cases map[string]AllocatorTestCase) {
	for name, tc := range cases {
		if tc.node == nil {
			tc.node = node(node1, region1)
		}
		whole := [][]string{}
		for _, id := range tc.allocatedDevices {
			whole = append(whole, []string{id.Driver.String(), id.Pool.String(), id.Device.String()})
		}
		consumed := map[string]any{}
		for id := range tc.allocatedSharedDeviceIDs {
			consumed[id.GetDeviceID().String()] = map[string]string{}
		}
		for id, amounts := range tc.allocatedCapacityDevices {
			consumed[id.String()] = amounts
		}
		defaults := internal.FeaturesAll
		defaults.ListTypeAttributes = false
		written = append(written, map[string]any{
			"name": name, "features": tc.features, "claims": unwrap(tc.claimsToAllocate...), "classes": tc.classes,
			"slices": tc.slices, "node": tc.node, "whole": whole, "consumed": consumed,
			"asInCase": answer(tc, tc.features, newAllocator), "defaults": answer(tc, defaults, newAllocator),
		})
	}
	sort.Slice(written, func(i, j int) bool { return written[i]["name"].(string) < written[j]["name"].(string) })
	text, err := json.MarshalIndent(written, "", " ")
	if err == nil {
		err = os.WriteFile(os.Getenv("TABLE"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func answer(tc AllocatorTestCase, features Features, newAllocator newAllocatorFunc) map[string]any {
	var classes informerLister[resourceapi.DeviceClass]
	for _, class := range tc.classes {
		classes.objs = append(classes.objs, class.DeepCopy())
	}
	state := AllocatedState{
		AllocatedDevices:         sets.New(tc.allocatedDevices...),
		AllocatedSharedDeviceIDs: tc.allocatedSharedDeviceIDs,
		AggregatedCapacity:       tc.allocatedCapacityDevices.Clone(),
	}
	cache := cel.NewCache(1, cel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity, EnableListTypeAttributes: features.ListTypeAttributes,
	})
	allocator, err := newAllocator(context.Background(), features, state, classes, tc.slices, cache)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	results, err := allocator.Allocate(context.Background(), tc.node, unwrap(tc.claimsToAllocate...))
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return map[string]any{"results": results}
}
