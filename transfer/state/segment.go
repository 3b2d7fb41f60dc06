package state

import "github.com/penstock-io/penstock/transfer/path"

// Cursor is a place in the bytes of a transfer.
type Cursor struct {
	Block int    // of its copies
	Off   uint64 // bytes into that block
	Done  uint64 // bytes before it
}

// Segment is a run of bytes of a transfer that one operation moves.
type Segment struct {
	At    Cursor
	Bytes uint64
}

// Append appends to out what lies in the next n bytes from a place on, and moves the place behind
// them.
func Append(out, copies []path.Copy, at *Cursor, n uint64) []path.Copy {
	for n > 0 {
		c := copies[at.Block]
		take := min(c.Local.Len-at.Off, n)
		c.Local.Off += at.Off
		c.RemoteOff += at.Off
		c.Local.Len = take
		if take > 0 {
			out = append(out, c)
		}
		n -= take
		at.Done += take
		if at.Off += take; at.Off == copies[at.Block].Local.Len {
			at.Block, at.Off = at.Block+1, 0
		}
	}
	return out
}
