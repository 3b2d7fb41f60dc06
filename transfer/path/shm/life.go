package shm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// confirmTime bounds how long Close waits for the peer.
const confirmTime = 200 * time.Millisecond

// fail takes the path down: it ends everything that is outstanding, and unmaps the peer's memory.
// With drain the messages that the peer sent before are still reported.
func (p *Path) fail(reason error, drain bool) {
	if p.downErr != nil {
		return
	}
	p.downErr = fmt.Errorf("transfer/path/shm: %w: %w", path.ErrDown, reason)
	p.drain = drain
	if p.armed { // inside a Post: the socket, which would wake the owner, may be closed below
		p.ringSelf()
	}
	peerLetGo := errors.Is(reason, setup.ErrPeerClosed) || errors.Is(reason, errHangup)
	p.job.active = false
	p.helping = helpJob{}
	for p.queued > 0 {
		p.finish(&p.fifo[p.head&p.mask], p.downErr)
	}
	for _, f := range p.fences {
		d := done{token: f.token, kind: path.Fence}
		if !peerLetGo {
			d.err = p.downErr
		}
		p.addDone(d)
	}
	p.fences = nil
	p.mu.Lock()
	p.gone = nil
	p.hasGone.Store(false)
	p.mu.Unlock()
	for _, a := range p.atts {
		if a.state == attachReady {
			p.detach(a)
		}
	}
	clear(p.atts)
	clear(p.asked)
	for _, m := range p.lent {
		m.close()
	}
	clear(p.lent)
	p.regions = nil
	for i := range p.out {
		if p.out[i].fd >= 0 {
			sys.Close(p.out[i].fd)
		}
	}
	p.out = nil
	if peerLetGo {
		clear(p.granted)
		p.closeSocket()
		return
	}
	// Everything of the peer's that could be written to is unmapped: say so, then wait for the same
	// word from the peer.
	k, b := packet{kind: packetBye}, [packetSize]byte{}
	k.encode(&b)
	sys.SendPacket(p.sock, b[:], -1)
	if len(p.granted) == 0 {
		p.closeSocket()
		return
	}
	p.epoll.Remove(p.sock)
	p.linger, p.look = true, true
	p.lingering = runtime.AddCleanup(p, func(fd int) { sys.Close(fd) }, p.sock)
}

// lingerOn looks whether the peer has let go after this side took the path down.
func (p *Path) lingerOn() {
	for range receiveAtMost {
		var fds [sys.MaxPacketFDs]int
		n, nfds, _, e := sys.RecvPacket(p.sock, p.in[:], &fds)
		if e == sys.EAGAIN {
			return
		}
		for _, fd := range fds[:nfds] {
			sys.Close(fd)
		}
		k, err := parsePacket(p.in[:n])
		switch {
		case e != 0 || n == 0 && nfds == 0 || err == nil && k.kind == packetBye:
			p.lingering.Stop()
			p.linger, p.look = false, false
			clear(p.granted)
			p.closeSocket()
			return
		case err == nil && k.kind == packetLetGo:
			delete(p.granted, k.key)
		}
	}
}

// Exposed lists the exports of this node that the peer may still have mapped, and could still write
// to if their rights say so. It shrinks when the peer confirms a Fence or gives an export up, and
// is empty once the peer has closed its side or has ended. It goes on answering after Close, and so
// says when memory that this path exposed is safe to use again; until then that memory is retired.
// It is called by the path's owner.
func (p *Path) Exposed() []path.Key {
	if p.linger {
		p.lingerOn()
	}
	return slices.Collect(maps.Keys(p.granted))
}

// ExposedFD is a descriptor that becomes readable when Exposed of a closed path may have shrunk, or
// -1 when it does not shrink any more. It belongs to the path, and is closed by the Exposed that
// lists nothing. It is called by the path's owner.
func (p *Path) ExposedFD() int {
	if !p.linger {
		return -1
	}
	return p.sock
}

// Forget gives up the socket that a closed path keeps until its peer has confirmed. From then on
// Exposed does not shrink: what it lists stays retired. It is for an owner who will not ask again;
// without it the socket goes when the path is garbage. It is called by the path's owner, any number
// of times, and does nothing to a path that is not closed.
func (p *Path) Forget() {
	if !p.closed || !p.linger {
		return
	}
	p.lingering.Stop()
	p.linger, p.look = false, false
	p.closeSocket()
}

// Close ends the path and tells the peer. What this side had mapped is unmapped when it returns,
// except views that were not released. If this side has handed exports over, Close waits up to
// confirmTime for a peer in another process to confirm that they are unmapped, which takes a peer
// that polls or sleeps on FD well under a millisecond. A peer that is stopped does not answer: what
// it may still have mapped is retired memory then, which Exposed lists. Until the peer has
// confirmed or ended the socket stays open, and Poll and Exposed look at it.
func (p *Path) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.keepLate()
	p.fail(errClosed, false)
	// The other end of a path inside one process may be waiting for this very goroutine.
	for end := time.Now().Add(confirmTime); p.linger && p.pid != os.Getpid(); {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		sys.PollIn(int(left/time.Millisecond)+1, p.sock)
		p.lingerOn()
	}
	p.drain, p.armed = false, false
	p.tx, p.rx = nil, nil
	p.peerParked, p.ownParked = nil, nil
	p.closeFiles()
	return p.ctl.unmap()
}

// keepLate closes the ring to the peer and keeps the notifications in it for the next Polls: their
// sender counts them as delivered. The peer puts a message and then reads our word; we store the
// word and then read the messages. Both are sequentially consistent, so a message that is not read
// here is one whose sender sees the word, and fails. No more than the ring holds can have been
// there before; a peer that goes on regardless is not listened to.
func (p *Path) keepLate() {
	if p.downErr != nil && !p.drain {
		return
	}
	p.ownParked.Swap(shut)
	for range p.rx.Cells() {
		m := new(ring.Message)
		if ok, err := p.rx.Get(m); !ok || err != nil {
			return
		}
		if m.Kind == messageNotify {
			p.late = append(p.late, m)
		}
	}
}

// closeFiles closes what wakes the owner.
func (p *Path) closeFiles() {
	p.mu.Lock()
	p.bellDead = true
	if p.bell >= 0 {
		sys.Close(p.bell)
		p.bell = -1
	}
	p.mu.Unlock()
	if p.epoll != nil {
		p.epoll.Close()
		p.epoll = nil
	}
}

func (p *Path) closeSocket() {
	if p.sock >= 0 {
		sys.Close(p.sock)
		p.sock = -1
	}
}
