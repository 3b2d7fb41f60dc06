package bench

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// onHost is memory of the runtime that every machine has.
func onHost(k mem.Kind) Place {
	if k == mem.Host {
		return Place{}
	}
	return Place{Kind: k, Runtime: "host"}
}

// Two real processes: each mix of memories, both paths, both directions; every row stands beside
// host memory, and all bytes were checked on both.
func TestMemories(t *testing.T) {
	for _, c := range []struct {
		local, remote mem.Kind
		target        map[string]float64 // by path
		copies        int                // by devices
	}{
		{mem.HostPinned, mem.HostPinned, map[string]float64{"shm": 1, "tcp": 1}, 0},
		{mem.Device, mem.Device, map[string]float64{"shm": 0.8, "tcp": 0.9}, 2},
		{mem.Device, mem.Host, map[string]float64{"shm": 0.8, "tcp": 0.9}, 1},
		{mem.Host, mem.Device, map[string]float64{"shm": 0.8, "tcp": 0.9}, 1},
	} {
		t.Run(fmt.Sprintf("%s and %s", c.local, c.remote), func(t *testing.T) {
			o := quick(t, "")
			o.Local, o.Remote, o.Budget = onHost(c.local), onHost(c.remote), 200*time.Microsecond
			o.Sizes = []uint64{13, 100_001, 9 << 20} // more than a window of the reader
			r, err := Transfer(limit(t), o)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Rows) != 2*2*3 || r.Method.Pairs != 2 || len(r.Missing) != 0 {
				t.Errorf("%d rows, %d pairs, missing %q", len(r.Rows), r.Method.Pairs, r.Missing)
			}
			for _, x := range r.Rows {
				if x.Ours.Verified != 2*x.Size || len(x.Theirs) != 1 || x.Cost == nil || x.Mode != Event {
					t.Errorf("%s: %+v", x.Name, x)
					continue
				}
				s := x.Theirs[0]
				if s.Name != hostMemory || s.Verified != 2*x.Size || s.Error != "" || s.Ratio == nil ||
					s.Ratio.Target != c.target[x.Path] {
					t.Errorf("%s: beside %+v", x.Name, s)
				}
				m := x.Memory
				if m == nil || m.Local != c.local.String() || m.Remote != c.remote.String() ||
					(m.LocalDevice == "") != (c.local == mem.Host) || (m.RemoteDevice == "") != (c.remote == mem.Host) {
					t.Errorf("%s: %+v", x.Name, m)
					continue
				}
				if m.DeviceCopies != c.copies || m.UserCopies+m.KernelCopies == 0 {
					t.Errorf("%s: %+v, expected %d copies by devices", x.Name, m, c.copies)
				}
			}
			for _, want := range []string{"a stand-in for a card"} {
				if !strings.Contains(strings.Join(r.Notes, "\n"), want) {
					t.Errorf("no %q in %q", want, r.Notes)
				}
			}
		})
	}
}

// The name of a row says between which memories, in the direction of the bytes.
func TestMemoryNames(t *testing.T) {
	dev, pin := Place{Kind: mem.Device}, Place{Kind: mem.HostPinned}
	for want, got := range map[string]string{
		"device to host": between(path.Put, dev, Place{}), "host to device": between(path.Get, dev, Place{}),
		"pinned to device": between(path.Put, pin, dev), "device to pinned": between(path.Get, pin, dev),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	h := shape{what: "put", path: "tcp", mode: Event, size: 1 << 20, peers: 1, memory: "device to host"}
	if got := h.title(); got != "tcp put 1 MiB event device to host" {
		t.Error(got)
	}
}

// What was not moved does not pass, whose memory it may be: the destination is overwritten before
// each sample.
func TestNoFakeSuccessOfMemory(t *testing.T) {
	for _, k := range []mem.Kind{mem.HostPinned, mem.Device} {
		for _, kind := range []path.OpKind{path.Put, path.Get} {
			t.Run(k.String()+" "+kindName(kind), func(t *testing.T) {
				o, l := memoryLink(t, k)
				x, err := o.newMemoryCopy(limit(t), l, kind, shape{path: "tcp", mode: Event, size: 70_000}, "memory",
					o.Local,
					o.Remote)
				if err != nil {
					t.Fatal(err)
				}
				if err := x.prepare(limit(t)); err != nil {
					t.Fatal(err)
				}
				if n, err := x.verify(limit(t)); !errors.Is(err, paired.ErrFailed) {
					t.Errorf("%d bytes passed, %v", n, err)
				}
				if err := x.close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// memoryLink is a link with the options that made it, with memory of a kind here.
func memoryLink(t *testing.T, k mem.Kind) (*TransferOptions, *link) {
	t.Helper()
	o := quick(t, "")
	o.Local, o.Remote, o.Budget = onHost(k), onHost(k), 200*time.Microsecond
	if err := o.defaults(); err != nil {
		t.Fatal(err)
	}
	l, err := o.dial(limit(t), nodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return &o, l
}

// The destination shows which of the two messages came last: one that came before it does not pass.
func TestTheLastMessageCounts(t *testing.T) {
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		o, l := memoryLink(t, mem.Device)
		x, err := o.newMemoryCopy(limit(t), l, kind, shape{path: "tcp", mode: Event, size: 70_000}, "memory", o.Local,
			o.Remote)
		if err != nil {
			t.Fatal(err)
		}
		s, err := x.sample(limit(t))
		if err != nil || s.Verified != 70_000 {
			t.Errorf("%s: %+v, %v", kindName(kind), s, err)
		}
		x.sent++ // as if one more had been sent
		if n, err := x.verify(limit(t)); !errors.Is(err, paired.ErrFailed) {
			t.Errorf("%s: a message that was not sent passed: %d bytes, %v", kindName(kind), n, err)
		}
		if err := x.close(); err != nil {
			t.Error(err)
		}
	}
}

// Transfer reports a path that the second process lacks as missing, and measures the others.
func TestMemoryOverMissingPath(t *testing.T) {
	o := quick(t, "")
	o.Local, o.Sizes, o.Budget = onHost(mem.Device), []uint64{1000}, 200*time.Microsecond
	o.Drivers = func(paths []string, insecure bool) ([]setup.Driver, error) {
		all, err := drivers.New(paths, insecure)
		return append(all, liarDriver{}), err // which the second process does not have
	}
	o.Paths = []string{"liar", "tcp"}
	r, err := Transfer(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 2 || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "liar put") {
		t.Errorf("%d rows, missing %q", len(r.Rows), r.Missing)
	}
}
