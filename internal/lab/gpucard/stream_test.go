package gpucard

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/gpu"
	gpucuda "github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// Packets go from the simulator into the card's memory and back out of it, each byte as it was
// sent, in order.
func TestStream(t *testing.T) {
	if !card(t) {
		return
	}
	done := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rt, err := gpucuda.Open(gpucuda.Options{Library: library()})
	done(err)
	ctx, err := rt.Devices()[0].Open()
	done(err)
	provider, err := gpumem.New(ctx, gpumem.Options{Streams: 1, Bounce: -1})
	done(err)
	reader, err := ctx.NewStream(gpu.StreamOptions{})
	done(err)
	pool := func(name string, k mem.Kind, slots int) *mem.Pool {
		o := mem.PoolOptions{Name: name, SlotSize: 2048, Slots: slots, Memory: mem.Options{Kind: k}}
		if k != mem.Host {
			o.Memory.Provider = provider
		}
		p, err := mem.NewPool(o)
		done(err)
		return p
	}
	body, out, back := pool("body", mem.Device, 1024), pool("out", mem.HostPinned, 1024), pool("back", mem.Host, 2048)
	n, err := sim.NewNetwork(sim.Options{})
	done(err)
	_, err = n.Link("a", "b")
	done(err)
	a, err := n.OpenPort(t.Context(), engine.PortSpec{Address: "a"})
	done(err)
	plain, err := n.OpenPort(t.Context(), engine.PortSpec{Address: "b"})
	done(err)
	b := bounce.New(plain, bounce.Options{})
	tx, err := a.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{out}})
	done(err)
	home, err := a.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{back}})
	done(err)
	in, err := b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{body}})
	done(err)
	echo, err := b.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{body}})
	done(err)

	packet := func(i int) []byte {
		p := make([]byte, 60+i*37%1900)
		r := rand.NewPCG(uint64(i), 7)
		for k := range p {
			p[k] = byte(r.Uint64())
		}
		return p
	}
	const rounds, each = 50, 64
	x, y := burst.New(each), burst.New(256)
	arrived, returned := 0, 0
	start := time.Now()
	for round := range rounds {
		if k, err := tx.Alloc(x, each, 2000); k != each || err != nil {
			t.Fatal(k, err)
		}
		for i := range each {
			x.SetLen(i, 0, copy(x.Bytes(i, 0), packet(round*each+i)))
		}
		done(tx.Send(x))
		for arrived < (round+1)*each {
			k, err := in.TryRecv(y)
			done(err)
			if k == 0 {
				runtime.Gosched()
			}
			for i := range k {
				span, err := gpumem.Span(y.Segment(i, 0))
				done(err)
				got := make([]byte, span.Len)
				done(reader.Read(got, span))
				if !bytes.Equal(got, packet(arrived)) {
					t.Fatalf("packet %d is another one on the card", arrived)
				}
				arrived++
			}
			if _, err := echo.Forward(y); err != nil {
				t.Fatal(err)
			}
			done(echo.Send(y))
		}
		for returned < arrived {
			k, err := home.TryRecv(y)
			done(err)
			if k == 0 {
				runtime.Gosched()
			}
			for i := range k {
				if !bytes.Equal(y.Bytes(i, 0), packet(returned)) {
					t.Fatalf("packet %d came back as another one", returned)
				}
				returned++
			}
			y.Release()
		}
	}
	t.Logf("%d packets to the card and back in %v, each read by itself on the way", returned, time.Since(start))

	// Bursts into the card only, as fast as one goroutine makes, receives and releases them.
	const many = 2000
	start = time.Now()
	for range many {
		if k, err := tx.Alloc(x, each, 1500); k != each || err != nil {
			t.Fatal(k, err)
		}
		done(tx.Send(x))
		for got := 0; got < each; {
			k, err := in.TryRecv(y)
			done(err)
			if got += k; k == 0 {
				runtime.Gosched()
			}
			y.Release()
		}
	}
	took := time.Since(start)
	t.Logf("%d packets of 1500 bytes into the card, a burst of %d at a time: %.0f ns each", many*each, each,
		float64(took.Nanoseconds())/(many*each))

	done(errors.Join(a.Close(), b.Close(), n.Close()))
	for _, p := range []*mem.Pool{body, out, back} {
		done(p.Close())
	}
	for _, f := range []func() error{reader.Close, provider.Close, ctx.Close, rt.Close} {
		done(f())
	}
}
