package path

import (
	"bytes"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/mem"
)

func region(t testing.TB, size int) *mem.Region {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Name: "exports", Size: size, Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// Resolve is Reach.Resolve for a peer that may do everything that the exports permit.
func (x *Exports) Resolve(k Key, off, n uint64, want Rights) ([]byte, error) {
	return x.Reach(Read|Write, 0).Resolve(k, off, n, want)
}

func add(t testing.TB, x *Exports, s mem.Span, r Rights) *Export {
	t.Helper()
	e, err := x.Add(s, r)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestResolve(t *testing.T) {
	const size = 8192
	var x Exports
	r := region(t, size)
	rw := add(t, &x, r.All(), Read|Write)
	ro := add(t, &x, r.All(), Read)
	wo := add(t, &x, r.All(), Write)
	part := add(t, &x, mem.Span{Region: r, Off: 100, Len: 50}, Read|Write)
	none := add(t, &x, mem.Span{Region: r, Off: size}, Read)
	revoked := add(t, &x, r.All(), Read)
	x.Revoke(revoked)
	foreign := add(t, new(Exports), r.All(), Read|Write)
	forge := func(f func(k *Key)) Key { k := rw.Key(); f(&k); return k }
	const max = math.MaxUint64
	for _, c := range []struct {
		name   string
		key    Key
		off, n uint64
		want   Rights
		err    error
	}{
		{"all", rw.Key(), 0, size, Read | Write, nil},
		{"first byte", rw.Key(), 0, 1, Read, nil},
		{"last byte", rw.Key(), size - 1, 1, Write, nil},
		{"nothing at the end", rw.Key(), size, 0, Read, nil},
		{"nothing behind the end", rw.Key(), size + 1, 0, Read, ErrBounds},
		{"one too many", rw.Key(), 0, size + 1, Read, ErrBounds},
		{"one behind", rw.Key(), size, 1, Read, ErrBounds},
		{"last and one more", rw.Key(), size - 1, 2, Read, ErrBounds},
		{"length 2^64-1", rw.Key(), 0, max, Read, ErrBounds},
		{"length 2^64-1 from 1: sum 0", rw.Key(), 1, max, Read, ErrBounds},
		{"length wraps to inside", rw.Key(), size, max - size + 10, Read, ErrBounds},
		{"offset 2^64-1", rw.Key(), max, 0, Read, ErrBounds},
		{"offset 2^64-1, one byte: sum 0", rw.Key(), max, 1, Read, ErrBounds},
		{"both 2^64-1", rw.Key(), max, max, Read, ErrBounds},
		{"offset 2^63", rw.Key(), 1 << 63, 1 << 63, Read, ErrBounds},
		{"offset 2^32", rw.Key(), 1 << 32, 1, Read, ErrBounds},
		{"part: first byte", part.Key(), 0, 1, Read, nil},
		{"part: all", part.Key(), 0, 50, Write, nil},
		{"part: into the rest of the region", part.Key(), 50, 1, Read, ErrBounds},
		{"part: before it, by wrapping", part.Key(), max - 99, 100, Read, ErrBounds},
		{"empty span", none.Key(), 0, 0, Read, nil},
		{"empty span, one byte", none.Key(), 0, 1, Read, ErrBounds},
		{"read-only, to write", ro.Key(), 0, 1, Write, ErrRights},
		{"read-only, for both", ro.Key(), 0, 1, Read | Write, ErrRights},
		{"write-only, to read", wo.Key(), 0, 1, Read, ErrRights},
		{"write-only, to write", wo.Key(), 0, 1, Write, nil},
		{"rights come before bounds", ro.Key(), max, max, Write, ErrRights},
		{"rights that do not exist", rw.Key(), 0, 1, 4, ErrRights},
		{"revoked", revoked.Key(), 0, 1, Read, ErrRevoked},
		{"revoked, guessed secret", Key{revoked.Key().Index, revoked.Key().Epoch, 1}, 0, 1, Read, ErrKey},
		{"foreign", foreign.Key(), 0, 1, Read, ErrKey},
		{"zero key", Key{}, 0, 1, Read, ErrKey},
		{"secret, lowest bit", forge(func(k *Key) { k.Secret ^= 1 }), 0, 1, Read, ErrKey},
		{"secret, highest bit", forge(func(k *Key) { k.Secret ^= 1 << 63 }), 0, 1, Read, ErrKey},
		{"next epoch", forge(func(k *Key) { k.Epoch++ }), 0, 1, Read, ErrKey},
		{"earlier epoch", forge(func(k *Key) { k.Epoch-- }), 0, 1, Read, ErrKey},
		{"other index", forge(func(k *Key) { k.Index = ro.Key().Index }), 0, 1, Read, ErrKey},
		{"index behind the table", forge(func(k *Key) { k.Index = 7 }), 0, 1, Read, ErrKey},
		{"highest index", forge(func(k *Key) { k.Index = math.MaxUint32 }), 0, 1, Read, ErrKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := x.Resolve(c.key, c.off, c.n, c.want)
			if err != c.err { // the bare errors, as documented
				t.Fatalf("error %v, expected %v", err, c.err)
			}
			if err != nil {
				if b != nil {
					t.Error("bytes along with an error")
				}
				return
			}
			if uint64(len(b)) != c.n || cap(b) != len(b) {
				t.Fatalf("%d bytes with room for %d, expected %d", len(b), cap(b), c.n)
			}
			e, _ := x.Lookup(c.key)
			if want := e.Span().Bytes()[c.off:]; c.n > 0 && &b[0] != &want[0] {
				t.Error("the bytes are not those of the span")
			}
		})
	}
	var empty Exports
	if _, err := empty.Resolve(Key{}, 0, 0, 0); err != ErrKey {
		t.Errorf("empty table: %v", err)
	}
}

func TestAddRefuses(t *testing.T) {
	var x Exports
	r := region(t, 4096)
	for _, c := range []struct {
		name   string
		span   mem.Span
		rights Rights
		err    error // nil: any
	}{
		{"no rights", r.All(), 0, nil},
		{"no region", mem.Span{}, Read, mem.ErrBounds},
		{"unknown rights", r.All(), 4 | Read, nil},
		{"span behind the region", mem.Span{Region: r, Off: 4096, Len: 1}, Read, mem.ErrBounds},
		{"span that overflows", mem.Span{Region: r, Off: math.MaxUint64, Len: 2}, Read, mem.ErrBounds},
	} {
		if e, err := x.Add(c.span, c.rights); err == nil || e != nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v", c.name, e, err)
		}
	}
	if r.Leases() != 0 {
		t.Errorf("%d leases after refused exports", r.Leases())
	}
	r.Close()
	if _, err := x.Add(r.All(), Read); !errors.Is(err, mem.ErrClosed) {
		t.Errorf("export of a closed region: %v", err)
	}
	if len(x.All()) != 0 {
		t.Error("refused exports are listed")
	}
}

func TestDesc(t *testing.T) {
	var x Exports
	r := region(t, 8192)
	foreign, err := mem.Adopt("foreign", make([]byte, 100), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		span  mem.Span
		whole bool
	}{
		{r.All(), true},
		{mem.Span{Region: r, Len: 8191}, false},
		{mem.Span{Region: r, Off: 1, Len: 8191}, false},
		{foreign.All(), false},
	} {
		e := add(t, &x, c.span, Write)
		want := Desc{Key: e.Key(), Size: c.span.Len, Rights: Write, Whole: c.whole}
		if got := e.Desc(); got != want {
			t.Errorf("Desc of offset %d + %d in %q: %+v, expected %+v", c.span.Off, c.span.Len, c.span.Region.Name(),
				got, want)
		}
		if e.Span() != c.span || e.Rights() != Write {
			t.Errorf("Span %+v, Rights %v", e.Span(), e.Rights())
		}
	}
}

// TestLife walks an export through its states: the lease ends with Retire, the index comes back
// with a new epoch.
func TestLife(t *testing.T) {
	var x Exports
	r := region(t, 4096)
	e := add(t, &x, r.All(), Read)
	other := add(t, &x, r.All(), Read)
	if r.Leases() != 2 {
		t.Fatalf("%d leases for 2 exports", r.Leases())
	}
	x.Retire(e) // not revoked yet: nothing happens
	if _, err := x.Lookup(e.Key()); err != nil || e.Revoked() {
		t.Fatalf("Retire before Revoke took effect: %v", err)
	}
	if !x.Revoke(e) || x.Revoke(e) || !e.Revoked() {
		t.Fatal("Revoke must return true the first time only")
	}
	if _, err := x.Lookup(e.Key()); err != ErrRevoked {
		t.Fatalf("lookup of a revoked export: %v", err)
	}
	if r.Leases() != 2 {
		t.Fatalf("%d leases: the lease must last until Retire", r.Leases())
	}
	if all := x.All(); len(all) != 1 || all[0] != other {
		t.Errorf("All lists %d exports, expected the live one", len(all))
	}
	before := add(t, &x, r.All(), Read) // the index is not free yet
	if before.Key().Index == e.Key().Index {
		t.Fatal("index used again before Retire")
	}
	x.Retire(e)
	x.Retire(e)
	if r.Leases() != 2 { // other and before
		t.Fatalf("%d leases after Retire, expected 2: its lease must end exactly once", r.Leases())
	}
	if _, err := x.Lookup(e.Key()); err != ErrKey {
		t.Fatalf("lookup of a retired export: %v", err)
	}
	if x.Revoke(e) {
		t.Error("Revoke of a retired export returned true")
	}
	again := add(t, &x, r.All(), Read)
	if again.Key().Index != e.Key().Index || again.Key().Epoch == e.Key().Epoch ||
		again.Key().Secret == e.Key().Secret {
		t.Errorf("key after reuse %+v, before %+v: expected the same index with a new epoch and secret", again.Key(),
			e.Key())
	}
	if _, err := x.Lookup(e.Key()); err != ErrKey {
		t.Errorf("the old key finds the export that reuses its index: %v", err)
	}
	stale := again.Key()
	stale.Epoch = e.Key().Epoch
	if _, err := x.Lookup(stale); err != ErrKey {
		t.Errorf("old epoch with the new secret: %v", err)
	}

	// A closed region stays mapped until the last export of it is retired.
	r.Close()
	for _, e := range []*Export{other, before, again} {
		select {
		case <-r.Unmapped():
			t.Fatal("unmapped under a live export")
		default:
		}
		x.Revoke(e)
		x.Retire(e)
	}
	<-r.Unmapped()
}

// TestExportsModel compares the table with a map under random programs.
func TestExportsModel(t *testing.T) {
	r := region(t, 4096)
	rapid.Check(t, func(t *rapid.T) {
		var x Exports
		state := map[*Export]uint32{}
		var made []*Export
		keys := map[Key]bool{}
		pick := func(t *rapid.T) *Export {
			if len(made) == 0 {
				return nil
			}
			return made[rapid.IntRange(0, len(made)-1).Draw(t, "which")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				off := rapid.Uint64Range(0, 4096).Draw(t, "off")
				n := rapid.Uint64Range(0, 4096-off).Draw(t, "n")
				rights := Rights(rapid.IntRange(1, 3).Draw(t, "rights"))
				e, err := x.Add(mem.Span{Region: r, Off: off, Len: n}, rights)
				if err != nil {
					t.Fatal(err)
				}
				if keys[e.Key()] {
					t.Fatalf("key %+v was used before", e.Key())
				}
				for k := range keys {
					if k.Epoch == e.Key().Epoch {
						t.Fatalf("epoch %d was used before", k.Epoch)
					}
				}
				keys[e.Key()] = true
				made = append(made, e)
				state[e] = exportLive
			},
			"revoke": func(t *rapid.T) {
				e := pick(t)
				if e == nil {
					return
				}
				if got, want := x.Revoke(e), state[e] == exportLive; got != want {
					t.Fatalf("Revoke returned %v, expected %v", got, want)
				}
				state[e] = max(state[e], exportRevoked)
			},
			"retire": func(t *rapid.T) {
				e := pick(t)
				if e == nil {
					return
				}
				x.Retire(e)
				if state[e] == exportRevoked {
					state[e] = exportRetired
				}
			},
			"resolve": func(t *rapid.T) {
				e := pick(t)
				if e == nil {
					return
				}
				off, n := rapid.Uint64().Draw(t, "off"), rapid.Uint64().Draw(t, "n")
				if rapid.Bool().Draw(t, "near") {
					off, n = off%4100, n%4100
				}
				want := Rights(rapid.IntRange(0, 3).Draw(t, "want"))
				b, err := x.Resolve(e.Key(), off, n, want)
				var expect error
				switch {
				case state[e] == exportRetired:
					expect = ErrKey
				case state[e] == exportRevoked:
					expect = ErrRevoked
				case want&^e.Rights() != 0:
					expect = ErrRights
				case off > e.Span().Len || n > e.Span().Len-off:
					expect = ErrBounds
				}
				if err != expect || err == nil && uint64(len(b)) != n {
					t.Fatalf("Resolve: %d bytes, %v; expected %v", len(b), err, expect)
				}
			},
			"": func(t *rapid.T) {
				live, leased, inUse := 0, 0, map[uint32]*Export{}
				for _, e := range made {
					if state[e] == exportLive {
						live++
					}
					if state[e] != exportRetired {
						leased++
						if o := inUse[e.Key().Index]; o != nil {
							t.Fatalf("index %d is in use twice", e.Key().Index)
						}
						inUse[e.Key().Index] = e
					}
				}
				if got := len(x.All()); got != live {
					t.Fatalf("All lists %d exports, expected %d", got, live)
				}
				if r.Leases() != leased {
					t.Fatalf("%d leases, expected %d", r.Leases(), leased)
				}
			},
		})
		for _, e := range made {
			x.Revoke(e)
			x.Retire(e)
		}
	})
}

// TestExportsConcurrent looks up while the table changes under it. A key must never find another
// export than its own, and never none while it is live.
func TestExportsConcurrent(t *testing.T) {
	const changers, rounds = 3, 2000
	var x Exports
	regions := make([]*mem.Region, changers)
	var current [changers]atomic.Pointer[Export]
	for i := range regions {
		regions[i] = region(t, 4096)
		current[i].Store(add(t, &x, regions[i].All(), Read))
	}
	stable := add(t, &x, regions[0].All(), Read|Write)
	var readers, writers sync.WaitGroup
	var stop atomic.Bool
	for range 2 {
		readers.Go(func() {
			for !stop.Load() {
				if _, err := x.Resolve(stable.Key(), 4095, 1, Write); err != nil {
					t.Errorf("an export that nobody touches: %v", err)
					return
				}
				for i := range current {
					e := current[i].Load()
					got, err := x.Lookup(e.Key())
					if err == nil && got != e {
						t.Error("a key found another export")
						return
					}
					if err != nil && !e.Revoked() {
						t.Errorf("a live export: %v", err)
						return
					}
				}
				for _, e := range x.All() {
					if e == nil {
						t.Error("All lists nil")
						return
					}
				}
			}
		})
	}
	for i := range regions {
		writers.Go(func() {
			for range rounds {
				old := current[i].Load()
				e, err := x.Add(regions[i].All(), Read)
				if err != nil {
					t.Error(err)
					return
				}
				current[i].Store(e)
				if !x.Revoke(old) {
					t.Error("Revoke of a live export returned false")
				}
				x.Retire(old)
			}
		})
	}
	// Everybody revokes and retires these: exactly one may win.
	shared := make([]*Export, 500)
	for i := range shared {
		shared[i] = add(t, &x, regions[0].All(), Read)
	}
	var won atomic.Int32
	for range 3 {
		writers.Go(func() {
			for _, e := range shared {
				if x.Revoke(e) {
					won.Add(1)
				}
				x.Retire(e)
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	if int(won.Load()) != len(shared) {
		t.Errorf("%d of %d revocations returned true", won.Load(), len(shared))
	}
	if got := regions[0].Leases(); got != 2 { // current[0] and stable
		t.Errorf("%d leases, expected 2", got)
	}
	if n := len(x.All()); n != changers+1 {
		t.Errorf("%d exports, expected %d", n, changers+1)
	}
}

func TestResolveAllocs(t *testing.T) {
	var x Exports
	e := add(t, &x, region(t, 4096).All(), Read)
	k, bad := e.Key(), e.Key()
	bad.Secret++
	n := testing.AllocsPerRun(100, func() {
		x.Resolve(k, 1, 100, Read)
		x.Resolve(k, 1, 4096, Read)
		x.Resolve(k, 1, 1, Write)
		x.Resolve(bad, 1, 1, Write)
	})
	if n != 0 {
		t.Errorf("%v allocations in Resolve", n)
	}
}

func TestKeyWire(t *testing.T) {
	k := Key{Index: 0x01020304, Epoch: 0x05060708, Secret: 0x090a0b0c0d0e0f10}
	want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	if got := k.Append([]byte{99}); !bytes.Equal(got[1:], want) || got[0] != 99 || len(want) != KeySize {
		t.Errorf("wire form %x, expected 63%x", got, want)
	}
	if got := ParseKey(append(want, 7)); got != k {
		t.Errorf("parsed %+v, expected %+v", got, k)
	}
}

// FuzzResolve throws references from the wire at a table of three exports, one of them revoked.
// Nothing outside the spans may ever come out.
func FuzzResolve(f *testing.F) {
	r := region(f, 4096)
	var x Exports
	live := []*Export{add(f, &x, mem.Span{Region: r, Off: 10, Len: 100}, Read), add(f, &x, r.All(), Read|Write)}
	gone := add(f, &x, r.All(), Read|Write)
	x.Revoke(gone)
	for _, e := range append(live, gone) {
		f.Add(e.Key().Append(nil), uint64(0), uint64(100), byte(Read))
		f.Add(e.Key().Append(nil), uint64(math.MaxUint64), uint64(2), byte(Write))
		f.Add(e.Key().Append(nil), uint64(50), uint64(math.MaxUint64-49), byte(3))
	}
	f.Add(make([]byte, KeySize), uint64(0), uint64(0), byte(0))
	f.Fuzz(func(t *testing.T, wire []byte, off, n uint64, want byte) {
		if len(wire) < KeySize {
			return
		}
		k := ParseKey(wire)
		if back := k.Append(nil); !bytes.Equal(back, wire[:KeySize]) {
			t.Fatalf("key %x comes back as %x", wire[:KeySize], back)
		}
		b, err := x.Resolve(k, off, n, Rights(want))
		if err != nil {
			if err != ErrKey && err != ErrRevoked && err != ErrRights && err != ErrBounds {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		for _, e := range live {
			if e.Key() == k {
				s := e.Span().Bytes()
				if Rights(want)&^e.Rights() != 0 || uint64(len(b)) != n || off+n < off || off+n > uint64(len(s)) ||
					n > 0 && &b[0] != &s[off] {
					t.Fatalf("Resolve of %+v offset %d + %d for %d gave %d bytes", k, off, n, want, len(b))
				}
				return
			}
		}
		t.Fatalf("a key that is not live was accepted: %+v", k)
	})
}

// TestReach checks that a peer reaches no more than both its own rights and the export permit, and
// nothing that is for another peer.
func TestReach(t *testing.T) {
	var x Exports
	r := region(t, 4096)
	both, err := x.Add(r.All(), Read|Write)
	if err != nil {
		t.Fatal(err)
	}
	own, err := x.AddFor(r.All(), Read|Write, 7, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		rights Rights
		peer   uint64
		e      *Export
		want   Rights
		expect error
	}{
		{"everything", Read | Write, 0, both, Read | Write, nil},
		{"nothing was said", 0, 0, both, Read, ErrRights},
		{"nothing was said, to write", 0, 0, both, Write, ErrRights},
		{"reader reads", Read, 0, both, Read, nil},
		{"reader writes", Read, 0, both, Write, ErrRights},
		{"writer reads", Write, 0, both, Read, ErrRights},
		{"unknown key", Read, 8, own, Read, ErrKey},
		{"nobody", Read, 0, own, Read, ErrKey},
		{"who says that it is all peers", Read, AllPeers, own, Read, ErrKey},
		{"owner", Read | Write, 7, own, Read | Write, nil},
		{"owner without rights", Read, 7, own, Write, ErrRights},
	} {
		b, err := x.Reach(c.rights, c.peer).Resolve(c.e.Key(), 1, 10, c.want)
		if err != c.expect || err == nil && len(b) != 10 {
			t.Errorf("%s: %d bytes, %v; expected %v", c.name, len(b), err, c.expect)
		}
	}
	if _, have, err := x.Reach(Read, 0).Lookup(both.Key()); err != nil || have != Read {
		t.Errorf("rights %v, %v: expected read", have, err)
	}
	if _, err := x.AddFor(r.All(), Read, 0, false); err == nil {
		t.Error("an export for the peer 0")
	}
	x.Revoke(own)
	if _, err := x.Reach(Read, 7).Resolve(own.Key(), 0, 1, Read); err != ErrRevoked {
		t.Errorf("after the revocation: %v", err)
	}
}
