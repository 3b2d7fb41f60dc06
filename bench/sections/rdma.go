package sections

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
)

// overRDMA is the protocol of rdma_bench_*: each message is one of an RDMA connection.
const overRDMA = "rdma"

// rdmaInterface finds the interface of one end of rdma_bench_*: a server's has the address that the
// section says; a client's leads there, or leads nowhere yet, as DAQIRI's do, and has the client's
// address if the section says one.
func (x *planner) rdmaInterface(role string, b *config.BenchSocket, want netip.AddrPort) *config.Interface {
	for i := range x.c.Interfaces {
		p := &x.c.Interfaces[i]
		if e := p.Engine.Spec(); e == nil || !e.Needs.RDMA || !e.Capabilities.Connections || p.Socket == nil ||
			p.Socket.Mode != role {
			continue
		}
		local, remote := p.Socket.Local, p.Socket.Remote
		if role == "server" {
			if local.Port == int(want.Port()) && (local.Host.Unmap() == want.Addr() || local.Host.IsUnspecified()) {
				return p
			}
			continue
		}
		leads := remote.IsZero() || remote.Port == int(want.Port()) && remote.Host.Unmap() == want.Addr()
		if leads && (!b.ClientAddress.IsValid() || !local.Host.IsValid() ||
			local.Host.Unmap() == b.ClientAddress.Unmap()) {
			return p
		}
	}
	return nil
}

// rdma plans what rdma_bench_* has besides socket_bench_*.
func (x *planner) rdma(path string, s *Socket, p *config.Interface, b *config.BenchSocket, server netip.AddrPort) {
	s.Protocol, s.rxDepth, s.txDepth = overRDMA, b.RxDepth, b.TxDepth
	if s.Role == "client" && p.Socket.Remote.IsZero() {
		s.Peer = server
	}
	if can, _, err := engine.Check(p.Engine.Spec().New(), &engine.Ask{Port: p.PortSpec()}); err == nil &&
		can.MaxPacket > 0 {
		x.miss(path, fmt.Sprintf("%s: datagrams (transport UD) carry no more than the MTU of a device that nobody "+
			"knows yet", path), "transport: RC")
	}
}

// depths sets the depths of the queues of an interface that rdma_bench_* says.
func (x *runner) depths(f *config.Interface) {
	for _, s := range x.p.Sockets {
		if s.Interface != f.Name {
			continue
		}
		if s.rxDepth > 0 && f.Rx != nil {
			rx := *f.Rx
			rx.Queues = append([]config.RxQueue(nil), rx.Queues...)
			for k := range rx.Queues {
				rx.Queues[k].Depth = s.rxDepth
			}
			f.Rx = &rx
		}
		if s.txDepth > 0 && f.Tx != nil {
			tx := *f.Tx
			tx.Queues = append([]config.TxQueue(nil), tx.Queues...)
			for k := range tx.Queues {
				tx.Queues[k].Depth = s.txDepth
			}
			f.Tx = &tx
		}
	}
}

// meetFor is how long a client tries to reach its server, at least.
const meetFor = 10 * time.Second

// meet connects a client whose interface does not say to whom. The server may begin later.
func (e *end) meet(ctx context.Context) error {
	p, ok := e.port.(interface {
		Connect(ctx context.Context, to netip.AddrPort) (uint32, error)
	})
	if !ok || !e.s.Peer.IsValid() {
		return nil
	}
	if e.o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(e.o.Duration, meetFor))
		defer cancel()
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		id, err := p.Connect(ctx, e.s.Peer)
		if err == nil {
			e.conn = id
			return nil
		}
		if !errors.Is(err, engine.ErrConnect) {
			return fmt.Errorf("sections: %s: %w", e.s.At, err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("sections: %s: no connection to %v: %w", e.s.At, e.s.Peer, err)
		}
	}
}

// undelivered is the error of messages that a reliable connection did not take to its peer; nil
// where there are none.
func (e *end) undelivered() error {
	if e.s.Protocol != overRDMA {
		return nil
	}
	var s engine.TxStats
	e.tx.Stats(&s)
	if n := s.Drops.Total(); n > 0 {
		return fmt.Errorf("sections: %s: %d of %d messages were dropped (%s): %w", e.s.At, n, e.sent.Load(),
			s.Drops.String(), engine.ErrDown)
	}
	return nil
}
