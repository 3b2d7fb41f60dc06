package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// print writes the report as a table for people.
func (r *Report) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "transfer\tbegun\tsucceeded\tMiB\theard\treceiver killed\tfailed\tsender killed\t")
	var sum Kind
	row := func(k *Kind) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", k.Name, k.Begun, k.Good, k.Bytes>>20, k.Heard, k.Unheard,
			k.Failed, k.Killed)
	}
	sum.Name = "all"
	paths, reasons := map[string]uint64{}, map[string]uint64{}
	for i := range r.Kinds {
		k := &r.Kinds[i]
		row(k)
		sum.Begun, sum.Good, sum.Bytes, sum.Heard = sum.Begun+k.Begun, sum.Good+k.Good, sum.Bytes+k.Bytes,
			sum.Heard+k.Heard
		sum.Unheard, sum.Failed, sum.Killed = sum.Unheard+k.Unheard, sum.Failed+k.Failed, sum.Killed+k.Killed
		for n, c := range k.Paths {
			paths[n] += c
		}
		for n, c := range k.Reasons {
			reasons[n] += c
		}
	}
	row(&sum)
	w.Flush()
	fmt.Fprintf(out, "paths: %s; %d views borrowed; %d failovers; jobs were tried again %d times, and %d downloads "+
		"went on from a file; %d stores were looked at\n",
		list(paths), r.Borrows, r.Failovers, r.Retries, r.Resumed, r.Looked)
	fmt.Fprintf(out, "failed because: %s\n", list(reasons))
	fmt.Fprintf(out, "counted by nodes that were closed in order: %s\n", list(r.Sums))
	fmt.Fprintf(out, "faults: %s; %d processes, %d nodes, %v\n", list(r.Faults), r.Lives, r.Nodes,
		r.Took.Round(time.Millisecond))
	if len(r.Wrong) == 0 {
		fmt.Fprintf(out, "everything is accounted for; seed %d\n", r.Seed)
		return
	}
	fmt.Fprintf(out, "NOT accounted for, seed %d:\n", r.Seed)
	for _, s := range r.Wrong {
		fmt.Fprintf(out, "  %s\n", strings.ReplaceAll(s, "\n", "\n  "))
	}
}

func list[N int | uint64](m map[string]N) string {
	if len(m) == 0 {
		return "nothing"
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(out, ", ")
}
