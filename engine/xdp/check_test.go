package xdp

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/testenv"
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
	if holds, err := e.CheckPort(t.Context(), engine.PortSpec{Address: "lo", Options: &Options{Ring: 64}}); holds != "interface lo" || err != nil {
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

// Without spare chunks packets are in slots that the kernel uses in place, or there is no queue: before there is memory as with it.
func TestCheckQueues(t *testing.T) {
	e, port := New(), engine.PortSpec{Name: "p", Options: Options{Spare: -1}}
	for _, c := range []struct {
		stride int
		port   engine.PortSpec
		want   error
	}{{2048, port, nil}, {4096, port, nil}, {1536, port, engine.ErrUnsupported}, {1536, engine.PortSpec{}, nil}} {
		pools := []engine.PoolSpec{{Name: "m", Slots: 64, SlotSize: c.stride, Stride: c.stride}}
		for what, err := range map[string]error{"receive": e.CheckRxQueue(c.port, engine.RxSpec{}, pools), "transmit": e.CheckTxQueue(c.port, engine.TxSpec{}, pools)} {
			if !errors.Is(err, c.want) {
				t.Errorf("%s: slots of %d bytes: %v", what, c.stride, err)
			}
		}
	}
}
