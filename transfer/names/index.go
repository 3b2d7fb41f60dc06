package names

import (
	"slices"
	"strings"
)

// Named is a thing with a name, which does not change.
type Named interface{ Name() string }

// Index holds things in the byte order of their names, which are all different, so that a page of a
// list costs what is on the page. It is a list of short sorted runs: a change moves at most one
// run, or the list of runs. The zero value is empty.
type Index[T Named] struct {
	runs [][]T // none is empty, none longer than runMax
}

const runMax = 512

func byName[T Named](x T, name string) int { return strings.Compare(x.Name(), name) }

// run is the index of the run that a name belongs to: the last one that does not begin after it, or
// the first.
func (x *Index[T]) run(name string) int {
	i, found := slices.BinarySearchFunc(x.runs, name, func(r []T, name string) int {
		return byName(r[0], name)
	})
	if !found && i > 0 {
		i--
	}
	return i
}

// Insert adds a thing whose name is not there yet.
func (x *Index[T]) Insert(e T) {
	if len(x.runs) == 0 {
		x.runs = append(x.runs, []T{e})
		return
	}
	i := x.run(e.Name())
	at, _ := slices.BinarySearchFunc(x.runs[i], e.Name(), byName[T])
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

// Remove takes a thing out; it does nothing when the name is not there.
func (x *Index[T]) Remove(name string) {
	if len(x.runs) == 0 {
		return
	}
	i := x.run(name)
	at, found := slices.BinarySearchFunc(x.runs[i], name, byName[T])
	if !found {
		return
	}
	if x.runs[i] = slices.Delete(x.runs[i], at, at+1); len(x.runs[i]) == 0 {
		x.runs = slices.Delete(x.runs, i, i+1)
	}
}

// From calls f for the things whose names begin with prefix and come after the given one, in
// order, until f returns false.
func (x *Index[T]) From(prefix, after string, f func(T) bool) {
	if len(x.runs) == 0 {
		return
	}
	start := max(prefix, after)
	i := x.run(start)
	at, found := slices.BinarySearchFunc(x.runs[i], start, byName[T])
	if found && start == after {
		at++
	}
	for ; i < len(x.runs); i, at = i+1, 0 {
		for _, e := range x.runs[i][at:] {
			if !strings.HasPrefix(e.Name(), prefix) || !f(e) {
				return
			}
		}
	}
}
