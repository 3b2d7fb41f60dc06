package takeover

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/transfer/control"
)

const (
	maxNodes = 1024 // whose lost sessions are remembered
	maxLost  = control.MaxReplaced
)

// ID names a session: random bits that only its two ends know.
type ID = [16]byte

// Party is the other end of a session: the node that it says it is, and the certificate that it has
// shown, "" without TLS. A peer that shows another certificate and says that it is the same node
// has no say in sessions with the first one.
type Party struct {
	Node [16]byte
	Cert string
}

// Is reports whether two parties can be the same. Without a certificate nothing is proven, or the
// kernel says that it is a process of the same user.
func (a Party) Is(b Party) bool {
	return a.Node == b.Node && (a.Cert == b.Cert || a.Cert == "" || b.Cert == "")
}

// Table has the lost sessions of a node. Its methods may be called from any goroutine.
type Table struct {
	certs bool        // peers show certificates
	any   atomic.Bool // lost is not empty

	mu     sync.Mutex // guards what follows
	lost   map[Party][]ID
	dialed map[string]Party // that answered at an address
}

// New makes an empty table; certs says that peers of the node show certificates.
func New(certs bool) *Table {
	return &Table{certs: certs, lost: map[Party][]ID{}, dialed: map[string]Party{}}
}

// At is the party that answered at an address the last time, the zero value if none is known.
func (t *Table) At(addr string) Party {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dialed[addr]
}

// Answered notes which party answered at an address.
func (t *Table) Answered(addr string, who Party) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.dialed) >= maxNodes {
		clear(t.dialed) // then lost sessions are ended by a request of their own
	}
	t.dialed[addr] = who
}

// Lose remembers a session that ended, until the other side is known to have ended it as well.
func (t *Table) Lose(of Party, id ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := t.lost[of]
	if ids == nil && len(t.lost) >= maxNodes {
		t.forgetOne(of.Cert)
	}
	if len(ids) >= maxLost {
		ids = ids[1:]
	}
	t.lost[of] = append(ids, id)
	t.any.Store(true)
}

// forgetOne makes room: for a certificate that says it is many nodes among these, else among nodes
// that have not come back since so many others were lost. The mutex is held.
func (t *Table) forgetOne(cert string) {
	var any Party
	for any = range t.lost {
		if any.Cert == cert {
			break
		}
	}
	delete(t.lost, any)
}

// as are the parties that one can be and with which sessions were lost. The mutex is held.
func (t *Table) as(who Party) iter.Seq[Party] {
	return func(yield func(Party) bool) {
		if who.Cert == "" && t.certs {
			for of := range t.lost {
				if of.Is(who) && !yield(of) {
					return
				}
			}
			return
		}
		for _, of := range []Party{who, {who.Node, ""}} {
			if t.lost[of] != nil && !yield(of) || of.Cert == "" {
				return
			}
		}
	}
}

// With lists the sessions with a party that were lost and may not have been ended there, as many as
// one request takes.
func (t *Table) With(who Party) (ids []ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for of := range t.as(who) {
		ids = append(ids, t.lost[of]...)
	}
	return ids[:min(len(ids), maxLost)]
}

// Forget forgets lost sessions: the other side has ended them.
func (t *Table) Forget(who Party, ids []ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for of := range t.as(who) {
		rest := slices.DeleteFunc(t.lost[of], func(id ID) bool { return slices.Contains(ids, id) })
		if len(rest) == 0 {
			delete(t.lost, of)
		} else {
			t.lost[of] = rest
		}
	}
	t.any.Store(len(t.lost) > 0)
}

// Has reports whether an earlier session with a party may still have bytes on their way there.
func (t *Table) Has(who Party) bool {
	if !t.any.Load() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for range t.as(who) {
		return true
	}
	return false
}
