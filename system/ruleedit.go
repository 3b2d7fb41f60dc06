package system

import (
	"slices"
	"sort"

	"github.com/penstock-io/penstock/packet/flow"
)

// ruleEdit is the way from one list of rules to another one.
type ruleEdit struct {
	changes []flow.Change
	report  InterfaceChanges
	next    []rule // the new list
	adds    []int  // of each of next: the change that gives it its ID, -1 where it has one
	before  []rule // what was there, once the changes are made
}

// editRules finds the changes that make the list want out of the list have, both in the order of
// precedence. What stays keeps its ID, and by that its counts.
func editRules(have, want []rule) *ruleEdit {
	e := &ruleEdit{next: slices.Clone(want), adds: make([]int, len(want))}
	from := match(have, want)
	kept := make([]bool, len(have))
	for i, k := range from {
		e.adds[i] = -1
		if k >= 0 {
			kept[k], e.next[i].id = true, have[k].id
		}
	}
	for k := range have {
		if !kept[k] {
			e.changes = append(e.changes, flow.Delete(have[k].id))
			e.report.Removed = append(e.report.Removed, have[k].flow.Name)
		}
	}
	// Those that stay where they are hold the order; all others are put in front of the next of
	// them.
	stays := ascending(from)
	before := make([]uint32, len(want))
	next := uint32(0)
	for i := len(want) - 1; i >= 0; i-- {
		before[i] = next
		if stays[i] {
			next = e.next[i].id
		}
	}
	for i, k := range from {
		r := &want[i]
		if k < 0 {
			e.adds[i] = len(e.changes)
			e.changes = append(e.changes, flow.Insert(before[i], r.flow))
			e.report.Added = append(e.report.Added, r.flow.Name)
			continue
		}
		same := have[k].flow.Equal(&r.flow)
		if !same {
			e.changes = append(e.changes, flow.Replace(have[k].id, r.flow))
		}
		if !stays[i] {
			e.changes = append(e.changes, flow.Move(have[k].id, before[i]))
		}
		switch {
		case !same && !renumbered(&have[k], r):
			e.report.Changed = append(e.report.Changed, r.flow.Name)
		case !stays[i]:
			e.report.Moved = append(e.report.Moved, r.flow.Name)
		default:
			e.report.Unchanged++
		}
	}
	return e
}

// placed is the new list with the IDs that the table gave.
func (e *ruleEdit) placed(ids []uint32) []rule {
	for i, k := range e.adds {
		if k >= 0 {
			e.next[i].id = ids[k]
		}
	}
	return e.next
}

// renumbered reports whether two rules differ only in derived names.
func renumbered(a, b *rule) bool {
	x := a.flow
	x.Name = b.flow.Name
	return a.derived && b.derived && x.Equal(&b.flow)
}

// match finds for each rule that is wanted the one that it was, -1 if it is new: the same one
// first, then one that says the same under a derived name, then one with its name, then one with
// its mark.
func match(have, want []rule) []int {
	from := make([]int, len(want))
	for i := range from {
		from[i] = -1
	}
	taken := make([]bool, len(have))
	pass := func(key func(r *rule) (string, bool)) {
		at := map[string][]int{}
		for k := range have {
			if s, ok := key(&have[k]); ok && !taken[k] {
				at[s] = append(at[s], k)
			}
		}
		for i := range want {
			if from[i] >= 0 {
				continue
			}
			s, ok := key(&want[i])
			if l := at[s]; ok && len(l) > 0 {
				from[i], at[s] = l[0], l[1:]
				taken[l[0]] = true
			}
		}
	}
	pass(func(r *rule) (string, bool) { return r.flow.String(), true })
	pass(func(r *rule) (string, bool) {
		f := r.flow
		f.Name = ""
		return f.String(), r.derived
	})
	pass(func(r *rule) (string, bool) { return r.flow.Name, r.flow.Name != "" })
	pass(func(r *rule) (string, bool) {
		f := flow.Rule{Mark: r.flow.Mark}
		return f.String(), f.Mark.Set && f.Mark.Value != 0
	})
	return from
}

// ascending marks the longest part of a list whose numbers ascend, of those that are not negative
// (patience sorting; M. L. Fredman, 1975).
func ascending(list []int) []bool {
	var tails []int // place of the last number of the best part of each length
	prev := make([]int, len(list))
	for i, v := range list {
		if v < 0 {
			continue
		}
		n := sort.Search(len(tails), func(k int) bool { return list[tails[k]] >= v })
		prev[i] = -1
		if n > 0 {
			prev[i] = tails[n-1]
		}
		if n == len(tails) {
			tails = append(tails, i)
		} else {
			tails[n] = i
		}
	}
	out := make([]bool, len(list))
	if len(tails) > 0 {
		for i := tails[len(tails)-1]; i >= 0; i = prev[i] {
			out[i] = true
		}
	}
	return out
}
