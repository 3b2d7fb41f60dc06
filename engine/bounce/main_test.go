package bounce_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// card is a device of the runtime host, and its memory: opaque, as on a card, or seen by the CPU
// and copied all the same.
type card struct {
	*gpumem.Provider
	seen bool
}

// newCard opens a device, which is closed when the test ends and must have nothing left then.
func newCard(t testing.TB, seen bool) *card {
	t.Helper()
	rt, err := host.Open(host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cardOf(t, rt, seen)
}

// cardOf is a card of the first device of a runtime.
func cardOf(t testing.TB, rt *gpu.Runtime, seen bool) *card {
	t.Helper()
	ctx, err := rt.Devices()[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	p, err := gpumem.New(ctx, gpumem.Options{Opaque: !seen, Streams: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, close := range []func() error{p.Close, ctx.Close, rt.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return &card{p, seen}
}

// Allocate gives memory that is staged also where the CPU sees it.
func (c *card) Allocate(o mem.Options) (mem.Mapping, error) {
	m, err := c.Provider.Allocate(o)
	if c.seen && err == nil && o.Kind == mem.Device {
		m.Mover = blind{c.Provider}
	}
	return m, err
}

// blind says where staging memory is from. No port copies by it.
type blind struct{ p *gpumem.Provider }

func (b blind) Load(mem.Span, uint64) (mem.Move, error)  { panic("not asked") }
func (b blind) Store(uint64, mem.Span) (mem.Move, error) { panic("not asked") }
func (b blind) Staging() mem.Provider                    { return b.p }
func (b blind) Device() string                           { return b.p.Device().String() }

// memory is device memory for pools.
func (c *card) memory() mem.Options { return mem.Options{Kind: mem.Device, Provider: c} }

// pool makes a pool of the device, closed when the test ends.
func (c *card) pool(t testing.TB, name string, size, slots int) *mem.Pool {
	t.Helper()
	return newPool(t, mem.PoolOptions{Name: name, SlotSize: size, Slots: slots, Memory: c.memory()})
}

func newPool(t testing.TB, o mem.PoolOptions) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if s := p.Stats(); s.Rejected > 0 {
			t.Errorf("pool %s: %d slots were released twice", p.Name(), s.Rejected)
		}
	})
	return p
}
