package path

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/mem"
)

// Rights say what a peer may do with an export.
type Rights uint8

const (
	Read Rights = 1 << iota
	Write
)

func (r Rights) String() string {
	switch r {
	case 0:
		return "none"
	case Read:
		return "read"
	case Write:
		return "write"
	case Read | Write:
		return "read+write"
	}
	return fmt.Sprintf("rights(%d)", uint8(r))
}

// Key names an export. It is unguessable and never used again after a revocation: Index and Epoch
// find the entry, Secret proves that the holder was given the key. On the wire it takes KeySize
// bytes, big-endian.
type Key struct {
	Index  uint32
	Epoch  uint32
	Secret uint64
}

// KeySize is the size of a Key on the wire.
const KeySize = 16

// Append adds the wire form of k.
func (k Key) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, k.Index)
	b = binary.BigEndian.AppendUint32(b, k.Epoch)
	return binary.BigEndian.AppendUint64(b, k.Secret)
}

// ParseKey reads the wire form; b must have at least KeySize bytes.
func ParseKey(b []byte) Key {
	return Key{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])}
}

// AllPeers, in the place of a peer's number, says that an export is for every peer. No peer has
// this number.
const AllPeers = ^uint64(0)

// Desc describes an export to a peer.
type Desc struct {
	Key    Key    // zero where the peer has no right to the export
	Size   uint64 // bytes
	Rights Rights // 0: the peer sees that the export is there, and no more
	// Whole says that shared memory can hand the export over: it has bytes and is a whole memfd, or
	// its owner permitted to hand over what lies around it.
	Whole bool
	// Device says that it is memory of a device that the CPU of its node cannot reach. Only a
	// DeviceReacher gets at it; over other paths package transfer stages it.
	Device bool
}

// Export is memory of this node that peers can name by its key.
type Export struct {
	key    Key
	span   mem.Span
	rights Rights
	peer   uint64 // the only one that may reach it, or AllPeers
	lease  mem.Lease
	bytes  []byte
	around bool          // shared memory may hand over the whole region
	state  atomic.Uint32 // live, revoked, retired
}

const (
	exportLive uint32 = iota
	exportRevoked
	exportRetired
)

// Desc describes the export for peers.
func (e *Export) Desc() Desc {
	r := e.span.Region
	whole := r.FD() >= 0 && len(e.bytes) > 0 && (e.around || e.span.Off == 0 && e.span.Len == r.Len())
	return Desc{Key: e.key, Size: e.span.Len, Rights: e.rights, Whole: whole, Device: e.bytes == nil}
}

// Span is the exported memory.
func (e *Export) Span() mem.Span { return e.span }

// Rights are what peers may do.
func (e *Export) Rights() Rights { return e.rights }

// Key is the export's key.
func (e *Export) Key() Key { return e.key }

// Revoked reports whether Revoke was called.
func (e *Export) Revoked() bool { return e.state.Load() != exportLive }

// Exports is a node's table of exports. Lookups are lock-free; changes take a lock and cost the
// same however many exports there are.
type Exports struct {
	mu    sync.Mutex                          // guards changes of the table
	table atomic.Pointer[[]*[block]exportRef] // grows by blocks, which stay where they are
	used  uint32                              // indexes that were issued so far
	free  []uint32                            // those of them to use again, with a new epoch
	epoch uint32
}

type exportRef = atomic.Pointer[Export]

// block is how many exports the table grows by.
const block = 512

// at is where the table keeps the export of an index; nil if it has never had that index.
func (x *Exports) at(i uint32) *exportRef {
	if p := x.table.Load(); p != nil && uint64(i/block) < uint64(len(*p)) {
		return &(*p)[i/block][i%block]
	}
	return nil
}

// Add exports a span to all peers and holds a lease on its region until Retire.
func (x *Exports) Add(s mem.Span, r Rights) (*Export, error) { return x.AddFor(s, r, AllPeers, false) }

// AddFor exports a span to the peer of that number only, or to AllPeers. 0 is no peer and is
// refused. With around, shared memory may hand over the whole region: the peer can then reach what
// lies around the span, with the same rights. The span begins and ends at a page.
func (x *Exports) AddFor(s mem.Span, r Rights, peer uint64, around bool) (*Export, error) {
	if s.Region == nil {
		return nil, fmt.Errorf("path: export of a span without a region: %w", mem.ErrBounds)
	}
	if r == 0 || r&^(Read|Write) != 0 {
		return nil, fmt.Errorf("path: export of region %q: rights %d: expected read, write or both", s.Region.Name(), r)
	}
	if peer == 0 {
		return nil, fmt.Errorf("path: export of region %q: peer 0: expected the number of a peer, or AllPeers",
			s.Region.Name())
	}
	if !s.Valid() {
		return nil, fmt.Errorf("path: export of region %q: offset %d + %d bytes of %d: %w", s.Region.Name(), s.Off,
			s.Len, s.Region.Len(), mem.ErrBounds)
	}
	if r&Write != 0 && s.Region.ReadOnly() {
		return nil, fmt.Errorf("path: export of region %q for writing, but the region is read-only: %w",
			s.Region.Name(), ErrRights)
	}
	if page := uint64(s.Region.PageSize()); around &&
		(s.Off%page != 0 || s.Len%page != 0 && s.Off+s.Len != s.Region.Len()) {
		return nil, fmt.Errorf("path: export of region %q around its span: offset %d, %d bytes: expected multiples "+
			"of a page of %d bytes: %w", s.Region.Name(), s.Off, s.Len, page, mem.ErrBounds)
	}
	lease, err := s.Region.Lease()
	if err != nil {
		return nil, err
	}
	var secret [8]byte
	rand.Read(secret[:]) // never fails (Go 1.24)
	e := &Export{span: s, rights: r, peer: peer, lease: lease, bytes: s.Bytes(), around: around}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.epoch++
	idx := x.used
	if n := len(x.free); n > 0 {
		idx, x.free = x.free[n-1], x.free[:n-1]
	} else {
		x.used++
	}
	if x.at(idx) == nil {
		var table []*[block]exportRef
		if p := x.table.Load(); p != nil {
			table = *p
		}
		// Readers hold the old header: appending past its length is invisible to them.
		table = append(table, new([block]exportRef))
		x.table.Store(&table)
	}
	e.key = Key{Index: idx, Epoch: x.epoch, Secret: binary.BigEndian.Uint64(secret[:])}
	x.at(idx).Store(e)
	return e, nil
}

// Lookup finds an export by key alone. It fails with ErrKey or ErrRevoked.
func (x *Exports) Lookup(k Key) (*Export, error) {
	if p := x.at(k.Index); p != nil {
		if e := p.Load(); e != nil && e.key == k {
			if e.state.Load() != exportLive {
				return nil, ErrRevoked
			}
			return e, nil
		}
	}
	return nil, ErrKey
}

func (e *Export) resolve(off, n uint64, want, have Rights) ([]byte, error) {
	if err := e.check(off, n, want, have); err != nil {
		return nil, err
	}
	if e.bytes == nil { // there is nothing to touch where there are no bytes
		if n > 0 {
			return nil, ErrUnreachable
		}
		return nil, nil
	}
	return e.bytes[off : off+n : off+n], nil
}

func (e *Export) check(off, n uint64, want, have Rights) error {
	if have&want != want {
		return ErrRights
	}
	if size := e.span.Len; off > size || n > size-off {
		return ErrBounds
	}
	return nil
}

// Reach is a node's table of exports as one peer may use it.
type Reach struct {
	table  *Exports
	rights Rights
	peer   uint64
}

// Reach is the table as a peer of that number may use it who has these rights.
func (x *Exports) Reach(r Rights, peer uint64) Reach { return Reach{x, r, peer} }

// Lookup finds an export by key alone and says what the peer may do with it. It fails with ErrKey
// or ErrRevoked; an export for another peer is as unknown as one that does not exist.
func (r Reach) Lookup(k Key) (*Export, Rights, error) {
	e, err := r.table.Lookup(k)
	if err != nil {
		return nil, 0, err
	}
	if e.peer != AllPeers && e.peer != r.peer {
		return nil, 0, ErrKey
	}
	return e, e.rights & r.rights, nil
}

// Rights are what the peer may do with exports that permit everything.
func (r Reach) Rights() Rights { return r.rights }

// Resolve checks a reference that came from the peer and returns the bytes it names. The errors are
// the bare ErrKey, ErrRevoked, ErrRights, ErrBounds and, for memory that the CPU cannot reach,
// ErrUnreachable, so that refusing costs nothing. The bytes stay mapped until the export is
// retired, which happens only after every path was fenced.
func (r Reach) Resolve(k Key, off, n uint64, want Rights) ([]byte, error) {
	e, have, err := r.Lookup(k)
	if err != nil {
		return nil, err
	}
	return e.resolve(off, n, want, have)
}

// Locate is Resolve for a caller that needs no bytes: it returns the span that the reference names,
// also one of memory that the CPU cannot reach. The span is the export's, which has to be kept from
// being retired in another way than by fencing paths.
func (r Reach) Locate(k Key, off, n uint64, want Rights) (mem.Span, error) {
	e, have, err := r.Lookup(k)
	if err == nil {
		err = e.check(off, n, want, have)
	}
	if err != nil {
		return mem.Span{}, err
	}
	return e.span.Sub(off, n)
}

// Revoke makes the key invalid for every reference that is checked here from now on. On a path
// where the peer does the copying (shared memory) the revocation takes hold when the path was
// fenced; until then the peer may reach the memory as before, and what is under way elsewhere may
// still land. It returns false when the export was revoked before.
func (x *Exports) Revoke(e *Export) bool { return e.state.CompareAndSwap(exportLive, exportRevoked) }

// Retire removes a revoked export and ends its lease. Call it only after every path of the node was
// fenced for its key.
func (x *Exports) Retire(e *Export) {
	if !e.state.CompareAndSwap(exportRevoked, exportRetired) {
		return
	}
	x.mu.Lock()
	x.at(e.key.Index).Store(nil)
	x.free = append(x.free, e.key.Index)
	x.mu.Unlock()
	e.lease.Release()
}

// All lists the live exports.
func (x *Exports) All() []*Export {
	var out []*Export
	p := x.table.Load()
	if p == nil {
		return nil
	}
	for _, b := range *p {
		for i := range b {
			if e := b[i].Load(); e != nil && e.state.Load() == exportLive {
				out = append(out, e)
			}
		}
	}
	return out
}
