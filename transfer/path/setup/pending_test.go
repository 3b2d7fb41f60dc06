package setup

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestPendingModel compares with a list: there are never too many, and the one that makes room is
// the oldest of a source that has the most.
func TestPendingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type conn struct{ source, number int }
		p := Pending[conn]{most: rapid.IntRange(1, 12).Draw(t, "most")}
		var model []conn
		count := func(source int) (n int) {
			for _, c := range model {
				if c.source == source {
					n++
				}
			}
			return n
		}
		number := 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				number++
				c := conn{rapid.IntRange(0, 4).Draw(t, "source"), number}
				out, full := p.Add(fmt.Sprint(c.source), c)
				if full != (len(model) == p.most) {
					t.Fatalf("full: %v, of %d", full, len(model))
				}
				if full {
					i := slices.IndexFunc(model, func(c conn) bool { return c.source == out.source })
					if i < 0 || model[i] != out {
						t.Fatalf("%v made room in %v", out, model)
					}
					for source := range 5 {
						if count(source) > count(out.source) {
							t.Fatalf("%v made room, but source %d has more of %v", out, source, model)
						}
					}
					model = slices.Delete(model, i, i+1)
				}
				model = append(model, c)
			},
			"remove": func(t *rapid.T) {
				c := conn{rapid.IntRange(0, 4).Draw(t, "source"), rapid.IntRange(0, number).Draw(t, "number")}
				i := slices.Index(model, c)
				if p.Remove(c) != (i >= 0) {
					t.Fatalf("remove %v of %v", c, model)
				}
				if i >= 0 {
					model = slices.Delete(model, i, i+1)
				}
			},
			"": func(t *rapid.T) {
				all := p.All()
				slices.SortFunc(all, func(a, b conn) int { return a.number - b.number })
				if !slices.Equal(all, model) || p.Len() != len(model) || len(model) > p.most {
					t.Fatalf("%v, expected %v", all, model)
				}
			},
		})
	})
}

func TestMaxPending(t *testing.T) {
	for files, want := range map[uint64]int{20: 4, 1024: 64, 4096: 256, 1 << 14: 1024, 1 << 20: 1024} {
		if got := maxPending(files); got != want {
			t.Errorf("%d connections pending of %d files, expected %d", got, files, want)
		}
	}
}

func TestSource(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.7": "10.0.0.7/32", "::ffff:10.0.0.7": "10.0.0.7/32", "::1": "::1/128", "127.9.8.7": "127.0.0.0/8",
		"2001:db8::1:2:3:4": "2001:db8::/64", "fe80::7%eth0": "fe80::/64",
	} {
		if got := Source(netip.MustParseAddr(in)); got != want {
			t.Errorf("%s: %q, expected %q", in, got, want)
		}
	}
}
