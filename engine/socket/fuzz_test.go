package socket

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// FuzzAddress reads addresses of ports. What is accepted is complete.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"udp://[::]:5000", "udp://:0?remote=10.0.0.2:5000",
		"udp://:5?group=239.1.2.3&group=ff02::1&interface=e0", "udp://?remote=a:1",
		"tcp://10.0.0.2:5000?local=:7", "tcp://[fe80::1%25eth0]:5000?listen=1", "tcp://host:1", "udp://%zz",
		"udp://:1?remote=%zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 64 {
			return
		}
		a, err := parseAddress(s)
		if err != nil {
			if a.scheme != "" || err.Error() == "" {
				t.Errorf("%q: an error and %+v", s, a)
			}
			return
		}
		switch {
		case a.scheme == "udp" && !a.listen && !(a.remote.given() && (a.remote.host == "" || a.remote.port == 0)):
		case a.scheme == "tcp" && (a.listen && !a.remote.given() || !a.listen && a.remote.host != "" &&
			a.remote.port > 0):
		default:
			t.Errorf("%q is %+v", s, a)
		}
		if a.local.given() {
			if again, err := parseEndpoint(a.local.String()); err != nil || again != a.local {
				t.Errorf("%q: %v is written as %q: %v", s, a.local, a.local.String(), err)
			}
		}
	})
}

// cmsg is a control message as the kernel writes it.
func cmsg(level, kind uint32, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(16+len(data)))
	b = binary.NativeEndian.AppendUint32(b, level)
	b = binary.NativeEndian.AppendUint32(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, -len(b)&7)...)
}

func times(software, hardware uint64) (b []byte) {
	for _, ns := range []uint64{software, 0, hardware} {
		b = binary.NativeEndian.AppendUint64(b, ns/1e9)
		b = binary.NativeEndian.AppendUint64(b, ns%1e9)
	}
	return b
}

// FuzzReceived reads control messages. What is put in front of garbage is found all the same.
func FuzzReceived(f *testing.F) {
	f.Add(cmsg(sys.SolUDP, sys.UDPGRO, binary.NativeEndian.AppendUint32(nil, 1400)...))
	f.Add(cmsg(sys.SolSocket, sys.SoTimestamping, times(1e18, 5)...))
	f.Add(cmsg(sys.SolSocket, sys.SoTimestamping, make([]byte, 48)...)) // no time at all
	f.Add(cmsg(1, 2, 3)[:17])
	f.Fuzz(func(t *testing.T, b []byte) {
		r := sys.ParseReceived(b)
		if r.Segment < 0 || r.Segment > 1<<16 || r.Time < 0 || r.HardwareTime < 0 {
			t.Errorf("%+v", r)
		}
		front := slices.Concat(cmsg(sys.SolUDP, sys.UDPGRO, binary.NativeEndian.AppendUint32(nil, 1234)...),
			cmsg(sys.SolSocket, sys.SoTimestamping, times(7e18, 8)...))
		if got := sys.ParseReceived(front); got != (sys.Received{Time: 7e18, HardwareTime: 8, Segment: 1234}) {
			t.Errorf("%+v", got)
		}
		if got := sys.ParseReceived(append(front, b...)); r == (sys.Received{}) &&
			got != (sys.Received{Time: 7e18, HardwareTime: 8, Segment: 1234}) {
			t.Errorf("with garbage behind: %+v", got)
		}
	})
}

// TestPeersModel compares the table of peers with a list.
func TestPeersModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "size")
		p := newPeers(size)
		type entry struct {
			id   uint32
			addr sys.SockAddr
		}
		var model []entry // used last, first
		old := map[uint32]bool{}
		for range 200 {
			if rapid.Bool().Draw(t, "find") && len(model) > 0 {
				i := rapid.IntRange(0, len(model)-1).Draw(t, "entry")
				e := model[i]
				if a, ok := p.find(e.id); !ok || *a != e.addr {
					t.Fatalf("id %#x is %v, %v", e.id, a, ok)
				}
				model = append([]entry{e}, slices.Delete(model, i, i+1)...)
				continue
			}
			port := rapid.Uint16Range(1, 12).Draw(t, "port")
			a := sys.MakeSockAddr(netip.AddrPortFrom(netip.MustParseAddr("fe80::1"), port), uint32(port%2))
			id := p.of(&a)
			i := slices.IndexFunc(model, func(e entry) bool { return e.addr == a })
			if i >= 0 {
				if model[i].id != id {
					t.Fatalf("the id of %v was %#x and is %#x", a, model[i].id, id)
				}
				model = slices.Delete(model, i, i+1)
			} else if old[id] {
				t.Fatalf("id %#x was another's", id)
			}
			old[id] = true
			model = append([]entry{{id, a}}, model...)
			for len(model) > size {
				last := len(model) - 1
				if _, ok := p.find(model[last].id); ok {
					t.Fatalf("the one that was silent longest is still there")
				}
				model = model[:last]
			}
		}
		for _, id := range []uint32{0, 1 << 16, 0xffff, ^uint32(0)} {
			if _, ok := p.find(id); ok && !old[id] {
				t.Fatalf("id %#x was never given, and is there", id)
			}
		}
	})
}

// TestSlotsModel takes and fills slots at random: each position has the buffer of its own slot,
// none is lost and none there twice.
func TestSlotsModel(t *testing.T) {
	pool, err := mem.NewPool(mem.PoolOptions{Name: "slots", SlotSize: 64, Slots: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	src := burst.PoolSource(pool)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "n")
		at := make([]*byte, n)
		s := newSlots(pool, src, n, func(i int, b []byte) { at[i] = &b[0] })
		defer s.close()
		var out []mem.Handle
		for range 50 {
			have := s.fill()
			if want := min(n, pool.Slots()-len(out)); have != want {
				t.Fatalf("%d slots, expected %d: %d are out", have, want, len(out))
			}
			seen := map[mem.Handle]bool{}
			for i, h := range s.h[:have] {
				if h == burst.NoHandle || seen[h] || at[i] != &s.all[pool.Offset(h)] {
					t.Fatalf("position %d has slot %#x and the buffer of another, or twice", i, h)
				}
				seen[h] = true
			}
			if have == 0 {
				pool.PutBatch(out)
				out = nil
				continue
			}
			s.used = rapid.IntRange(0, have).Draw(t, "used")
			for i := range s.used {
				if rapid.Bool().Draw(t, "taken") {
					out = append(out, s.take(i))
				}
			}
			k := rapid.IntRange(0, len(out)).Draw(t, "back")
			pool.PutBatch(out[:k])
			out = out[k:]
		}
		pool.PutBatch(out)
	})
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
}
