package shm

import (
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Arm prepares for sleeping on FD.
func (p *Path) Arm() bool {
	if p.downErr != nil {
		return p.doneLen > 0 || !p.told
	}
	if p.hasGone.Load() {
		p.flushGone()
	}
	p.sweepRegions()
	if p.look || p.helping.active || p.rx.Ready() || !p.stuck() {
		return true
	}
	how := p.waitsFor()
	// The peer stores its message and then reads this word; we store the word and then look for a
	// message. Both are sequentially consistent, so at least one of us sees the other. The same
	// holds for room in our ring.
	p.ownParked.Swap(how)
	if p.rx.Ready() || !p.stuck() || p.waitsFor() != how { // the last look may have found the ring full
		p.ownParked.Store(awake)
		return true
	}
	p.flush()
	if p.watch(); p.downErr != nil {
		return true
	}
	p.armed = true
	return false
}

// waitsFor is what the peer is to ring for while this side sleeps: messages, or also room in our
// ring.
func (p *Path) waitsFor() uint64 {
	if p.queued > 0 && p.stopped == stopRoom || p.helping.owed != 0 {
		return parkedRoom
	}
	return parked
}

// stuck tries what needs no copying and reports whether only the peer can change anything.
func (p *Path) stuck() bool {
	if p.queued > 0 {
		p.run(0)
	}
	p.payHelped()
	return p.downErr == nil && p.doneLen == 0 && (p.queued == 0 || p.stopped != stopBudget)
}

// tend looks at the clock, and now and then at the socket, where a death shows.
func (p *Path) tend() {
	p.ticks = tendEvery
	if p.downErr != nil {
		if p.linger {
			p.lingerOn()
		}
		return
	}
	if p.hasGone.Load() {
		p.flushGone()
	}
	if !p.look {
		now := time.Now()
		if now.Sub(p.lastLook) < lookEvery {
			return
		}
		p.lastLook = now
		p.sweepRegions()
	}
	p.receive()
}

// wake undoes Arm.
func (p *Path) wake() {
	p.armed = false
	down := p.downErr != nil
	if !down {
		p.ownParked.Store(awake)
	}
	if p.rung.Load() {
		// In one step, as far as ringSelf is concerned: a ring between the two would leave the flag
		// set and the bell silent for good.
		p.mu.Lock()
		p.rung.Store(false)
		if !p.bellDead {
			sys.Unring(p.bell)
		}
		p.mu.Unlock()
	}
	if !down {
		p.receive()
	}
}

// FD is an epoll descriptor that is readable when there is something to do after Arm.
func (p *Path) FD() int {
	if p.epoll == nil {
		return -1
	}
	return p.epoll.FD()
}

// peerState reads the peer's parked word, after everything that was stored before in the order that
// all sides agree on. That is what an atomic load means in Go. The race detector, however, turns
// atomic stores to memory outside of the Go heap into plain ones, which the load may overtake; in
// its builds a read-modify-write takes the load's place.
func (p *Path) peerState() uint64 {
	if raceDetector {
		return p.peerParked.Add(0)
	}
	return p.peerParked.Load()
}

// ringPeer wakes the peer if it sleeps. The first that clears the word rings; so it is rung once
// for each time it sleeps.
func (p *Path) ringPeer() {
	how := p.peerParked.Load()
	if how == awake || how == shut || !p.peerParked.CompareAndSwap(how, awake) {
		// it went to sleep again: then it has looked
		return
	}
	p.stats.wakeups.Add(1)
	p.stats.syscalls.Add(1)
	switch sys.SendPacket(p.sock, bellPacket, -1) {
	case 0, sys.EAGAIN, sys.ENOBUFS: // a full queue has woken it already
	default:
		p.look = true
	}
}

var bellPacket = []byte{byte(packetBell)}

// ringSelf makes FD readable. It may be called by any goroutine.
func (p *Path) ringSelf() {
	p.mu.Lock()
	if !p.bellDead && !p.rung.Swap(true) {
		sys.Ring(p.bell)
	}
	p.mu.Unlock()
}
