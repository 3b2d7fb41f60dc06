package sched

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
)

// What is beyond a limit; match them with errors.Is. They are the codes under which the peer gets a
// refusal, so the same comparison holds on both sides.
var (
	ErrTooMany      error = control.TooMany      // transfers at once
	ErrTooManyBytes error = control.TooManyBytes // bytes of transfers at once
	ErrTooLarge     error = control.TooLarge     // a single transfer
	ErrDType        error = control.DType        // a tensor of a type that is not taken
	ErrRate         error = control.OverRate     // something that cannot be held to the rate
	ErrMemory       error = control.OverBudget   // memory for what arrives
)

// Limits are what is let in, or out, at once. The zero value limits nothing; so does each field
// that is 0.
type Limits struct {
	Transfers int            // under way at once
	Bytes     uint64         // of the transfers under way, whole sizes
	Largest   uint64         // bytes of a single transfer
	DTypes    []tensor.DType // the types of tensors that are taken; nil means all
	Memory    uint64         // bytes of this node's memory that arrived tensors may occupy until they are released
	Rate      uint64         // bytes per second
	Burst     uint64         // bytes that may pass at once after a rest; 0: 20 ms of Rate, at least 64 KiB
}

// Check says what is wrong with limits.
func (l *Limits) Check() error {
	if l.Transfers < 0 {
		return fmt.Errorf("sched: %d transfers at once: expected 0 (no limit) or more", l.Transfers)
	}
	if l.Rate > MaxRate || l.Burst > maxBurst {
		return fmt.Errorf("sched: rate of %d bytes per second with a burst of %d: expected at most 2^57 and 2^40",
			l.Rate, l.Burst)
	}
	if l.Rate == 0 && l.Burst > 0 {
		return fmt.Errorf("sched: a burst of %d bytes without a rate: set Rate too", l.Burst)
	}
	for _, d := range l.DTypes {
		if !d.Valid() {
			return fmt.Errorf("sched: unknown type %v in the list of those that are taken", d)
		}
	}
	return nil
}

// Refusal says what was refused, by which limit. It matches the error of this package that Code is.
type Refusal struct {
	Code  control.Code
	Whose string // what the limit is for: "this node", "peer \"x\""
	Limit uint64 // its value
	Used  uint64 // of it
	Asked uint64 // on top
	Text  string // instead of the numbers, where there are none
}

func (r *Refusal) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: ", r.Code)
	switch unit := "bytes"; {
	case r.Text != "":
		b.WriteString(r.Text)
	case r.Code == control.TooLarge:
		fmt.Fprintf(&b, "a transfer of %d bytes, at most %d are taken", r.Asked, r.Limit)
	default:
		if r.Code == control.TooMany {
			unit = "transfers"
		}
		fmt.Fprintf(&b, "%d %s asked for, %d of %d in use", r.Asked, unit, r.Used, r.Limit)
	}
	fmt.Fprintf(&b, " (limit of %s)", r.Whose)
	return b.String()
}

// Unwrap makes it match its code.
func (r *Refusal) Unwrap() error { return r.Code }

// Use is how much of an account is in use.
type Use struct {
	Transfers int
	Bytes     uint64 // of these transfers
	Memory    uint64
}

// Account counts what is under way against limits, and against those of its parent: a peer's
// account has the node's as its parent, and what is granted fits both. Its methods may be called
// from any goroutine.
type Account struct {
	whose  string
	limits Limits
	parent *Account
	mu     sync.Mutex // taken before the parent's
	use    Use
}

// NewAccount makes an account. The limits must have passed Check; parent may be nil.
func NewAccount(whose string, l Limits, parent *Account) *Account {
	l.DTypes = slices.Clone(l.DTypes)
	return &Account{whose: whose, limits: l, parent: parent}
}

// Use says how much is in use now.
func (a *Account) Use() Use {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.use
}

// Fits refuses what waiting does not help: a transfer that is larger than allowed at all, and a
// type that is not taken (tensor.Invalid: it is not a tensor). The error is a *Refusal.
func (a *Account) Fits(bytes uint64, d tensor.DType) error {
	for ; a != nil; a = a.parent {
		l := &a.limits
		var r *Refusal
		switch {
		case l.Largest > 0 && bytes > l.Largest:
			r = &Refusal{Code: control.TooLarge, Limit: l.Largest, Asked: bytes}
		case l.Bytes > 0 && bytes > l.Bytes:
			r = &Refusal{Code: control.TooManyBytes, Limit: l.Bytes, Asked: bytes}
		case d != tensor.Invalid && l.DTypes != nil && !slices.Contains(l.DTypes, d):
			r = &Refusal{Code: control.DType, Text: fmt.Sprintf("a tensor of %v, expected one of %v", d, l.DTypes)}
		default:
			continue
		}
		r.Whose = a.whose
		return r
	}
	return nil
}

// Admit counts a transfer of so many bytes in, here and at all parents, or refuses it and counts
// nothing; d is as for Fits. It does not allocate unless it refuses; the error is a *Refusal.
func (a *Account) Admit(bytes uint64, d tensor.DType) (Grant, error) {
	if err := a.Fits(bytes, d); err != nil {
		return Grant{}, err
	}
	return a.take(Grant{a, bytes, false})
}

// Memory counts so many bytes of memory in, here and at all parents, or refuses them. The error is
// a *Refusal.
func (a *Account) Memory(bytes uint64) (Grant, error) { return a.take(Grant{a, bytes, true}) }

func (a *Account) take(g Grant) (Grant, error) {
	for x := a; x != nil; x = x.parent {
		if err := x.add(g); err != nil {
			for y := a; y != x; y = y.parent {
				y.remove(g)
			}
			return Grant{}, err
		}
	}
	return g, nil
}

// add counts a grant in, or refuses it, here alone.
func (a *Account) add(g Grant) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, u := &a.limits, &a.use
	switch {
	case g.memory && l.Memory > 0 && (u.Memory > l.Memory || g.bytes > l.Memory-u.Memory):
		return &Refusal{Whose: a.whose, Code: control.OverBudget, Limit: l.Memory, Used: u.Memory, Asked: g.bytes}
	case g.memory:
		u.Memory += g.bytes
	case l.Transfers > 0 && u.Transfers >= l.Transfers:
		return &Refusal{Whose: a.whose, Code: control.TooMany, Limit: uint64(l.Transfers), Used: uint64(u.Transfers),
			Asked: 1}
	case l.Bytes > 0 && (u.Bytes > l.Bytes || g.bytes > l.Bytes-u.Bytes):
		return &Refusal{Whose: a.whose, Code: control.TooManyBytes, Limit: l.Bytes, Used: u.Bytes, Asked: g.bytes}
	default:
		u.Transfers++
		u.Bytes += g.bytes
	}
	return nil
}

// remove undoes add.
func (a *Account) remove(g Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := &a.use
	if invariants.Enabled && (g.memory && u.Memory < g.bytes || !g.memory && (u.Transfers < 1 || u.Bytes < g.bytes)) {
		panic("sched: a grant was given back twice")
	}
	if g.memory {
		u.Memory -= g.bytes
		return
	}
	u.Transfers--
	u.Bytes -= g.bytes
}

// Grant is the place that one transfer, or one piece of memory, has in an account. It is a plain
// value with one owner, and must not be used after it was copied to another. The zero value holds
// nothing.
type Grant struct {
	a      *Account
	bytes  uint64
	memory bool
}

// Held reports whether there is something to give back.
func (g *Grant) Held() bool { return g.a != nil }

// Move hands the grant over: g holds nothing any more.
func (g *Grant) Move() Grant {
	out := *g
	*g = Grant{}
	return out
}

// Release gives it back, at all accounts where it counts; a second call does nothing.
func (g *Grant) Release() {
	held := g.Move()
	for a := held.a; a != nil; a = a.parent {
		a.remove(held)
	}
}
