//go:build dpdk

package dpdk

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/cdpdk"
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

// memif opens both ends of a memif.
func memif(t testing.TB, options string, o Options, hints int) enginetest.Pair {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "m")
	var ports [2]*Port
	for i, role := range []string{"server", "client"} {
		n := names.Add(1)
		ports[i] = openPort(t, engine.PortSpec{Name: role, RxQueues: hints, TxQueues: hints,
			Address: fmt.Sprintf("dpdk://net_memif%d,role=%s,id=0,socket=%s,socket-abstract=no%s", n, role, socket, options)}, o)
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

func TestMemif(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open:      func(t testing.TB) enginetest.Pair { return memif(t, "", Options{}, 0) },
		MinPacket: 14, MaxPacket: 1500, Buffered: 4096,
	})
}
