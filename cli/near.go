package cli

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer/control"
)

// errNothing means that a peer serves nothing at all.
var errNothing = fmt.Errorf("nothing is there: %w", control.NotFound)

// nearNames adds to the error about a name that does not exist those that may have been meant.
func nearNames(ctx context.Context, c *client, name string, err error) error {
	entries, lerr := share.Names(ctx, c.conn(), "")
	if lerr != nil { // not permitted, say
		return err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name
	}
	text := fmt.Sprintf("%s serves no %q", c.addr, name)
	below := strings.TrimRight(name, "/") + "/"
	if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, below) }) {
		text = fmt.Sprintf("%s is a directory: penstock mirror %s DIR --prefix %s fetches what is in it",
			share.Printable(name), c.addr, share.Printable(below))
	} else if near := nearest(name, names); len(near) > 0 {
		for i := range near {
			near[i] = share.Printable(near[i])
		}
		text += "; near it: " + strings.Join(near, ", ")
	} else {
		text += fmt.Sprintf("; penstock ls %s shows the %s that it serves", c.addr, count(len(names), "name", "names"))
	}
	return &worded{text, errors.Join(control.NotFound, err)}
}

// nearest are up to three names that are most like one, the nearest first: with few letters
// changed, or the same last part.
func nearest(name string, names []string) []string {
	type scored struct {
		name  string
		score int
	}
	var found []scored
	limit := max(2, len(name)/4)
	for _, n := range names {
		score := limit + 1
		switch {
		case strings.EqualFold(n, name):
			score = 0
		case path.Base(n) == path.Base(name):
			score = 1
		default:
			if diff := len(n) - len(name); -limit <= diff && diff <= limit && len(name) <= share.MaxName {
				score = input.Distance(strings.ToLower(name), strings.ToLower(n), limit+1)
			}
			if score > limit && len(name) >= 3 && strings.Contains(n, name) {
				score = limit
			}
		}
		if score <= limit {
			found = append(found, scored{n, score})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return a.score - b.score })
	var out []string
	for _, f := range found[:min(len(found), 3)] {
		out = append(out, f.name)
	}
	return out
}
