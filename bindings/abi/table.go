package abi

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Table has what a caller knows by a handle, a number that is never used again. Its zero value is
// empty, and its methods may be called from any goroutine.
type Table struct {
	all  sync.Map // of uint64
	last atomic.Uint64
	open atomic.Int64

	records records
}

// After makes a table whose handles are larger than last.
func After(last uint64) *Table {
	t := new(Table)
	t.last.Store(last)
	return t
}

// Open is how many handles are open.
func (t *Table) Open() int { return int(t.open.Load()) }

func (t *Table) keep(x any) uint64 {
	h := t.last.Add(1)
	t.keepAs(h, x)
	return h
}

func (t *Table) keepAs(h uint64, x any) {
	t.all.Store(h, x)
	t.open.Add(1)
}

// made keeps what a call has made.
func made[T any](t *Table, x T, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	return t.keep(x), nil
}

// get is what a handle names, if it is a T.
func get[T any](t *Table, h uint64) (T, error) {
	x, ok := t.all.Load(h)
	if t, is := x.(T); is {
		return t, nil
	}
	var none T
	if !ok {
		return none, fmt.Errorf("handle %d is not open: expected %s: %w", h, kind(none), ErrInvalid)
	}
	return none, fmt.Errorf("handle %d is %s: expected %s: %w", h, kind(x), kind(none), ErrInvalid)
}

// closer is what ends when its handle is closed.
type closer interface{ close() error }

// Close closes a handle, once.
func (t *Table) Close(h uint64) error {
	x, ok := t.all.LoadAndDelete(h)
	if !ok {
		return fmt.Errorf("handle %d is not open: %w", h, ErrInvalid)
	}
	t.open.Add(-1)
	c, ok := x.(closer)
	if !ok {
		return nil
	}
	err := c.close()
	if errors.Is(err, ErrInvalid) { // it is not the time
		t.all.Store(h, x)
		t.open.Add(1)
	}
	return err
}

func kind(x any) string {
	switch x.(type) {
	case *openSystem:
		return "a system"
	case *region:
		return "a region"
	case *export:
		return "an export"
	case *peer:
		return "a peer"
	case *remote:
		return "a remote"
	case *listing:
		return "a listing"
	case *post:
		return "a transfer"
	case *prepared:
		return "a prepared list"
	case *shared:
		return "a share"
	case *rx:
		return "a receive queue"
	}
	return fmt.Sprintf("%T", x)
}

// Cancel ends all transfers early.
func (t *Table) Cancel() {
	t.all.Range(func(_, x any) bool {
		if p, ok := x.(*post); ok && p.t != nil {
			p.t.Cancel()
		}
		return true
	})
}

// End closes all handles, in an order in which nothing waits for what ends later: queues of
// packets, systems, with which transfers end, and then what is left. No other call is under way, or
// begins later.
func (t *Table) End() error {
	order := []func(any) bool{is[*rx], is[*openSystem], is[*prepared], is[*export], is[*post], func(any) bool {
		return true
	}}
	var errs []error
	t.Cancel()
	for _, now := range order {
		t.all.Range(func(h, x any) bool {
			if now(x) {
				errs = append(errs, t.Close(h.(uint64)))
			}
			return true
		})
	}
	return errors.Join(errs...)
}

func is[T any](x any) bool {
	_, ok := x.(T)
	return ok
}
