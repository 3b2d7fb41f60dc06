//go:build cgo

package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// errInvalid is a mistake of the caller.
var errInvalid = errors.New("invalid")

// table has what C knows by a handle. A handle is never used again.
var table struct {
	all  sync.Map // of uint64
	last atomic.Uint64
}

func keep(x any) uint64 {
	h := table.last.Add(1)
	table.all.Store(h, x)
	return h
}

// get is what a handle names, if it is a T.
func get[T any](h uint64) (T, error) {
	x, ok := table.all.Load(h)
	if t, is := x.(T); is {
		return t, nil
	}
	var none T
	if !ok {
		return none, fmt.Errorf("handle %d is not open: expected %s: %w", h, kind(none), errInvalid)
	}
	return none, fmt.Errorf("handle %d is %s: expected %s: %w", h, kind(x), kind(none), errInvalid)
}

// closer is what ends when its handle is closed.
type closer interface{ close() error }

// drop closes a handle, once.
func drop(h uint64) error {
	x, ok := table.all.LoadAndDelete(h)
	if !ok {
		return fmt.Errorf("handle %d is not open: %w", h, errInvalid)
	}
	c, ok := x.(closer)
	if !ok {
		return nil
	}
	err := c.close()
	if errors.Is(err, errInvalid) { // it is not the time
		table.all.Store(h, x)
	}
	return err
}

func kind(x any) string {
	switch x.(type) {
	case *system:
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
