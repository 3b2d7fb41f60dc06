// Package budget divides what a process has (descriptors, mappings, memory) among those that make
// it use them.
//
// # The rule
//
// Of each resource a process has a total, of which the last quarter is kept for newcomers. A
// principal may have
//
//   - a small base, from all that is free, or
//   - beyond the base, at most twice as much as is still free above the last quarter when it has
//     it.
//
// So a principal alone gets at most half of the total, the second greedy one at most a third of
// what the first could have, and so on: the rule needs no list of principals, and takes nothing
// back.
//
// A newcomer always gets its base, as long as fewer than (total/4)/base other principals have
// something: whatever took the resource beyond the base of its principal left a quarter free, and
// since then each principal can have added no more than a base to what it had. The base is at most
// a sixteenth of the total, so that this holds beside three others even in the smallest process,
// and beside hundreds in a usual one.
//
// What the process does of its own accord (Own) is counted and never refused: principals get less.
package budget

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
)

// ErrOver is what a Refusal wraps.
var ErrOver = errors.New("over budget")

// Resource is something of which a process has only so much.
type Resource uint8

const (
	Sessions    Resource = iota // control connections whose handshake is done
	Paths                       // data paths and queues, also those that are being set up
	Descriptors                 // open files
	Memory                      // bytes of buffers
	Mappings                    // of files that principals handed over
	Address                     // bytes of these mappings
	resources
)

var names = [resources]string{"sessions", "paths", "descriptors", "bytes of buffers", "mappings",
	"bytes of address space"}

// remedies says how to raise the limit of a resource.
var remedies = [resources]string{
	Sessions:    "close sessions",
	Paths:       "close paths, or ask for fewer of them",
	Descriptors: "close paths, ask for fewer streams, or raise the limit of open files (ulimit -n) of the other process",
	Memory:      "close paths, ask for fewer streams and a smaller window, or read the answers before asking for more",
	Mappings:    "release views, or raise vm.max_map_count",
	Address:     "release views, or raise the limit of address space (ulimit -v)",
}

func (r Resource) String() string {
	if r < resources {
		return names[r]
	}
	return fmt.Sprintf("resource(%d)", uint8(r))
}

// Amounts is an amount of each resource: Amounts{Paths: 1, Descriptors: 7}.
type Amounts [resources]uint64

// bases are what each principal may have of what is kept for newcomers: a session, two paths of
// default settings, and what belongs to them.
var bases = Amounts{Sessions: 1, Paths: 2, Descriptors: 24, Memory: 8 << 20, Mappings: 16, Address: 1 << 30}

// Most that Process has, whatever the limits of the process are.
const (
	mostSessions = 4096
	mostPaths    = 16384
	mostAddress  = 1 << 45 // of the 2^47 bytes that a process has on amd64
	mostReserve  = 4096    // descriptors that are not in the budget
)

// Refusal says what was refused. It matches ErrOver.
type Refusal struct {
	Principal         string
	Resource          Resource
	Asked, Held, Free uint64 // by the principal; Free is not taken by anyone
	Kept              uint64 // of Free, for newcomers
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%d %s asked for, %s has %d and %d are free, of which %d are kept for others: %s",
		r.Asked, r.Resource, r.Principal, r.Held, r.Free, min(r.Kept, r.Free), remedies[r.Resource])
}

// Unwrap makes it match ErrOver.
func (r *Refusal) Unwrap() error { return ErrOver }

// Budget is the account of a process. Its methods may be called from any goroutine.
type Budget struct {
	total, kept, base Amounts

	mu   sync.Mutex // guards what follows
	used Amounts
	of   map[string]*Amounts // of principals that have something
}

// New makes a budget of these totals. A total of 0 grants nothing.
func New(total Amounts) *Budget {
	b := &Budget{total: total, of: map[string]*Amounts{}}
	for r := range total {
		b.kept[r] = total[r] / 4
		b.base[r] = min(bases[r], b.kept[r]/4)
	}
	return b
}

// Process is the budget of this process, which all its nodes share: the descriptors it may have
// without a quarter or 4096, a quarter of the memory, a quarter of the mappings. What is left is
// for everything that is not counted here.
var Process = sync.OnceValue(func() *Budget {
	// A limit that cannot be read counts as what every Linux has.
	files, memory, maps, address := uint64(1024), uint64(1<<30), uint64(65530), uint64(mostAddress)
	read := func(into *uint64, from func() (uint64, error)) {
		if n, err := from(); err == nil {
			*into = n
		}
	}
	read(&files, sys.FileLimit)
	read(&memory, sys.MemoryLimit)
	read(&maps, sys.MapLimit)
	read(&address, sys.AddressLimit)
	files -= min(files/4, mostReserve)
	return New(Amounts{
		Sessions:    min(mostSessions, files/4),
		Paths:       min(mostPaths, files/4),
		Descriptors: files,
		Memory:      min(memory, address) / 4,
		Mappings:    maps / 4,
		Address:     min(mostAddress, address/4),
	})
})

// Grant is what a principal was given. Release gives it back, once.
type Grant struct {
	b         *Budget
	principal string
	own       bool
	a         Amounts
	back      atomic.Bool
}

// Take gives a principal all of a or, with a *Refusal, nothing.
func (b *Budget) Take(principal string, a Amounts) (*Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.of[principal]
	if held == nil {
		held = new(Amounts)
	}
	for r, n := range a {
		if n > 0 && !b.fits(r, held[r], n) {
			return nil, b.refusal(principal, r, n, held[r])
		}
	}
	for r, n := range a {
		held[r] += n
		b.used[r] += n
	}
	b.of[principal] = held
	b.verify()
	return &Grant{b: b, principal: principal, a: a}, nil
}

// Change makes the grant one of a, which is not nothing, in place of what it was. With a *Refusal
// it stays as it is; it is refused only where a is more. It must not be called at the same time as
// Release or another Change.
func (g *Grant) Change(a Amounts) error {
	b := g.b
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.of[g.principal]
	for r, n := range a {
		if n > g.a[r] && !b.fits(r, held[r], n-g.a[r]) {
			return b.refusal(g.principal, r, n-g.a[r], held[r])
		}
	}
	for r, n := range a {
		held[r] += n - g.a[r]
		b.used[r] += n - g.a[r]
	}
	g.a = a
	b.verify()
	return nil
}

func (b *Budget) refusal(principal string, r int, asked, held uint64) *Refusal {
	free := b.total[r] - min(b.used[r], b.total[r])
	return &Refusal{Principal: principal, Resource: Resource(r), Asked: asked, Held: held, Free: free, Kept: b.kept[r]}
}

// fits is the rule of the package comment.
func (b *Budget) fits(r int, held, n uint64) bool {
	if b.used[r] > b.total[r] || n > b.total[r]-b.used[r] {
		return false
	}
	left, held := b.total[r]-b.used[r]-n, held+n
	return held <= b.base[r] || left >= b.kept[r] && held <= 2*(left-b.kept[r])
}

// Own counts what the process takes of its own accord.
func (b *Budget) Own(a Amounts) *Grant {
	b.mu.Lock()
	defer b.mu.Unlock()
	for r, n := range a {
		b.used[r] += n
	}
	return &Grant{b: b, own: true, a: a}
}

// Release gives the grant back. A second call does nothing, and panics where invariants are
// checked; a nil grant holds nothing.
func (g *Grant) Release() {
	if g == nil {
		return
	}
	if g.back.Swap(true) {
		if invariants.Enabled {
			invariants.Broken("budget: a grant of %q was given back twice", g.principal)
		}
		return
	}
	b := g.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for r, n := range g.a {
		b.used[r] -= n
	}
	held := b.of[g.principal]
	if g.own || held == nil { // nil: a grant of nothing
		return
	}
	for r, n := range g.a {
		held[r] -= n
	}
	if *held == (Amounts{}) {
		delete(b.of, g.principal)
	}
	b.verify()
}

// Held is what a principal has now.
func (b *Budget) Held(principal string) Amounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.of[principal]; held != nil {
		return *held
	}
	return Amounts{}
}

// Total is what the process has, for principals and its own.
func (b *Budget) Total() Amounts { return b.total }

// verify checks that what is used covers what the principals hold; the rest is the process's own.
// The mutex is held.
func (b *Budget) verify() {
	if !invariants.Enabled {
		return
	}
	var sum Amounts
	for _, held := range b.of {
		for r, n := range held {
			sum[r] += n
		}
	}
	for r := range sum {
		invariants.Insist(sum[r] <= b.used[r] && sum[r] <= b.total[r],
			"budget: principals hold %d %s, %d are used of %d", sum[r], Resource(r), b.used[r], b.total[r])
	}
}
