package pathtest

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

type badOp struct {
	name string
	op   path.Op
	want []error // any of; empty: any error
}

// checkRefusals names memory that must not be reached. Each bad operation goes out between two good
// ones.
func checkRefusals(t testing.TB, f Factory) {
	p := newPair(t, f)
	for _, s := range p.Sides() {
		o := s.Other()
		l := p.direction(s, 1<<20)
		var guarded []*path.Export
		export := func(r path.Rights) *path.Export {
			e := o.Export(o.Region(4096), r)
			guarded = append(guarded, e)
			return e
		}
		for _, bad := range badOps(t, s, l, export) {
			Fill(l.here, 1)
			setAll(l.there, canary)
			for _, e := range guarded {
				setAll(e.Span().Bytes(), canary)
			}
			const n = 5000
			results := s.Post(l.op(path.Put, l.copyOf(0, 0, n)), bad.op, l.op(path.Put, l.copyOf(n, n, n)))
			p.Drive("a bad operation and its neighbours: "+bad.name, func() bool { return s.pending == 0 })
			e := results[1].Event
			if e.Err == nil {
				t.Fatalf("%s: succeeded", bad.name)
			}
			if len(bad.want) > 0 {
				wantErr(t, bad.name, e.Err, bad.want...)
			}
			for i := 0; i < 3; i += 2 {
				if results[i].Err != nil {
					t.Fatalf("%s: its neighbour failed as well: %v\n%s", bad.name, results[i].Err, p.Dump())
				}
			}
			wantFill(t, bad.name+": the good neighbours", l.there[:2*n], 1)
			wantAll(t, bad.name+": memory that nobody named", l.there[1<<19:], canary)
			wantFill(t, bad.name+": local memory", l.here, 1)
			for _, e := range guarded {
				wantAll(t, bad.name+": an export that was not to be written", e.Span().Bytes(), canary)
			}
		}
		s.MustDo(l.op(path.Put, l.copyOf(0, 0, 1<<20)))
		s.MustDo(l.op(path.Get, l.copyOf(0, 0, 1<<20)))
	}
}

func badOps(t testing.TB, s *Side, l direction, export func(path.Rights) *path.Export) []badOp {
	o := s.Other()
	const both = path.Read | path.Write
	at := func(k path.Key, off, n uint64) []path.Copy {
		return []path.Copy{{Local: mem.Span{Region: l.local, Len: n}, Key: k, RemoteOff: off}}
	}
	var out []badOp
	add := func(name string, copies []path.Copy, want ...error) {
		for _, kind := range bothKinds {
			out = append(out, badOp{kindNames[kind] + ": " + name, l.op(kind, copies...), want})
		}
	}

	good := l.export.Key()
	forge := func(f func(k *path.Key)) path.Key { k := good; f(&k); return k }
	add("forged secret", at(forge(func(k *path.Key) { k.Secret ^= 1 << 40 }), 0, 100), path.ErrKey)
	add("later epoch", at(forge(func(k *path.Key) { k.Epoch++ }), 0, 100), path.ErrKey, path.ErrRevoked)
	add("unknown index", at(forge(func(k *path.Key) { k.Index = 77 }), 0, 100), path.ErrKey)
	add("highest index", at(forge(func(k *path.Key) { k.Index = math.MaxUint32 }), 0, 100), path.ErrKey)
	add("zero key", at(path.Key{}, 0, 100), path.ErrKey)
	add("export of our own node", at(s.Export(s.Region(4096), both).Key(), 0, 100), path.ErrKey)
	add("forged secret, large", at(forge(func(k *path.Key) { k.Secret ^= 1 << 40 }), 0, 1<<19), path.ErrKey)

	// A key that was used before it was revoked, one whose index is in use again, and one that was
	// never used.
	revoked, retired := export(both), export(both)
	s.MustDo(path.Op{Kind: path.Put, Copies: at(revoked.Key(), 0, 100)})
	s.MustDo(path.Op{Kind: path.Get, Copies: at(retired.Key(), 0, 100)})
	o.Exports.Revoke(revoked)
	o.Exports.Revoke(retired)
	for _, e := range []*path.Export{revoked, retired} {
		o.MustDo(path.Op{Kind: path.Fence, Key: e.Key()})
	}
	o.Exports.Retire(retired)
	if again := export(both); again.Key().Index != retired.Key().Index {
		t.Fatalf("index %d is not used again", retired.Key().Index)
	}
	unused := export(both)
	o.Exports.Revoke(unused)
	add("revoked and fenced", at(revoked.Key(), 0, 100), path.ErrRevoked, path.ErrKey)
	add("revoked and fenced, large", at(revoked.Key(), 0, 4096), path.ErrRevoked, path.ErrKey)
	add("retired, index used again", at(retired.Key(), 0, 100), path.ErrRevoked, path.ErrKey)
	if !s.Path.Capabilities().OneSided {
		unfenced := export(both)
		s.MustDo(path.Op{Kind: path.Put, Copies: at(unfenced.Key(), 0, 100)})
		o.Exports.Revoke(unfenced)
		add("revoked, not fenced", at(unfenced.Key(), 0, 100), path.ErrRevoked, path.ErrKey)
	}
	add("revoked before first use", at(unused.Key(), 0, 100), path.ErrRevoked, path.ErrKey)

	size := l.export.Span().Len
	for _, b := range []struct {
		name   string
		off, n uint64
	}{
		{"one byte behind the end", size, 1},
		{"last byte and one more", size - 1, 2},
		{"far behind the end", size + 1<<30, 100},
		{"beyond 2^32", 1 << 32, 100},
		{"beyond 2^63", 1 << 63, 100},
		{"offset 2^64-1", math.MaxUint64, 1},
		{"offset + length = 2^64", math.MaxUint64 - 99, 100},
		{"offset + length wraps to inside", math.MaxUint64 - 9, 100},
		{"all of it and one more", 1, size},
		{"empty, behind the end", size + 1, 0},
	} {
		add(b.name, at(good, b.off, b.n), path.ErrBounds)
	}
	readable, writable := export(path.Read).Key(), export(path.Write).Key()
	for _, n := range []uint64{1, 100, 4096} {
		out = append(out, badOp{"put into an export for reading", l.op(path.Put, at(readable, 0, n)...),
			[]error{path.ErrRights}},
			badOp{"get from an export for writing", l.op(path.Get, at(writable, 0, n)...), []error{path.ErrRights}})
	}

	// A bad block in the middle of good ones.
	list := slices.Concat(at(good, 0, 5000), at(good, size, 1), at(good, 0, 5000))
	out = append(out, badOp{"bad block in a list", l.op(path.Put, list...), []error{path.ErrBounds}})

	// Mistakes of our own.
	for _, b := range []struct {
		name string
		span mem.Span
	}{
		{"local span behind its region", mem.Span{Region: l.local, Off: l.local.Len() - 1, Len: 2}},
		{"local span that overflows", mem.Span{Region: l.local, Off: math.MaxUint64, Len: 2}},
		{"local span without a region", mem.Span{Len: 1}},
	} {
		add(b.name, []path.Copy{{Local: b.span, Key: good}}, mem.ErrBounds, path.ErrBounds)
	}

	// Memory that the CPU cannot reach, at either side.
	far := o.Export(opaque(t), both)
	add("memory of a device here", []path.Copy{{Local: opaque(t).All(), Key: good}}, path.ErrUnreachable)
	add("memory of a device there", at(far.Key(), 0, 100), path.ErrUnreachable)
	add("behind memory of a device", at(far.Key(), 4000, 100), path.ErrBounds, path.ErrUnreachable)
	return append(out, badOp{"unknown kind", path.Op{Kind: 99}, nil}, badOp{"kind 0", path.Op{}, nil})
}

// opaque is a region that the CPU cannot reach, and that nothing else reaches either.
func opaque(t testing.TB) *mem.Region {
	r, err := mem.AdoptMapping("opaque", mem.Mapping{Kind: mem.Device, Size: 4096, PageSize: 4096, FD: -1, NUMANode: -1,
		Mover: immovable{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

type immovable struct{}

var errImmovable = errors.New("pathtest: this memory does not move")

func (immovable) Load(mem.Span, uint64) (mem.Move, error)  { return nil, errImmovable }
func (immovable) Store(uint64, mem.Span) (mem.Move, error) { return nil, errImmovable }
func (immovable) Staging() mem.Provider                    { return nil }
func (immovable) Device() string                           { return "pathtest" }
