package burst

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
)

// Handle is what an Owner calls a piece of its memory: for a pool a mem.Handle, for others any
// number that they chose.
type Handle = mem.Handle

// Owner takes memory back. Reclaim is called once per burst and source, with one handle for each
// segment that carried one; a handle that several segments carried comes once for each of them. It
// is called by any goroutine, several at a time, and must neither block nor keep the slice.
type Owner interface {
	Reclaim(handles []Handle)
}

// Source is memory that segments lie in, together with who takes it back. A queue makes one Source
// for each region it uses, once. It must keep the region mapped while handles of it are out.
type Source struct {
	region *mem.Region
	bytes  []byte
	owner  Owner
}

// NewSource makes a Source of a whole region; bytes are what the CPU sees of it, nil for memory
// that it cannot reach.
func NewSource(region *mem.Region, bytes []byte, owner Owner) *Source {
	return &Source{region: region, bytes: bytes, owner: owner}
}

// PoolSource makes a Source of a pool: its handles are the pool's, and go back to its shared list.
func PoolSource(p *mem.Pool) *Source {
	return NewSource(p.Region(), p.Region().All().Bytes(), poolOwner{p})
}

// Region is the memory of the source.
func (s *Source) Region() *mem.Region { return s.region }

// Reclaim gives memory back to the Source's Owner, for an engine that has taken packets over: one
// call for many handles.
func (s *Source) Reclaim(handles []Handle) {
	if len(handles) > 0 {
		s.owner.Reclaim(handles)
	}
}

type poolOwner struct{ p *mem.Pool }

// Reclaim implements Owner. What the pool refuses, because it was released before, the pool counts.
func (o poolOwner) Reclaim(handles []Handle) {
	if _, err := o.p.PutBatch(handles); err != nil && invariants.Enabled {
		panic(fmt.Sprintf("burst: released twice: %v", err))
	}
}
