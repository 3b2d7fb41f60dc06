//go:build dpdk

package cdpdk

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/mem"
)

// noHuge are arguments of EAL that need nothing of the machine.
var noHuge = []string{"--no-huge", "-m", "256", "--no-shconf", "--no-telemetry", "-a", "0000:00:00.0", "--lcores", "0@(0-1)", "--iova-mode", "va"}

func TestMain(m *testing.M) {
	if err := Start(noHuge); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := Stop(); err != nil {
		panic(err)
	}
	os.Exit(code)
}

func TestStartTwice(t *testing.T) {
	if err := Start(noHuge); err != nil {
		t.Fatal(err)
	}
	if err := Start([]string{"-m", "1"}); !errors.Is(err, syscall.EALREADY) {
		t.Fatalf("a second start with other arguments: %v", err)
	}
}

func open(t *testing.T, devargs string) Port {
	t.Helper()
	ports, err := Attach(devargs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ports[0].Detach(); err != nil {
			t.Error(err)
		}
	})
	return ports[0]
}

func TestRing(t *testing.T) {
	p := open(t, "net_ring0")
	i, err := p.Info()
	t.Logf("%+v %v", i, err)
	if err := p.Configure(Config{Rx: 1, Tx: 1}); err != nil {
		t.Fatal(err)
	}
	r, err := mem.Alloc(mem.Options{Name: "slots", Size: 64 * 2048})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pool, err := NewSlotPool(address(r.All().Bytes()), 64, 2048, 2048, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.SetupRx(0, 128, []*Pool{pool}, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.SetupTx(0, 128, 0); err != nil {
		t.Fatal(err)
	}
	tx, err := NewTx(p, 0, 128)
	if err != nil {
		t.Fatal(err)
	}
	rx, err := NewRx(p, 0, []*Pool{pool})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	data := r.All().Bytes()[:100]
	for i := range data {
		data[i] = byte(i)
	}
	tx.Segs()[0] = Seg{Addr: uint64(address(data)), IOVA: uint64(address(data)), Index: 5, Len: 60, PktLen: 100, Segs: 2}
	tx.Segs()[1] = Seg{Addr: uint64(address(data)) + 60, IOVA: uint64(address(data)) + 60, Index: 7, Len: 40}
	if n, _ := tx.Burst(2); n != 2 {
		t.Fatal(n)
	}
	n, d := rx.Burst(0, 0, 32)
	if n != 1 || len(d) != 2 || d[0].Pool != Foreign || d[0].PktLen != 100 || d[0].Len != 60 || d[1].Len != 40 || d[0].Addr != uint64(address(data)) {
		t.Fatalf("%d %+v", n, d)
	}
	if len(tx.Reap()) != 0 {
		t.Fatal("reaped before it was freed")
	}
	FreeForeign([]uint64{d[0].Mbuf, d[1].Mbuf})
	if got := tx.Reap(); len(got) != 2 {
		t.Fatal(got)
	}
	_ = p.Stop()
	rx.Close()
	tx.Close()
	pool.Close()
}
