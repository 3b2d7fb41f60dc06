package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// entry is one transfer.
type entry struct {
	begun       bool
	kind, to    string
	path        string
	bytes       uint64
	ended       int
	err         string
	heard       int
	heardBytes  uint64
	heardWrong  string
	heardByNode string
}

// tally counts transfers of one kind.
type tally struct {
	begun, good, failed, killed uint64
	bytes                       uint64 // of those that succeeded
	heard, unheard              uint64 // of those that succeeded: by the receiver, or it was killed before
	reasons                     map[string]uint64
	paths                       map[string]uint64 // of those that succeeded
}

// accounts hold what the workers report.
type accounts struct {
	mu      sync.Mutex
	open    map[string]*entry
	kinds   map[string]*tally
	killed  map[string]bool // lives of workers that got SIGKILL
	nodes   map[string]bool // nodes seen; true: closed in order
	borrows uint64
	looked  uint64
	hops    uint64            // failovers of transfers that ended
	tries   uint64            // attempts of jobs after the first
	resumed uint64            // downloads that went on where an earlier job had ended, or an earlier life of the worker
	sums    map[string]uint64 // what nodes counted that were closed in order
	wrong   []string          // what does not balance
	dropped int               // of those, not kept
}

func newAccounts() *accounts {
	return &accounts{open: map[string]*entry{}, kinds: map[string]*tally{}, killed: map[string]bool{},
		nodes: map[string]bool{}, sums: map[string]uint64{}}
}

// checkedBySender are the kinds whose bytes the sender checks itself when they have ended: no
// notification reports them.
var checkedBySender = map[string]bool{kindDownload: true, kindStore: true}

// maxWrong is how many complaints are kept.
const maxWrong = 100

func (b *accounts) complain(format string, args ...any) {
	if len(b.wrong) < maxWrong {
		b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
	} else {
		b.dropped++
	}
}

func (b *accounts) complaint(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complain(format, args...)
}

func (b *accounts) kind(k string) *tally {
	t := b.kinds[k]
	if t == nil {
		t = &tally{reasons: map[string]uint64{}, paths: map[string]uint64{}}
		b.kinds[k] = t
	}
	return t
}

// take enters one line. Lines of one worker come in order, those of two workers do not.
func (b *accounts) take(l *line) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch l.T {
	case tOpen:
		b.nodes[l.Node] = false
	case tClosed:
		b.nodes[l.Node] = true
		for name, n := range l.Sums {
			b.sums[name] += n
		}
		if l.Text != "" {
			b.complain("%s left over: %s", l.Node, l.Text)
		}
	case tWrong:
		b.complain("%s: %s", l.Node, l.Text)
	case tBorrow:
		b.borrows++
	case tLooked:
		b.looked++
	case tBegin, tEnd, tHeard:
		e := b.open[l.Key]
		if e == nil {
			e = &entry{}
			b.open[l.Key] = e
		}
		b.enter(e, l)
		if e.begun && e.ended == 1 && e.err == "" && (e.heard == 1 || checkedBySender[e.kind]) {
			b.closeEntry(l.Key, e)
			delete(b.open, l.Key) // a later line about it makes a new entry that never began
		}
	}
}

func (b *accounts) enter(e *entry, l *line) {
	switch l.T {
	case tBegin:
		if e.begun {
			b.complain("transfer %s began twice", l.Key)
		}
		e.begun, e.kind, e.to, e.bytes = true, l.Kind, l.To, l.Bytes
		b.kind(l.Kind).begun++
		if l.From > 0 {
			b.resumed++
		}
	case tEnd:
		e.ended++
		e.err, e.path = l.Err, l.Path
		b.hops += uint64(l.Hops)
		b.tries += uint64(l.Tries)
		if l.Err == "" {
			b.kind(e.kind).paths[l.Path]++
		} else if strings.HasPrefix(l.Err, "?") {
			b.complain("transfer %s (%s of %d bytes to %s) failed for a reason that has no name: %s", l.Key, e.kind,
				e.bytes, e.to, l.Text)
		}
	case tHeard:
		e.heard++
		e.heardBytes, e.heardWrong, e.heardByNode = l.Bytes, l.Text, l.Node
	}
}

// lifeOf is the worker and its life that a transfer's key or a node's name begins with.
func lifeOf(s string) string {
	if i := strings.IndexAny(s, "#/"); i >= 0 {
		return s[:i]
	}
	return s
}

// closeEntry closes the entry of a transfer.
func (b *accounts) closeEntry(key string, e *entry) {
	if !e.begun {
		b.complain("transfer %s was reported %d times (ended %d, heard by %s %d) although it never began or is "+
			"closed: it was reported twice",
			key, e.ended+e.heard, e.ended, e.heardByNode, e.heard)
		return
	}
	t := b.kind(e.kind)
	what := fmt.Sprintf("transfer %s (%s of %d bytes to %s over %q)", key, e.kind, e.bytes, e.to, e.path)
	switch {
	case e.ended == 0 && b.killed[lifeOf(key)]:
		t.killed++
	case e.ended != 1:
		b.complain("%s ended %d times", what, e.ended)
	case e.err != "":
		t.failed++
		t.reasons[e.err]++
	default:
		t.good++
		t.bytes += e.bytes
		switch {
		case checkedBySender[e.kind]:
		case e.heard == 1:
			t.heard++
			if e.heardBytes != e.bytes {
				b.complain("%s: the receiver heard of %d bytes", what, e.heardBytes)
			}
			if e.heardWrong != "" {
				b.complain("%s succeeded, but the receiver finds: %s", what, e.heardWrong)
			}
		case e.heard == 0 && !b.nodes[e.to] && b.killed[lifeOf(e.to)]:
			t.unheard++
		case e.heard == 0:
			b.complain("%s succeeded, but the receiver, which lived on, never heard of it", what)
		}
	}
	if e.heard > 1 {
		b.complain("%s was heard of %d times", what, e.heard)
	}
}

// close closes what is left.
func (b *accounts) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(b.open)) {
		b.closeEntry(key, b.open[key])
	}
	b.open = map[string]*entry{}
	for _, n := range slices.Sorted(maps.Keys(b.nodes)) {
		if !b.nodes[n] && !b.killed[lifeOf(n)] {
			b.complain("node %s was not closed", n)
		}
	}
}
