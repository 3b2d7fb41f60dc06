package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// The other process of these tests and benchmarks is this test binary, started again with childEnv
// set to "role addr token".
const childEnv = "PENSTOCK_SHM_CHILD"

func TestMain(m *testing.M) {
	if v := os.Getenv(childEnv); v != "" {
		if err := childMain(strings.Fields(v)); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// roles are what a child does with its path; each ends when the path is down or its input ends.
var roles = map[string]func(p *Path, x *path.Exports) error{
	"echo": func(p *Path, x *path.Exports) error { return childServe(p, x, true) },
	"park": func(p *Path, x *path.Exports) error { return childServe(p, x, false) },
}

func childMain(args []string) error {
	if strings.HasPrefix(args[0], "foreign") {
		return foreignMain(args)
	}
	token, err := hex.DecodeString(args[2])
	if err != nil {
		return err
	}
	x := new(path.Exports)
	p, err := Driver{}.Dial(context.Background(), setup.Offer{Addr: args[1], Token: setup.Token(token)},
		setup.Config{Rights: path.Read | path.Write, Exports: x})
	if err != nil {
		return err
	}
	defer p.Close()
	return roles[args[0]](p.(*Path), x)
}

// childServe exports 256 MiB, tells the key in its first notification, and answers every
// notification: with Imm 1 by a put of 64 bytes into the export whose key is the message, otherwise
// by a bare one.
func childServe(p *Path, x *path.Exports, spin bool) error {
	runtime.LockOSThread()
	r, err := mem.Alloc(mem.Options{Name: "child", Size: 256 << 20})
	if err != nil {
		return err
	}
	e, err := x.Add(r.All(), path.Read|path.Write)
	if err != nil {
		return err
	}
	if _, err := p.Post([]path.Op{{Kind: path.Notify, Msg: e.Key().Append(nil)}}); err != nil {
		return err
	}
	w, err := path.NewWaiter()
	if err != nil {
		return err
	}
	events := make([]path.Event, 16)
	put := []path.Op{{Kind: path.Put, Notify: true, Copies: []path.Copy{{Local: mem.Span{Region: r, Len: 64}}}}}
	plain := []path.Op{{Kind: path.Notify}}
	for {
		n := p.Poll(events)
		if n == 0 && !spin {
			if n, err = w.Wait(context.Background(), p, events, 0); err != nil {
				return err
			}
		}
		for i := range n {
			switch e := &events[i]; e.Kind {
			case path.EventDown:
				return nil
			case path.EventDone:
				if e.Err != nil {
					return e.Err
				}
			case path.EventNotify:
				op := plain
				if len(e.Msg) == path.KeySize {
					put[0].Copies[0].Key = path.ParseKey(e.Msg)
				}
				if e.Imm == 1 {
					op = put
				}
				if _, err := p.Post(op); err != nil {
					return err
				}
			}
		}
	}
}

// child starts the other process with a role and returns this side's path.
func child(t testing.TB, d Driver, role string, x *path.Exports) (*Path, *exec.Cmd) {
	t.Helper()
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	token := newToken()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %x", childEnv, role, l.Addr(), token[:]))
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			fmt.Fprintln(os.Stderr, s.Text())
		}
	}()
	t.Cleanup(func() { cmd.Process.Kill(); <-done; cmd.Wait() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p, err := l.Accept(ctx, token, setup.Config{Rights: path.Read | path.Write, Exports: x})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p.(*Path), cmd
}

// until polls until an event of the kind comes and returns it.
func until(t testing.TB, p *Path, kind path.EventKind) path.Event {
	t.Helper()
	var e [1]path.Event
	for start := time.Now(); ; {
		for range 1000 {
			if p.Poll(e[:]) == 0 {
				continue
			}
			if e[0].Kind == path.EventDone && e[0].Err != nil && kind != path.EventDone {
				t.Fatalf("operation %d: %v", e[0].Token, e[0].Err)
			}
			if e[0].Kind == kind {
				return e[0]
			}
			if e[0].Kind == path.EventDown {
				t.Fatalf("down: %v", e[0].Err)
			}
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("event kind %d does not come; %v", kind, p.Explain())
		}
		runtime.Gosched()
	}
}

func benchRegion(b testing.TB, size int) *mem.Region {
	r, err := mem.Alloc(mem.Options{Name: "bench", Size: size})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.Close() })
	return r
}

// BenchmarkPingPong reports half the round trip of a 64-byte put with notification, in ns.
func BenchmarkPingPong(b *testing.B) {
	for _, role := range []string{"echo", "park"} {
		b.Run(role, func(b *testing.B) {
			runtime.LockOSThread()
			x := new(path.Exports)
			r := benchRegion(b, 4096)
			own, err := x.Add(r.All(), path.Read|path.Write)
			if err != nil {
				b.Fatal(err)
			}
			p, _ := child(b, Driver{}, role, x)
			key := path.ParseKey(until(b, p, path.EventNotify).Msg)
			op := []path.Op{{Kind: path.Put, Notify: true, Imm: 1, Msg: own.Key().Append(nil),
				Copies: []path.Copy{{Local: mem.Span{Region: r, Len: 64}, Key: key}}}}
			var events [16]path.Event
			round := func() {
				if _, err := p.Post(op); err != nil {
					b.Fatal(err)
				}
				for got := false; !got; {
					for _, e := range events[:p.Poll(events[:])] {
						if e.Kind == path.EventNotify {
							got = true
						} else if e.Err != nil {
							b.Fatal(e.Err)
						}
					}
				}
			}
			for range 1000 {
				round()
				op[0].Msg = nil
			}
			times := make([]time.Duration, 0, b.N)
			for b.Loop() {
				start := time.Now()
				round()
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2])/2, "p50-ns")
			b.ReportMetric(float64(times[len(times)*99/100])/2, "p99-ns")
		})
	}
}

// BenchmarkPut reports puts into the other process, beside the built-in copy between two regions of
// this one in turns.
func BenchmarkPut(b *testing.B) {
	for _, d := range []Driver{{}, {NoHelp: true}} {
		for _, c := range []struct{ blocks, size int }{{1, 64 << 10}, {1, 1 << 20}, {1, 16 << 20}, {1, 256 << 20},
			{1024, 4096}, {1024, 64 << 10}} {
			b.Run(fmt.Sprintf("help=%v/%dx%dKiB", !d.NoHelp, c.blocks, c.size>>10), func(b *testing.B) {
				runtime.LockOSThread()
				p, _ := child(b, d, "echo", new(path.Exports))
				key := path.ParseKey(until(b, p, path.EventNotify).Msg)
				total := c.blocks * c.size
				src, dst := benchRegion(b, total), benchRegion(b, total)
				copies := make([]path.Copy, c.blocks)
				for i := range copies {
					j := i * 7919 % c.blocks
					copies[i] = path.Copy{Local: mem.Span{Region: src, Off: uint64(i * c.size), Len: uint64(c.size)},
						Key: key, RemoteOff: uint64(j * c.size)}
				}
				op := []path.Op{{Kind: path.Put, Copies: copies}}
				put := func() {
					if _, err := p.Post(op); err != nil {
						b.Fatal(err)
					}
					until(b, p, path.EventDone)
				}
				s, t := src.All().Bytes(), dst.All().Bytes()
				for range 3 {
					put()
					copy(t, s)
				}
				reps := max(1, (16<<20)/total)
				var ours, plain []float64
				for b.Loop() {
					start := time.Now()
					for range reps {
						put()
					}
					ours = append(ours, float64(time.Since(start)))
					start = time.Now()
					for range reps {
						copy(t, s)
					}
					plain = append(plain, float64(time.Since(start)))
				}
				slices.Sort(ours)
				slices.Sort(plain)
				bytes := float64(total * reps)
				b.ReportMetric(bytes/ours[len(ours)/2], "GB/s")
				b.ReportMetric(bytes/plain[len(plain)/2], "copy-GB/s")
				b.ReportMetric(plain[len(plain)/2]/ours[len(ours)/2], "ratio")
				st := p.Stats()
				b.ReportMetric(float64(st.HelpedBytes)/float64(max(st.BytesPut, 1)), "helped")
			})
		}
	}
}

// BenchmarkCalls reports what the calls themselves cost.
func BenchmarkCalls(b *testing.B) {
	for _, size := range []int{0, 64, 4096, 65536} {
		b.Run(fmt.Sprintf("put-%d", size), func(b *testing.B) {
			x := new(path.Exports)
			p, q := connect(b, Driver{}, setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
				setup.Config{Rights: path.Read | path.Write, Exports: x})
			defer q.Close()
			defer p.Close()
			r, s := benchRegion(b, 65536), benchRegion(b, 65536)
			e, err := x.Add(r.All(), path.Read|path.Write)
			if err != nil {
				b.Fatal(err)
			}
			op := []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: mem.Span{Region: s, Len: uint64(size)},
				Key: e.Key()}}}}
			p.Post(op)
			for n := 0; n == 0; {
				var ev [1]path.Event
				q.Poll(ev[:])
				n = p.Poll(ev[:])
			}
			var ev [4]path.Event
			for b.Loop() {
				p.Post(op)
				if p.Poll(ev[:]) != 1 {
					b.Fatal("not done")
				}
			}
			b.SetBytes(int64(size))
		})
	}
	b.Run("idle-poll", func(b *testing.B) {
		p, q := connect(b, Driver{}, setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
			setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
		defer q.Close()
		defer p.Close()
		var ev [4]path.Event
		for b.Loop() {
			p.Poll(ev[:])
		}
	})
	b.Run("borrow", func(b *testing.B) {
		x := new(path.Exports)
		p, q := connect(b, Driver{}, setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
			setup.Config{Rights: path.Read | path.Write, Exports: x})
		defer q.Close()
		defer p.Close()
		r := benchRegion(b, 65536)
		e, err := x.Add(r.All(), path.Read)
		if err != nil {
			b.Fatal(err)
		}
		for _, err := p.Borrow(e.Key(), 0, 1); err != nil; _, err = p.Borrow(e.Key(), 0, 1) {
			p.Poll(nil)
			q.Poll(nil)
		}
		b.ReportAllocs()
		for b.Loop() {
			v, err := p.Borrow(e.Key(), 0, 65536)
			if err != nil {
				b.Fatal(err)
			}
			v.Release()
		}
	})
}

// BenchmarkConnect reports how long it takes to set a path up and to close it, with both ends in
// this process.
func BenchmarkConnect(b *testing.B) {
	for b.Loop() {
		p, q := connect(b, Driver{}, setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
			setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
		p.Close()
		q.Close()
	}
}
