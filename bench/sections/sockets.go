package sections

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// Messages is one direction between the sockets of socket_bench_* or rdma_bench_*.
type Messages struct {
	Section  string `json:"section"` // of the end that counted
	From     string `json:"from"`    // server, client
	To       string `json:"to"`
	Protocol string `json:"protocol"`
	Size     int    `json:"size"` // bytes of a message
	// Sent is what was sent, where the sender is in this process; SentTook until it had left.
	Sent     uint64        `json:"sent"`
	SentTook time.Duration `json:"sent_took_ns"`
	Here     bool          `json:"here"` // the receiver is in this process too; the rest is its
	Received uint64        `json:"received"`
	Bytes    uint64        `json:"bytes"`
	Checked  uint64        `json:"checked"` // bytes that were compared and right
	// Of Received: Unique + Duplicates + Damaged + Foreign, as of Received.
	Unique     uint64        `json:"unique"`
	Late       uint64        `json:"late"`
	Duplicates uint64        `json:"duplicates"`
	Damaged    uint64        `json:"damaged"`
	Foreign    uint64        `json:"foreign"`
	Missing    uint64        `json:"missing"` // by the numbers of senders of other processes
	Rest       int           `json:"rest"`    // bytes of a message that was cut off
	Took       time.Duration `json:"took_ns"` // from the first to the last
	Latency    *paired.Latency

	Drops engine.Drops `json:"-"` // of the interface
}

// end is one end of socket_bench_* or rdma_bench_*.
type end struct {
	s    *Socket
	o    *Options
	port engine.Port
	tx   engine.TxQueue
	run  uint16
	far  *end   // nil: in another process
	conn uint32 // of a client that has connected itself; 0: none

	peer chan uint32 // who wrote first, for a server of UDP

	sent     atomic.Uint64
	sending  atomic.Bool
	sentTook time.Duration

	got         atomic.Uint64 // messages, whatever they were
	first, last atomic.Int64  // when; 0: never
	over        atomic.Int64  // connections that ended
	lanes       []*inlet
	before      engine.PortStats
}

// inlet is what comes in on one queue of an end.
type inlet struct {
	e       *end
	in      *engine.Rx
	b       *burst.Burst
	wanted  []byte             // behind our header
	pieces  map[uint32][]byte  // of messages over TCP, by connection
	ledgers map[uint16]*ledger // of senders, by run
	latency metrics.Histogram
	whole   []byte // a message that came in several segments
	out     Messages
}

func (x *runner) sockets(ctx context.Context) error {
	ends := make([]*end, len(x.p.Sockets))
	for i := range x.p.Sockets {
		s := &x.p.Sockets[i]
		e := &end{s: s, o: x.o, port: x.sys.Port(s.Interface), run: x.run, peer: make(chan uint32, 1)}
		if e.port == nil {
			return fmt.Errorf("sections: %s: the interface %s was not opened", s.At, s.Interface)
		}
		if s.Send {
			var err error
			if e.tx, err = x.sys.Tx(s.Interface, s.Queue); err != nil {
				return fmt.Errorf("sections: %s: %w", s.At, err)
			}
			e.sending.Store(true)
		}
		for _, id := range s.Queues {
			in, err := x.sys.Rx(s.Interface, id)
			if err != nil {
				return fmt.Errorf("sections: %s: %w", s.At, err)
			}
			e.lanes = append(e.lanes, newInlet(e, in))
		}
		e.port.Stats(&e.before)
		ends[i] = e
	}
	if len(ends) == 2 {
		ends[0].far, ends[1].far = ends[1], ends[0]
	}
	for _, e := range ends {
		if err := e.meet(ctx); err != nil {
			return err
		}
	}
	unchecked := "nothing is received here"
	for _, e := range ends {
		if e.s.Receive {
			unchecked = "messages of another process"
			if e.far != nil {
				unchecked = ""
			}
		}
	}
	name := "socket_bench"
	if ends[0].s.Protocol == overRDMA {
		name = "rdma_bench"
	}
	row, err := x.measure(ctx, name, "sockets", paired.MopsPerSec, unchecked,
		func(ctx context.Context) (paired.Sample, error) {
			err := x.talk(ctx, ends)
			for _, e := range ends {
				x.r.Sockets = append(x.r.Sockets, e.messages()...)
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

// talk runs the ends until all of them are done.
func (x *runner) talk(ctx context.Context, ends []*end) error {
	rctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	sctx, halt := context.WithCancel(ctx)
	defer halt()
	began := now()
	sent, failed := make(chan error, len(ends)), make(chan error, 64)
	senders, receivers := 0, 0
	for _, e := range ends {
		x.say("%s over %s at %s%s", e.s.Role, e.s.Protocol, e.s.Address, x.until())
		for _, l := range e.lanes {
			receivers++
			go func() { failed <- l.serve(rctx) }()
		}
		if e.s.Send {
			senders++
			go func() { sent <- e.send(sctx) }()
		}
	}
	var err error
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	interrupted := ctx.Done()
	var limit <-chan time.Time
	for busy := true; busy && err == nil; {
		select {
		case e := <-sent:
			senders--
			err = e
		case e := <-failed:
			receivers--
			err = e
		case <-interrupted: // senders end; what they had sent to this process is still to come
			interrupted = nil
			t := time.NewTimer(x.o.Settle)
			defer t.Stop()
			limit = t.C
		case <-limit:
			busy = false
		case <-look.C:
			busy = senders > 0
			for _, e := range ends {
				busy = busy || (limit == nil || e.far != nil) && !e.done(began)
			}
		}
	}
	halt()
	for ; senders > 0; senders-- {
		err = errors.Join(err, <-sent)
	}
	stop()
	for ; receivers > 0; receivers-- {
		err = errors.Join(err, <-failed)
	}
	return err
}

// done reports whether nothing more is to come in at this end. Reads of the port's counts make it
// slow: it is asked now and then.
func (e *end) done(began int64) bool {
	if !e.s.Receive {
		return true
	}
	t, got, first := now(), e.got.Load(), e.first.Load()
	quiet := time.Duration(t - e.last.Load())
	if f := e.far; f != nil {
		if !f.s.Send {
			return true
		}
		if f.sending.Load() {
			return false
		}
		total := f.sent.Load()
		if got >= total {
			return true
		}
		var s engine.PortStats
		e.port.Stats(&s)
		lost := s.Drops.Total() + s.Rx.Drops.Total() - e.before.Drops.Total() - e.before.Rx.Drops.Total()
		return got+lost >= total || quiet > e.o.Settle && t-began > int64(e.o.Settle)
	}
	switch {
	case e.s.Iterations > 0 && got >= uint64(e.s.Iterations):
		return true
	case first == 0: // a server waits for its client
		return e.s.Role == "client" && e.o.Duration > 0 && t-began > int64(e.o.Duration+e.o.Settle)
	case e.s.Protocol == overRDMA:
		return e.connections() == 0 || e.o.Duration > 0 && t-first > int64(e.o.Duration) && quiet > e.o.Settle
	case e.s.Protocol == "tcp":
		return e.over.Load() > 0 && e.connections() == 0 || e.o.Duration > 0 && t-first > int64(e.o.Duration) &&
			quiet > e.o.Settle
	}
	return quiet > e.o.Settle
}

// connections is how many connections a port of TCP or RDMA has.
func (e *end) connections() int {
	if p, ok := e.port.(engine.Connector); ok {
		return len(p.ConnIDs())
	}
	return 0
}

// partner is whom this end sends to: the id of a connection or of a peer, 0 where the port has only
// one.
func (e *end) partner(ctx context.Context) (uint32, error) {
	switch p := e.port.(type) {
	case engine.Connector:
		if e.conn != 0 {
			return e.conn, nil
		}
		if e.s.Role == "client" && e.o.Duration > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, max(e.o.Duration, meetFor))
			defer cancel()
		}
		if err := p.WaitConnected(ctx); err != nil {
			return 0, fmt.Errorf("sections: %s: no connection of %s: %w", e.s.At, e.s.Address, err)
		}
		for _, id := range p.ConnIDs() {
			return id, nil
		}
		return 0, fmt.Errorf("sections: %s: the connection of %s has ended: %w", e.s.At, e.s.Address, engine.ErrDown)
	case interface {
		Peer(remote netip.AddrPort) (uint32, error)
	}: // a port of datagrams, which has peers
		if e.s.Role == "client" {
			return 0, nil
		}
		if e.s.Peer.IsValid() {
			return p.Peer(e.s.Peer)
		}
		select {
		case id := <-e.peer:
			return id, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return 0, nil
}

// message is one message of an end: our header, if there is room for it, and the pattern.
func message(size int) []byte { return pattern(size) }

// send sends messages until there are as many as the file says, or the time is over, or the context
// ends, which is no error.
func (e *end) send(ctx context.Context) error {
	defer e.sending.Store(false)
	if err := stay(e.s.Core); err != nil {
		return fmt.Errorf("sections: %s: %w", e.s.At, err)
	}
	to, err := e.partner(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	m := message(e.s.Size)
	piece, batch := e.s.Size, e.s.Batch
	if e.s.Protocol == "tcp" && e.s.Size > e.s.piece {
		piece, batch = e.s.piece, 1
	}
	b := burst.New(batch)
	w := &patience{}
	began := now()
	for n := uint64(0); ctx.Err() == nil; {
		t := now()
		if e.s.Iterations > 0 && n >= uint64(e.s.Iterations) || e.o.Duration > 0 && t-began >= int64(e.o.Duration) {
			break
		}
		want := batch
		if e.s.Iterations > 0 {
			want = int(min(uint64(want), uint64(e.s.Iterations)-n))
		}
		h := stream.Header{Run: e.run, Stream: e.id(), Due: uint64(t) & (1<<48 - 1)}
		if batch == 1 {
			e.fill(m, &h, n)
			if err := e.pieces(ctx, b, w, m, piece, to); err != nil {
				return err
			}
			n++
			e.sent.Store(n)
			continue
		}
		k, err := e.alloc(ctx, b, w, want, piece)
		if err != nil || k == 0 {
			return err
		}
		for i := range k {
			e.fill(m, &h, n+uint64(i))
			b.SetConn(i, to)
			put(b, i, m)
		}
		if err := e.tx.Send(b); errors.Is(err, engine.ErrClosed) {
			return fmt.Errorf("sections: %s: %w", e.s.At, err)
		}
		n += uint64(k)
		e.sent.Store(n)
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), stuckFor)
	defer cancel()
	err = e.tx.Drain(drain)
	e.sentTook = time.Duration(now() - began)
	if err != nil {
		return fmt.Errorf("sections: %s: messages have not left after %v: %w", e.s.At, stuckFor, err)
	}
	return e.undelivered()
}

// id tells the directions apart.
func (e *end) id() uint16 {
	if e.s.Role == "server" {
		return 1
	}
	return 2
}

func (e *end) fill(m []byte, h *stream.Header, n uint64) {
	if len(m) >= stream.HeaderLen {
		h.Seq = uint32(n)
		h.Put(m)
	}
}

// alloc gets room for some packets; none and no error when the context has ended.
func (e *end) alloc(ctx context.Context, b *burst.Burst, w *patience, n, length int) (int, error) {
	for ctx.Err() == nil {
		k, err := e.tx.Alloc(b, n, length)
		if k > 0 {
			w.reset()
			return k, nil
		}
		if !errors.Is(err, engine.ErrFull) && !errors.Is(err, engine.ErrNoBuffers) {
			return 0, fmt.Errorf("sections: %s: %w", e.s.At, err)
		}
		if !w.pause(ctx, now()) {
			return 0, fmt.Errorf("sections: %s: %s took no message for %v: %w", e.s.At, e.s.Interface, stuckFor, err)
		}
	}
	return 0, nil
}

// pieces sends one message as packets of one slot each. A message that was begun is sent to its
// end, unless the context ends.
func (e *end) pieces(ctx context.Context, b *burst.Burst, w *patience, m []byte, piece int, to uint32) error {
	for rest := m; len(rest) > 0; {
		n := min(piece, len(rest))
		k, err := e.alloc(ctx, b, w, 1, n)
		if err != nil || k == 0 {
			return err
		}
		b.SetConn(0, to)
		put(b, 0, rest[:n])
		rest = rest[n:]
		if err := e.tx.Send(b); errors.Is(err, engine.ErrClosed) {
			return fmt.Errorf("sections: %s: %w", e.s.At, err)
		}
	}
	return nil
}

// put writes packet i of b.
func put(b *burst.Burst, i int, p []byte) {
	for k := range b.Segments(i) {
		p = p[copy(b.Bytes(i, k), p):]
	}
}

func newInlet(e *end, in *engine.Rx) *inlet {
	l := &inlet{e: e, in: in, b: burst.NewSegmented(64, 128), pieces: map[uint32][]byte{},
		ledgers: map[uint16]*ledger{}}
	l.wanted = message(e.s.Size)
	if len(l.wanted) >= stream.HeaderLen {
		l.wanted = l.wanted[stream.HeaderLen:]
	}
	return l
}

// serve receives until the context ends, and takes what is there then.
func (l *inlet) serve(ctx context.Context) error {
	if err := stay(l.e.s.Core); err != nil {
		return fmt.Errorf("sections: %s: %w", l.e.s.At, err)
	}
	defer l.b.Release()
	for {
		err := l.in.Recv(ctx, l.b)
		l.burst()
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			return fmt.Errorf("sections: %s: %w", l.e.s.At, err)
		}
		for {
			n, err := l.in.TryRecv(l.b)
			if n == 0 {
				if errors.Is(err, engine.ErrClosed) {
					err = nil
				}
				return err
			}
			l.burst()
		}
	}
}

func (l *inlet) burst() {
	if l.b.Len() == 0 {
		return
	}
	t := now()
	for i := range l.b.Len() {
		conn := l.b.Conn(i)
		select {
		case l.e.peer <- conn: // the first one counts
		default:
		}
		if l.e.s.Protocol == overRDMA && l.b.Segments(i) > 1 {
			l.whole = append(l.whole[:0], make([]byte, l.b.PacketLen(i))...)
			l.b.CopyTo(l.whole, i)
			l.out.Bytes += uint64(len(l.whole))
			l.message(l.whole, t)
			continue
		}
		for k := range l.b.Segments(i) {
			p := l.b.Bytes(i, k)
			l.out.Bytes += uint64(len(p))
			if l.e.s.Protocol != "tcp" {
				l.message(p, t)
			} else {
				l.piece(conn, p, t)
			}
		}
		if l.b.Flags(i)&burst.Last != 0 {
			l.out.Rest += len(l.pieces[conn])
			delete(l.pieces, conn)
			l.e.over.Add(1)
		}
	}
	l.b.Release()
}

// piece takes a piece of a connection's stream: messages follow each other without a gap.
func (l *inlet) piece(conn uint32, p []byte, t int64) {
	size := l.e.s.Size
	have := l.pieces[conn]
	for len(p) > 0 {
		if len(have) == 0 && len(p) >= size {
			l.message(p[:size], t)
			p = p[size:]
			continue
		}
		n := min(size-len(have), len(p))
		have = append(have, p[:n]...)
		if p = p[n:]; len(have) == size {
			l.message(have, t)
			have = have[:0]
		}
	}
	l.pieces[conn] = have
}

// message enters one message.
func (l *inlet) message(p []byte, t int64) {
	e := l.e
	l.out.Received++
	var h stream.Header
	kind := h.Parse(p)
	switch {
	case len(p) == e.s.Size && e.s.Size < stream.HeaderLen:
		if bytes.Equal(p, l.wanted) {
			l.out.Unique++
			l.out.Checked += uint64(len(p))
		} else {
			l.out.Foreign++
		}
	case kind == stream.Foreign:
		l.out.Foreign++
	case kind == stream.Damaged || len(p) != e.s.Size || !bytes.Equal(p[stream.HeaderLen:], l.wanted):
		l.out.Damaged++
	case e.far != nil && h.Run != e.run:
		l.out.Foreign++
	default:
		l.enter(&h, t)
	}
	e.first.CompareAndSwap(0, t)
	e.last.Store(t)
	e.got.Add(1)
}

func (l *inlet) enter(h *stream.Header, t int64) {
	g := l.ledgers[h.Run]
	if g == nil {
		if len(l.ledgers) >= maxStrange {
			l.out.Foreign++
			return
		}
		g = &ledger{}
		l.ledgers[h.Run] = g
	}
	switch g.enter(h.Seq) {
	case late:
		l.out.Late++
	case twice, beyond:
		l.out.Duplicates++
		return
	}
	l.out.Unique++
	l.out.Checked += uint64(l.e.s.Size)
	if h.Run == l.e.run {
		l.latency.Record(uint64(max(0, h.Since(t))))
	}
}

// messages are the directions that this end counted: what it sent where the receiver is elsewhere,
// and what it received.
func (e *end) messages() (out []Messages) {
	other := map[string]string{"server": "client", "client": "server"}[e.s.Role]
	m := Messages{Section: e.s.Path, Protocol: e.s.Protocol, Size: e.s.Size}
	if e.s.Send && e.far == nil {
		s := m
		s.From, s.To, s.Sent, s.SentTook = e.s.Role, other, e.sent.Load(), e.sentTook
		out = append(out, s)
	}
	if !e.s.Receive && e.got.Load() == 0 {
		return out
	}
	m.From, m.To, m.Here = other, e.s.Role, true
	if e.far != nil {
		m.Sent, m.SentTook = e.far.sent.Load(), e.far.sentTook
	}
	var h, one metrics.HistogramSnapshot
	for _, l := range e.lanes {
		m.Received += l.out.Received
		m.Bytes += l.out.Bytes
		m.Checked += l.out.Checked
		m.Unique += l.out.Unique
		m.Late += l.out.Late
		m.Duplicates += l.out.Duplicates
		m.Damaged += l.out.Damaged
		m.Foreign += l.out.Foreign
		m.Rest += l.out.Rest
		if e.far == nil && len(e.lanes) == 1 { // several queues share the numbers of a sender
			for _, g := range l.ledgers {
				m.Missing += g.gaps()
			}
		}
		l.latency.Snapshot(&one)
		h.Merge(&one)
	}
	for _, l := range e.lanes {
		for _, p := range l.pieces {
			m.Rest += len(p)
		}
	}
	m.Latency = inMicroseconds(&h)
	m.Took = time.Duration(e.last.Load() - e.first.Load())
	var s engine.PortStats
	e.port.Stats(&s)
	for i := range m.Drops {
		m.Drops[i] = s.Drops[i] + s.Rx.Drops[i] - e.before.Drops[i] - e.before.Rx.Drops[i]
	}
	return append(out, m)
}
