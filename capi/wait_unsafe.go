package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/transfer"
)

// glance is a context that ends after a few rounds of Transfer.Wait. A goroutine that C has called is bound to its thread. Wait gives way to other
// goroutines every 16 rounds, and for such a goroutine each of these takes two switches of threads by the kernel, in which nothing of the
// transfer moves.
type glance struct{ rounds int }

const glanceRounds = 15

func (g *glance) Err() error {
	if g.rounds++; g.rounds <= glanceRounds {
		return nil
	}
	return context.DeadlineExceeded
}

func (g *glance) Deadline() (time.Time, bool) { return time.Time{}, false }
func (g *glance) Done() <-chan struct{}       { return over }
func (g *glance) Value(any) any               { return nil }

var over = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// wait waits for the end of a transfer: it serves it for a moment, and then sleeps.
func wait(t *transfer.Transfer, timeout C.int64_t) error {
	if timeout != 0 {
		t.Wait(&glance{})
	}
	select {
	case <-t.Done(): // also when the time is over
		return t.Err()
	default:
	}
	ctx, end := within(timeout)
	defer end()
	select {
	case <-t.Done():
		return t.Err()
	case <-ctx.Done():
		return fmt.Errorf("the transfer goes on: %w", ctx.Err())
	}
}
