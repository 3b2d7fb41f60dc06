//go:build invariants

package burst

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/mem"
)

func expectPanic(t *testing.T, f func(), words ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		r := fmt.Sprint(recover())
		for _, w := range words {
			if !strings.Contains(r, w) {
				t.Errorf("the panic does not say %q: %s", w, r)
			}
		}
	}()
	f()
}

// acquireHere and releaseHere are names to look for in stacks.
//
//go:noinline
func acquireHere(b *Burst) {
	b.Builder().Add(NewSource(nil, nil, new(batches)), Segment{Handle: NoHandle})
}

//go:noinline
func releaseHere(b *Burst) { b.Release() }

//go:noinline
func moveHere(b, c *Burst) { b.MoveTo(c) }

func leaks(of string) int {
	n := 0
	for _, l := range Leaks() {
		if strings.Contains(l, of) {
			n++
		}
	}
	return n
}

func TestUseAfter(t *testing.T) {
	b, c := New(1), New(1)
	expectPanic(t, func() { b.Bytes(0, 0) }, "packet 0 of 0")
	acquireHere(b)
	releaseHere(b)
	expectPanic(t, func() { b.Bytes(0, 0) }, "packet 0 of 0", "emptied by Release", "releaseHere")
	acquireHere(b)
	moveHere(b, c)
	expectPanic(t, func() { b.Flow(0) }, "emptied by MoveTo", "moveHere")
	c.Builder().Forget()
	expectPanic(t, func() { c.Flow(0) }, "emptied by Send", "TestUseAfter")
}

func TestLeaks(t *testing.T) {
	b, c := New(1), New(1)
	if leaks("acquireHere") != 0 {
		t.Fatal(Leaks())
	}
	acquireHere(b)
	if leaks("acquireHere") != 1 {
		t.Error(Leaks())
	}
	moveHere(b, c)
	if leaks("acquireHere") != 0 || leaks("moveHere") != 1 {
		t.Error(Leaks())
	}
	releaseHere(c)
	if leaks("TestLeaks") != 0 {
		t.Error(Leaks())
	}
	// Leaks reports a burst also when nothing refers to it any more.
	func() { acquireHere(New(1)) }()
	runtime.GC()
	if leaks("acquireHere") != 1 {
		t.Error(Leaks())
	}
	held.Lock()
	clear(held.m)
	held.Unlock()
}

// The pool says who released a slot twice, and finds who writes to a packet that is gone.
func TestMemory(t *testing.T) {
	p, err := mem.NewPool(mem.PoolOptions{Name: "burst", SlotSize: slotSize, Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() // a Get that panics keeps its slot
	src := PoolSource(p)
	b := New(2)
	fill(t, b, p, src, 1)
	view := b.Bytes(0, 0)
	b.Builder().Add(src, Segment{Handle: b.Builder().Part(0, 0).Handle, Len: 1})
	expectPanic(t, b.Release, "released twice", "released first by")
	b.Builder().Forget()
	if view[0] != 0xDB {
		t.Errorf("released memory is readable: %#x", view[0])
	}
	view[0] = 1
	expectPanic(t, func() { p.Get() }, "written after release")
}
