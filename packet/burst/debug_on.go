//go:build invariants

package burst

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"weak"
)

// debug remembers who filled and emptied a burst.
type debug struct {
	full      bool
	by, until string
}

// held lists the bursts that are not empty. Weak: what the collector takes is found by its cleanup.
var held struct {
	sync.Mutex
	m map[weak.Pointer[Burst]]string
}

func stack() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs[:])])
	var s strings.Builder
	for {
		f, more := frames.Next()
		fmt.Fprintf(&s, "\t%s\n\t\t%s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return s.String()
		}
	}
}

func (d *debug) fill(b *Burst) {
	d.full, d.by = true, stack()
	held.Lock()
	defer held.Unlock()
	if held.m == nil {
		held.m = map[weak.Pointer[Burst]]string{}
	}
	held.m[weak.Make(b)] = d.by
}

func (d *debug) empty(b *Burst, how string) {
	if !d.full {
		return
	}
	d.full, d.until = false, how+" at\n"+stack()
	held.Lock()
	defer held.Unlock()
	delete(held.m, weak.Make(b))
}

func (d *debug) emptied() string {
	if d.full || d.until == "" {
		return ""
	}
	return ", which was emptied by " + d.until
}

// Leaks lists who filled each burst that is not empty now, also those that are not referred to any
// more; without -tags invariants it knows nothing.
func Leaks() []string {
	held.Lock()
	defer held.Unlock()
	var out []string
	for _, s := range held.m {
		out = append(out, s)
	}
	return out
}
