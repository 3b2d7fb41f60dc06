package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
)

// fakeDevice stands in for a card: its memory is out of reach of everything but its Mover, whose
// copies run on goroutines of their own, in any order, for a while. It detects accesses to host
// memory while a copy uses it.
type fakeDevice struct {
	t     testing.TB
	name  string
	plain bool // it only copies, at once and without looking
	fd    bool // its staging memory is memfds, which shared memory reaches

	live   atomic.Int64 // copies under way
	most   atomic.Int64 // at once
	moves  atomic.Int64 // begun
	bytes  atomic.Int64
	staged atomic.Int64 // regions of staging memory that exist
	room   atomic.Int64 // how many of these there may be

	regions []*mem.Region

	mu     sync.Mutex
	rand   *rand.Rand
	fail   func(n int64, store bool) error    // the error of copy n, from 1
	gate   <-chan struct{}                    // not nil: copies do not end before it is closed
	slow   func(bytes uint64) <-chan struct{} // gate of a copy of so many bytes
	damage bool                               // a byte of every store is wrong
	begun  chan struct{}                      // buffered; gets a value at each copy
}

var errLost = errors.New("fake device: lost")

// newFakeDevice makes one. Make it before the nodes that use its memory: when they are closed
// nothing may be left.
func newFakeDevice(t testing.TB, name string) *fakeDevice {
	d := &fakeDevice{t: t, name: name, fd: true, rand: rand.New(rand.NewPCG(1, uint64(len(name)))),
		begun: make(chan struct{}, 1<<16)}
	d.room.Store(1 << 20)
	t.Cleanup(func() {
		for _, r := range d.regions {
			r.Close()
			select {
			case <-r.Unmapped():
			default:
				t.Errorf("%s: %d leases on its memory are left", d.name, r.Leases())
			}
		}
		if live, staged := d.live.Load(), d.staged.Load(); live != 0 || staged != 0 {
			t.Errorf("%s: at the end %d copies are under way, and there are %d regions of staging memory", d.name, live,
				staged)
		}
	})
	return d
}

// fakeMemory is the Mover of one region.
type fakeMemory struct {
	d *fakeDevice
	b []byte
}

// region is memory of the device. The bytes are its own: look at them only while nothing moves.
func (d *fakeDevice) region(size int) (*mem.Region, []byte) {
	b := make([]byte, size)
	return d.regionOf(b), b
}

// regionOf is memory of the device whose bytes are in b.
func (d *fakeDevice) regionOf(b []byte) *mem.Region {
	d.t.Helper()
	m := &fakeMemory{d: d, b: b}
	r, err := mem.AdoptMapping("memory of "+d.name,
		mem.Mapping{Kind: mem.Device, Size: uint64(len(b)), PageSize: 4096, FD: -1, NUMANode: -1, Mover: m})
	if err != nil {
		d.t.Fatal(err)
	}
	d.regions = append(d.regions, r)
	return r
}

func (m *fakeMemory) Device() string        { return m.d.name }
func (m *fakeMemory) Staging() mem.Provider { return (*fakeStaging)(m.d) }

func (m *fakeMemory) Load(dst mem.Span, off uint64) (mem.Move, error) {
	return m.move(dst, off, false)
}

func (m *fakeMemory) Store(off uint64, src mem.Span) (mem.Move, error) {
	return m.move(src, off, true)
}

type fakeMove struct {
	over chan struct{}
	err  error
}

func (v *fakeMove) Done() (bool, error) {
	select {
	case <-v.over:
		return true, v.err
	default:
		return false, nil
	}
}

func (v *fakeMove) Wait(ctx context.Context) error {
	select {
	case <-v.over:
		return v.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// underLoad is what host memory holds while a load is under way.
const underLoad = 0xd7

func (m *fakeMemory) move(host mem.Span, off uint64, store bool) (mem.Move, error) {
	d := m.d
	n := d.moves.Add(1)
	d.mu.Lock()
	var err error
	if d.fail != nil {
		err = d.fail(n, store)
	}
	late := d.rand.IntN(2) == 0 // the error comes at once, or with the end of the copy
	damage := d.damage
	pause := time.Duration(d.rand.IntN(300)) * time.Microsecond
	gate := d.gate
	if d.slow != nil {
		gate = d.slow(host.Len)
	}
	d.mu.Unlock()
	if err != nil && !late {
		return nil, err
	}
	if off > uint64(len(m.b)) || host.Len > uint64(len(m.b))-off {
		return nil, fmt.Errorf("fake device: offset %d + %d bytes of %d: %w", off, host.Len, len(m.b), mem.ErrBounds)
	}
	lease, lerr := host.Region.Lease()
	if lerr != nil {
		return nil, lerr
	}
	live := d.live.Add(1)
	for most := d.most.Load(); live > most && !d.most.CompareAndSwap(most, live); most = d.most.Load() {
	}
	d.bytes.Add(int64(host.Len))
	v := &fakeMove{over: make(chan struct{})}
	b := host.Bytes()
	sum := uint32(0)
	if d.plain {
		go func() {
			if store {
				copy(m.b[off:], b)
			} else {
				copy(b, m.b[off:])
			}
			d.live.Add(-1)
			lease.Release()
			close(v.over)
		}()
		return v, nil
	}
	if store {
		sum = crc32.ChecksumIEEE(b)
	} else {
		for i := range b {
			b[i] = underLoad
		}
	}
	d.begun <- struct{}{}
	go func() {
		time.Sleep(pause)
		if gate != nil {
			<-gate
		}
		switch {
		case store && crc32.ChecksumIEEE(b) != sum:
			d.t.Errorf("%s: the host memory of a store changed while it was under way", d.name)
		case !store && bytes.Count(b, []byte{underLoad}) != len(b):
			d.t.Errorf("%s: the host memory of a load changed while it was under way", d.name)
		}
		if err == nil && store {
			copy(m.b[off:], b)
			if damage {
				m.b[off] ^= 1
			}
		} else if err == nil {
			copy(b, m.b[off:])
		}
		v.err = err
		d.live.Add(-1)
		lease.Release()
		close(v.over)
	}()
	return v, nil
}

// fakeStaging makes staging memory and counts it.
type fakeStaging fakeDevice

func (s *fakeStaging) Allocate(o mem.Options) (mem.Mapping, error) {
	d := (*fakeDevice)(s)
	if o.Kind != mem.HostPinned {
		return mem.Mapping{}, fmt.Errorf("kind %s: %w", o.Kind, mem.ErrUnavailable)
	}
	if d.staged.Add(1) > d.room.Load() {
		d.staged.Add(-1)
		return mem.Mapping{}, errors.New("fake device: no pinned memory left")
	}
	r, err := mem.Alloc(mem.Options{Name: o.Name, Size: o.Size})
	if err != nil {
		return mem.Mapping{}, err
	}
	m := mem.Mapping{Kind: mem.HostPinned, Bytes: r.All().Bytes(), Size: r.Len(), PageSize: r.PageSize(), FD: -1,
		NUMANode: -1}
	if d.fd {
		m.FD = r.FD()
	}
	for i := range m.Bytes { // as if an earlier user had left them there
		m.Bytes[i] = 0x5a
	}
	m.Free = func() error {
		d.staged.Add(-1)
		return r.Close()
	}
	return m, nil
}
