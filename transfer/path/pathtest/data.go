package pathtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// margin is how many bytes around each destination are checked for writes that went too far.
const margin = 64

func (f Factory) sizes() []int {
	s := []int{0, 1, 63, 64, 65, 4095, 4096, 4097, 3<<20 + 5}
	for _, b := range f.Boundaries {
		s = append(s, max(b-1, 0), b, b+1)
	}
	slices.Sort(s)
	return slices.Compact(s)
}

// direction is one direction under test: memory of one side and an export of the other.
type direction struct {
	side          *Side
	local, remote *mem.Region
	here, there   []byte // of local and remote
	export        *path.Export
}

func (p *Pair) direction(s *Side, size int) direction {
	remote := s.Other().Region(size)
	return newDirection(s, s.Region(size), remote, s.Other().Export(remote, path.Read|path.Write))
}

func newDirection(s *Side, local, remote *mem.Region, e *path.Export) direction {
	return direction{s, local, remote, local.All().Bytes(), remote.All().Bytes(), e}
}

// ends are the memory that an operation reads and the memory that it writes.
func (l direction) ends(kind path.OpKind) (src, dst []byte) {
	if kind == path.Get {
		return l.there, l.here
	}
	return l.here, l.there
}

func (l direction) copyOf(localOff, remoteOff, n int) path.Copy {
	return path.Copy{
		Local:     mem.Span{Region: l.local, Off: uint64(localOff), Len: uint64(n)},
		Key:       l.export.Key(),
		RemoteOff: uint64(remoteOff),
	}
}

func (l direction) op(kind path.OpKind, copies ...path.Copy) path.Op {
	return path.Op{Kind: kind, Copies: copies}
}

// roundTrip puts or gets n bytes and checks them and their neighbours.
func (l direction) roundTrip(t testing.TB, kind path.OpKind, localOff, remoteOff, n int, seed uint64) {
	t.Helper()
	src, dst := l.ends(kind)
	srcOff, dstOff := localOff, remoteOff
	if kind == path.Get {
		srcOff, dstOff = remoteOff, localOff
	}
	lo, hi := max(dstOff-margin, 0), min(dstOff+n+margin, len(dst))
	setAll(dst[lo:hi], canary)
	Fill(src[srcOff:srcOff+n], seed)
	l.side.MustDo(l.op(kind, l.copyOf(localOff, remoteOff, n)))
	what := fmt.Sprintf("%s of %d bytes", kindNames[kind], n)
	wantFill(t, what, dst[dstOff:dstOff+n], seed)
	wantAll(t, what+": before the destination", dst[lo:dstOff], canary)
	wantAll(t, what+": behind the destination", dst[dstOff+n:hi], canary)
	if i := Verify(src[srcOff:srcOff+n], seed); i >= 0 {
		t.Fatalf("%s: byte %d of the source was changed", what, i)
	}
}

var (
	bothKinds = []path.OpKind{path.Put, path.Get}
	kindNames = map[path.OpKind]string{path.Put: "put", path.Get: "get"}
)

// roundTrips puts and gets these sizes in both directions, with so many bytes before them in local
// memory and in the export.
func (p *Pair) roundTrips(sizes []int, offs ...[2]int) {
	seed := uint64(0)
	for _, s := range p.Sides() {
		l := p.direction(s, slices.Max(sizes)+2*margin+8192)
		for _, kind := range bothKinds {
			for _, off := range offs {
				for _, n := range sizes {
					seed++
					l.roundTrip(p.t, kind, margin+off[0], margin+off[1], n, seed)
				}
			}
		}
	}
}

func checkSizes(t testing.TB, f Factory) { newPair(t, f).roundTrips(f.sizes(), [2]int{}) }

func checkUnaligned(t testing.TB, f Factory) {
	sizes := []int{1, 7, 64, 4097, 70_001}
	for _, b := range f.Boundaries {
		sizes = append(sizes, b+1)
	}
	newPair(t, f).roundTrips(sizes, [2]int{1, 0}, [2]int{0, 1}, [2]int{3, 5}, [2]int{63, 65}, [2]int{4095, 4097})
}

// sparse allocates as much address space as the machine grants, without pages: 1 TiB if it can be.
func (s *Side) sparse() *mem.Region {
	s.t.Helper()
	var err error
	for _, size := range []int{1 << 40, 64 << 30, 8 << 30} {
		var r *mem.Region
		if r, err = mem.Alloc(mem.Options{Name: "pathtest-sparse", Size: size, Lazy: true}); err == nil {
			s.pair.t.Cleanup(func() { s.pair.shut(); r.Close() })
			return r
		}
	}
	s.t.Fatalf("no address space for an export of 8 GiB: %v", err)
	return nil
}

func checkHighOffsets(t testing.TB, f Factory) {
	if f.NoSparse {
		return
	}
	p := newPair(t, f)
	for _, s := range p.Sides() {
		remote := s.Other().sparse()
		l := newDirection(s, s.Region(1<<20), remote, s.Other().Export(remote, path.Read|path.Write))
		size := len(l.there)
		const n = 70_001
		offs := []int{1<<31 - 3, 1<<32 - n/2, 1 << 32, 1<<32 + 12345, size/2 + 1, size - n}
		for i, off := range offs {
			l.roundTrip(t, path.Put, margin, off, n, uint64(i+1))
		}
		for i, off := range offs {
			l.roundTrip(t, path.Get, margin+1, off, n, uint64(i+100))
		}
		// An offset cut to 32 bits would have come here.
		wantAll(t, "low alias of a high offset", l.there[12345:12345+n], 0)
		wantAll(t, "low alias of a high offset", l.there[:4096], 0)
		// One operation with blocks at both ends.
		Fill(l.here[:2*n], 77)
		s.MustDo(l.op(path.Put, l.copyOf(0, size-n, n), l.copyOf(n, 1<<20, n)))
		got := append(slices.Clone(l.there[size-n:]), l.there[1<<20:1<<20+n]...)
		wantFill(t, "put with blocks far apart", got, 77)
	}
}

func checkBlocks(t testing.TB, f Factory) {
	const count = 10_000
	p := newPair(t, f)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name     string
		max, gap int
		odd      bool
	}{{"10,000 blocks of 4 KiB", 4096, 64, false}, {"10,000 blocks of 0 to 1,000 bytes", 1000, 7, true}} {
		for i, s := range p.Sides() {
			// Blocks are dense in local memory; in the export they are in random order with gaps
			// between them.
			sizes, starts, total := make([]int, count), make([]int, count), 0
			for k := range sizes {
				sizes[k] = c.max
				if c.odd {
					sizes[k] = rng.IntN(c.max + 1)
				}
				starts[k] = total
				total += sizes[k]
			}
			stride := c.max + c.gap
			size := max(total, count*stride)
			l := p.direction(s, size)
			place := rng.Perm(count)
			copies := make([]path.Copy, count)
			for k := range copies {
				copies[k] = l.copyOf(starts[k], place[k]*stride, sizes[k])
			}
			setAll(l.there, canary)
			Fill(l.here[:total], uint64(i))
			want := slices.Clone(l.here[:total])
			s.MustDo(l.op(path.Put, copies...))
			for k := range copies {
				at := place[k] * stride
				if string(l.there[at:at+sizes[k]]) != string(want[starts[k]:starts[k]+sizes[k]]) {
					t.Fatalf("put of %s: block %d of %d bytes is wrong", c.name, k, sizes[k])
				}
				wantAll(t, "put of "+c.name+": gap", l.there[at+sizes[k]:at+stride], canary)
			}
			setAll(l.here, canary)
			s.MustDo(l.op(path.Get, copies...))
			if string(l.here[:total]) != string(want) {
				t.Fatalf("get of %s: wrong bytes", c.name)
			}
			wantAll(t, "get of "+c.name+": behind", l.here[total:], canary)
		}
	}
}

// checkPartOfRegion exports a span inside a region. A path may say that it cannot reach it, but
// then it must not.
func checkPartOfRegion(t testing.TB, f Factory) {
	p := newPair(t, f)
	for _, s := range p.Sides() {
		local, remote := s.Region(1<<16), s.Other().Region(1<<16)
		const off, n = 12_345, 20_000
		x, err := s.Other().Exports.Add(mem.Span{Region: remote, Off: off, Len: n}, path.Read|path.Write)
		if err != nil {
			t.Fatal(err)
		}
		l := newDirection(s, local, remote, x)
		setAll(l.there, canary)
		Fill(l.here, 5)
		op := l.op(path.Put, l.copyOf(0, 0, n))
		if reach := s.Path.Reaches(x.Desc()); reach != nil {
			wantErr(t, "Reaches for a part of a region", reach, path.ErrUnreachable)
			wantErr(t, "put into an export that is out of reach", s.Do(op).Err, path.ErrUnreachable)
			wantAll(t, "export out of reach", l.there, canary)
			continue
		}
		s.MustDo(op)
		wantFill(t, "part of a region", l.there[off:off+n], 5)
		wantAll(t, "before the exported part", l.there[:off], canary)
		wantAll(t, "behind the exported part", l.there[off+n:], canary)
		wantErr(t, "put behind the exported part", s.Do(l.op(path.Put, l.copyOf(0, n, 1))).Err, path.ErrBounds)
		s.MustDo(l.op(path.Get, l.copyOf(1, 1, n-1)))
	}
}

// checkEmpty does what has no bytes.
func checkEmpty(t testing.TB, f Factory) {
	p := newPair(t, f)
	if n, err := p.A.Path.Post(nil); n != 0 || err != nil {
		t.Errorf("Post of nothing: %d, %v; expected 0, nil", n, err)
	}
	for _, s := range p.Sides() {
		l := p.direction(s, 4096)
		for _, kind := range bothKinds {
			s.MustDo(l.op(kind))
			s.MustDo(l.op(kind, l.copyOf(0, 0, 0), l.copyOf(7, 4096, 0)))
			s.MustDo(l.op(kind, l.copyOf(0, 0, 0), l.copyOf(0, 0, 10), l.copyOf(4096, 0, 0)))
		}
		o := s.Other()
		s.MustDo(path.Op{Kind: path.Put, Notify: true, Imm: 9, Msg: []byte("no bytes")})
		p.Drive("the notification of an empty put", func() bool { return len(o.Notices) > 0 })
		if got := o.Notices[0]; got.Imm != 9 || string(got.Msg) != "no bytes" || got.Bytes != 0 {
			t.Errorf("notification of an empty put: %+v", got)
		}
	}
}

// checkWindow fills the window without polling, several times over, also with operations that fail.
func checkWindow(t testing.TB, f Factory) {
	const want = 8
	p := newPairConfig(t, f.defaults(), setup.Config{Window: want}, setup.Config{Window: 2 * want})
	for _, s := range p.Sides() {
		if got := s.Path.Capabilities().Window; got != want {
			t.Fatalf("side %s: Capabilities().Window = %d; expected %d, the smaller of both sides'", s.Name, got, want)
		}
	}
	for _, s := range p.Sides() {
		l := p.direction(s, 1<<20)
		for round := range 6 {
			Fill(l.here, uint64(round))
			full := s.Path.Stats().WindowFull
			const n = 1001
			ops := make([]path.Op, 4*want)
			for i := range ops {
				ops[i] = l.op(path.Put, l.copyOf(i*n, i*n, n))
				if round%2 == 1 && i%3 == 0 {
					ops[i].Copies[0].Key.Secret++ // fails, and must give its place back all the same
				}
				ops[i], _ = s.fresh(ops[i])
			}
			rest, accepted := ops, 0
			for k := -1; k != 0 && len(rest) > 0; rest = rest[k:] {
				k = s.postBy(s.Path.Post, rest)
				for _, op := range rest[:k] {
					accepted += 1 - s.ops[op.Token].Times // else it was refused at once
				}
			}
			if accepted != want {
				t.Fatalf("side %s, round %d: %d operations accepted before ErrFull; expected the window, %d\n%s",
					s.Name, round, accepted, want, p.Dump())
			}
			if got := s.Path.Stats().WindowFull; got <= full {
				t.Errorf("side %s: Stats.WindowFull stays at %d after ErrFull", s.Name, got)
			}
			// The rest is posted as room appears; nothing gets lost.
			for len(rest) > 0 {
				p.Drive("room in the window", func() bool {
					k := s.post(rest)
					rest = rest[k:]
					return k > 0
				})
			}
			p.Drive("all operations", func() bool { return s.pending == 0 })
			for i := range ops {
				e := s.ops[ops[i].Token].Event
				if round%2 == 1 && i%3 == 0 {
					wantErr(t, "put with a forged key", e.Err, path.ErrKey)
				} else {
					s.checkDone(&ops[i], e)
					if string(l.there[i*n:(i+1)*n]) != string(l.here[i*n:(i+1)*n]) {
						t.Fatalf("side %s, round %d: operation %d has wrong bytes", s.Name, round, i)
					}
				}
			}
		}
	}
}
