package verbs

import (
	"io"
	"net/netip"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibv/cm"
)

// With UD the connection manager tells who connects the way to the queue pair of who accepts, and no more: nothing is connected, and nobody hears of
// the end. Who accepts learns the number of the other queue pair from its first message. A message carries the number of its sender's
// queue pair as its immediate value besides, because there are programs that read it from there (udaddy).

// managerKey is the key of all queue pairs for datagrams that the connection manager leads to (RDMA_UDP_QKEY).
const managerKey = 0x01234567

// readyUD makes a queue pair for datagrams ready to receive and to send.
func (l *link) readyUD(x *pair) error {
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
	return l.address(x, ibv.Address{Port: uint8(l.m.port.o.Port), SGIDIndex: l.m.port.gidOf(l.local().Addr()), DGID: l.remote().Addr()})
}

// address makes the way to the peer.
func (l *link) address(x *pair, to ibv.Address) (err error) {
	if x.ah, err = l.m.port.pd.CreateAH(ibv.AHSpec{To: to}); err != nil {
		return failed(engine.ErrConnect, "the way to the peer's queue pair: %v", err)
	}
	return nil
}

// found hears where the queue pair of a peer is that has accepted.
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
	// Under the locks, since both sides of the lane may end it meanwhile.
	c.port.mu.Lock()
	if c.in == nil {
		c.port.mu.Unlock()
		return io.EOF
	}
	c.mu.Lock()
	err := l.address(in.x, p.To)
	in.x.peers = pairInfo{qpn: p.QPN, qkey: p.QKey}
	c.mu.Unlock()
	in.q.mu.Lock()
	in.peer = p.QPN
	in.q.mu.Unlock()
	c.port.mu.Unlock()
	if err != nil {
		return err
	}
	if err := c.meet(); err != nil {
		return err
	}
	c.allow()
	return nil
}

// from reports whether a datagram came from the lane's peer. The first one says who that is. The caller holds q.mu.
func (l *inLane) from(qpn uint32) bool {
	if l.peer == 0 {
		l.peer = qpn
		l.q.port.control.learn(l.c, qpn)
	}
	return l.peer == qpn
}

// learned hears the number of the queue pair of a peer that connected.
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
