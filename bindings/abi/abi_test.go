package abi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

func open(t *testing.T, table *Table, text string) uint64 {
	t.Helper()
	h, err := table.System(text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close(h) })
	return h
}

func TestHandles(t *testing.T) {
	table := After(1000)
	r, err := table.Alloc("r", 1, 0)
	if err != nil || r != 1001 || table.Open() != 1 {
		t.Fatalf("handle %d of %d, %v", r, table.Open(), err)
	}
	if _, err := table.Addresses(r); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "is a region: expected a system") {
		t.Errorf("a region taken for a system: %v", err)
	}
	if err := table.Close(r); err != nil {
		t.Fatal(err)
	}
	if err := table.Close(r); !errors.Is(err, ErrInvalid) {
		t.Errorf("the second close: %v", err)
	}
	if table.Open() != 0 {
		t.Errorf("%d handles are open", table.Open())
	}
	for _, size := range []uint64{0, 1<<47 + 1} {
		if _, err := table.Alloc("", size, 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("a region of %d bytes: %v", size, err)
		}
	}
}

func TestTransfer(t *testing.T) {
	var table Table
	b := open(t, &table, `penstock: {transfers: {name: b, listen: ["tcp://127.0.0.1:0"]}}`)
	a := open(t, &table, "penstock: {transfers: {name: a}}")
	to, err := table.Alloc("to", 1<<16, 0)
	if err != nil {
		t.Fatal(err)
	}
	x, err := table.Export(b, to, 0, 1<<16, "x", Read|Write, 0)
	if err != nil {
		t.Fatal(err)
	}
	address, err := table.Addresses(b)
	if err != nil {
		t.Fatal(err)
	}
	p, err := table.Dial(t.Context(), a, address)
	if err != nil {
		t.Fatal(err)
	}
	far, remote, err := table.Lookup(t.Context(), p, "x")
	if err != nil || remote.Size() != 1<<16 || RightsOf(remote) != Read|Write {
		t.Fatalf("lookup: %v", err)
	}
	memory := bytes.Repeat([]byte{7}, 1<<16)
	adopt := func() (*mem.Region, error) { return mem.Adopt("mine", memory, nil) }
	h, _, err := table.PostMemory(p, Put, far, 0, Modes{Digest: true}, adopt)
	if err != nil {
		t.Fatal(err)
	}
	put, err := table.Transfer(h)
	if err == nil {
		err = put.Wait(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Close(h); err != nil {
		t.Fatal(err)
	}
	r, err := table.Region(to)
	if err != nil || !bytes.Equal(r.All().Bytes(), memory) {
		t.Errorf("the bytes are not in place: %v", err)
	}

	// A prepared list and an export need adopted memory.
	own, err := adopt()
	if err != nil {
		t.Fatal(err)
	}
	mine := table.Adopt(own)
	l, err := table.Prepare(p, Put, []Block{{mine, 0, 100, far, 5}}, Modes{})
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Close(mine); !errors.Is(err, ErrInvalid) {
		t.Errorf("close of memory that a list uses: %v", err)
	}
	if err := errors.Join(table.Close(l), table.Close(mine), table.Close(x)); err != nil {
		t.Error(err)
	}

	for what, err := range map[string]error{
		"no blocks":             second(table.Post(p, Put, nil, Modes{})),
		"no such kind":          second(table.Post(p, 3, []Block{{to, 0, 1, far, 0}}, Modes{})),
		"a region for a remote": second(table.Post(p, Put, []Block{{to, 0, 1, to, 0}}, Modes{})),
		"a long message":        second(table.Notify(p, Modes{Tag: 1, Msg: make([]byte, transfer.MaxNotify+1)})),
	} {
		if code, _ := CodeOf(err); code != Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second(_ uint64, _ *transfer.Transfer, err error) error { return err }

// TestWatch watches a transfer from many goroutines before it ends, and again after: it comes once
// for all of them each time, and what waits for that keeps nothing.
func TestWatch(t *testing.T) {
	var table Table
	b := open(t, &table, `penstock: {transfers: {name: b, listen: ["tcp://127.0.0.1:0"]}}`)
	a := open(t, &table, "penstock: {transfers: {name: a}}")
	if err := table.Subscribe(b, 7); err != nil {
		t.Fatal(err)
	}
	address, err := table.Addresses(b)
	if err != nil {
		t.Fatal(err)
	}
	p, err := table.Dial(t.Context(), a, address)
	if err != nil {
		t.Fatal(err)
	}
	var h uint64
	var x *transfer.Transfer
	for range 3000 { // more than are kept: the last one waits
		if h, x, err = table.Notify(p, Modes{Tag: 7, Msg: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				if err := table.Watch(h); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for range 3000 {
		if _, ok, err := table.Receive(t.Context(), b); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := get[*openSystem](&table, a)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
			s.mu.Lock()
			n := len(s.ended)
			s.mu.Unlock()
			if n > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("round %d: the transfer has ended, and nothing says so", round)
			}
		}
		var to [10]uint64
		if n, err := table.Ended(a, to[:]); n != 1 || to[0] != h || err != nil {
			t.Fatalf("round %d: %d transfers have ended, %v: %v", round, n, to[:n], err)
		}
		if err := table.Watch(h); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCodes(t *testing.T) {
	for _, c := range []struct {
		err       error
		code      int32
		retriable bool
	}{
		{nil, OK, false},
		{errors.New("x"), Other, false},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), Timeout, true},
		{fmt.Errorf("%w: %w", ErrInvalid, path.ErrBounds), Invalid, false},
		{mem.ErrClosed, Closed, false},
		{path.ErrFull, Full, transfer.Retriable(path.ErrFull)},
	} {
		if code, retriable := CodeOf(c.err); code != c.code || retriable != c.retriable {
			t.Errorf("%v: code %d, retriable %v, expected %d, %v", c.err, code, retriable, c.code, c.retriable)
		}
	}
	if _, err := Guarded(func() (int, error) { panic("oh") }); err == nil || !strings.Contains(err.Error(), "oh") {
		t.Errorf("a panic: %v", err)
	}
}
