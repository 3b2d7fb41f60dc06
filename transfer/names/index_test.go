package names

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type thing string

func (t thing) Name() string { return string(t) }

// The index answers as a sorted list of all names would.
func TestIndexModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Index[thing]
		model := map[string]bool{}
		name := rapid.StringMatching(`[abc]{1,4}`)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				if s := name.Draw(t, "name"); !model[s] {
					model[s] = true
					x.Insert(thing(s))
				}
			},
			"fill": func(t *rapid.T) { // enough to split runs, in order or against it
				n, down := rapid.IntRange(1, 1200).Draw(t, "n"), rapid.Bool().Draw(t, "down")
				for i := range n {
					if down {
						i = n - i
					}
					if s := fmt.Sprintf("b%05d", i); !model[s] {
						model[s] = true
						x.Insert(thing(s))
					}
				}
			},
			"remove": func(t *rapid.T) {
				s := name.Draw(t, "name")
				x.Remove(s)
				delete(model, s)
			},
			"clear": func(t *rapid.T) {
				prefix := rapid.StringMatching(`b0{0,3}[0-9]?`).Draw(t, "prefix")
				for s := range model {
					if strings.HasPrefix(s, prefix) {
						x.Remove(s)
						delete(model, s)
					}
				}
			},
			"": func(t *rapid.T) {
				prefix := rapid.StringMatching(`[abc]{0,2}`).Draw(t, "prefix")
				after := rapid.OneOf(rapid.Just(""), name, rapid.StringMatching(`b000[0-9]{2}`)).Draw(t, "after")
				most := rapid.IntRange(1, 2000).Draw(t, "most")
				var want, got []string
				for s := range model {
					if strings.HasPrefix(s, prefix) && s > after {
						want = append(want, s)
					}
				}
				slices.Sort(want)
				want = want[:min(len(want), most)]
				x.From(prefix, after, func(e thing) bool {
					got = append(got, e.Name())
					return len(got) < most
				})
				if !slices.Equal(got, want) {
					t.Fatalf("prefix %q after %q: %d names %.60q, expected %d %.60q", prefix, after, len(got), got,
						len(want), want)
				}
				for i, r := range x.runs {
					if len(r) == 0 || len(r) > runMax {
						t.Fatalf("run %d has %d names", i, len(r))
					}
				}
			},
		})
	})
}
