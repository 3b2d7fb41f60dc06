package kernels_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// The control block means the same in Go and in OpenCL C: what each word does, and that a launch
// goes on where the one before has left.
func TestControl(t *testing.T) {
	t.Run("host", func(t *testing.T) {
		rt, err := host.Open(host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		testControl(t, rt, 3)
	})
	t.Run("opencl", func(t *testing.T) {
		rt, err := opencl.Open(opencl.Options{Platform: peers.PoCL(t)})
		if err != nil {
			t.Fatal(err)
		}
		testControl(t, rt, 1)
	})
}

func testControl(t *testing.T, rt *gpu.Runtime, groups uint32) {
	later := func(close func() error) {
		t.Cleanup(func() {
			if err := close(); err != nil {
				t.Error(err)
			}
		})
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	later(rt.Close)
	ctx, err := rt.Devices()[0].Open()
	ok(err)
	later(ctx.Close)
	if err := ctx.Info().Capabilities.Check(gpu.CapSharedAtomics); err != nil {
		t.Fatal(err)
	}
	block, err := ctx.Alloc(gpu.MemoryOptions{Kind: gpu.SharedMemory, Size: driver.ControlSize(groups)})
	ok(err)
	later(block.Close)
	words, err := ctx.Alloc(gpu.MemoryOptions{Kind: gpu.SharedMemory, Size: 64})
	ok(err)
	later(words.Close)
	clear(words.Bytes())
	c, err := driver.NewControl(block.Bytes(), groups)
	ok(err)
	mod, err := ctx.Load(kernels.Tally)
	ok(err)
	later(mod.Close)
	k, err := mod.Kernel("tally")
	ok(err)
	call, err := k.Prepare(gpu.Buffer(block.All()), gpu.Buffer(words.All()))
	ok(err)
	later(call.Close)
	s, err := ctx.NewStream(gpu.StreamOptions{})
	ok(err)
	later(s.Close)
	target := kernels.Word(words.Bytes())

	step := func(what string, budget, idle uint32, want driver.GroupStatus) {
		t.Helper()
		c.Begin(budget, idle)
		ok(s.Launch(call, gpu.Grid{Groups: groups, Group: 1}))
		ok(s.Wait(t.Context()))
		for i := range c.Groups() {
			if got := c.Group(i); got != want {
				t.Errorf("%s: group %d says %+v, expected %+v", what, i, got, want)
			}
			if got := kernels.Word(words.Bytes()[4*(1+i):]).Load(); got != want.Done {
				t.Errorf("%s: group %d has counted to %d, expected %d", what, i, got, want.Done)
			}
		}
	}
	target.Store(10)
	step("no pass", 0, 0, driver.GroupStatus{State: driver.GroupSpent})
	step("4 passes", 4, 0, driver.GroupStatus{State: driver.GroupSpent, Heartbeat: 4, Done: 4})
	c.Ring()
	if !c.Again() {
		t.Error("groups that have left with their passes used up need no other launch")
	}
	step("the rest and 3 empty ones", 100, 3, driver.GroupStatus{State: driver.GroupIdle, Heartbeat: 13, Done: 10})
	if c.Again() {
		t.Error("groups that found nothing after the doorbell need another launch")
	}
	c.Ring()
	if !c.Again() {
		t.Error("groups need no other launch for a doorbell that rang after they had left idle")
	}
	step("one empty pass", 100, 1, driver.GroupStatus{State: driver.GroupIdle, Heartbeat: 14, Done: 10})

	// A launch that stays leaves when it is asked to.
	target.Store(1000)
	c.Begin(1<<31, 0)
	for i := range c.Groups() {
		if got := c.Group(i); got.State != driver.GroupNew {
			t.Errorf("before its launch group %d is %v", i, got.State)
		}
	}
	ok(s.Launch(call, gpu.Grid{Groups: groups, Group: 1}))
	for i := 0; i < c.Groups(); runtime.Gosched() {
		if got := c.Group(i); got.Done == 1000 {
			if got.State != driver.GroupRunning {
				t.Errorf("group %d is %v while it stays", i, got.State)
			}
			i++
		}
	}
	c.Stop()
	ok(s.Wait(t.Context()))
	for i := range c.Groups() {
		if got := c.Group(i); got.State != driver.GroupStopped || got.Done != 1000 {
			t.Errorf("group %d says %+v after Stop", i, got)
		}
	}
	if _, err := driver.NewControl(block.Bytes()[8:], groups); err == nil {
		t.Error("a control block that is too short was taken")
	}
	if fmt.Sprint(driver.GroupIdle, driver.GroupState(9)) != "idle state(9)" {
		t.Error("states have other names")
	}
}
