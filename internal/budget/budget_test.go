package budget

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// held is a grant of the model.
type held struct {
	g   *Grant
	who int // -1: the process's own
	a   Amounts
}

// TestBudgetModel gives and takes at random and compares with lists that are summed up each time:
// nothing is ever beyond the total, a principal that has more than its base left the last quarter
// free when it took it, and a newcomer gets its base beside as many others as the package comment
// promises.
func TestBudgetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var total Amounts
		for r := range total {
			total[r] = rapid.Uint64Range(0, 5000).Draw(t, "total")
		}
		b := New(total)
		var all []held
		sum := func(who int) (a Amounts) {
			for _, h := range all {
				if who == h.who || who == everybody {
					for r, n := range h.a {
						a[r] += n
					}
				}
			}
			return a
		}
		name := func(who int) string { return fmt.Sprint("p", who) }
		ownUsed := false
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				who := rapid.IntRange(0, 6).Draw(t, "who")
				var a Amounts
				for r := range a {
					if rapid.Bool().Draw(t, "some") {
						a[r] = rapid.Uint64Range(0, total[r]/4+1).Draw(t, "n")
					}
				}
				used, mine, ok := sum(everybody), sum(who), true
				for r, n := range a {
					if n == 0 {
						continue
					}
					left := int64(total[r]) - int64(used[r]) - int64(n)
					has := mine[r] + n
					ok = ok && left >= 0 && (has <= b.base[r] || 2*(left-int64(total[r]/4)) >= int64(has))
				}
				g, err := b.Take(name(who), a)
				var refusal *Refusal
				if ok != (err == nil) || err != nil &&
					(!errors.Is(err, ErrOver) || !errors.As(err, &refusal) || refusal.Asked == 0) {
					t.Fatalf("take %v with %v of %v used, %v held: %v, expected %v", a, used, total, mine, err, ok)
				}
				if err == nil {
					all = append(all, held{g, who, a})
				}
			},
			"give": func(t *rapid.T) {
				if len(all) == 0 {
					return
				}
				i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
				all[i].g.Release()
				all = slices.Delete(all, i, i+1)
			},
			"change": func(t *rapid.T) {
				if len(all) == 0 {
					return
				}
				h := &all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
				if h.who == own || h.a == (Amounts{}) {
					return
				}
				r := Resource(rapid.IntRange(0, int(resources)-1).Draw(t, "resource"))
				n := rapid.Uint64Range(1, total[r]/4+1).Draw(t, "n")
				to, left, has := h.a, int64(total[r])-int64(sum(everybody)[r])+int64(h.a[r])-int64(n),
					sum(h.who)[r]-h.a[r]+n
				to[r] = n
				ok := n <= h.a[r] || left >= 0 && (has <= b.base[r] || 2*(left-int64(total[r]/4)) >= int64(has))
				if err := h.g.Change(to); ok != (err == nil) {
					t.Fatalf("change of %v to %v: %v, expected %v", h.a, to, err, ok)
				} else if ok {
					h.a = to
				}
			},
			"own": func(t *rapid.T) {
				if !rapid.Bool().Draw(t, "really") {
					return
				}
				a := Amounts{Descriptors: rapid.Uint64Range(0, 100).Draw(t, "n")}
				ownUsed = true
				all = append(all, held{b.Own(a), own, a})
			},
			"": func(t *rapid.T) {
				for who := range 7 {
					if got := b.Held(name(who)); got != sum(who) {
						t.Fatalf("%s holds %v, expected %v", name(who), got, sum(who))
					}
				}
				if used := sum(everybody); b.used != used {
					t.Fatalf("%v used, expected %v", b.used, used)
				}
				if ownUsed { // may take the whole process
					return
				}
				for r := range total {
					if b.used[r] > total[r] {
						t.Fatalf("%d %v of %d", b.used[r], Resource(r), total[r])
					}
					others := uint64(0)
					for who := range 7 {
						if sum(who)[r] > 0 {
							others++
						}
					}
					if b.base[r] > 0 && others < b.kept[r]/b.base[r] {
						g, err := b.Take("newcomer", amount(Resource(r), b.base[r]))
						if err != nil {
							t.Fatalf("a newcomer beside %d others: %v", others, err)
						}
						g.Release()
					}
				}
			},
		})
		for _, h := range all {
			h.g.Release()
		}
		if b.used != (Amounts{}) || len(b.of) != 0 {
			t.Fatalf("%v used by %d when all was given back", b.used, len(b.of))
		}
	})
}

const own, everybody = -1, -2

func amount(r Resource, n uint64) (a Amounts) {
	a[r] = n
	return a
}

// TestGreedy has principals take all they can get, one after the other, in grains: the first gets
// half, and there is always a base for one more.
func TestGreedy(t *testing.T) {
	b := New(Amounts{Descriptors: 8000})
	for who := range 40 {
		before := b.used[Descriptors]
		for {
			if _, err := b.Take(fmt.Sprint(who), Amounts{Descriptors: 8}); err != nil {
				break
			}
		}
		got := b.used[Descriptors] - before
		if who == 0 && got != 4000 {
			t.Errorf("the first one got %d of 8000, expected 4000", got)
		}
		if got < b.base[Descriptors] {
			t.Errorf("principal %d got %d, expected %d at least", who, got, b.base[Descriptors])
		}
	}
}

// TestZeroGrantsNothing: a total of 0 grants nothing.
func TestZeroGrantsNothing(t *testing.T) {
	if _, err := New(Amounts{}).Take("p", Amounts{Paths: 1}); !errors.Is(err, ErrOver) {
		t.Errorf("%v, expected a refusal", err)
	}
	_, err := New(Amounts{Descriptors: 1024}).Take("uid:7", Amounts{Descriptors: 900})
	if err == nil || !strings.Contains(err.Error(),
		"900 descriptors asked for, uid:7 has 0 and 1024 are free, of which 256 are kept") ||
		!strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("%v: expected the numbers and what to do", err)
	}
}

// TestProcess: this process has something of everything.
func TestProcess(t *testing.T) {
	for r, n := range Process().Total() {
		if n < 16 {
			t.Errorf("%d %v", n, Resource(r))
		}
	}
}
