package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

const faultSeeds = 20

// drawn reports whether a test takes a seed: with -short it is one of a tenth, and others follow as
// long as an outcome is missing.
func drawn(seed uint64, missing bool) bool {
	return seed < faultSeeds && (int(seed) < testenv.Rounds(faultSeeds) || missing)
}

// expected says whether a transfer may end like this under injected faults.
func expected(err error) bool {
	for _, want := range []error{path.ErrDown, path.ErrIntegrity, path.ErrProtocol, path.ErrUnavailable, ErrPeerLost,
		fault.ErrInjected} {
		if errors.Is(err, want) {
			return true
		}
	}
	var c *control.Error // the peer's answer to a request
	return errors.As(err, &c)
}

// hearing counts the calls of OnTransfer, by transfer.
type hearing struct {
	mu   sync.Mutex
	seen map[observe.ID]int
}

func (h *hearing) hear(i Incoming) {
	h.mu.Lock()
	h.seen[i.ID]++
	h.mu.Unlock()
}

// of is the number of calls for a transfer. Calls of OnTransfer may still come when the node is
// closed, so the first is waited for if it must come.
func (h *hearing) of(ctx context.Context, id observe.ID, must bool) int {
	for {
		h.mu.Lock()
		n := h.seen[id]
		h.mu.Unlock()
		if n > 0 || !must || ctx.Err() != nil {
			return n
		}
		runtime.Gosched()
	}
}

// storm runs small transfers of all kinds between two nodes, of which a dials b at addr(b), and
// checks what must hold whatever happened to them: each ends once, those that succeed have the
// right bytes and one call of OnTransfer, and nothing is left over.
func storm(t *testing.T, drivers func() setup.Driver, addr func(b *Node) string) (good, bad int) {
	t.Helper()
	const slots, slot = 24, 24 << 10
	c, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	heard := hearing{seen: map[observe.ID]int{}}
	o := Options{Name: "b", Listen: []string{"tcp://127.0.0.1:0"}, Anonymous: identity.All,
		Paths: []setup.Driver{drivers()}, OnTransfer: heard.hear,
		HeartbeatEvery: 200 * time.Millisecond, DeadAfter: time.Second}
	b, err := Open(c, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Name, o.Listen, o.OnTransfer, o.Paths = "a", nil, nil, []setup.Driver{drivers()}
	a, err := Open(c, o)
	if err != nil {
		t.Fatal(err)
	}
	local, remote := newRegion(t, slots*slot), newRegion(t, slots*slot)
	fill(remote, 2)
	fill(local, 1)
	want := bytes.Clone(local.All().Bytes()) // what is put, and below what is got
	var got []*Transfer
	var ends sync.WaitGroup
	var mu sync.Mutex
	ended := map[observe.ID]int{}
	func() {
		x, err := b.Export(remote.All(), ExportOptions{Name: "memory", Rights: path.Read | path.Write})
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Dial(c, addr(b))
		if err != nil {
			t.Logf("dial: %v", err)
			bad += slots
			return
		}
		rem, err := p.Lookup(c, "memory")
		if err != nil {
			if !expected(err) {
				t.Errorf("lookup: %v", err)
			}
			bad += slots
			return
		}
		for i := range uint64(slots) {
			n := []uint64{1, 900, 7000, slot}[i%4]
			from := mem.Span{Region: local, Off: i * slot, Len: n}
			do := p.Put
			if i%3 == 2 {
				do = p.Get
				copy(want[i*slot:], remote.All().Bytes()[i*slot:i*slot+n])
			}
			parts := []path.Copy{rem.At(i*slot, from)}
			if n > 100 { // in two blocks
				h, _ := from.Sub(0, 100)
				r, _ := from.Sub(100, n-100)
				parts = []path.Copy{rem.At(i*slot, h), rem.At(i*slot+100, r)}
			}
			x, err := do(c, parts, PutOptions{Priority: Priority(i % 3), Stream: uint32(i % 4)})
			if err != nil {
				bad++
				if !expected(err) {
					t.Errorf("transfer %d: %v", i, err)
				}
				continue
			}
			got = append(got, x)
			ends.Add(1)
			x.OnDone(func(x *Transfer) {
				mu.Lock()
				ended[x.ID()]++
				mu.Unlock()
				ends.Done()
			})
			if i%5 == 4 {
				x.Wait(c) // sometimes alone, sometimes in a crowd
				if _, err := p.List(c, ""); err != nil && !expected(err) {
					t.Errorf("list: %v", err)
				}
			}
		}
		for _, x := range got {
			select {
			case <-x.Done():
			case <-c.Done():
				t.Fatalf("a transfer did not end\n%v", x.Explain())
			}
		}
		if err := x.Revoke(c); err != nil {
			t.Errorf("revoke: %v", err)
		}
	}()
	for _, n := range []*Node{a, b} {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	ends.Wait()
	nothingInUse(t, a, b)
	for _, r := range []*mem.Region{local, remote} {
		l, err := r.Lease() // to look at it
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		r.Close()
	}
	for _, x := range got {
		if ended[x.ID()] != 1 {
			t.Errorf("transfer %v ended %d times", x.ID(), ended[x.ID()])
		}
		e := x.Explain()
		if err := x.Err(); err != nil {
			bad++
			if !expected(err) {
				t.Errorf("%s of %d bytes ended with %v", e.Kind, x.Bytes(), err)
			}
			// When the path broke the peer's answer may have been lost; otherwise both sides know
			// the same.
			if heard.of(c, x.ID(), false) != 0 && errors.Is(err, path.ErrIntegrity) && !errors.Is(err, path.ErrDown) {
				t.Errorf("%s of %d bytes failed (%v), but was reported to the peer", e.Kind, x.Bytes(), err)
			}
			continue
		}
		good++
		if n := heard.of(c, x.ID(), true); n != 1 {
			t.Errorf("%s of %d bytes succeeded and was heard of %d times", e.Kind, x.Bytes(), n)
		}
		for _, k := range x.m.Copies() {
			w := want[k.Local.Off : k.Local.Off+k.Local.Len]
			there := remote.All().Bytes()[k.RemoteOff : k.RemoteOff+k.Local.Len]
			if !bytes.Equal(k.Local.Bytes(), w) || !bytes.Equal(there, w) {
				t.Errorf("%s of %d bytes succeeded with wrong bytes", e.Kind, x.Bytes())
			}
		}
	}
	return good, bad
}

func newRegion(t testing.TB, size int) *mem.Region {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Name: t.Name(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var wireFaults = []fault.Kind{fault.Cut, fault.Stall, fault.Delay, fault.Short, fault.Corrupt, fault.Duplicate,
	fault.HalfClose}

// Faults on the control connection, on the data connections, and on both, at random places.
func TestFaultsOnConnections(t *testing.T) {
	for _, where := range []string{"control", "data", "both"} {
		t.Run(where, func(t *testing.T) {
			good, bad := 0, 0
			var counts fault.Counts
			for seed := uint64(0); drawn(seed, good == 0 || bad == 0 || counts.Total() == 0); seed++ {
				var controls, data fault.Plan
				if where != "data" {
					controls = fault.Random(fault.Bytes, seed, 1200, wireFaults...)
				}
				if where != "control" {
					data = fault.Random(fault.Bytes, seed+1000, 150_000, wireFaults...)
				}
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					t.Logf("control %q, data %q", controls, data)
					var proxies []*fault.ProxyDriver
					var front *fault.Proxy
					g, b := storm(t, func() setup.Driver {
						d, err := fault.NewProxyDriver(tcp.New(tcp.Options{CongestionControl: tcp.CongestionSystem}),
							data)
						if err != nil {
							t.Fatal(err)
						}
						proxies = append(proxies, d)
						return d
					}, func(b *Node) string {
						var err error
						front, err = fault.NewProxy("tcp", strings.TrimPrefix(b.Addrs()[0], "tcp://"), controls)
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { front.Close() })
						return "tcp://" + front.Addr()
					})
					good, bad = good+g, bad+b
					all := front.Counts()
					for _, d := range proxies {
						for k, n := range d.Counts() {
							all[k] += n
						}
					}
					for k, n := range all {
						counts[k] += n
					}
					t.Logf("%d good, %d bad, %v", g, b, all)
				})
			}
			t.Logf("%d good, %d bad, %v", good, bad, counts)
			if good == 0 || bad == 0 || counts.Total() == 0 {
				t.Errorf("%d transfers succeeded, %d failed, %v: expected some of each", good, bad, counts)
			}
		})
	}
}

// Paths whose completions come late, in another order, or with errors, that stall, refuse or go
// down.
func TestFaultyPaths(t *testing.T) {
	good, bad := 0, 0
	var counts fault.Counts
	for seed := uint64(0); drawn(seed, good == 0 || bad == 0 || counts.Total() == 0); seed++ {
		plan := fault.Random(fault.Operations, seed, 40, fault.Cut, fault.Stall, fault.Delay, fault.Short,
			fault.Reorder, fault.Refuse, fault.Fail)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Logf("plan %q", plan)
			var drivers []*fault.Driver
			g, b := storm(t, func() setup.Driver {
				d, err := fault.NewDriver(tcp.New(tcp.Options{CongestionControl: tcp.CongestionSystem}), plan)
				if err != nil {
					t.Fatal(err)
				}
				drivers = append(drivers, d)
				return d
			}, func(b *Node) string { return b.Addrs()[0] })
			good, bad = good+g, bad+b
			for _, d := range drivers {
				for k, n := range d.Counts() {
					counts[k] += n
				}
			}
			t.Logf("%d good, %d bad", g, b)
		})
	}
	t.Logf("%d good, %d bad, %v", good, bad, counts)
	if good == 0 || bad == 0 || counts.Total() == 0 {
		t.Errorf("%d transfers succeeded, %d failed, %v: expected some of each", good, bad, counts)
	}
}

// A pushed tensor under faults: sender and receiver agree, or both know that it failed; the budget
// is back in the end.
func TestFaultsOnTensors(t *testing.T) {
	good, bad := 0, 0
	for seed := uint64(0); drawn(seed, good == 0 || bad == 0); seed++ {
		plan := fault.Random(fault.Bytes, seed, 60_000, wireFaults...)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Logf("plan %q", plan)
			d, err := fault.NewProxyDriver(tcp.New(tcp.Options{CongestionControl: tcp.CongestionSystem}), plan)
			if err != nil {
				t.Fatal(err)
			}
			p := newPair(t, Options{Paths: []setup.Driver{d}, Budget: 1 << 20})
			p.ignore(t)
			src := region(t, 40_000)
			fill(src, seed)
			c, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			type result struct {
				r   *Received
				err error
			}
			desc := tensor.Desc{DType: tensor.U8, Shape: []int64{40_000}}
			for i := range 4 {
				name := fmt.Sprint("tensor ", i)
				rc, stop := context.WithCancel(c)
				res := make(chan result, 1)
				go func() {
					r, err := p.b.Receive(rc, name)
					res <- result{r, err}
				}()
				x, err := p.ab.SendTensor(c, name, desc, src.All(), PutOptions{})
				if err == nil {
					err = x.Wait(c)
				}
				if err != nil { // the receiver gets an error as well, unless the offer never came
					bad++
					if !expected(err) {
						t.Errorf("send: %v", err)
					}
					stop()
				}
				select {
				case r := <-res:
					switch {
					case r.err == nil:
						if !bytes.Equal(r.r.Span.Bytes(), src.All().Bytes()[:40_000]) {
							t.Error("a received tensor has wrong bytes")
						}
						r.r.Release()
						if err == nil {
							good++
						}
					case err == nil:
						t.Errorf("sent, but the receiver says %v", r.err)
					}
				case <-c.Done():
					t.Fatal("the receiver hangs")
				}
				stop()
			}
			p.a.Close()
			p.b.Close()
			for p.b.pool.Stats().InUse != 0 { // given back by goroutines that wait for fences
				if c.Err() != nil {
					t.Fatalf("budget still used: %+v", p.b.pool.Stats())
				}
				time.Sleep(time.Millisecond) // polls for the end of goroutines
			}
			nothingInUse(t, p.a, p.b)
		})
	}
	t.Logf("%d good, %d bad", good, bad)
	if good == 0 || bad == 0 {
		t.Errorf("%d tensors arrived, %d did not: expected both", good, bad)
	}
}

// The receiver keeps a tensor that arrived just before its sender was lost: the sender knows of its
// completion. The receiver detects the loss while its application is still busy with an earlier
// notification.
func TestTensorBeforeTheLoss(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			busy, enter := make(chan struct{}), make(chan struct{}, 1)
			peers := make(chan *Peer, 1)
			b := open(t, Options{Name: "b", Listen: []string{"tcp://127.0.0.1:0"}, OnPeer: func(p *Peer) { peers <- p },
				OnTransfer: func(Incoming) { enter <- struct{}{}; <-busy }})
			a := open(t, Options{Name: "a"})
			p, err := a.Dial(ctx(t), b.Addrs()[0])
			if err != nil {
				t.Fatal(err)
			}
			type result struct {
				r   *Received
				err error
			}
			res := make(chan result, 1)
			go func() {
				r, err := b.Receive(ctx(t), "x")
				res <- result{r, err}
			}()
			x, err := p.Notify(ctx(t), []byte("hold on"), PutOptions{Paths: []string{name}})
			wait(t, x, err)
			<-enter
			src := region(t, 4096)
			fill(src, 7)
			x, err = p.SendTensor(ctx(t), "x", tensor.Desc{DType: tensor.U8, Shape: []int64{4096}}, src.All(),
				PutOptions{Paths: []string{name}})
			wait(t, x, err)
			ba := <-peers
			for ba.waiting() == 0 { // over shm the sender is done before the receiver has looked
				time.Sleep(time.Millisecond)
			}
			p.Close()
			<-ba.Gone()
			close(busy)
			r := <-res
			if r.err != nil {
				t.Fatalf("sent, but not received: %v", r.err)
			}
			if !bytes.Equal(r.r.Span.Bytes(), src.All().Bytes()) {
				t.Error("wrong bytes")
			}
			r.r.Release()
		})
	}
}

// waiting is how many notifications wait for the application.
func (p *Peer) waiting() int {
	return p.inbox.Len()
}

// A put on a node that is closed fails because of that, not because of what was closed with it.
func TestPutAfterClose(t *testing.T) {
	p := newPair(t, Options{})
	export(t, p.b, region(t, 4096), "x", path.Write)
	rem, src := lookup(t, p.ab, "x"), region(t, 4096)
	if err := p.a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
}
