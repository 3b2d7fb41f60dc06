package feed

import (
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/packet/burst"
)

// RingStats are the counts of the rings of packets.
func (s *Stage) RingStats() []ring.DescStats { return s.room.stats() }

// Kernel is what the kernel does: running, asleep.
func (s *Stage) Kernel() string { return s.room.resident.Stats().State }

// Describe is the descriptor of the packet of b, which the stage keeps.
func (s *Stage) Describe(b *burst.Burst) (ring.Desc, bool) {
	b.MoveTo(s.in)
	return s.describe(0)
}
