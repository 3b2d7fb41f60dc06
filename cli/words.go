package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/pool"
)

// worded is an error in other words.
type worded struct {
	text string
	err  error
}

func (e *worded) Error() string { return e.text }
func (e *worded) Unwrap() error { return e.err }

// partially says in words for people what an operation left that ended early, and how to go on.
func partially(err error) error {
	p, ok := errors.AsType[*share.PartialError](err)
	if !ok {
		return err
	}
	at := fmt.Sprintf("%s of %s (%d %%)", formatBytes(p.Good), formatBytes(p.Size),
		percent(min(p.Good, p.Size), p.Size))
	what := fmt.Sprintf("%s has %s, checked: the same command goes on from there", p.Partial, at)
	if p.Partial == "" {
		what = fmt.Sprintf("the peer has %s, checked: the same command goes on from there", at)
	}
	if errors.Is(err, context.Canceled) { // the user knows what he did
		return &worded{what, err}
	}
	return &partial{p.Err, what, err}
}

// partial is an error that left something to go on with.
type partial struct {
	cause error
	left  string
	err   error
}

func (e *partial) Error() string { return e.cause.Error() + "; " + e.left }
func (e *partial) Unwrap() error { return e.err }

// inWords says of an error that ended attempts to go on what a user needs: not the account of all
// attempts.
func (c *client) inWords(err error) error {
	if !errors.Is(err, job.ErrGaveUp) {
		return err
	}
	text := ""
	if d, ok := errors.AsType[*pool.DialError](err); ok {
		text = fmt.Sprintf("the connection was lost, and the peer did not come back in %v (--retry): %v", c.flags.retry,
			d.Last)
		if c.flags.retry == 0 {
			text = fmt.Sprintf("the connection was lost: %v", d.Last)
		}
	} else {
		text = fmt.Sprintf("the connection was lost: %v", lastError(err))
		if c.flags.retry > 0 {
			text = fmt.Sprintf("no progress in %v (--retry): %v", c.flags.retry, lastError(err))
		}
	}
	if p, ok := errors.AsType[*partial](err); ok {
		text += "; " + p.left
	}
	return &worded{text, err}
}

// lastError is what the last attempt failed with.
func lastError(err error) error {
	if j, ok := errors.AsType[*job.Error](err); ok && len(j.History) > 0 && j.History[len(j.History)-1].Err != nil {
		return j.History[len(j.History)-1].Err
	}
	return err
}
