package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// What users call first: Peer.Put and Wait with the defaults of both nodes, one put at a time or
// some in flight, beside a plain socket that carries as many bytes, each message with an answer of
// eight bytes.

const answerSize = 8

const socketUnchecked = "the other end counts the bytes it receives and does not look at them"

// callSizes are the sizes of a put, with what is to be reached in microseconds over shm and tcp:
// one at a time, and of each of some in flight.
var callSizes = []struct {
	size uint64
	shm  [2]float64
	tcp  [2]float64 // 0: as the socket
}{
	{64, [2]float64{2, 0}, [2]float64{}},
	{4 << 10, [2]float64{2.5, 1}, [2]float64{0, 2}},
	{64 << 10, [2]float64{4, 1.5}, [2]float64{0, 9}},
}

// callDepth is how many puts are in flight where it is not one.
const callDepth = 64

// callRows measures the calls of a path.
func (o *TransferOptions) callRows(ctx context.Context, r *Suite, driver string) error {
	for _, c := range callSizes {
		for i, depth := range []int{1, callDepth} {
			goal := c.shm[i]
			if driver == "tcp" {
				goal = c.tcp[i]
			}
			if err := o.callRow(ctx, r, driver, c.size, depth, goal); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *TransferOptions) callRow(ctx context.Context, r *Suite, driver string, size uint64, depth int,
	goal float64) (err error) {
	network, other := "tcp", "net.Conn, TCP"
	if driver == "shm" {
		network, other = "unix", "net.Conn, Unix"
	}
	h := shape{class: fmt.Sprintf("%s Peer.Put + Wait %s, p50", driver, FormatSize(size)), what: "call", path: driver,
		mode: Event, size: size, peers: 1}
	if depth > 1 {
		h.class = fmt.Sprintf("%s Peer.Put %s, each of %d in flight", driver, FormatSize(size), depth)
	}
	o.Progress.Say("%s, beside %s", h.class, other)
	l, err := o.dial(ctx, o.node())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	x, err := o.newCalls(ctx, l, h, depth)
	if err != nil {
		return fmt.Errorf("%s: %w", h.class, err)
	}
	y, err := newAnswered(l, network, size, depth)
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", h.class, err), x.b.free())
	}
	defer y.c.Close()
	s := &subject{unit: paired.Microseconds, run: x.sample, close: x.b.free, finish: func(row *paired.Row) error {
		row.Cost = x.cost()
		return nil
	}}
	return o.row(ctx, r, l, h, s, paired.Plan{Pairs: o.Pairs, Goal: goal, Limit: 2 * o.RowTime,
		Theirs: []paired.Contender{{Name: other, Unchecked: socketUnchecked,
			Run: func(ctx context.Context) (paired.Sample, error) {
				v, err := timed(o.Budget, depth, y.round)
				return paired.Sample{Value: v}, err
			}}}})
}

// timed does rounds of some messages for a while, and returns the median time of a message in
// microseconds.
func timed(budget time.Duration, messages int, round func() error) (float64, error) {
	var v []float64
	for begin := time.Now(); len(v) == 0 || time.Since(begin) < budget; {
		t := time.Now()
		if err := round(); err != nil {
			return 0, err
		}
		v = append(v, float64(time.Since(t).Nanoseconds())/1e3/float64(messages))
	}
	slices.Sort(v)
	return paired.Percentile(v, 50), nil
}

// calls puts messages by Peer.Put, each into a slot of its own.
type calls struct {
	meter
	o      *TransferOptions
	b      *buffers
	area   area
	local  []byte
	copies [][]path.Copy
	under  []*transfer.Transfer
	put    transfer.PutOptions
	n      uint64
}

func (o *TransferOptions) newCalls(ctx context.Context, l *link, h shape, depth int) (*calls, error) {
	x := &calls{meter: meter{l: l}, o: o, area: newArea(h.size, depth),
		put: transfer.PutOptions{Paths: []string{h.path}}}
	var err error
	if x.b, err = l.allocate(ctx, x.area.len()); err != nil {
		return nil, err
	}
	x.local = x.b.local.All().Bytes()
	for i := range uint64(depth) {
		s, err := x.b.local.Span(i*h.size, h.size)
		if err != nil {
			return nil, errors.Join(err, x.b.free())
		}
		x.copies = append(x.copies, []path.Copy{x.b.remote[0].At(i*h.size, s)})
	}
	if err = x.round(ctx); err == nil { // which opens the path
		err = x.begin()
	}
	if err != nil {
		return nil, errors.Join(err, x.b.free())
	}
	return x, nil
}

// round puts a new message into each slot and waits for all.
func (x *calls) round(ctx context.Context) error {
	x.under = x.under[:0]
	for i, c := range x.copies {
		x.n++
		x.area.stamp(x.local, i, x.n)
		t, err := x.l.peers[0].Put(ctx, c, x.put)
		if err != nil {
			return err
		}
		x.under = append(x.under, t)
	}
	for _, t := range x.under {
		if err := t.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sample makes one verified run.
func (x *calls) sample(ctx context.Context) (paired.Sample, error) {
	x.area = newArea(x.area.Slot, len(x.copies))
	x.area.fill(x.local)
	if _, err := x.l.ask(request{Do: "scribble", Name: "memory"}); err != nil {
		return paired.Sample{}, err
	}
	round := func() error { return x.round(ctx) }
	if _, err := timed(x.o.Budget/10, len(x.copies), round); err != nil {
		return paired.Sample{}, err
	}
	before, err := x.l.usage()
	if err != nil {
		return paired.Sample{}, err
	}
	first := x.n
	v, err := timed(x.o.Budget, len(x.copies), round)
	if err != nil {
		return paired.Sample{}, err
	}
	after, err := x.l.usage()
	if err != nil {
		return paired.Sample{}, err
	}
	x.used.add(after.minus(before))
	x.runs++
	x.ops += int(x.n - first)
	x.bytes += (x.n - first) * x.area.Slot
	a, err := x.l.ask(request{Do: "verify", Name: "memory", Area: x.area})
	return paired.Sample{Value: v, Verified: a.Checked}, err
}

// answered sends messages by a plain socket to the second process, which answers each.
type answered struct {
	c       net.Conn
	message []byte
	answers []byte
	depth   int
}

func newAnswered(l *link, network string, size uint64, depth int) (*answered, error) {
	a, err := l.ask(request{Do: "answer", Name: network, Size: size})
	if err != nil {
		return nil, err
	}
	c, err := net.Dial(network, a.Addr)
	if err != nil {
		return nil, err
	}
	return &answered{c, make([]byte, size), make([]byte, answerSize*depth), depth}, nil
}

func (y *answered) round() error {
	for range y.depth {
		if _, err := y.c.Write(y.message); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(y.c, y.answers)
	return err
}

// answer serves one connection of answered, and returns where to dial.
func answer(network string, size uint64) (string, error) {
	at := "127.0.0.1:0"
	if network == "unix" {
		at = fmt.Sprintf("@penstock-bench-%d", os.Getpid())
	}
	ls, err := net.Listen(network, at)
	if err != nil {
		return "", err
	}
	go func() {
		c, err := path.Users{}.Accept(ls)
		ls.Close()
		if err != nil {
			return
		}
		defer c.Close()
		message := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, message); err != nil {
				return
			}
			if _, err := c.Write(message[:answerSize]); err != nil {
				return
			}
		}
	}()
	return ls.Addr().String(), nil
}
