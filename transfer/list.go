package transfer

import (
	"slices"
	"strings"

	"github.com/penstock-io/penstock/transfer/control"
)

// nameIndex holds the named exports in the byte order of their names, so that a page of a list costs what is on the page. It
// is a list of short sorted runs: a change moves at most one run, or the list of runs. The zero value is empty.
type nameIndex struct {
	runs [][]*Export // none is empty, none longer than runMax
}

const runMax = 512

func byName(x *Export, name string) int { return strings.Compare(x.name, name) }

// run is the index of the run that a name belongs to: the last one that does not begin after it, or the first.
func (x *nameIndex) run(name string) int {
	i, found := slices.BinarySearchFunc(x.runs, name, func(r []*Export, name string) int { return byName(r[0], name) })
	if !found && i > 0 {
		i--
	}
	return i
}

// insert adds an export whose name is not there yet.
func (x *nameIndex) insert(e *Export) {
	if len(x.runs) == 0 {
		x.runs = append(x.runs, []*Export{e})
		return
	}
	i := x.run(e.name)
	at, _ := slices.BinarySearchFunc(x.runs[i], e.name, byName)
	r := slices.Insert(x.runs[i], at, e)
	x.runs[i] = r
	if len(r) > runMax {
		// In order of name is how most come: then the left run stays nearly full.
		half := len(r) / 2
		if at == len(r)-1 {
			half = len(r) - 1
		}
		x.runs = slices.Insert(x.runs, i+1, slices.Clone(r[half:]))
		clear(r[half:])
		x.runs[i] = r[:half]
	}
}

// remove takes an export out; it does nothing when the name is not there.
func (x *nameIndex) remove(name string) {
	if len(x.runs) == 0 {
		return
	}
	i := x.run(name)
	at, found := slices.BinarySearchFunc(x.runs[i], name, byName)
	if !found {
		return
	}
	if x.runs[i] = slices.Delete(x.runs[i], at, at+1); len(x.runs[i]) == 0 {
		x.runs = slices.Delete(x.runs, i, i+1)
	}
}

// from calls f for the exports whose names begin with prefix and come after the given one, in order, until f returns false.
func (x *nameIndex) from(prefix, after string, f func(*Export) bool) {
	if len(x.runs) == 0 {
		return
	}
	start := max(prefix, after)
	i := x.run(start)
	at, found := slices.BinarySearchFunc(x.runs[i], start, byName)
	if found && start == after {
		at++
	}
	for ; i < len(x.runs); i, at = i+1, 0 {
		for _, e := range x.runs[i][at:] {
			if !strings.HasPrefix(e.name, prefix) || !f(e) {
				return
			}
		}
	}
}

// answerList answers one page. The node's mutex is held only while the exports of the page are picked.
func (p *Peer) answerList(q control.List) (control.Body, error) {
	body := p.maxBody()
	most := body / control.MinEntry
	if q.Max > 0 {
		most = int(min(uint64(most), uint64(q.Max)))
	}
	n := p.node
	var picked []*Export
	n.mu.Lock()
	n.sorted.from(q.Prefix, q.After, func(x *Export) bool {
		if !x.visible(p) {
			return true
		}
		body -= control.MinEntry - 1 + len(x.name) // at least
		picked = append(picked, x)
		return len(picked) <= most && body > 0 // one more than fits, so that the page knows that there is more
	})
	n.mu.Unlock()
	entries := make([]control.Entry, len(picked))
	for i, x := range picked {
		entries[i] = x.entryFor(p)
	}
	page := control.Page(entries, q.Max, p.maxBody())
	return &page, nil
}
