package xdp

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// CheckPort says what OpenPort says, and leaves nothing open.
func TestCheckPort(t *testing.T) {
	e := New()
	if err := e.Available(); err != nil {
		testenv.Missing(t, "AF_XDP", err)
	}
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if holds, err := e.CheckPort(t.Context(), engine.PortSpec{Address: "lo",
		Options: &Options{Ring: 64}}); holds != "interface lo" || err != nil {
		t.Errorf("%q, %v", holds, err)
	}
	before := open() // engine.Events has its descriptors
	for _, c := range []struct {
		spec engine.PortSpec
		want error
		text string
	}{
		{engine.PortSpec{Address: "absent0"}, engine.ErrNotFound, `there is no interface "absent0" here: see "ip link"`},
		{engine.PortSpec{Address: "lo", MTU: 1 << 20}, engine.ErrInvalid, "ip link set lo mtu"},
		{engine.PortSpec{Address: "lo", Options: Options{Ring: 100}}, engine.ErrInvalid, "expected a power of two"},
		{engine.PortSpec{Address: "lo", Options: Options{Queues: []int{0, 999}}}, engine.ErrInvalid, "queue 999 of lo: expected 0 to "},
		{engine.PortSpec{Address: "lo", Options: 7}, engine.ErrInvalid, "expected xdp.Options"},
	} {
		_, err := e.CheckPort(t.Context(), c.spec)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v", c.spec, err)
		}
		if _, opened := e.OpenPort(t.Context(), c.spec); opened == nil || opened.Error() != err.Error() {
			t.Errorf("%+v: CheckPort says %v, and OpenPort %v", c.spec, err, opened)
		}
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// Without spare chunks packets are in slots that the kernel uses in place, or there is no queue:
// before there is memory as with it.
func TestCheckQueues(t *testing.T) {
	for _, c := range []struct {
		stride int
		o      Options
		want   error
	}{{2048, Options{Spare: -1}, nil}, {4096, Options{Spare: -1}, nil},
		{1536, Options{Spare: -1}, engine.ErrUnsupported}, {1536, Options{}, nil}} {
		pools := []engine.PoolSpec{{Name: "m", SlotSize: c.stride, Stride: c.stride}}
		ask := engine.Ask{Port: engine.PortSpec{Address: "lo", Options: c.o}, Rx: []engine.RxAsk{{Memory: pools}},
			Tx: []engine.TxAsk{{Memory: pools}}}
		_, found, err := engine.Check(New(), &ask)
		if err != nil || (len(found) == 2) != (c.want != nil) {
			t.Fatalf("slots of %d bytes: %v, %v", c.stride, found, err)
		}
		for i, e := range found {
			if !errors.Is(e, c.want) || e.Path != []string{"rx.queues[0].memory_regions",
				"tx.queues[0].memory_regions"}[i] {
				t.Errorf("slots of %d bytes: %s: %v", c.stride, e.Path, e)
			}
		}
	}
}
