package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// host is one node of a worker, from opening to closing.
type host struct {
	w    *worker
	name string
	n    *transfer.Node
	data *fault.ProxyDriver

	moving context.Context // ends when nothing is to begin any more
	stop   context.CancelFunc
	living context.Context // ends when the node is about to close
	end    context.CancelFunc
	movers sync.WaitGroup
	others sync.WaitGroup // dialers, publishers, receivers

	inflight atomic.Int64 // transfers begun and not ended

	mu      sync.Mutex // guards what follows
	links   map[int]*link
	regions []*mem.Region
	acks    map[string]chan struct{} // puts that wait for the receiver's word
	ids     map[observe.ID]bool      // of transfers that this host was notified of

	id     *identity.Identity
	rights rights
	ledger ledger
	lets   map[int]*let // memory that other workers write to
	sums   map[string]uint64
}

// Sizes of the parts of the memory that a host exports for each sender. A put takes one part, and
// no other writes to it until the receiver has looked at it.
var partShare = []uint64{64, 64, 64, 64, 8, 8, 1} // MaxBytes divided by these

const (
	moverCount  = 4
	pushers     = 2 // receptions of tensors that wait at a time
	budget      = 4 // of pushed tensors, in units of MaxBytes/8: too small by intent
	publishings = 2
)

func warmNet() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	return l.Close()
}

func (w *worker) open(seed uint64) (*host, error) {
	w.lives++
	h := &host{w: w, name: fmt.Sprintf("%s/%d", w.c.Name, w.lives), links: map[int]*link{},
		acks: map[string]chan struct{}{},
		ids:  map[observe.ID]bool{}, lets: map[int]*let{}}
	h.moving, h.stop = context.WithCancel(context.Background())
	h.living, h.end = context.WithCancel(context.Background())
	plan, err := fault.Parse(w.c.Data)
	if err != nil {
		return nil, err
	}
	plan.Seed ^= seed
	if h.data, err = fault.NewProxyDriver(tcp.New(tcp.Options{}), plan); err != nil {
		return nil, err
	}
	var drivers []setup.Driver
	for _, d := range []setup.ListenDriver{shm.Driver{}, h.data} {
		if text := breaks[w.c.Break]; text != "" { // wrong on purpose
			broken, err := fault.Parse(text)
			if err != nil {
				return nil, err
			}
			if d, err = fault.NewDriver(d, broken); err != nil {
				return nil, err
			}
		}
		drivers = append(drivers, d)
	}
	if h.id, err = identity.Open(filepath.Join(w.c.Dir, workerName(w.c.Index)), identity.Options{}); err != nil {
		return nil, err
	}
	plain := fmt.Sprintf("@penstock-soak-%d-%d", os.Getpid(), w.lives)
	h.n, err = transfer.Open(h.living, transfer.Options{
		Name: h.name, Listen: []string{"tcp://127.0.0.1:0", "unix://" + plain}, Paths: drivers, OnTransfer: h.heard,
		Identity: h.id, Policy: &h.rights, Anonymous: identity.All, Limits: w.limits(),
		Budget: max(w.c.MaxBytes/8*budget, 256<<10), HeartbeatEvery: 200 * time.Millisecond, DeadAfter: w.c.Silence,
	})
	if err != nil {
		return nil, err
	}
	h.ledger.follow(h)
	if err := h.serve(); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range w.c.Peers {
		if i != w.c.Index {
			s := r.Uint64()
			h.others.Go(func() { h.dial(i, s) })
			jobs := r.Uint64()
			h.movers.Go(func() { h.work(i, jobs) })
		}
	}
	for i := range publishings {
		s := r.Uint64()
		h.others.Go(func() { h.publish(i, s) })
	}
	for range pushers {
		h.others.Go(h.receive)
	}
	for i := range moverCount {
		s := r.Uint64()
		h.movers.Go(func() { h.move(i, s) })
	}
	w.tell(line{T: tOpen, Node: h.name, Text: h.n.Addrs()[0], Plain: "unix://" + plain})
	return h, nil
}

func partSize(most, share uint64) uint64 { return max(most/share, 4096) }

// partAt is where a part begins and how large it is.
func partAt(most uint64, i int) (base, size uint64) {
	for _, s := range partShare[:i] {
		base += partSize(most, s)
	}
	return base, partSize(most, partShare[i])
}

func inName(sender int) string { return fmt.Sprint("in ", sender) }

func (h *host) region(name string, size uint64) (*mem.Region, error) {
	r, err := mem.Alloc(mem.Options{Name: name, Size: int(size), Lazy: true})
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.regions = append(h.regions, r)
	h.mu.Unlock()
	return r, nil
}

// drop closes a region before the host's end.
func (h *host) drop(r *mem.Region) {
	h.mu.Lock()
	for i, x := range h.regions {
		if x == r {
			h.regions = append(h.regions[:i], h.regions[i+1:]...)
			break
		}
	}
	h.mu.Unlock()
	r.Close()
}

// disturb carries out a command that is a fault.
func (h *host) disturb(cmd string) {
	switch cmd {
	case cDeny:
		h.deny()
	case cPardon:
		h.id.SetRules(nil)
	case cTake:
		h.rights.take()
	case cGive:
		h.rights.give()
	}
	for _, p := range h.data.Proxies() {
		switch cmd {
		case cCut:
			p.Cut()
		case cStall:
			p.Stall(fault.Both)
		case cResume:
			p.Resume(fault.Both)
		}
	}
}

// patiently waits for something, but not for ever, and reports whether it came.
func (h *host) patiently(f func()) bool {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	t := time.NewTimer(h.w.c.Patience)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// quiet begins nothing any more and waits until every transfer has ended.
func (h *host) quiet() {
	h.stop()
	h.patiently(h.movers.Wait)
	if !h.idle() {
		h.w.stacks("transfers that did not end")
		h.w.tell(line{T: tWrong, Node: h.name,
			Text: fmt.Sprintf("%d transfers did not end within %v although their peers are alive or given up",
				h.inflight.Load(), h.w.c.Patience)})
	}
}

// idle waits until every transfer has ended, but not for ever, and reports whether they have.
func (h *host) idle() bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(h.w.c.Patience); h.inflight.Load() > 0; <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// close ends the node and returns what is wrong about that.
func (h *host) close() (left []string) {
	h.stop()
	h.end()
	if err := h.n.Close(); err != nil {
		left = append(left, fmt.Sprintf("closing: %v", err))
	}
	if !h.patiently(h.movers.Wait) || !h.patiently(h.others.Wait) {
		left = append(left, "goroutines of the worker hang")
	}
	if !h.idle() {
		left = append(left, fmt.Sprintf("%d transfers did not end although the node is closed", h.inflight.Load()))
	}
	var wrong []string
	h.sums, wrong = h.ledger.balance(h)
	left = append(left, wrong...)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.regions {
		if h.w.c.Break == BreakLease {
			r.Lease()
			h.w.c.Break = ""
		}
		r.Close()
	}
	return left
}

// track follows a transfer that has begun: it reports its end, each time it ends.
func (h *host) track(key string, x *transfer.Transfer, err error, after func(error)) {
	if err != nil {
		h.ended(key, "", err)
		after(err)
		return
	}
	x.OnDone(func(x *transfer.Transfer) {
		h.finished(key, x.ID(), x.Explain(), x.Err())
		after(x.Err())
	})
}

// finished reports the end of a transfer that this worker began one by one.
func (h *host) finished(key string, id observe.ID, e transfer.Explanation, err error) {
	if err == nil && e.Security < e.Floor {
		h.complain("transfer %s: path %s has the security %v, at least %v was asked for", key, e.Path, e.Security,
			e.Floor)
	}
	h.ledger.ended(id, err)
	h.tellEnd(line{T: tEnd, Key: key, Node: h.name, Path: e.Path, Hops: len(e.Failovers)}, err)
}

func (h *host) begin(kind, key, to string, bytes uint64) {
	h.inflight.Add(1)
	h.w.tell(line{T: tBegin, Key: key, Node: h.name, To: to, Kind: kind, Bytes: bytes})
}

func (h *host) ended(key, via string, err error) {
	h.tellEnd(line{T: tEnd, Key: key, Node: h.name, Path: via}, err)
}

func (h *host) tellEnd(l line, err error) {
	if l.Err = reason(err); l.Err == "?" {
		l.Text = err.Error()
	}
	h.w.tell(l)
	h.inflight.Add(-1)
}

func (h *host) complain(format string, args ...any) {
	h.w.tell(line{T: tWrong, Node: h.name, Text: fmt.Sprintf(format, args...)})
}

// heard is called for each completed transfer of a peer.
func (h *host) heard(i transfer.Incoming) {
	h.once(i.ID)
	if len(i.Msg) == 0 { // a piece of a job
		return
	}
	var m message
	if err := json.Unmarshal(i.Msg, &m); err != nil {
		h.complain("a %d-byte message of %s is damaged: %v", len(i.Msg), i.Peer, err)
		return
	}
	if m.Kind == "fan" {
		m.Key = legKey(m.Key, h.w.c.Index)
	}
	l := line{T: tHeard, Key: m.Key, Node: h.name, Bytes: i.Bytes}
	switch {
	case m.Kind == "put", m.Kind == "fan":
		l.Text = h.look(&m)
		h.w.tell(l)
		h.acknowledge(i.Peer, m.Key, m.Node)
		return
	case m.Kind == "push": // one that is waited for does not come here
		l.Text = "the tensor came when nobody waited for it any more"
	case m.Ack != "":
		h.mu.Lock()
		if c := h.acks[m.Ack]; c != nil {
			close(c)
			delete(h.acks, m.Ack)
		}
		h.mu.Unlock()
	}
	h.w.tell(l)
}

// once complains of a transfer that this host was notified of before.
func (h *host) once(id observe.ID) {
	h.mu.Lock()
	again := h.ids[id]
	h.ids[id] = true
	h.mu.Unlock()
	if again {
		h.complain("transfer %v was heard of twice", id)
	}
}

// look checks the bytes of a put. The sender does not touch them before it is acknowledged.
func (h *host) look(m *message) string {
	h.mu.Lock()
	var all mem.Span
	for _, r := range h.regions {
		if r.Name() == m.Export {
			all = r.All()
		}
	}
	h.mu.Unlock()
	if all.Region == nil {
		return ""
	}
	l, err := all.Region.Lease()
	if err != nil {
		return "" // the node is closing
	}
	defer l.Release()
	seed := m.Seed
	for _, b := range m.Blocks {
		s, err := all.Sub(b[0], b[1])
		if err != nil {
			return err.Error()
		}
		if at := verify(s.Bytes(), seed); at >= 0 {
			return fmt.Sprintf("byte %d of a block of %d at %d is wrong", at, b[1], b[0])
		}
		seed = mix(seed)
	}
	return ""
}

func (h *host) acknowledge(p *transfer.Peer, key, to string) {
	if h.living.Err() != nil {
		return
	}
	k := h.w.key()
	msg, _ := json.Marshal(message{Key: k, Kind: "ack", Ack: key})
	h.begin("ack", k, to, 0)
	x, err := p.Notify(context.Background(), msg, transfer.PutOptions{})
	h.track(k, x, err, func(error) {})
}

// link is a connection to another worker's node.
type link struct {
	peer *transfer.Peer
	to   string
	in   *transfer.Remote // memory for this worker there

	mu    sync.Mutex // guards what follows
	parts []part
}

// part is a part of the memory that another worker exports for this one.
type part struct {
	busy bool
	last string // what became of the put before, for complaints
}

// dial keeps a connection to a worker.
func (h *host) dial(i int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	parts := map[string][]part{} // by node: parts whose put was not acknowledged stay busy
	for h.living.Err() == nil {
		ctx, cancel := context.WithTimeout(h.living, 5*time.Second)
		addr := h.w.c.Peers[i]
		if r.IntN(2) == 0 {
			addr = h.w.c.Plain[i]
		}
		p, err := h.n.Dial(ctx, addr)
		var in *transfer.Remote
		name := ""
		if err == nil {
			name, err = askLife(ctx, p)
		}
		if err == nil {
			in, err = p.Lookup(ctx, inName(h.w.c.Index))
		}
		cancel()
		if err == nil {
			l := &link{peer: p, to: name, in: in, parts: parts[name]}
			if l.parts == nil {
				l.parts = make([]part, len(partShare))
			}
			h.mu.Lock()
			h.links[i] = l
			h.mu.Unlock()
			select {
			case <-p.Gone():
			case <-h.living.Done():
			}
			h.mu.Lock()
			delete(h.links, i)
			h.mu.Unlock()
			l.mu.Lock()
			parts[l.to] = append([]part(nil), l.parts...)
			l.mu.Unlock()
		} else if p != nil {
			p.Close()
		}
		if !pause(h.living, time.Duration(5+r.IntN(100))*time.Millisecond) {
			return
		}
	}
}

// pause waits; it reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// publish offers tensors by name and withdraws them, also while others fetch them.
func (h *host) publish(i int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	for h.living.Err() == nil {
		size := labelSize + logSize(r, h.w.c.MaxBytes/4)
		reg, err := h.region("published", size)
		if err != nil {
			h.complain("memory to publish: %v", err)
			return
		}
		s := reg.All() // shared memory reaches whole regions only
		label(s.Bytes()[:size], h.w.key())
		x, err := h.n.Publish(fmt.Sprint("pub ", i), tensor.Desc{DType: tensor.U8, Shape: []int64{int64(size)}}, s)
		if err != nil {
			if !errors.Is(err, transfer.ErrClosed) {
				h.complain("publish: %v", err)
			}
			h.drop(reg)
			return
		}
		pause(h.living, time.Duration(50+r.IntN(500))*time.Millisecond)
		if err := x.Revoke(h.living); err != nil && h.living.Err() == nil {
			h.complain("revoke: %v", err)
		}
		h.drop(reg)
	}
}

// receive takes tensors that others push, until the node is closed: were a reception given up
// earlier, its tensor could still come, and the sender would see success.
func (h *host) receive() {
	for {
		t, err := h.n.Receive(context.Background(), "push")
		switch {
		case err == nil:
			h.took(t)
		case errors.Is(err, transfer.ErrClosed):
			return
		case reason(err) == "?":
			h.complain("receive: %v", err)
		}
	}
}

func (h *host) took(t *transfer.Received) {
	h.once(t.ID)
	key, at := readLabel(t.Span.Bytes())
	l := line{T: tHeard, Key: key, Node: h.name, Bytes: t.Span.Len}
	if at >= 0 {
		l.Text = fmt.Sprintf("byte %d of a tensor of %d is wrong", at, t.Span.Len)
	}
	t.Release()
	h.w.tell(l)
}
