package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/path"
	"pgregory.net/rapid"
)

// TestStagedModel: random blocks between host memory and memory of devices, of both nodes, in
// transfers of both directions and both sides at once, give what copying gives, with staging memory
// that is much too small for them together. It would hang if two nodes that stage towards each
// other could wait for each other.
func TestStagedModel(t *testing.T) {
	const size = 512 << 10
	da, db := newFakeDevice(t, "card of a"), newFakeDevice(t, "card of b")
	db.fd = false // its slots are no memfds: shared memory does not reach them
	p := newPair(t, Options{Staging: bounce.Least})
	p.ignore(t)
	type memory struct {
		r *mem.Region
		b []byte
	}
	// Each side: memory to read and memory to write, of the host and of the device, of the exports
	// and of the local side.
	type side struct {
		peer          *Peer
		local, remote [2]memory // host, device
		keys          [2]*Remote
	}
	make1 := func(d *fakeDevice) (out [2]memory) {
		for i, d := range []*fakeDevice{nil, d} {
			r, b := anyMemory(t, d, size)
			out[i] = memory{r, b[:size]}
		}
		return out
	}
	sides := []*side{{peer: p.ab, local: make1(da), remote: make1(db)},
		{peer: p.ba, local: make1(db), remote: make1(da)}}
	for i, s := range sides {
		node := []*Node{p.b, p.a}[i]
		for k := range s.remote {
			name := fmt.Sprintf("memory %d of %s", k, node.Name())
			export(t, node, s.remote[k].r, name, path.Read|path.Write)
			s.keys[k] = lookup(t, s.peer, name)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		var wg sync.WaitGroup
		for i, s := range sides {
			for k := range 2 {
				fillBytes(s.local[k].b, uint64(10*i+k))
				fillBytes(s.remote[k].b, uint64(10*i+k+5))
			}
		}
		type check struct {
			got  []byte
			want []byte
		}
		var checks []check
		var begun []*Transfer
		for _, s := range sides {
			var model [2][2][]byte // local, remote
			for k := range 2 {
				model[0][k], model[1][k] = slices.Clone(s.local[k].b), slices.Clone(s.remote[k].b)
			}
			// Several transfers at once share the memory: each has a window of it.
			n := rapid.IntRange(1, 3).Draw(rt, "transfers")
			window := size / n
			for j := range n {
				kind := rapid.SampledFrom([]path.OpKind{path.Put, path.Get}).Draw(rt, "kind")
				at := [2][2]int{} // used of local and remote memory
				var copies []path.Copy
				for range rapid.IntRange(1, 6).Draw(rt, "blocks") {
					l, r := rapid.IntRange(0, 1).Draw(rt, "local"), rapid.IntRange(0, 1).Draw(rt, "remote")
					at[0][l] += rapid.IntRange(0, 3).Draw(rt, "gap")
					at[1][r] += rapid.IntRange(0, 3).Draw(rt, "gap")
					room := window - max(at[0][l], at[1][r])
					if room < 0 {
						continue
					}
					b := min(rapid.SampledFrom([]int{0, 1, 3, 4096, 4097, 65536, 70001, 200000, size}).Draw(rt,
						"bytes"), room)
					lo, ro := j*window+at[0][l], j*window+at[1][r]
					span, err := s.local[l].r.Span(uint64(lo), uint64(b))
					if err != nil {
						t.Fatal(err)
					}
					copies = append(copies, s.keys[r].At(uint64(ro), span))
					if kind == path.Put {
						copy(model[1][r][ro:ro+b], model[0][l][lo:lo+b])
					} else {
						copy(model[0][l][lo:lo+b], model[1][r][ro:ro+b])
					}
					at[0][l] += b
					at[1][r] += b
				}
				o := PutOptions{Digest: rapid.IntRange(0, 3).Draw(rt, "digest") == 0}
				if rapid.Bool().Draw(rt, "over tcp") {
					o.Paths = []string{"tcp"}
				}
				wg.Add(1)
				x, err := s.peer.begin(ctx(t), kind, copies, o)
				if err != nil {
					t.Fatal(err)
				}
				x.OnDone(func(*Transfer) { wg.Done() })
				begun = append(begun, x)
			}
			for k := range 2 {
				checks = append(checks, check{s.local[k].b, model[0][k]}, check{s.remote[k].b, model[1][k]})
			}
		}
		for _, x := range begun {
			if err := x.Wait(ctx(t)); err != nil {
				t.Fatalf("%v\n%v", err, x.Explain())
			}
			if e := x.Explain(); e.Moved != e.Bytes {
				t.Errorf("%v", e)
			}
		}
		wg.Wait()
		for i, c := range checks {
			if !bytes.Equal(c.got, c.want) {
				t.Fatalf("memory %d is not what copying gives", i)
			}
		}
		idleStaging(t, p.a)
		idleStaging(t, p.b)
	})
}

// TestStagedDigest: the digest reads the memory of the device again, and finds what the card did to
// the bytes.
func TestStagedDigest(t *testing.T) {
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		p := newStagedPair(t, 3<<20, Options{})
		x, err := p.ab.begin(ctx(t), kind, []path.Copy{p.local}, PutOptions{Digest: true})
		wait(t, x, err)
		if e := x.Explain(); e.Digest == ([32]byte{}) || !bytes.Equal(p.src, p.dst) {
			t.Errorf("%v", e)
		}
		victim := p.db
		if kind == path.Get {
			victim = p.da
		}
		victim.mu.Lock()
		victim.damage = true
		victim.mu.Unlock()
		x, err = p.ab.begin(ctx(t), kind, []path.Copy{p.local}, PutOptions{Digest: true})
		if err != nil {
			t.Fatal(err)
		}
		soon(t, x.Done(), "the end of a damaged transfer")
		if !errors.Is(x.Err(), path.ErrIntegrity) {
			t.Errorf("kind %v: the card changed a byte: %v", kind, x.Err())
		}
		idleStaging(t, p.a)
		idleStaging(t, p.b)
	}
}
