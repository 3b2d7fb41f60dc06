package engine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// wakeLimit only guards against hanging.
const wakeLimit = time.Minute

func await(t *testing.T, w *Waker) {
	t.Helper()
	select {
	case <-w.C():
	case <-time.After(wakeLimit):
		t.Fatal("no wake-up")
	}
}

func silent(t *testing.T, w *Waker) {
	t.Helper()
	select {
	case <-w.C():
		t.Error("a wake-up that nobody asked for")
	default:
	}
}

func pair(t *testing.T) (a, b *os.File) {
	t.Helper()
	a, b, err := sys.SocketPairStream(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// loops is the number of reactor goroutines.
func loops() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "(*Loop).run(")
}

func awaitLoops(t *testing.T, n int) {
	t.Helper()
	for start := time.Now(); loops() != n; runtime.Gosched() {
		if time.Since(start) > wakeLimit {
			t.Fatalf("%d goroutines, want %d", loops(), n)
		}
	}
}

func TestWaker(t *testing.T) {
	w := NewWaker()
	silent(t, w)
	w.Wake()
	w.Wake()
	await(t, w)
	silent(t, w)
}

func TestReactor(t *testing.T) {
	var r Reactor
	a, b := pair(t)
	fd := int(a.Fd())
	w := NewWaker()
	if err := r.Arm(fd, w); err != ErrClosed {
		t.Errorf("not registered: %v", err)
	}
	r.Remove(fd)
	if err := r.Add(fd); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(fd); err == nil {
		t.Error("registered twice")
	}
	awaitLoops(t, 1)
	arm := func(w *Waker) {
		t.Helper()
		if err := r.Arm(fd, w); err != nil {
			t.Fatal(err)
		}
	}
	// Bytes come after, and before.
	arm(w)
	silent(t, w)
	b.Write([]byte("x"))
	await(t, w)
	silent(t, w) // once
	arm(w)
	await(t, w)
	// The second Arm takes the place of the first.
	buf := make([]byte, 8)
	a.Read(buf)
	w2 := NewWaker()
	arm(w)
	arm(w2)
	b.Write([]byte("x"))
	await(t, w2)
	silent(t, w)
	// Hang-up counts.
	a.Read(buf)
	arm(w)
	b.Close()
	await(t, w)
	arm(w)
	await(t, w)
	r.Remove(fd)
	awaitLoops(t, 0)
	r.Remove(fd)
	if err := r.Arm(fd, w); err != ErrClosed {
		t.Error(err)
	}
	// It starts again.
	if err := r.Add(fd); err != nil {
		t.Fatal(err)
	}
	arm(w)
	await(t, w)
	r.Remove(fd)
	awaitLoops(t, 0)

	// What cannot be watched is refused, and starts nothing.
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := r.Add(int(f.Fd())); err == nil {
		t.Error("a file can be watched?")
	}
	awaitLoops(t, 0)
}

// A descriptor that was hung up and is not armed costs nothing.
func TestReactorHangUp(t *testing.T) {
	var r Reactor
	a, b := pair(t)
	c, d := pair(t)
	r.Add(int(a.Fd()))
	r.Add(int(c.Fd()))
	defer r.Remove(int(a.Fd()))
	defer r.Remove(int(c.Fd()))
	b.Close()
	w := NewWaker()
	for range 10 {
		r.Arm(int(c.Fd()), w)
		d.Write([]byte("x"))
		await(t, w)
		c.Read(make([]byte, 1))
	}
	if n := r.rounds(); n > 30 {
		t.Errorf("the goroutine was woken %d times for 10 events", n)
	}
}

// A quiet descriptor is on no list of waiters: it is not in the epoll instance any more. Arming
// puts it back, and one that is armed stays.
func TestReactorQuiet(t *testing.T) {
	var r Reactor
	a, b := pair(t)
	fd := int(a.Fd())
	if !r.Quiet(fd) {
		t.Error("one that is not registered is on a list")
	}
	if err := r.Add(fd); err != nil {
		t.Fatal(err)
	}
	listed := func() bool {
		t.Helper()
		info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", r.loop.epoll.FD()))
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(info)) {
			if f := strings.Fields(l); len(f) > 1 && f[0] == "tfd:" && f[1] == strconv.Itoa(fd) {
				return true
			}
		}
		return false
	}
	w := NewWaker()
	for range 3 {
		if !listed() || !r.Quiet(fd) || listed() || !r.Quiet(fd) {
			t.Fatal("it is not quiet")
		}
		if err := r.Add(fd); !errors.Is(err, ErrExists) {
			t.Errorf("registered twice: %v", err)
		}
		if err := r.Arm(fd, w); err != nil {
			t.Fatal(err)
		}
		if r.Quiet(fd) || !listed() {
			t.Error("armed, and quiet")
		}
		b.Write([]byte("x"))
		await(t, w)
		a.Read(make([]byte, 1))
	}
	r.Quiet(fd)
	r.Remove(fd)
	awaitLoops(t, 0)
	if err := r.Add(fd); err != nil || !listed() {
		t.Fatal(err)
	}
	r.Remove(fd)
	awaitLoops(t, 0)
}

// rounds is how often the goroutine woke up.
func (r *Reactor) rounds() uint64 { return r.loop.rounds.Load() }

// Removing a descriptor that is armed leaves the others alone.
func TestReactorRemove(t *testing.T) {
	var r Reactor
	a, b := pair(t)
	c, d := pair(t)
	for range 100 {
		w, v := NewWaker(), NewWaker()
		r.Add(int(a.Fd()))
		r.Add(int(c.Fd()))
		r.Arm(int(a.Fd()), w)
		r.Arm(int(c.Fd()), v)
		r.Remove(int(a.Fd()))
		b.Write([]byte("x"))
		d.Write([]byte("x"))
		await(t, v)
		silent(t, w)
		buf := make([]byte, 8)
		a.Read(buf)
		c.Read(buf)
		r.Remove(int(c.Fd()))
	}
	awaitLoops(t, 0)
}

// Byte after byte over several descriptors, which come and go: none gets stuck.
func TestReactorStress(t *testing.T) {
	var r Reactor
	var wg sync.WaitGroup
	for range 4 {
		a, b := pair(t)
		fd := int(a.Fd())
		const total = 500
		wg.Go(func() {
			for n := range total {
				if _, err := b.Write([]byte{byte(n)}); err != nil {
					t.Error(err)
					return
				}
				if n%7 == 0 {
					runtime.Gosched()
				}
			}
		})
		wg.Go(func() {
			w := NewWaker()
			buf := make([]byte, 3)
			if err := r.Add(fd); err != nil {
				t.Error(err)
				return
			}
			for next := 0; next < total; {
				if err := r.Arm(fd, w); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-w.C():
				case <-time.After(wakeLimit):
					t.Errorf("stuck at byte %d", next)
					return
				}
				n, err := a.Read(buf) // not more than is there: a socket
				if err != nil {
					t.Error(err)
					return
				}
				for _, x := range buf[:n] {
					if x != byte(next) {
						t.Errorf("byte %d, expected %d", x, byte(next))
					}
					next++
				}
				if next%50 == 0 {
					r.Remove(fd)
					w = NewWaker()
					if err := r.Add(fd); err != nil {
						t.Error(err)
						return
					}
				}
			}
			r.Remove(fd)
		})
	}
	wg.Wait()
	awaitLoops(t, 0)
}
