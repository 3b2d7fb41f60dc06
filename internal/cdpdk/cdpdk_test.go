//go:build dpdk

package cdpdk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/mem"
)

// noHuge are arguments of EAL that need nothing of the machine.
var noHuge = []string{"--no-huge", "-m", "256", "--no-shconf", "--no-telemetry", "-a", "0000:00:00.0", "--lcores",
	"0@(0-1)", "--iova-mode", "va"}

// startWith is the variable of the environment of a child that starts EAL with its arguments,
// prints the error, and ends in order.
const startWith = "PENSTOCK_TEST_EAL"

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(startWith); ok {
		err := Start(strings.Fields(args))
		fmt.Printf("start: %v\nagain: %v\n", err, Start(strings.Fields(args)))
		os.Exit(0)
	}
	before = process()
	if err := Start(noHuge); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := Stop(); err != nil {
		panic(err)
	}
	os.Exit(code)
}

var before map[string]string

// process is what EAL could have changed of the process: the processors of its threads, but for
// one, and the signals that it handles.
func process() map[string]string {
	out := map[string]string{}
	status := func(file, key string) string {
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, key+":"); ok {
				return strings.TrimSpace(v)
			}
		}
		return ""
	}
	for _, key := range []string{"SigCgt", "SigIgn"} {
		out[key] = status("/proc/self/status", key)
	}
	threads, _ := filepath.Glob("/proc/self/task/*/status")
	for _, file := range threads {
		out[file] = status(file, "Cpus_allowed_list")
	}
	return out
}

// TestProcess: EAL changes no signal, and not the processors of threads that were there before.
func TestProcess(t *testing.T) {
	now := process()
	for key, was := range before {
		if is, ok := now[key]; ok && is != was {
			t.Errorf("%s was %s, and is %s", key, was, is)
		}
	}
	if before["SigCgt"] == "" || len(before) < 4 {
		t.Fatalf("nothing was read: %v", before)
	}
}

// TestFailures: what EAL refuses is an error that says what EAL wrote, and the process goes on.
func TestFailures(t *testing.T) {
	base := "--no-huge --no-shconf --no-telemetry --allow 0000:00:00.0 "
	for _, x := range []struct{ args, want string }{
		{base + "--lcores 0@(4000)", "core"},
		{base + "--lcores x", "lcores"},
		{base + "-d /is/not/there.so", "/is/not/there.so"},
		{base + "--no-such-argument", "rte_eal_init"},
		{base + "-m 999999999", "memory"},
		{base + "--in-memory", "rte_eal_init"}, // not with --no-huge
	} {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), startWith+"="+x.args)
		out, err := c.CombinedOutput()
		text := string(out)
		if err != nil || !strings.Contains(text, "start: rte_eal_init") || !strings.Contains(text, x.want) ||
			strings.Contains(text, "again: <nil>") {
			t.Errorf("%s: %v\n%s", x.args, err, text)
		}
	}
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
	device := ports[0].Device()
	t.Cleanup(func() {
		if err := errors.Join(ports[0].Close(), device.Remove()); err != nil {
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
	if err := p.SetupRx(0, 128, pool, nil, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.SetupTx(0, 128, 0); err != nil {
		t.Fatal(err)
	}
	tx, err := NewTx(p, 0, 128, true)
	if err != nil {
		t.Fatal(err)
	}
	rx, err := NewRx(p, 0, pool)
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
	tx.Segs()[0] = Seg{Addr: uint64(address(data)), Index: 5, Len: 60, PktLen: 100, Segs: 2}
	tx.Segs()[1] = Seg{Addr: uint64(address(data)) + 60, Index: 7, Len: 40}
	if n, _ := tx.Burst(2); n != 2 {
		t.Fatal(n)
	}
	n, d := rx.Burst(0, 32)
	if n != 1 || len(d) != 2 || !d[0].Foreign || d[0].PktLen != 100 || d[0].Len != 60 || d[1].Len != 40 ||
		d[0].Addr != uint64(address(data)) {
		t.Fatalf("%d %+v", n, d)
	}
	if len(tx.Reap(true)) != 0 {
		t.Fatal("reaped before it was freed")
	}
	FreeForeign([]uint64{d[0].Mbuf, d[1].Mbuf})
	if got := tx.Reap(true); len(got) != 2 {
		t.Fatal(got)
	}
	_ = p.Stop()
	rx.Close()
	tx.Close()
	pool.Close()
}
