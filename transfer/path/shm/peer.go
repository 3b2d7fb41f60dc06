package shm

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

const (
	// receiveAtMost is the number of packets that one look at the socket handles.
	receiveAtMost = 16
	// maxOut is the number of packets waiting to be sent from which on none of the peer's is read,
	// so that a peer which asks and never listens cannot make the queue grow.
	maxOut = 64
	// maxOutFDs is the same for packets with a descriptor, which is open until the packet is sent.
	maxOutFDs = 1
)

var (
	errHangup = errors.New("the peer process ended or closed the path (its socket hung up)")
	errClosed = errors.New("closed by this side")
)

// send queues a packet and tries to send it now. fd, unless negative, goes along and is closed
// afterwards.
func (p *Path) send(k packet, fd int) {
	if p.downErr != nil {
		if fd >= 0 {
			sys.Close(fd)
		}
		return
	}
	var o outgoing
	o.fd = fd
	k.encode(&o.b)
	p.out = append(p.out, o)
	p.flush()
}

// flush sends what is queued, as far as the socket takes it.
func (p *Path) flush() {
	sent := 0
	for ; sent < len(p.out); sent++ {
		o := &p.out[sent]
		p.stats.syscalls.Add(1)
		e := sys.SendPacket(p.sock, o.b[:], o.fd)
		if e == sys.EAGAIN || e == sys.ENOBUFS || e == sys.ENOMEM || e == sys.ETOOMANYREFS {
			break
		}
		if o.fd >= 0 {
			sys.Close(o.fd)
		}
		if e != 0 {
			p.look = true // the next look finds the hang-up, after what the peer sent before it
		}
	}
	if sent == 0 {
		return
	}
	p.out = p.out[:copy(p.out, p.out[sent:])]
	// A peer that polls looks at the socket only now and then: say that it is worth it. Without
	// room it finds out by itself.
	if p.downErr == nil && p.peerParked.Load() == awake {
		p.tx.Put(messageLook, 0, 0, 0, 0, nil)
	}
}

// clogged reports whether the peer has to read what it asked for before it is read.
func (p *Path) clogged() bool {
	fds := 0
	for i := range p.out {
		if p.out[i].fd >= 0 {
			fds++
		}
	}
	return len(p.out) >= maxOut || fds >= maxOutFDs
}

// watch tells epoll what to wait for while asleep: not for packets that would not be read.
func (p *Path) watch() {
	events := uint32(sys.EventIn | sys.EventRdH)
	if len(p.out) > 0 {
		events |= sys.EventOut
	}
	if p.clogged() {
		events = sys.EventOut
	}
	if events == p.watching {
		return
	}
	if err := p.epoll.Set(p.sock, events, 0); err != nil {
		p.fail(err, false)
		return
	}
	p.watching = events
}

// receive reads packets of the peer.
func (p *Path) receive() {
	p.look = false
	p.flush()
	for range receiveAtMost {
		if p.downErr != nil || p.clogged() {
			return
		}
		var fds [sys.MaxPacketFDs]int
		p.stats.syscalls.Add(1)
		n, nfds, whole, e := sys.RecvPacket(p.sock, p.in[:], &fds)
		if e == sys.EAGAIN {
			return
		}
		if e != 0 {
			p.fail(fmt.Errorf("%w: %w", errHangup, e), true)
			return
		}
		if n == 0 && nfds == 0 {
			p.fail(errHangup, true)
			return
		}
		k, err := parsePacket(p.in[:n])
		if err == nil && !whole || nfds != k.wantFDs() {
			err = fmt.Errorf("packet of type %q with %d descriptors, expected %d: %w", byte(k.kind), nfds, k.wantFDs(),
				path.ErrProtocol)
		}
		fd := -1
		if nfds == 1 {
			fd = fds[0]
		}
		if err != nil {
			p.fail(err, false)
		} else {
			p.handle(&k, fd)
		}
		for _, fd := range fds[:nfds] {
			sys.Close(fd)
		}
	}
	p.look = true
}

// handle acts on a packet; fd is closed by the caller.
func (p *Path) handle(k *packet, fd int) {
	switch k.kind {
	case packetAttach:
		p.handOver(k)
	case packetAttached:
		p.attachedReply(k, fd)
	case packetRevoke:
		p.revoked(k.key)
	case packetLetGo:
		p.letGo(k.key)
	case packetRegion:
		p.lend(k, fd)
	case packetForget:
		p.forget(k)
	case packetBye:
		p.fail(setup.ErrPeerClosed, true)
	}
}

// handOver answers an attach request.
func (p *Path) handOver(k *packet) {
	r := packet{kind: packetAttached, id: k.id}
	e, rights, err := p.reach.Lookup(k.key)
	if err != nil {
		p.stats.rejected.Add(1)
		r.arg = statusKey
		if errors.Is(err, path.ErrRevoked) {
			r.arg = statusRevoked
		}
		p.send(r, -1)
		return
	}
	if rights == 0 { // the export permits something, but not to this peer
		p.stats.rejected.Add(1)
		r.arg = statusRights
		p.send(r, -1)
		return
	}
	d := e.Desc()
	region := e.Span().Region
	seals := 0
	if d.Whole {
		seals, _ = sys.Seals(region.FD())
	}
	if seals&sys.SealShrink == 0 {
		p.stats.rejected.Add(1)
		r.arg = statusUnreachable
		p.send(r, -1)
		return
	}
	var fd int
	if rights&path.Write == 0 {
		fd, err = sys.ReopenReadOnly(region.FD())
	} else {
		fd, err = sys.Dup(region.FD())
	}
	if err != nil {
		r.arg = statusFailed
		p.send(r, -1)
		return
	}
	r.rights, r.size, r.off = rights, d.Size, e.Span().Off
	p.granted[k.key] = region
	p.send(r, fd)
}
