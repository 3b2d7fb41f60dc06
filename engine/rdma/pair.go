package rdma

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
)

// pair is a queue pair of a channel, at either end, with a completion queue for what it sends.
type pair struct {
	qp    *ibv.QP
	cq    *ibv.CQ
	ah    *ibv.AH // the peer, of datagrams
	mine  pairInfo
	peers pairInfo
}

var services = [numTransports]ibv.QPType{RC: ibv.RC, UC: ibv.UC, UD: ibv.UD}

// newPair makes a queue pair in state Init. spec lacks what all have. entries is the room of its
// completion queue, and recvCQ nil when receives complete there, too.
func (p *Port) newPair(spec ibv.QPSpec, entries int) (x *pair, err error) {
	x = &pair{}
	defer func() {
		if err != nil {
			x.close()
			x, err = nil, fmt.Errorf("rdma: a queue pair of %s: %w: %w", p.dev.Name(), engine.ErrUnavailable, err)
		}
	}()
	if x.cq, err = p.dev.CreateCQ(ibv.CQSpec{Entries: entries, Channel: p.dev.Sends}); err != nil {
		return
	}
	spec.Type, spec.SendCQ = services[p.o.Transport], x.cq
	if spec.RecvCQ == nil {
		spec.RecvCQ = x.cq
	}
	if x.qp, err = p.dev.PD.CreateQP(spec); err != nil {
		return
	}
	p.counts.channels.Add(1)
	x.mine = pairInfo{gid: p.gid.Addr.As16(), qpn: x.qp.Num(), psn: rand.Uint32() & 0xffffff, mtu: uint16(p.o.MTU),
		lid: p.dev.Port.LID}
	init := ibv.InitAttr{Port: uint8(p.o.Port)}
	if p.o.Transport == UD {
		x.mine.qkey = rand.Uint32() & 0x7fffffff // the highest bit asks for the sender's own key
		init.QKey = x.mine.qkey
	} else {
		init.Access = ibv.LocalWrite | ibv.RemoteWrite // of no bytes: see nudge
	}
	err = x.qp.Init(init)
	return
}

// connect makes the queue pair ready to receive and to send.
func (x *pair) connect(p *Port, peer *pairInfo) error {
	x.peers = *peer
	to := ibv.Address{Port: uint8(p.o.Port), SGIDIndex: uint8(p.gid.Index)}
	if p.dev.Port.Link == ibv.LinkInfiniBand {
		to.LID = peer.lid
	}
	if p.dev.Port.Link != ibv.LinkInfiniBand || to.LID == 0 {
		to.DGID = netip.AddrFrom16(peer.gid)
	}
	var rtr ibv.RTRAttr
	if p.o.Transport != UD {
		rtr = ibv.RTRAttr{To: to, RemoteQPN: peer.qpn, PSN: peer.psn, PathMTU: ibv.MTUOf(min(p.o.MTU, int(peer.mtu))),
			MinRNRTimer: rnrCode(p.o.MinRNR)}
	}
	if err := x.qp.ReadyToReceive(rtr); err != nil {
		return failed(engine.ErrConnect, "the way to the peer's queue pair: %v", err)
	}
	rts := ibv.RTSAttr{PSN: x.mine.psn}
	if p.o.Transport == RC {
		rts.Timeout, rts.RetryCount, rts.RNRRetry = ackCode(p.o.AckTimeout), uint8(p.o.Retries), 7
	}
	if err := x.qp.ReadyToSend(rts); err != nil {
		return failed(engine.ErrConnect, "the way to the peer's queue pair: %v", err)
	}
	if p.o.Transport == UD {
		var err error
		if x.ah, err = p.dev.PD.CreateAH(ibv.AHSpec{To: to}); err != nil {
			return failed(engine.ErrConnect, "the way to the peer's queue pair: %v", err)
		}
	}
	return nil
}

// to names the receiver of the request that was added last.
func (x *pair) to(c *ibv.SendChain) {
	if x.ah != nil {
		c.To(x.ah, x.peers.qpn, x.peers.qkey)
	}
}

// close ends the queue pair. The device reads and writes nothing for it any more when it returns.
func (x *pair) close() {
	if x.qp != nil {
		x.qp.Close()
	}
	if x.ah != nil {
		x.ah.Close()
	}
	if x.cq != nil {
		x.cq.Close()
	}
}
