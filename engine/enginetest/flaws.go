package enginetest

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// flaw breaks a Fake on purpose, so that the suite's own tests can show that the suite notices.
type flaw uint8

const (
	sound flaw = iota
	losesSilently
	losesUncounted
	releasesTwice
	waitsInTryRecv
	forgetsWake
	keepsFirstWaker
	leaksOnClose
	leaksSlots
	reorders
	repeats
	wrongReason
	corrupts
	shortens
	losesReservations
	wrongAllocError
	acceptsDuplicates
	countsWrong
	splitsWrong
	wrongEpoch
	copiesUncounted
	keepsUnreserved
	keepsAfterSend
	forgetsItIsClosed
	allocates
	leaksGoroutine
	leaksDescriptor
	keepsBlock
	keepsSourceMAC
	ignoresRule
	halfBatch
	forgetsRuleCounts
	oneTooMany
	copiesForwarded
	corruptsSizes
	takesAnything
	ignoresRate
)

// garbage keeps what a flaw allocates from being optimized away.
var garbage atomic.Pointer[[64]byte]

// flawRecv runs at the beginning of TryRecv. The caller holds mu.
func (q *fakeRx) flawRecv(b *burst.Burst) {
	switch q.port.eng.flaw {
	case waitsInTryRecv:
		for q.wire.Len() == 0 && !q.closed {
			w := engine.NewWaker()
			q.waker = w
			q.mu.Unlock()
			<-w.C()
			q.mu.Lock()
		}
	case allocates:
		garbage.Store(new([64]byte))
	}
}

// flawReceived runs when n packets were added to b.
func (q *fakeRx) flawReceived(b *burst.Burst, before, n int) error {
	if q.count++; q.count%20 != 0 {
		return nil
	}
	switch q.port.eng.flaw {
	case releasesTwice:
		p := b.Builder().Part(before, 0)
		p.Reclaim()
	case corrupts:
		last := b.Bytes(b.Len()-1, b.Segments(b.Len()-1)-1)
		if len(last) > 0 {
			last[len(last)-1] ^= 0x10
		}
	case keepsBlock:
		q.port.eng.held.Add(1)
	case shortens:
		last := b.Len() - 1
		b.SetLen(last, 0, max(0, b.PacketLen(last)-1))
	}
	return nil
}

// flawClosed runs in Close.
func (q *fakeRx) flawClosed() {
	switch q.port.eng.flaw {
	case leaksGoroutine:
		stop := make(chan struct{})
		go func() { <-stop }()
		leaked.add(func() { close(stop) })
	case leaksDescriptor:
		if f, err := os.Open(os.DevNull); err == nil {
			leaked.add(func() { f.Close() })
		}
	}
}

// flawDeliver reports whether it has taken the packet. The caller holds mu.
func (q *fakeRx) flawDeliver(data []byte) bool {
	q.count++
	switch q.port.eng.flaw {
	case corruptsSizes:
		if len(data)%23 == 5 {
			data[len(data)-1] ^= 1
		}
	case losesSilently:
		return q.count%100 == 0
	case leaksSlots:
		if q.count%50 == 0 {
			q.pools[0].GetBatch(q.slots[:1])
		}
	case repeats:
		if q.count%100 == 0 {
			q.place(data)
		}
	}
	return false
}

// flawSend reports whether it has sent the burst in its own way.
func (q *fakeTx) flawSend(b *burst.Burst) bool {
	switch q.port.eng.flaw {
	case keepsUnreserved:
		return b.Len() > 0 && b.Builder().Reserved(q.box) < b.Live()
	case keepsAfterSend:
		if b.Len() > 1 {
			rest := burst.New(b.Cap())
			b.Take(rest, 0)
			q.box.Send(rest)
			return true
		}
	}
	return false
}

// flawTransmit reports whether it has taken the packet.
func (q *fakeTx) flawTransmit(peer *fakePort, data []byte) bool {
	if q.port.eng.flaw != reorders {
		return false
	}
	n := new(int)
	if q.later != nil {
		peer.deliver(data, n)
		*n = 0
		peer.deliver(q.later, n)
		q.later = nil
		return true
	}
	if q.packets.Load()%100 == 99 {
		q.later = slices.Clone(data)
		return true
	}
	return false
}

// leaked is what flaws have left, so that the tests of the suite can end it.
var leaked leftovers

type leftovers struct {
	mu  sync.Mutex
	end []func()
}

func (l *leftovers) add(end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, end)
}
