package cudatest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/dl"
)

func events(r *rig) {
	c := r.open()
	least, greatest, err := c.Priorities()
	if err != nil || greatest > least {
		r.Fatalf("priorities %d to %d, %v", least, greatest, err)
	}
	a, b := must[*cuda.Stream](r)(c.NewStream(greatest)), r.stream(c)
	if p := must[int](r)(a.Priority()); p != greatest {
		r.Errorf("priority %d, want %d", p, greatest)
	}
	began, e := r.event(c, cuda.EventSpec{Timing: true, Spin: true}), r.event(c, cuda.EventSpec{Timing: true})
	p := r.alloc(c, 1<<20)
	r.ok(began.Record(a))
	for i := range uint32(8) {
		r.ok(a.Fill(p, 4, i, 1<<18))
	}
	r.ok(e.Record(a), b.Wait(e), b.Fill(p, 4, 99, 1), b.Synchronize())
	if done, err := e.Done(); !done || err != nil {
		r.Errorf("what b waited for is not done: %v", err)
	}
	if done, err := a.Done(); !done || err != nil {
		r.Errorf("a is not done: %v", err)
	}
	if got := r.content(c, p, 8); !bytes.Equal(got, []byte{99, 0, 0, 0, 7, 0, 0, 0}) {
		r.Errorf("% x", got)
	}
	r.ok(e.Synchronize())
	if ms, err := e.Milliseconds(began); err != nil || ms < 0 {
		r.Errorf("%v ms between the events, %v", ms, err)
	}
	_, err = c.NewEvent(cuda.EventSpec{Timing: true, Share: true})
	r.wants(err, nil, "one of the two")
	r.ok(a.Close(), c.Synchronize())
}

// streamValues: a stream waits for a word that the CPU writes, and writes one that the CPU reads.
func streamValues(r *rig) {
	if r.older(cuda.StreamValues) {
		return
	}
	c := r.open()
	s := r.stream(c)
	h := r.pinned(c, 64, cuda.HostMapped)
	clear(h)
	p := must[cuda.Pointer](r)(c.HostPointer(dl.Address(h)))
	r.ok(s.AwaitValue32(p, 5), s.WriteValue32(p+8, 6))
	wide := must[int](r)(r.dev.Attribute(cuda.StreamValues64)) != 0
	if wide {
		r.ok(s.AwaitValue64(p+16, 1<<40), s.WriteValue64(p+24, 1<<41))
	}
	if done, err := s.Done(); done || err != nil {
		r.Errorf("done before the word is there: %v", err)
	}
	word(h).Store(5)
	word(h[20:]).Store(1 << 8) // the upper half of 1<<40
	r.ok(s.Synchronize())
	if binary.LittleEndian.Uint32(h[8:]) != 6 || wide && binary.LittleEndian.Uint64(h[24:]) != 1<<41 {
		r.Errorf("% x", h[:32])
	}
}

func modules(r *rig) {
	c := r.open()
	m := r.module(c)
	s := r.stream(c)
	g, n, err := m.Global("answer")
	if err != nil || n != 4 || g == 0 {
		r.Fatalf("global at %#x of %d bytes, %v", g, n, err)
	}
	r.misuse(func() {
		_, _, err := m.Global("question")
		r.wants(err, nil, `"question"`, "NOT_FOUND")
		_, err = m.Function("nothing")
		r.wants(err, nil, `"nothing"`, "NOT_FOUND")
	})
	l := r.launch(m, "remember")
	r.ok(l.Run(s, cuda.Dim{X: 1}, cuda.Dim{X: 1}, 0), s.Synchronize())
	if got := r.content(c, g, 4); got[0] != 42 {
		r.Errorf("the answer is %d", got[0])
	}
	f := must[*cuda.Function](r)(m.Function("remember"))
	if v := must[int](r)(f.Attribute(cuda.FunctionPTXVersion)); v < 50 || f.Name() != "remember" {
		r.Errorf("PTX version %d", v)
	}
	if b := must[int](r)(f.BlocksPerMultiprocessor(128, 0)); b < 1 {
		r.Errorf("%d blocks", b)
	}
	r.ok(f.SetAttribute(cuda.FunctionMaxDynamicShared, 48<<10))
}

func badModules(r *rig) {
	c := r.open()
	_, _, err := c.Load(nil)
	r.wants(err, nil, "empty")
	_, _, err = c.Load([]byte("// x\x00y"))
	r.wants(err, nil, "zero byte")
	r.misuse(func() {
		_, _, err := c.Load([]byte(".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry x(.param .what " +
			"y)\n{\n}\n"))
		var le *cuda.LoadError
		if !errors.As(err, &le) || le.Log == "" {
			r.Errorf("no log with %v", err)
		}
		r.wants(err, nil, "INVALID_PTX", "line 4")
		_, _, err = c.Load([]byte(".version 99.0\n.target sm_50\n.address_size 64\n"))
		r.wants(err, nil)
		r.Log(err)
		_, _, err = c.Load([]byte(".version 6.0\n.target sm_999\n.address_size 64\n"))
		r.wants(err, nil)
		r.Log(err)
	})
}

// arguments: every argument and dimension arrives in its place.
func arguments(r *rig) {
	c := r.open()
	m := r.module(c)
	s := r.stream(c)
	out := r.alloc(c, 128)
	l := r.launch(m, "arguments", 8, 1, 2, 4, 8)
	run := func(name string, run func() error, want ...uint64) {
		r.Helper()
		r.ok(run(), s.Synchronize())
		b := r.content(c, out, 128)
		for i, w := range want {
			if got := binary.LittleEndian.Uint64(b[8*i:]); got != w {
				r.Errorf("%s: word %d is %#x, want %#x", name, i, got, w)
			}
		}
	}
	for i, v := range []uint64{uint64(out), 0xfa, 0xfbcd, 0xfedcba98, 0x8899aabbccddeeff} {
		l.Set(i, v)
		if l.Get(i) != v {
			r.Errorf("argument %d is %#x", i, l.Get(i))
		}
	}
	run("three dimensions", func() error {
		return l.Run(s, cuda.Dim{X: 3, Y: 4, Z: 5}, cuda.Dim{X: 6, Y: 7, Z: 2}, 1024)
	},
		3, 4, 5, 6, 7, 2, 1024, 5, 0xfa, 0xfbcd, 0xfedcba98, 0x8899aabbccddeeff)
	run("one dimension", func() error { return l.Run(s, cuda.Dim{X: 9}, cuda.Dim{X: 32}, 0) }, 9, 1, 1, 32, 1, 1, 0)
	if r.info.CooperativeLaunch {
		run("together", func() error {
			return l.RunTogether(s, cuda.Dim{X: 2, Y: 2}, cuda.Dim{X: 32, Z: 2}, 16)
		}, 2, 2, 1, 32, 1, 2, 16)
	}
	// What is in the stream keeps its arguments.
	run("changed afterwards", func() error {
		err := l.Run(s, cuda.Dim{X: 1}, cuda.Dim{X: 1}, 0)
		l.Set(4, 1)
		return err
	}, 1, 1, 1, 1, 1, 1, 0, 5, 0xfa, 0xfbcd, 0xfedcba98, 0x8899aabbccddeeff)
	r.misuse(func() {
		r.wants(l.Run(s, cuda.Dim{X: 1}, cuda.Dim{X: 4096}, 0), nil, "arguments", "4096", "cuLaunchKernel")
	})
	_, err := must[*cuda.Function](r)(m.Function("arguments")).NewLaunch(8, 16)
	r.wants(err, nil, "parameter 1", "16 bytes")
}

// threads: any goroutine may call. A driver refuses calls on a thread without a context.
func threads(r *rig) {
	all := must[[]*cuda.Device](r)(r.d.Devices())
	contexts := []*cuda.Context{r.open()}
	if len(all) > 1 {
		contexts = append(contexts, r.openOn(all[1]))
	}
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			c := contexts[i%len(contexts)]
			for range 4 {
				s, err := c.NewStream(0)
				if err != nil {
					r.Error(err)
					return
				}
				e, err1 := c.NewEvent(cuda.EventSpec{})
				p, err2 := c.Alloc(4096)
				b, err3 := dl.Alloc(4)
				if err := errors.Join(err1, err2, err3); err != nil {
					r.Error(err)
					return
				}
				r.ok(s.Fill(p, 4, uint32(i), 1024), e.Record(s), e.Synchronize(), c.FromDevice(dl.Address(b), p, 4))
				if got := binary.LittleEndian.Uint32(b); got != uint32(i) {
					r.Errorf("goroutine %d finds %d", i, got)
				}
				dl.Free(b)
				r.ok(e.Close(), s.Close(), c.Free(p))
			}
		})
	}
	wg.Wait()
}

func released(r *rig) {
	a, b := must[*cuda.Context](r)(r.dev.Retain()), must[*cuda.Context](r)(r.dev.Retain())
	r.ok(a.Release(), a.Release())
	if !must[bool](r)(r.dev.Active()) {
		r.Error("not active although b is open")
	}
	_, err := a.Alloc(1)
	r.wants(err, cuda.ErrLost, "released")
	r.ok(b.Free(must[cuda.Pointer](r)(b.Alloc(1))), b.Release())
	if must[bool](r)(r.dev.Active()) {
		r.Error("active after everybody left")
	}
}

// allocations: the calls of the hot path allocate nothing.
func allocations(r *rig) {
	c := r.open()
	m := r.module(c)
	s := r.stream(c)
	e := r.event(c, cuda.EventSpec{})
	h := r.pinned(c, 4096, 0)
	p, q := r.alloc(c, 4096), r.alloc(c, 4096)
	l := r.launch(m, "increment", 8, 4)
	for name, call := range map[string]func() error{
		"launch": func() error {
			l.Set(0, uint64(p))
			l.Set(1, 64)
			return l.Run(s, cuda.Dim{X: 1}, cuda.Dim{X: 64}, 0)
		},
		"to":     func() error { return s.ToDevice(p, dl.Address(h), 64) },
		"from":   func() error { return s.FromDevice(dl.Address(h), p, 64) },
		"on":     func() error { return s.OnDevice(q, p, 64) },
		"fill":   func() error { return s.Fill(q, 4, 1, 16) },
		"record": func() error { return e.Record(s) },
		"wait":   func() error { return s.Wait(e) },
		"query":  func() error { _, err := e.Done(); return err },
		"sync":   func() error { return e.Synchronize() },
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := call(); err != nil {
				r.Fatal(name, err)
			}
		}); n != 0 {
			r.Errorf("%s allocates %v times", name, n)
		}
	}
	r.ok(s.Synchronize())
}
