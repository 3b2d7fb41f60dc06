package engine

import "github.com/penstock-io/penstock/packet/burst"

// MoveKept moves packets that wait in pending to b, and returns how many. One that an empty b
// cannot hold would hold up the others for ever: it is released, and counted in dropped, as
// DropTooLong. one is an empty burst that holds any one packet of pending, and is empty afterwards.
func MoveKept(b, pending, one *burst.Burst) (moved, dropped int) {
	for pending.Len() > 0 {
		if moved = pending.MoveTo(b); moved > 0 || b.Len() > 0 || b.Room() == 0 {
			return moved, dropped
		}
		pending.MoveTo(one)
		dropped += one.Len()
		one.Release()
	}
	return 0, dropped
}
