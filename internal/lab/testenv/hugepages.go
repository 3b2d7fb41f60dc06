package testenv

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
)

// HugePages has the kernel add n huge pages of size bytes for the test, and takes them away with
// the test. Where it cannot, and fewer are free, the test ends with the kernel's answer as the
// proof: see [Missing]. Until the test ends no other process of the lab changes the pool or counts
// on its free pages; with n = 0 that is all.
func HugePages(t TB, size, n int) {
	t.Helper()
	if err := poolLock.take(); err != nil {
		t.Fatalf("%v", err)
		return
	}
	t.Cleanup(poolLock.leave)
	p := kernelPool(size)
	before, err := p.state()
	if err != nil {
		Missing(t, "huge pages", err)
		return
	}
	added := 0
	// Huge pages that [ReserveGiant] keeps are for one test at a time.
	if size < giant || !poolLock.alone() || before.Free < n {
		added, err = p.add(n)
	}
	t.Cleanup(func() {
		if err := p.takeAway(added); err != nil {
			t.Errorf("testenv: huge pages are left: %v", err)
		}
	})
	if h, e := p.state(); e != nil || h.Free < n {
		Missing(t, "huge pages",
			fmt.Errorf("%d of %d bytes were free, the test needs %d, and %d are free after the kernel was asked for "+
				"them: %w", before.Free, size, n, h.Free,
				errors.Join(err, e, errFewPages)))
	}
}

// giant is the size of the pages that a kernel finds only while its memory is not fragmented.
const giant = 1 << 30

// ReserveGiant has the kernel add one page of 1 GiB, for the tests of a run that has just begun:
// guests, compilers and files leave no room for it later. The returned function takes the page
// away. Where there cannot be one, the tests that need it say so.
func ReserveGiant() (undo func() error) {
	p := kernelPool(giant)
	added, err := p.add(1)
	if err != nil {
		return func() error { return nil } // the processor has none, or the user may not
	}
	return func() error { return p.takeAway(added) }
}

var errFewPages = errors.New("the kernel has no memory for huge pages")

// poolLock is held by one process at a time, by any number of its tests.
var poolLock sharedLock

type sharedLock struct {
	mu     sync.Mutex
	users  int
	unlock func()
}

func (l *sharedLock) take() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		unlock, err := Lock("hugepages")
		if err != nil {
			return err
		}
		l.unlock = unlock
	}
	l.users++
	return nil
}

// alone reports whether one test of this process has the lock.
func (l *sharedLock) alone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.users == 1
}

func (l *sharedLock) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users == 0 {
		l.unlock()
	}
}

// pool is the kernel's pool of huge pages of one size. Its methods are called one after the other.
type pool struct {
	state func() (sys.HugePages, error)
	set   func(n int) error // how many are permanent
}

func kernelPool(size int) pool {
	return pool{
		state: func() (sys.HugePages, error) { return sys.HugePageState(size, -1) },
		set: func(n int) error {
			h, err := sys.HugePageState(size, -1)
			if err != nil {
				return err
			}
			return os.WriteFile(h.Knob, []byte(strconv.Itoa(n)), 0)
		},
	}
}

// poolMutex is for changes of the pool by tests of one process.
var poolMutex sync.Mutex

// add makes n pages more, and returns by how many the permanent ones are more: also pages of the
// surplus, which the kernel makes permanent before it adds any. Permanent pages stay when the
// process that uses them ends, so takeAway must take all of them.
func (p pool) add(n int) (int, error) {
	poolMutex.Lock()
	defer poolMutex.Unlock()
	before, err := p.state()
	if err != nil || n == 0 {
		return 0, err
	}
	if err := p.set(before.Total + n); err != nil {
		return 0, err
	}
	after, err := p.state()
	return after.Total - after.Surplus - (before.Total - before.Surplus), err
}

// takeAway undoes an add. Pages that are still in use become surplus, which the kernel gives up
// when their user ends.
func (p pool) takeAway(added int) error {
	poolMutex.Lock()
	defer poolMutex.Unlock()
	h, err := p.state()
	if err != nil || added == 0 {
		return err
	}
	want := max(0, h.Total-h.Surplus-added)
	if err := p.set(want); err != nil {
		return err
	}
	if h, err = p.state(); err == nil && h.Total-h.Surplus > want {
		err = fmt.Errorf("%d of %d bytes are permanent, expected %d", h.Total-h.Surplus, h.Size, want)
	}
	return err
}
