package structured

// TestTable writes upstream's table (table.go). TestTimes answers the cases of a file with upstream's allocator, and
// measures the processor time of one attempt.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured/internal"
	"k8s.io/dynamic-resource-allocation/structured/internal/allocatortesting"
)

const (
	longest = 3 * time.Second       // of one attempt
	long    = 1 * time.Second       // one attempt as long as this is enough
	enough  = 10 * time.Millisecond // of one batch
	batches = 5
)

type timedCase struct {
	Name     string
	Features Features
	Claims   []*resourceapi.ResourceClaim
	Classes  []*resourceapi.DeviceClass
	Slices   []*resourceapi.ResourceSlice
	Node     *v1.Node
	Whole    [][]string
	Consumed map[string]ConsumedCapacity
	Copies   int
	Busy     int
}

type timedAnswer struct {
	NS        int64                          `json:"ns"`
	NodeIndex int                            `json:"nodeIndex"`
	Results   []resourceapi.AllocationResult `json:"results,omitempty"`
	Error     string                         `json:"error,omitempty"`
	TimedOut  bool                           `json:"timedOut,omitempty"`
}

type classLister []*resourceapi.DeviceClass

func (l classLister) List() ([]*resourceapi.DeviceClass, error) { return l, nil }

func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range l {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, errors.New("not found")
}

func TestTable(t *testing.T) {
	choose := func(
		ctx context.Context, features Features, state AllocatedState, classes DeviceClassLister,
		slices []*resourceapi.ResourceSlice, cache *cel.Cache,
	) (allocatortesting.Allocator, error) {
		allocator, err := NewAllocator(ctx, features, state, classes, slices, cache)
		if err != nil {
			return nil, err
		}
		return allocator.(internal.Allocator), nil
	}
	allocatortesting.TestAllocator(t, internal.FeaturesAll, choose)
	// The stable allocator, which Kubernetes chooses only if all gates are off, does not sort.
	EnableAllocators("incubating", "experimental")
	defer EnableAllocators()
	allocatortesting.TestLexicographicalAllocator(t, internal.FeaturesAll, choose)
}

func TestTimes(t *testing.T) {
	text, err := os.ReadFile(os.Getenv("CASES"))
	if err != nil {
		t.Fatal(err)
	}
	var raw []map[string]json.RawMessage
	var cases []timedCase
	for _, into := range []any{&raw, &cases} {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range cases {
		if raw[i]["go"], err = json.Marshal(timed(c)); err != nil {
			t.Fatal(err)
		}
	}
	if text, err = json.Marshal(raw); err == nil {
		err = os.WriteFile(os.Getenv("TIMES"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func timed(c timedCase) timedAnswer {
	nodes, slices, state := cluster(c)
	cache := cel.NewCache(100, cel.Features{
		EnableConsumableCapacity: c.Features.ConsumableCapacity, EnableListTypeAttributes: c.Features.ListTypeAttributes,
	})
	once := func() timedAnswer {
		ctx, cancel := context.WithTimeout(context.Background(), longest)
		defer cancel()
		allocator, err := NewAllocator(ctx, c.Features, state, classLister(c.Classes), slices, cache)
		for i, node := range nodes {
			if err != nil {
				break
			}
			var results []resourceapi.AllocationResult
			results, err = allocator.Allocate(ctx, node, c.Claims)
			if errors.Is(err, ErrFailedAllocationOnNode) {
				err = nil
			} else if err == nil && results != nil {
				return timedAnswer{NodeIndex: i, Results: results}
			}
		}
		if err != nil {
			return timedAnswer{NodeIndex: -1, Error: err.Error(), TimedOut: ctx.Err() != nil}
		}
		return timedAnswer{NodeIndex: -1}
	}
	before := used()
	answer := once()
	answer.NS = int64(used() - before)
	if answer.TimedOut {
		answer.NS = int64(longest) // It is wall time that ended it.
	}
	if answer.NS >= int64(long) {
		return answer
	}
	for batch := range batches {
		runs, before := 0, used()
		for runs < 3 || used()-before < enough {
			once()
			runs++
		}
		if ns := int64(used()-before) / int64(runs); batch == 0 || ns < answer.NS {
			answer.NS = ns
		}
	}
	return answer
}

// The processor time of this process.
func used() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}

func cluster(c timedCase) ([]*v1.Node, []*resourceapi.ResourceSlice, AllocatedState) {
	state := AllocatedState{
		AllocatedDevices:         sets.New[DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[SharedDeviceID](),
		AggregatedCapacity:       NewConsumedCapacityCollection(),
	}
	for _, names := range c.Whole {
		state.AllocatedDevices.Insert(MakeDeviceID(names[0], names[1], names[2]))
	}
	share := types.UID("share")
	for name, amounts := range c.Consumed {
		names := strings.SplitN(name, "/", 3)
		id := MakeDeviceID(names[0], names[1], names[2])
		state.AllocatedSharedDeviceIDs.Insert(MakeSharedDeviceID(id, &share))
		state.AggregatedCapacity[id] = amounts
	}
	if c.Copies == 0 {
		return []*v1.Node{c.Node}, c.Slices, state
	}
	var nodes []*v1.Node
	var slices []*resourceapi.ResourceSlice
	for i := range c.Copies {
		node := *c.Node
		node.Name = fmt.Sprintf("node-%05d", i)
		nodes = append(nodes, &node)
		for _, slice := range c.Slices {
			moved := *slice
			moved.Name = node.Name + "-" + slice.Name
			moved.Spec.NodeName = &node.Name
			moved.Spec.Pool.Name = node.Name
			slices = append(slices, &moved)
			for _, device := range slice.Spec.Devices {
				if i < c.Busy {
					state.AllocatedDevices.Insert(MakeDeviceID(slice.Spec.Driver, node.Name, device.Name))
				}
			}
		}
	}
	return nodes, slices, state
}
