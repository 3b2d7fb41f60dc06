package verbs

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// ud is a queue pair for datagrams, over which two ends find each other. One goroutine receives; any may send.
type ud struct {
	dev     *device
	pd      *ibv.PD
	channel *ibv.Channel
	cq      *ibv.CQ
	qp      *ibv.QP
	qkey    uint32
	bell    int
	region  *mem.Region
	lease   mem.Lease
	mr      *ibv.MR
	recvs   int
	rchain  *ibv.RecvChain
	wc      [1]ibv.WC
	taken   int // slot of the datagram that receive returned last, -1 for none

	mu    sync.Mutex // guards sending, and the completion queue
	chain *ibv.SendChain
	ah    *ibv.AH
	to    params
	busy  bool // a send has not completed
	got   []arrivedUD
	ended bool
}

// arrivedUD is a datagram in its slot.
type arrivedUD struct{ slot, n int }

const (
	udSlot = 1024
	udSend = 1 << 40 // number of sends; receives have that of their slot
)

func openUD(dev *device, recvs int) (_ *ud, err error) {
	u := &ud{dev: dev, recvs: recvs, bell: -1, taken: -1, qkey: uint32(random64()) &^ (1 << 31)}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.close())
		}
	}()
	if u.bell, err = sys.Eventfd(); err != nil {
		return nil, err
	}
	if u.pd, err = dev.ctx.AllocPD(); err != nil {
		return nil, err
	}
	if u.channel, err = dev.ctx.CreateChannel(); err != nil {
		return nil, err
	}
	if u.cq, err = dev.ctx.CreateCQ(ibv.CQSpec{Entries: recvs + 1, Channel: u.channel}); err != nil {
		return nil, err
	}
	if u.region, err = mem.Alloc(mem.Options{Name: "verbs datagrams", Size: (recvs + 1) * udSlot}); err != nil {
		return nil, err
	}
	if u.lease, err = u.region.Lease(); err != nil {
		return nil, err
	}
	b := u.lease.Bytes()
	if u.mr, err = u.pd.RegMR(ibv.MRSpec{Addr: uintptr(address(b)), Length: uint64(len(b)), Access: ibv.LocalWrite}); err != nil {
		return nil, err
	}
	if u.qp, err = u.pd.CreateQP(ibv.QPSpec{Type: ibv.UD, SendCQ: u.cq, RecvCQ: u.cq, SendWRs: 1, RecvWRs: recvs, SendSGEs: 1, RecvSGEs: 1}); err != nil {
		return nil, err
	}
	if err = u.qp.Init(ibv.InitAttr{Port: uint8(dev.port.Port), QKey: u.qkey}); err != nil {
		return nil, err
	}
	if u.chain, err = ibv.NewSendChain(1, 1, 0); err != nil {
		return nil, err
	}
	if u.rchain, err = ibv.NewRecvChain(recvs, recvs); err != nil {
		return nil, err
	}
	for i := range recvs {
		u.rchain.Recv(uint64(i), u.mr.SGE(uint64(i*udSlot), udSlot))
	}
	if _, err = u.qp.PostRecv(u.rchain); err != nil {
		return nil, err
	}
	if err = u.qp.ReadyToReceive(ibv.RTRAttr{}); err != nil {
		return nil, err
	}
	return u, u.qp.ReadyToSend(ibv.RTSAttr{PSN: randomPSN()})
}

// send sends one datagram to whom the params name. What was sent before must be over: a datagram that finds the queue busy is
// dropped, as the network might have done.
func (u *ud) send(to *params, b []byte) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return ErrListenerClosed
	}
	u.sweep()
	if u.busy {
		return nil
	}
	if u.ah == nil || u.to.gid != to.gid || u.to.lid != to.lid {
		if u.ah != nil {
			u.ah.Close()
			u.ah = nil
		}
		ah, err := u.pd.CreateAH(ibv.AHSpec{To: u.dev.way(to)})
		if err != nil {
			return fmt.Errorf("no way to the peer: %w", err)
		}
		u.ah = ah
	}
	u.to = *to
	return u.post(b)
}

// again sends to whom the last datagram went.
func (u *ud) again(b []byte) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sweep(); u.busy {
		return nil
	}
	return u.post(b)
}

func (u *ud) post(b []byte) error {
	at := u.recvs * udSlot
	n := copy(u.lease.Bytes()[at:], b)
	u.chain.Reset()
	u.chain.Send(udSend, ibv.Signaled, u.mr.SGE(uint64(at), uint32(n)))
	u.chain.To(u.ah, u.to.udQPN, u.to.udQKey)
	if _, err := u.qp.PostSend(u.chain); err != nil {
		return err
	}
	u.busy = true
	return nil
}

// sweep takes completions in. It holds u.mu.
func (u *ud) sweep() {
	for {
		n, err := u.cq.Poll(u.wc[:])
		if n == 0 || err != nil {
			return
		}
		wc := &u.wc[0]
		switch id := wc.ID(); {
		case id == udSend:
			u.busy = false
		case wc.Status() == ibv.Success && wc.Len() > ibv.GRHLen:
			u.got = append(u.got, arrivedUD{int(id), wc.Len()})
		default:
			u.recycle(int(id))
		}
	}
}

// recycle posts a receive again. It holds u.mu.
func (u *ud) recycle(slot int) {
	u.rchain.Reset()
	u.rchain.Recv(uint64(slot), u.mr.SGE(uint64(slot*udSlot), udSlot))
	u.qp.PostRecv(u.rchain) // in error it takes none, and none is needed
}

// receive waits for a datagram, for so long at most, or until wake. nil: none came. The bytes are good until the next call.
func (u *ud) receive(wait time.Duration) ([]byte, error) {
	b, err := u.next(true)
	if b != nil || err != nil {
		return b, err
	}
	ms := -1
	if wait >= 0 && wait < time.Hour {
		ms = int((wait + time.Millisecond - 1) / time.Millisecond)
	}
	i, err := sys.PollIn(ms, u.bell, u.channel.FD())
	if err != nil {
		return nil, err
	}
	if i == 0 {
		sys.Unring(u.bell)
	}
	if i == 1 {
		for {
			if _, ok, err := u.channel.Next(); err != nil {
				return nil, err
			} else if !ok {
				break
			}
		}
		u.cq.Ack()
	}
	return u.next(false)
}

// next is a datagram that is here; otherwise the queue is armed for the next one.
func (u *ud) next(arm bool) ([]byte, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.taken >= 0 {
		u.recycle(u.taken)
		u.taken = -1
	}
	u.sweep()
	if len(u.got) == 0 && arm {
		if err := u.cq.Arm(false); err != nil {
			return nil, err
		}
		u.sweep()
	}
	if len(u.got) == 0 {
		return nil, nil
	}
	g := u.got[0]
	u.got = append(u.got[:0], u.got[1:]...)
	u.taken = g.slot
	at := g.slot * udSlot
	return u.lease.Bytes()[at+ibv.GRHLen : at+g.n], nil
}

// wake ends a receive that waits. It may be called from any goroutine, also after close.
func (u *ud) wake() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.ended {
		sys.Ring(u.bell)
	}
}

func (u *ud) close() (err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	if u.qp != nil {
		err = errors.Join(err, u.qp.Close())
	}
	if u.ah != nil {
		err = errors.Join(err, u.ah.Close())
	}
	if u.cq != nil {
		err = errors.Join(err, u.cq.Close())
	}
	if u.channel != nil {
		err = errors.Join(err, u.channel.Close())
	}
	if u.mr != nil {
		err = errors.Join(err, u.mr.Close())
	}
	if u.pd != nil {
		err = errors.Join(err, u.pd.Close())
	}
	u.lease.Release()
	if u.region != nil {
		err = errors.Join(err, u.region.Close())
	}
	if u.chain != nil {
		u.chain.Close()
	}
	if u.rchain != nil {
		u.rchain.Close()
	}
	if u.bell >= 0 {
		err = errors.Join(err, sys.Close(u.bell))
		u.bell = -1
	}
	return err
}
