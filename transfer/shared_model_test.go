package transfer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
)

// The table against a model: what is held, kept and fresh, whatever the order of shares, releases
// and new exports.
func TestShareModel(t *testing.T) {
	p := newPair(t, Options{Budget: 16 << 20})
	p.ignore(t)
	serial := uint64(0)
	rapid.Check(t, func(rt *rapid.T) {
		type version struct {
			x      *Export
			r      *mem.Region
			refs   int
			here   bool // has an entry in the table
			kept   bool
			forced bool
		}
		names := map[string]*version{}
		var regions []*mem.Region
		type ref struct {
			s *Shared
			v *version
			n uint64 // first bytes
		}
		var held []ref
		word := func(b []byte) (v uint64) {
			for i := range 8 {
				v |= uint64(b[i]) << (8 * i)
			}
			return v
		}
		var old []*version // revoked, still held
		name := rapid.SampledFrom([]string{"x", "y", "z"})
		reads := p.a.Shares().Reads
		rt.Repeat(map[string]func(*rapid.T){
			"export": func(rt *rapid.T) {
				n := name.Draw(rt, "name")
				if v := names[n]; v != nil {
					if err := v.x.Revoke(context.Background()); err != nil {
						rt.Fatal(err)
					}
					// The peer learns of it in order with its answers.
					if _, err := p.ab.Lookup(context.Background(), "nothing"); !errors.Is(err, control.NotFound) {
						rt.Fatal(err)
					}
					v.here, v.kept = false, false
					old = append(old, v)
				}
				r, err := mem.Alloc(mem.Options{Size: 4096})
				if err != nil {
					rt.Fatal(err)
				}
				serial++
				for i := range 8 {
					r.All().Bytes()[i] = byte(serial >> (8 * i))
				}
				x, err := p.b.Export(r.All(), ExportOptions{Name: n})
				if err != nil {
					rt.Fatal(err)
				}
				regions = append(regions, r)
				names[n] = &version{x: x, r: r}
			},
			"share": func(rt *rapid.T) {
				n := name.Draw(rt, "name")
				keep := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(rt, "keep")
				s, err := p.ab.Share(context.Background(), n, ShareOptions{Copy: true, Keep: keep})
				v := names[n]
				if v == nil {
					if !errors.Is(err, control.NotFound) {
						rt.Fatalf("nothing is exported, and Share says %v", err)
					}
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				if word(s.Bytes()) != word(v.r.All().Bytes()) {
					rt.Fatalf("stale: version %d, expected %d", word(s.Bytes()), word(v.r.All().Bytes()))
				}
				if !v.here {
					reads++
					v.here, v.forced = true, false
				}
				v.forced = v.forced || keep > 0
				v.kept = false
				v.refs++
				held = append(held, ref{s, v, word(s.Bytes())})
			},
			"release": func(rt *rapid.T) {
				if len(held) == 0 {
					return
				}
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				h := held[i]
				held = slices.Delete(held, i, i+1)
				h.s.Release()
				if h.v.refs--; h.v.refs == 0 && h.v.here {
					h.v.kept = h.v.forced
					h.v.here = h.v.forced
				}
			},
			"": func(rt *rapid.T) {
				entries, idle, out := 0, 0, 0
				for v := range maps.Values(names) {
					if v.here {
						entries++
						out++
					}
					if v.kept {
						idle++
					}
				}
				for _, v := range old {
					if v.refs > 0 {
						out++
					}
				}
				s := p.a.Shares()
				if s.Entries != entries || s.Idle != idle || s.References != len(held) || s.Reads != reads ||
					s.Bytes != uint64(out)*4096 {
					rt.Fatalf("%+v, expected %d entries, %d idle, %d references, %d reads, %d copies", s, entries, idle,
						len(held), reads, out)
				}
				if used := p.a.pool.Stats().InUse; used != uint64(out)*(64<<10) {
					rt.Fatalf("%d bytes of the pool are out, expected %d copies", used, out)
				}
				for _, h := range held {
					if word(h.s.Bytes()) != h.n {
						rt.Fatalf("bytes that are held changed from %d to %d", h.n, word(h.s.Bytes()))
					}
				}
			},
		})
		for _, h := range held {
			h.s.Release()
		}
		for _, v := range names {
			if err := v.x.Revoke(context.Background()); err != nil {
				rt.Fatal(err)
			}
		}
		// The peer learns of revocations in order with its answers: once this is answered, all idle
		// copies are gone.
		if _, err := p.ab.Lookup(context.Background(), "nothing"); !errors.Is(err, control.NotFound) {
			rt.Fatal(err)
		}
		if s := p.a.Shares(); s.Entries != 0 || s.Bytes != 0 || p.a.pool.Stats().InUse != 0 {
			rt.Fatalf("left: %+v, %d bytes of the pool", s, p.a.pool.Stats().InUse)
		}
		for _, r := range regions {
			r.Close()
			<-r.Unmapped()
		}
	})
}

// Share and Release from many goroutines, with exports that come and go.
func TestShareRace(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Add(1)
	go func() {
		defer wg.Done()
		for i := uint64(0); ; i++ {
			r, err := mem.Alloc(mem.Options{Size: 4096})
			if err != nil {
				t.Error(err)
				return
			}
			for k := range r.All().Bytes() {
				r.All().Bytes()[k] = byte(i)
			}
			x, err := p.b.Export(r.All(), ExportOptions{Name: "w"})
			if err == nil {
				_, err = p.ab.Lookup(ctx(t), "w")
			}
			if err == nil {
				err = x.Revoke(ctx(t))
			}
			r.Close()
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var readers sync.WaitGroup
	for i := range 8 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for k := range 50 {
				o := ShareOptions{Copy: i%2 == 0, Digest: i%4 == 0, Keep: time.Duration(k%3) * time.Millisecond}
				c, cancel := context.WithCancel(ctx(t))
				if k%7 == 0 {
					go cancel()
				}
				s, err := p.ab.Share(c, "w", o)
				cancel()
				if err != nil {
					continue // gone just now, or canceled
				}
				b := s.Bytes()
				if b[0] != b[4095] || b[0] != b[1000] {
					t.Error("bytes of two exports")
				}
				s.Release()
			}
		}()
	}
	readers.Wait()
	close(stop)
	wg.Wait()
	sharesAre(t, p.a, 0, 0, 0, 0)
	inPool(t, p.a, 0)
}
