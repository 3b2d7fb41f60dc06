package rdma

import (
	"cmp"
	"io"
	"net/netip"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibv/cm"
)

// With UD the connection manager only tells the side that connects the way to the queue pair of the
// side that accepts: nothing is connected, and neither side learns that the other has ended. The
// side that accepts learns the number of the other queue pair from its first message. A message
// also carries the number of its sender's queue pair as its immediate value, because there are
// programs that read it from there (udaddy).

// managerKey is the key of all queue pairs for datagrams that the connection manager leads to
// (RDMA_UDP_QKEY).
const managerKey = 0x01234567

// readyUD makes a queue pair for datagrams ready to receive and to send.
func (l *link) readyUD(c *conn, x *pair) error {
	err := l.id.InitQP(x.qp, 0) // once more: now with the manager's key
	if err == nil {
		err = x.qp.ReadyToReceive(ibv.RTRAttr{})
	}
	if err == nil {
		err = x.qp.ReadyToSend(ibv.RTSAttr{PSN: x.mine.psn})
	}
	if err != nil {
		return failed(engine.ErrConnect, "a queue pair for datagrams: %v", err)
	}
	if l.asked == nil {
		return nil // the peer's answer says where to send to
	}
	to := ibv.Address{Port: uint8(l.m.port.o.Port), SGIDIndex: l.m.port.gidOf(l.local().Addr()),
		DGID: l.remote().Addr()}
	return l.address(c, x, to, nil) // its first message says which queue pair it is
}

// address makes the way to the peer, which can take a while. When the connection has ended
// meanwhile, no other goroutine closes it.
func (l *link) address(c *conn, x *pair, to ibv.Address, peer *pairInfo) error {
	ah, err := l.m.port.dev.PD.CreateAH(ibv.AHSpec{To: to})
	if err != nil {
		return failed(engine.ErrConnect, "the way to the peer's queue pair: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return cmp.Or(ah.Close(), io.EOF)
	}
	if x.ah = ah; peer != nil {
		x.peers = *peer
	}
	return nil
}

// found takes the way to the queue pair of a peer that has accepted.
func (l *link) found(c *conn, p *cm.Params) error {
	if p.QPN == 0 {
		return failed(engine.ErrConnect, "the peer has accepted, and does not say with which queue pair")
	}
	c.port.mu.Lock()
	in := c.in
	c.port.mu.Unlock()
	if in == nil {
		return io.EOF // it has ended meanwhile
	}
	if in.x.ah != nil {
		return failed(engine.ErrConnect, "the connection manager says twice that the peer has accepted")
	}
	if err := l.ready(c, in.x, 0, 0); err != nil {
		return err
	}
	if err := l.address(c, in.x, p.To, &pairInfo{qpn: p.QPN, qkey: p.QKey}); err != nil {
		return err
	}
	in.q.mu.Lock()
	in.peer = p.QPN
	in.q.mu.Unlock()
	if err := c.meet(); err != nil {
		return err
	}
	c.allow()
	return nil
}

// from reports whether a datagram came from the channel's peer. The first one says who that is. The
// caller holds q.mu.
func (l *rxChannel) from(qpn uint32) bool {
	if l.peer == 0 {
		l.peer = qpn
		l.q.port.control.do(func() { l.c.learned(qpn) })
	}
	return l.peer == qpn
}

// learned takes the number of the queue pair of a peer that connected.
func (c *conn) learned(qpn uint32) {
	c.mu.Lock()
	if o := c.out; o != nil {
		o.x.peers = pairInfo{qpn: qpn, qkey: managerKey}
	}
	c.mu.Unlock()
	c.allow()
}

// gidOf is the place of an address in the device's table.
func (p *Port) gidOf(a netip.Addr) uint8 {
	gids, _ := p.dev.GIDs(p.o.Port) // the port's own stays, if they cannot be read
	best := p.gid
	for _, g := range gids {
		if g.Addr.Unmap() == a && (best.Addr.Unmap() != a || g.Type == ibv.GIDRoCEv2) {
			best = g
		}
	}
	return uint8(best.Index)
}
