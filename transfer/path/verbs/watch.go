package verbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
)

// While something is under way the path looks once a second whether each queue pair gets on
// (rdmadev.Watch). What does not is taken out of service like a queue pair that failed. The other
// way round, receives are filled in the order in which they were posted: one that is passed over
// was lost.

var errGap = errors.New("the adapter lost the completion of a message that came")

// under says that something is under way that the adapter, or the peer, has to end.
func (p *Path) under() bool {
	for _, l := range p.qps {
		if l.busy() {
			return true
		}
	}
	return p.waits()
}

// busy says that the adapter has to end something on this queue pair.
func (l *queuePair) busy() bool {
	return l.head != l.tail || l.repl.state == qpDraining && l.posted > 0
}

// waits says that the peer owes a frame on the control connection.
func (p *Path) waits() bool {
	if p.asking > 0 || p.flushing.n > 0 {
		return true
	}
	for _, l := range p.data {
		if l.repl.state == qpOffered || l.repl.state == qpConnecting {
			return true
		}
	}
	return false
}

// guard makes sure that the owner, who is about to sleep, wakes up to look.
func (p *Path) guard() {
	if p.watchTimer >= 0 || !p.under() {
		return
	}
	fd, err := sys.Timerfd(p.watchEvery)
	if err != nil {
		return // no descriptors: the next time
	}
	if p.ep.Add(fd, sys.EventIn, uint64(fd)) != nil {
		sys.Close(fd)
		return
	}
	p.watchTimer = fd
}

// unguard ends the timer; its descriptor leaves the epoll instance with that.
func (p *Path) unguard() {
	if p.watchTimer >= 0 {
		sys.Close(p.watchTimer)
		p.watchTimer = -1
	}
}

// look looks whether all queue pairs get on, if it is time to.
func (p *Path) look() {
	now := time.Since(p.began)
	if now < p.lookAt {
		return
	}
	p.lookAt = now + p.watchEvery
	p.unguard()
	for _, l := range p.qps {
		p.lookAtQP(l)
		if p.err != nil {
			return
		}
	}
	if came := p.ctl.received; !p.waits() || came != p.heard {
		p.heard, p.waited = came, 0
	} else if p.waited++; rdmadev.Sparse(p.waited) {
		// The question or the answer may have been lost at an adapter: one message more lets the
		// other side see the gap. Or the peer is gone, which its adapter does not acknowledge.
		p.nudge()
	}
}

func (p *Path) lookAtQP(l *queuePair) {
	done := uint64(l.tail) << 32
	if l.repl.state == qpDraining {
		done |= uint64(l.posted)
	}
	still := l.watch.Look(l.busy(), done)
	if still == 0 {
		return
	}
	silent := still >= rdmadev.WatchMost && still >= l.patience()
	switch {
	case silent && l.index > 0 && l.repl.state != qpDraining && l.room() > 0:
		l.watch.Again()
		l.unmarked = true
		l.noteStuck()
		p.broken(l, rdmadev.ErrSilent)
	case silent:
		p.down(fmt.Errorf("verbs: %w: queue pair %d: %w", path.ErrDown, l.index, rdmadev.ErrSilent))
	case l.repl.failed || !rdmadev.Sparse(still):
	case l.index == 0:
		p.nudge()
		l.flush(1)
	case l.room() > 0:
		l.add(request{record: record{kind: kindNudge, work: -1, slot: -1}})
		p.probes++
		l.flush(1)
	}
}

// patience is after how many looks without progress the queue pair is given up. Of small operations
// many requests tell, of large ones one in many: what they move may take its time on the way. A
// queue pair in error gives everything back at once.
func (l *queuePair) patience() int {
	if l.repl.failed {
		return rdmadev.WatchMost
	}
	n := uint64(0)
	for i := l.tail; i != l.head; i++ {
		n += l.ring[i&uint32(len(l.ring)-1)].bytes
	}
	return rdmadev.Patience(n)
}

// nudge sends a report that may say nothing new.
func (p *Path) nudge() {
	if p.tellFreed() {
		p.probes++
	}
}

// came takes a receive out of those that the adapter has. Receives end in the order in which they
// were posted; those before this one that did not were lost, and it is false.
func (l *queuePair) came(slot int32) bool {
	for n := 0; l.posted > 0; n++ {
		s := l.order[l.first]
		l.first = (l.first + 1) % len(l.order)
		l.posted--
		if s == slot {
			return n == 0
		}
		l.recvs = append(l.recvs, s)
	}
	return false
}
