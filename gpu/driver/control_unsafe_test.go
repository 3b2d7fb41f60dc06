package driver

import (
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"
)

// A producer publishes and rings, groups leave whenever they find nothing, and are launched again
// only where they missed something: all that was published is found.
func TestDoorbellLosesNothing(t *testing.T) {
	const groups, total = 3, 20000
	mem := make([]uint64, ControlSize(groups)/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), len(mem)*8)
	c, err := NewControl(b, groups)
	if err != nil {
		t.Fatal(err)
	}
	var published, taken atomic.Int64
	kernel := Groups(func(group uint32, _ Grid, a []GoArg) {
		p := Enter(a[0].Bytes, group)
		for did := uint32(0); p.Pass(did); {
			did = 0
			for n := taken.Load(); n < published.Load() && did == 0; n = taken.Load() {
				// a pass is empty where there is nothing, not where another group was faster
				if taken.CompareAndSwap(n, n+1) {
					did = 1
				}
			}
		}
		p.Leave()
	})
	launches := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range total {
			published.Add(1)
			c.Ring()
			if published.Load()%64 == 0 {
				runtime.Gosched()
			}
		}
	}()
	for end := false; !end || c.Again(); {
		select {
		case <-done:
			end = true
		default:
		}
		if c.Again() {
			c.Begin(50, 1)
			kernel(Grid{Groups: groups, Group: 1}, []GoArg{{Bytes: b}})
			launches++
		} else {
			runtime.Gosched()
		}
	}
	if n := taken.Load(); n != total {
		t.Errorf("%d of %d were taken in %d launches", n, total, launches)
	}
	sum := uint32(0)
	for i := range c.Groups() {
		sum += c.Group(i).Done
	}
	if sum != total {
		t.Errorf("the groups say that they have done %d of %d", sum, total)
	}
}

// A panic of one group is one of the launch, when the others have ended.
func TestGroupsPanic(t *testing.T) {
	var ended atomic.Int32
	defer func() {
		if v := recover(); v != "group 1" || ended.Load() != 2 {
			t.Errorf("recovered %v when %d groups had ended", v, ended.Load())
		}
	}()
	Groups(func(group uint32, _ Grid, _ []GoArg) {
		if group == 1 {
			panic("group 1")
		}
		runtime.Gosched()
		ended.Add(1)
	})(Grid{Groups: 3, Group: 1}, nil)
}
