package sched

import "time"

// Bounds are the accounts and rates of a node, or those of a peer and of its node. Times are in
// nanoseconds by one clock.
type Bounds struct {
	Out, In           *Account
	OutRates, InRates []*Rate // a peer's own before its node's
	Holds             bool    // something that moves between this node and the peer
}

// NewBounds makes bounds for both directions, whose limits have passed Check. parent, of the node,
// may be nil.
func NewBounds(whose string, out, in Limits, parent *Bounds, now int64) *Bounds {
	if parent == nil {
		parent = &Bounds{}
	}
	rates := func(l *Limits, more []*Rate) []*Rate {
		if l.Rate == 0 {
			return more
		}
		return append([]*Rate{NewRate(l, now)}, more...)
	}
	return &Bounds{
		Holds: parent.Holds || out.Transfers > 0 || out.Bytes > 0 || out.Largest > 0 || out.Rate > 0 || in.Rate > 0,
		Out:   NewAccount(whose, out, parent.Out), In: NewAccount(whose, in, parent.In),
		OutRates: rates(&out, parent.OutRates), InRates: rates(&in, parent.InRates)}
}

// Send takes bytes from the rates and says how long they have to wait.
func (b *Bounds) Send(now int64, bytes uint64) time.Duration {
	if bytes == 0 || len(b.OutRates) == 0 {
		return 0
	}
	return Reserve(now, bytes, b.OutRates...)
}

// Piece is the largest piece that keeps a rate smooth, 0 without a rate.
func (b *Bounds) Piece() (most uint64) {
	for _, r := range b.OutRates {
		if n := max(r.Burst()/2, 4<<10); most == 0 || n < most {
			most = n
		}
	}
	return most
}

// Paces reports whether there is a rate for what peers do.
func (b *Bounds) Paces() bool { return len(b.InRates) > 0 }

// Heard counts bytes that the peer had written or read, and returns how long not to poll it.
func (b *Bounds) Heard(now int64, bytes uint64) (wait time.Duration) {
	for _, r := range b.InRates {
		wait = max(wait, r.Spend(now, bytes))
	}
	return wait
}
