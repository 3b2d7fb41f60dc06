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

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer"
)

// glance is a context that ends after a few rounds of Transfer.Wait. A goroutine that C has called
// is bound to its thread. Wait gives way to other goroutines every 16 rounds, and for such a
// goroutine each of these takes two switches of threads by the kernel, in which nothing of the
// transfer moves.
type glance struct{ rounds int }

const glanceRounds = 15

func (g *glance) Err() error {
	if g.rounds++; g.rounds <= glanceRounds {
		return nil
	}
	return context.DeadlineExceeded
}

// Done is for when Wait has served the transfer, or another goroutine does that: it is over then,
// whatever the rounds.
func (g *glance) Done() <-chan struct{} {
	g.rounds = glanceRounds
	return over
}

func (g *glance) Deadline() (time.Time, bool) { return time.Time{}, false }
func (g *glance) Value(any) any               { return nil }

var over = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// lookFor is how long wait looks for the end before it sleeps: longer than 1 MiB takes over tcp on
// one machine, where to be woken would take a tenth of that.
const lookFor = 300 * time.Microsecond

// wait waits for the end of a transfer: it serves it for a moment, then looks, while other threads
// go first, and then sleeps.
func wait(t *transfer.Transfer, timeout C.int64_t) error {
	if timeout != 0 {
		t.Wait(&glance{})
		ended := t.Done()
		for until := time.Now().Add(lookFor); time.Now().Before(until); sys.Yield() {
			select {
			case <-ended:
				return t.Err()
			default:
			}
		}
	}
	select {
	case <-t.Done(): // also when the time is over
		return t.Err()
	default:
	}
	ctx, end := abi.Within(int64(timeout))
	defer end()
	select {
	case <-t.Done():
		return t.Err()
	case <-ctx.Done():
		return fmt.Errorf("the transfer goes on: %w", ctx.Err())
	}
}
