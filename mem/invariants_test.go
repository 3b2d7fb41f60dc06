//go:build invariants

package mem

import (
	"fmt"
	"strings"
	"testing"
)

// mustPanic calls f and returns the text of its panic.
func mustPanic(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() {
		v := recover()
		if v == nil {
			t.Fatal("no panic")
		}
		text = fmt.Sprint(v)
	}()
	f()
	return ""
}

func TestDoubleLeaseReleaseIsReported(t *testing.T) {
	r := allocate(t, Options{Name: "twice", Size: 1})
	other := must[Lease](t)(r.Lease())
	defer other.Release()
	l := must[Lease](t)(r.Lease())
	l.Release()
	text := mustPanic(t, func() { l.Release() })
	if !strings.Contains(text, `"twice" released twice`) ||
		strings.Count(text, "TestDoubleLeaseReleaseIsReported") < 2 {
		t.Errorf("panic without both stacks: %s", text)
	}
	if r.Leases() != 1 {
		t.Errorf("%d leases: the second release took another's away", r.Leases())
	}
}

func TestLeakReportHasStacks(t *testing.T) {
	r := allocate(t, Options{Name: "stacks", Size: 1})
	l := must[Lease](t)(r.Lease())
	defer l.Release()
	p := newPool(t, PoolOptions{Name: "stackpool", SlotSize: 8, Slots: 2})
	s := must[Slot](t)(p.Get())
	defer s.Release()
	want := map[string]bool{"region stacks": true, "lease stacks": true, "slot stackpool": true}
	for _, k := range LeakReport() {
		if key := k.What + " " + k.Of; want[key] && strings.Contains(k.Stack, "TestLeakReportHasStacks") {
			delete(want, key)
		} else if want[key] && k.What == "region" && strings.Contains(k.Stack, "allocate") {
			delete(want, key)
		}
	}
	if len(want) > 0 {
		t.Errorf("without a stack: %v in\n%s", want, LeakReport())
	}
}

func TestReleasedSlotsAreScribbled(t *testing.T) {
	p := newPool(t, PoolOptions{SlotSize: 100, Slots: 1})
	s := must[Slot](t)(p.Get())
	b := s.Bytes()
	clear(b)
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	for i, v := range b {
		if v != scribble {
			t.Fatalf("byte %d is %#x after release", i, v)
		}
	}
	b[70] = 1
	text := mustPanic(t, func() { p.Get() })
	if !strings.Contains(text, "byte 70 was written after release") ||
		!strings.Contains(text, "TestReleasedSlotsAreScribbled") {
		t.Errorf("panic %s", text)
	}
	// The panic came with the slot half taken; let the pool close cleanly.
	p.release(Slot{p, 0, p.meta[0].gen()}, 0)
}

func TestCacheOfTwoGoroutinesIsReported(t *testing.T) {
	p := newPool(t, PoolOptions{SlotSize: 8, Slots: 1})
	c := p.Cache()
	defer c.Close()
	c.enter() // another goroutine is inside
	if text := mustPanic(t, func() { c.Get() }); !strings.Contains(text, "two goroutines") {
		t.Errorf("panic %s", text)
	}
	c.leave()
}
