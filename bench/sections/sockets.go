package sections

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
)

// Messages is one direction between the sockets of socket_bench_* or rdma_bench_*.
type Messages struct {
	Section  string // of the end that counted
	From     string // server, client
	To       string
	Protocol string
	Size     int // bytes of a message
	// Sent is what was sent, where the sender is in this process; SentTook until it had left.
	Sent     uint64
	SentTook time.Duration
	Here     bool   // the receiver is in this process too; the rest is its
	Received        // packets are messages; the drops are the interface's
	Missing  uint64 // by the numbers of senders of other processes
	Latency  *paired.Latency
}

// end is one end of socket_bench_* or rdma_bench_*.
type end struct {
	s     *Socket
	o     *Options
	port  engine.Port
	conn  uint32 // of a client that has connected itself; 0: none
	wrote chan uint32
	out   *sender // nil: it only receives
	in    *direction
}

// sockets runs the ends that the plan has.
func (x *runner) sockets(ctx context.Context) error {
	var ends []*end
	var senders []*sender
	var flows []*direction
	unchecked, name := nothingReceived, "socket_bench"
	for i := range x.p.Sockets {
		e, err := x.end(&x.p.Sockets[i])
		if err != nil {
			return err
		}
		ends, flows = append(ends, e), append(flows, e.in)
		if e.out != nil {
			senders = append(senders, e.out)
		}
		if e.s.Receive {
			unchecked = "messages of another process"
		}
		if e.s.Protocol == overRDMA {
			name = "rdma_bench"
		}
	}
	for i, e := range ends {
		if e.in.local {
			if unchecked != nothingReceived {
				unchecked = ""
			}
			if far := ends[1-i]; far.out != nil {
				e.in.from = []*sender{far.out}
			}
		}
		if err := e.meet(ctx); err != nil {
			return err
		}
	}
	row, err := x.measure(ctx, name, "sockets", paired.MopsPerSec, unchecked,
		func(ctx context.Context) (paired.Sample, error) {
			for _, e := range ends {
				x.say("%s over %s at %s%s", e.s.Role, e.s.Protocol, e.s.Address, x.until())
			}
			err := x.exchange(ctx, senders, flows...)
			c := x.counts().since(&x.before)
			for _, e := range ends {
				x.r.Sockets = append(x.r.Sockets, e.messages(c)...)
			}
			if err != nil {
				return paired.Sample{}, err
			}
			return x.r.socketSample()
		})
	if row != nil {
		x.r.Rows = append(x.r.Rows, *row)
	}
	x.r.socketRows()
	return err
}

// end opens the queues of one end.
func (x *runner) end(s *Socket) (*end, error) {
	// Every message of its own, and every one that it expects, is the pattern behind our header, if
	// there is room for it.
	m := Sender{Place: s.Place, Batch: s.Batch, Payload: s.Size, Sequence: -1, Number: room(s.Size, -1)}
	e := &end{s: s, o: x.o, port: x.sys.Port(s.Interface), wrote: make(chan uint32, 1)}
	e.in = &direction{l: newLedgers([]Sender{m}, x.run), local: len(x.p.Sockets) == 2, iface: s.Interface, over: e.over}
	e.in.l.anyRun = !e.in.local
	if e.port == nil {
		return nil, s.err(fmt.Errorf("the interface %s was not opened", s.Interface))
	}
	if s.Send {
		tx, err := x.sys.Tx(s.Interface, s.Queue)
		if err != nil {
			return nil, s.err(err)
		}
		t, err := newTemplate(&m, packet.MAC{})
		if err != nil {
			return nil, s.err(err)
		}
		e.out = newSender(&m, tx, t, x.run, 0)
		e.out.most, e.out.partner, e.out.all = uint64(s.Iterations), e.partner, s.Protocol == overRDMA
		if s.Protocol == "tcp" && s.Size > s.piece {
			e.out.piece = s.piece
		}
	}
	for _, id := range s.Queues {
		in, err := x.sys.Rx(s.Interface, id)
		if err != nil {
			return nil, s.err(err)
		}
		at := s.Place
		at.Queue = id
		r := newReceiver(&Receiver{Place: at, Batch: 64}, in, e.in.l)
		r.wrote = e.wrote
		if s.Protocol == "tcp" {
			r.message = s.Size
		}
		e.in.receivers = append(e.in.receivers, r)
	}
	return e, nil
}

// over reports whether nothing more is to come from another process.
func (e *end) over(since time.Duration) bool {
	got, last := seen(e.in.receivers)
	first, ended := int64(0), int64(0)
	for _, r := range e.in.receivers {
		if t := r.first.Load(); t > 0 && (first == 0 || t < first) {
			first = t
		}
		ended += r.ended.Load()
	}
	quiet := time.Duration(now()-last) > e.o.Settle
	late := e.o.Duration > 0 && now()-first > int64(e.o.Duration) && quiet
	switch {
	case !e.s.Receive, e.s.Iterations > 0 && got >= uint64(e.s.Iterations):
		return true
	case first == 0: // a server waits for its client
		return e.s.Role == "client" && e.o.Duration > 0 && since > e.o.Duration+e.o.Settle
	case e.s.Protocol == overRDMA:
		return e.connections() == 0 || late
	case e.s.Protocol == "tcp":
		return ended > 0 && e.connections() == 0 || late
	}
	return quiet
}

// connections is how many connections a port of TCP or RDMA has.
func (e *end) connections() int {
	if p, ok := e.port.(engine.Connector); ok {
		return len(p.ConnIDs())
	}
	return 0
}

// meetFor is how long a client tries to reach its server, at least.
const meetFor = 10 * time.Second

// patient is a context that ends when a client gives up to reach its server.
func (e *end) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if e.o.Duration > 0 {
		return context.WithTimeout(ctx, max(e.o.Duration, meetFor))
	}
	return context.WithCancel(ctx)
}

// meet connects a client whose interface does not say to whom. The server may begin later.
func (e *end) meet(ctx context.Context) error {
	p, ok := e.port.(interface {
		Connect(ctx context.Context, to netip.AddrPort) (uint32, error)
	})
	if !ok || !e.s.Peer.IsValid() {
		return nil
	}
	ctx, cancel := e.patient(ctx)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		id, err := p.Connect(ctx, e.s.Peer)
		if err == nil || !errors.Is(err, engine.ErrConnect) {
			e.conn = id
			return e.s.err(err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return e.s.err(fmt.Errorf("no connection to %v: %w", e.s.Peer, err))
		}
	}
}

// partner is whom this end sends to: the id of a connection or of a peer, 0 where the port has only
// one.
func (e *end) partner(ctx context.Context) (uint32, error) {
	switch p := e.port.(type) {
	case engine.Connector:
		if e.conn != 0 {
			return e.conn, nil
		}
		if e.s.Role == "client" {
			var cancel context.CancelFunc
			ctx, cancel = e.patient(ctx)
			defer cancel()
		}
		if err := p.WaitConnected(ctx); err != nil {
			return 0, e.s.err(fmt.Errorf("no connection of %s: %w", e.s.Address, err))
		}
		for _, id := range p.ConnIDs() {
			return id, nil
		}
		return 0, e.s.err(fmt.Errorf("the connection of %s has ended: %w", e.s.Address, engine.ErrDown))
	case interface {
		Peer(remote netip.AddrPort) (uint32, error)
	}: // a port of datagrams, which has peers
		switch {
		case e.s.Role == "client":
			return 0, nil
		case e.s.Peer.IsValid():
			return p.Peer(e.s.Peer)
		}
		select {
		case id := <-e.wrote:
			return id, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return 0, nil
}

// messages are the directions that this end counted: what it sent where the receiver is elsewhere,
// and what it received.
func (e *end) messages(c *counts) (out []Messages) {
	other := map[string]string{"server": "client", "client": "server"}[e.s.Role]
	m := Messages{Section: e.s.Path, Protocol: e.s.Protocol, Size: e.s.Size}
	if e.out != nil && !e.in.local {
		s := m
		s.From, s.To, s.Sent, s.SentTook = e.s.Role, other, e.out.sent.Load(), e.out.out.Took
		out = append(out, s)
	}
	if got, _ := seen(e.in.receivers); !e.s.Receive && got == 0 {
		return out
	}
	m.From, m.To, m.Here = other, e.s.Role, true
	for _, s := range e.in.from {
		m.Sent, m.SentTook = s.sent.Load(), s.out.Took
	}
	var first, last int64 // over all queues of this end
	for _, r := range e.in.receivers {
		if t := r.first.Load(); first == 0 || t != 0 && t < first {
			first = t
		}
		last = max(last, r.last.Load())
		m.Packets += r.out.Packets
		m.Bytes += r.out.Bytes
		m.Unique += r.out.Unique
		m.Late += r.out.Late
		m.Duplicates += r.out.Duplicates
		m.Damaged += r.out.Damaged
		m.Foreign += r.out.Foreign
		m.Checked += r.out.Checked
		m.Rest += r.out.Rest
	}
	if m.Took = time.Duration(last - first); m.Took == 0 {
		m.Took = m.SentTook // all came at once
	}
	m.Missing, _ = e.in.l.gaps()
	m.Latency = latencyOf(e.in.receivers)
	m.Drops = c.ports[e.s.Interface]
	return append(out, m)
}
