package transfer

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

// What a put finds kept says the same as what is found again, for every restriction and for what
// changes between puts.
func TestWayIsWhatIsFound(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	dst, src := region(t, 4096), region(t, 4096)
	export(t, p.b, dst, "whole", path.Write)
	part, _ := dst.Span(0, 100)
	if _, err := p.b.Export(part, ExportOptions{Name: "part", Rights: path.Write}); err != nil {
		t.Fatal(err)
	}
	look := func(name, want string, allowed ...string) {
		t.Helper()
		rem := lookup(t, p.ab, name)
		local, _ := src.Span(0, 64)
		for range 3 {
			x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, local)}, PutOptions{Paths: allowed})
			wait(t, x, err)
			e := x.Explain()
			cs := p.ab.candidates(64, []path.Desc{rem.Desc}, allowed, x.floor)
			if e.Path != want || len(cs) != len(e.Candidates) {
				t.Fatalf("%s %v went over %q: expected %q; candidates\n%v\n%v", name, allowed, e.Path, want,
					e.Candidates, cs)
			}
			found := map[string]string{}
			for _, c := range cs {
				found[c.Path] = fmt.Sprint(c.Usable, c.Reason)
			}
			for _, c := range e.Candidates {
				known := c.Reason == "prior" || c.Reason == "measured" // one may have been measured since
				if got := fmt.Sprint(c.Usable, c.Reason); got != found[c.Path] && !(c.Usable && known) {
					t.Errorf("%s %v: %s is %s, found again it is %s", name, allowed, c.Path, got, found[c.Path])
				}
				if c.Cost != (path.Cost{}) && c.Estimate != c.Cost.Time(64) {
					t.Errorf("%s %v: %s is expected to take %v at a cost of %v", name, allowed, c.Path, c.Estimate,
						c.Cost)
				}
			}
			if _, why := reason(cs); e.Why != why || e.Security != x.channel.caps.Security || e.Floor != x.floor {
				t.Errorf("%s %v: %q, security %v, floor %v", name, allowed, e.Why, e.Security, e.Floor)
			}
			if e.Candidates[0].Path != want {
				t.Errorf("%s %v: the first candidate is %s", name, allowed, e.Candidates[0].Path)
			}
		}
	}
	look("whole", "shm", "shm")
	look("part", "tcp")
	look("whole", "tcp", "tcp")
	look("whole", "shm", "shm", "tcp")
	look("part", "tcp", "shm", "tcp")
	// The channel goes down, and nothing keeps it.
	ch, _ := p.ab.openedChannel("tcp")
	ch.shut(path.ErrDown)
	for i := range p.ab.ways {
		if w := p.ab.ways[i].Load(); w != nil {
			for _, o := range w.found {
				if o.ch == ch {
					t.Errorf("a channel that is gone is kept: %+v", w)
				}
			}
		}
	}
	look("part", "tcp")
	look("whole", "tcp", "tcp")
}
