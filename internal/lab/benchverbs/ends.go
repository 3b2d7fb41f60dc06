package benchverbs

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
)

// verbsEnd is one end of a connection over RDMA: a device opened for itself, as a process of its
// own would have it.
type verbsEnd struct {
	ctx     *ibv.Context
	pd      *ibv.PD
	channel *ibv.Channel // of receives; nil: they are polled
	sendCQ  *ibv.CQ
	recvCQ  *ibv.CQ
	qp      *ibv.QP
	region  *mem.Region
	buf     []byte
	mr      *ibv.MR
	send    *ibv.SendChain
	last    *ibv.SendChain // like send, for requests that end with one that asks for a completion
	recv    *ibv.RecvChain
	wc      []ibv.WC
}

// verbsPair is two ends that are connected.
type verbsPair struct {
	a, b    verbsEnd
	closers []func() error
}

// verbsShape is what a pair has to have.
type verbsShape struct {
	size   uint64 // bytes of each end's memory
	depth  int    // slots of the send queue
	recvs  int    // slots of the receive queue; 0: none is used
	chain  int    // requests of one call
	inline int    // bytes
	events bool   // receives wake their end
}

// pair makes two connected ends. The caller closes it.
func (d *verbsDevice) pair(s verbsShape) (p *verbsPair, err error) {
	p = &verbsPair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for _, e := range []*verbsEnd{&p.a, &p.b} {
		if err := p.open(d, e, s); err != nil {
			return p, err
		}
	}
	if err := d.connect(&p.a, &p.b, 0x111111, 0x222222); err != nil {
		return p, err
	}
	return p, d.connect(&p.b, &p.a, 0x222222, 0x111111)
}

// close closes everything, the youngest first.
func (p *verbsPair) close() (err error) {
	for i := len(p.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, p.closers[i]())
	}
	p.closers = nil
	return err
}

func (p *verbsPair) later(f func() error) { p.closers = append(p.closers, f) }

func (p *verbsPair) open(d *verbsDevice, e *verbsEnd, s verbsShape) (err error) {
	if e.ctx, err = d.dev.Open(); err != nil {
		return err
	}
	p.later(e.ctx.Close)
	if e.pd, err = e.ctx.AllocPD(); err != nil {
		return err
	}
	p.later(e.pd.Close)
	if e.region, err = bench.Allocate("verbs", s.size, false); err != nil {
		return err
	}
	p.later(e.region.Close)
	e.buf = e.region.All().Bytes()
	if e.mr, err = e.pd.RegMR(ibv.MRSpec{Addr: dl.Address(e.buf), Length: uint64(len(e.buf)),
		Access: ibv.LocalWrite | ibv.RemoteWrite | ibv.RemoteRead}); err != nil {
		return err
	}
	p.later(e.mr.Close)
	if s.events {
		if e.channel, err = e.ctx.CreateChannel(); err != nil {
			return err
		}
		p.later(e.channel.Close)
	}
	if e.sendCQ, err = e.ctx.CreateCQ(ibv.CQSpec{Entries: s.depth}); err != nil {
		return err
	}
	p.later(e.sendCQ.Close)
	if e.recvCQ, err = e.ctx.CreateCQ(ibv.CQSpec{Entries: max(s.recvs, 1), Channel: e.channel}); err != nil {
		return err
	}
	p.later(e.recvCQ.Close)
	e.qp, err = e.pd.CreateQP(ibv.QPSpec{Type: ibv.RC, SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SendWRs: s.depth,
		RecvWRs: max(s.recvs, 1), SendSGEs: 1, RecvSGEs: 1, Inline: s.inline})
	if err != nil {
		return err
	}
	p.later(e.qp.Close)
	for _, c := range []**ibv.SendChain{&e.send, &e.last} {
		if *c, err = ibv.NewSendChain(s.chain, s.chain, 0); err != nil {
			return err
		}
		p.later(func() error { (*c).Close(); return nil })
	}
	if e.recv, err = ibv.NewRecvChain(max(s.recvs, 1), max(s.recvs, 1)); err != nil {
		return err
	}
	p.later(func() error { e.recv.Close(); return nil })
	e.wc = make([]ibv.WC, 64)
	return e.qp.Init(ibv.InitAttr{Port: uint8(d.port.Port), Access: ibv.RemoteWrite | ibv.RemoteRead})
}

// connect brings an end to where it can send to the other. Times and numbers of retries are those
// of perftest.
func (d *verbsDevice) connect(e, to *verbsEnd, psn, theirs uint32) error {
	reads := uint8(min(d.attr.MaxRdAtomic, d.attr.MaxInitRdAtomic, 128))
	a := ibv.Address{Port: uint8(d.port.Port), SGIDIndex: uint8(d.gid.Index)}
	if d.port.Link == ibv.LinkInfiniBand {
		a.LID = d.port.LID
	} else {
		a.DGID = d.gid.Addr
	}
	if err := e.qp.ReadyToReceive(ibv.RTRAttr{To: a, RemoteQPN: to.qp.Num(), PSN: theirs, PathMTU: d.port.ActiveMTU,
		MaxDestRdAtomic: reads, MinRNRTimer: 12}); err != nil {
		return err
	}
	return e.qp.ReadyToSend(ibv.RTSAttr{PSN: psn, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: reads})
}

// post posts a whole chain.
func (e *verbsEnd) post(c *ibv.SendChain) error {
	c.Rewind()
	n, err := e.qp.PostSend(c)
	if err == nil && n != c.Len() {
		err = fmt.Errorf("bench: %d of %d requests were posted", n, c.Len())
	}
	return err
}

// chains fills both chains with n requests each, which one appends. It is false where there is no
// room.
func (e *verbsEnd) chains(n int, one func(c *ibv.SendChain, i int, flags ibv.SendFlags) bool) bool {
	for i := range n {
		flags := ibv.SendFlags(0)
		if i == n-1 {
			flags = ibv.Signaled
		}
		if !one(e.send, i, 0) || !one(e.last, i, flags) {
			return false
		}
	}
	return true
}

// postRecvs posts the whole receive chain.
func (e *verbsEnd) postRecvs() error {
	e.recv.Rewind()
	n, err := e.qp.PostRecv(e.recv)
	if err == nil && n != e.recv.Len() {
		err = fmt.Errorf("bench: %d of %d receives were posted", n, e.recv.Len())
	}
	return err
}

// poll takes completions, all of which have to be good.
func (e *verbsEnd) poll(cq *ibv.CQ) (n int, err error) {
	if n, err = cq.Poll(e.wc); err != nil {
		return n, err
	}
	for i := range e.wc[:n] {
		if e.wc[i].Status() != ibv.Success {
			return n, e.wc[i].Err()
		}
	}
	return n, nil
}

// patience is how many times a loop polls in vain before it checks whether its context has ended.
const patience = 4096

// await polls until some completions came, and returns how many.
func (e *verbsEnd) await(ctx context.Context, cq *ibv.CQ) (int, error) {
	for idle := 1; ; idle++ {
		n, err := e.poll(cq)
		if n > 0 || err != nil {
			return n, err
		}
		if idle%patience == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
}
