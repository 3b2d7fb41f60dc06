//go:build dpdk

package dpdk

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/internal/testenv/netns"
)

// eal is what all tests of this process start EAL with.
var eal = EAL{Huge: HugeOff}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(endEAL{m}, goleak.IgnoreAnyFunction("github.com/penstock-io/penstock/internal/cdpdk.Start.func1"))
}

// endEAL ends EAL behind the tests.
type endEAL struct{ m *testing.M }

func (e endEAL) Run() int {
	code := e.m.Run()
	if err := cdpdk.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

var names atomic.Int64

// open opens a port on a new virtual device; %d in devargs is its number.
func openPort(t testing.TB, spec engine.PortSpec, o Options) *Port {
	t.Helper()
	o.EAL, spec.Options = eal, o
	o.EAL = eal
	spec.Options = o
	p, err := New().OpenPort(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p.(*Port)
}

// until waits for a condition.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited 30 s for %s", what)
		}
	}
}

// veth opens ports on both ends of a veth pair by a driver over the kernel.
func veth(t testing.TB, driver, args string, o Options, queues int) enginetest.Pair {
	t.Helper()
	n := netns.New(t, netns.Topology{Neighbours: true})
	var ports [2]*Port
	for i, h := range n.Hosts[:2] {
		if err := h.Do(func() error {
			ports[i] = openPort(t, engine.PortSpec{Name: h.Name, RxQueues: queues, TxQueues: queues, Address: fmt.Sprintf("dpdk://%s%d,iface=%s%s", driver, names.Add(1), h.Link().Name, args)}, o)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return enginetest.Pair{A: ports[0], B: ports[1]}
}

func TestNull(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open: func(t testing.TB) enginetest.Pair {
			a := openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1))}, Options{})
			b := openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1))}, Options{})
			return enginetest.Pair{A: a, B: b}
		},
		Alone: true, MinPacket: 64, MaxPacket: 64,
	})
}

func TestAFPacket(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open: func(t testing.TB) enginetest.Pair {
			return veth(t, "net_af_packet", ",framesz=1920,framecnt=256,blocksz=61440", Options{}, 0)
		},
		MinPacket: 14, MaxPacket: 1514, Boundaries: []int{60}, Noise: true, Silent: true, Buffered: 4096,
	})
}

func TestAFXDP(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open:      func(t testing.TB) enginetest.Pair { return veth(t, "net_af_xdp", "", Options{}, 0) },
		MinPacket: 14, MaxPacket: 1514, Boundaries: []int{60}, Noise: true, Silent: true, Buffered: 8192,
	})
}
