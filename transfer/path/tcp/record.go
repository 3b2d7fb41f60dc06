package tcp

import (
	"fmt"

	"github.com/penstock-io/penstock/transfer/path/seal"
)

// The records of an encrypted connection, between the frames of core and the bytes of a socket.
// Frames and records do not know each other: a record may end anywhere in a frame. Where they end
// is chosen so that payload needs no copy at the receiver.

const (
	// sealBytes is what is sealed for one send, and read at once: it stays in the second level of
	// the cache.
	sealBytes = 8 * seal.MaxRecord
	// directMin is the smallest piece that is given a record for itself. Shorter ones share
	// records, and are copied once more at the receiver, which costs less than a record.
	directMin = 4 << 10
)

// recordOut seals what a stream sends.
type recordOut struct {
	seal  *seal.Sealer
	fixed bool // the receiver cannot follow a change of keys
	buf   []byte
	r, w  int // records on their way
}

// recordIn opens what a stream receives.
type recordIn struct {
	open       *seal.Opener
	buf        []byte
	r, w       int // bytes of records that are not opened yet
	plain, end int // content that was opened where it was, and could not be taken yet; before r
}

// recordLen is how much of the batch the next record takes. Payload of some size begins a record,
// and its last record ends one byte early, because a record can be opened straight into its place
// only where another byte of payload follows: it is overwritten with the type of the content, and
// then with the byte itself, which travels with what follows.
func (o *output) recordLen() int {
	n := 0
	for i := o.first; i < len(o.iov); i++ {
		l := o.iov[i].Len()
		switch {
		case n == 0 && l > seal.MaxContent:
			return seal.MaxContent
		case n == 0 && l >= directMin:
			return l - 1
		case n > 0 && l >= bulk:
			return n
		}
		n += l
		if n >= seal.MaxContent {
			return seal.MaxContent
		}
	}
	return n
}

// pack seals the batch, or as much of it as is sent at once. What was packed before must be gone.
func (x *recordOut) pack(o *output) error {
	if x.buf == nil {
		x.buf = make([]byte, sealBytes+seal.UpdateSize)
	}
	x.r, x.w = 0, 0
	for o.left > 0 {
		n := o.recordLen()
		if len(x.buf)-x.w < n+seal.Overhead+seal.UpdateSize {
			break
		}
		if x.seal.Due(n) {
			if x.fixed {
				return seal.ErrSpent
			}
			k, err := x.seal.Update(x.buf[x.w:])
			if err != nil {
				return err
			}
			x.w += k
		}
		rec := x.buf[x.w:]
		o.take(rec[seal.HeaderSize:][:n])
		x.w += x.seal.Seal(rec, seal.Data, n)
	}
	return nil
}

// take moves the next bytes of the batch to b, which is no longer than the batch.
func (o *output) take(b []byte) {
	for i := o.first; len(b) > 0; i++ {
		k := copy(b, o.iov[i].Bytes())
		b = b[k:]
		o.gone(k)
	}
}

// busy reports whether anything of the last batch is still on this side.
func (s *stream) busy() bool { return s.out.left > 0 || s.tx != nil && s.tx.r < s.tx.w }

// space is where the next bytes from the socket go; empty while what came before cannot be taken.
func (x *recordIn) space() []byte {
	if x.buf == nil {
		x.buf = make([]byte, sealBytes)
	}
	from := x.r
	if x.plain < x.end {
		from = x.plain
	}
	switch {
	case from == x.w:
		x.r, x.w, x.plain, x.end = 0, 0, 0, 0
	case from > 0 && len(x.buf)-x.w < seal.MaxRecord:
		copy(x.buf, x.buf[from:x.w])
		x.r, x.w = x.r-from, x.w-from
		if x.plain < x.end {
			x.plain, x.end = x.plain-from, x.end-from
		} else {
			x.plain, x.end = 0, 0
		}
	}
	return x.buf[x.w:]
}

// unseal acts on the records that came. The error, if any, means that they did not come from the
// peer as they are, or that the peer broke the protocol.
func (c *core) unseal(s *stream) error {
	x, in := s.rx, &s.in
	for {
		if x.plain < x.end {
			k, err := c.absorb(s, x.buf[x.plain:x.end])
			x.plain += k
			if err != nil {
				return err
			}
		}
		if x.plain < x.end || in.paused {
			return nil
		}
		n, err := seal.RecordSize(x.buf[x.r:x.w])
		if err != nil {
			return fmt.Errorf("record %d: %w", x.open.Seq(), err)
		}
		if n == 0 || x.w-x.r < n {
			return nil
		}
		rec := x.buf[x.r : x.r+n]
		var dst []byte
		if room := seal.ContentRoom(n); in.state == wantPayload && in.refused == 0 && in.left >= room &&
			in.dst[in.di].Len() >= room {
			dst = in.dst[in.di].Bytes()[:room]
		}
		seq := x.open.Seq()
		typ, b, err := x.open.Open(dst, rec)
		if err != nil {
			return fmt.Errorf("record %d: %w", seq, err)
		}
		at := x.r + seal.HeaderSize
		x.r += n
		switch {
		case typ != seal.Data:
		case dst == nil:
			x.plain, x.end = at, at+len(b)
		default:
			if err := c.received(s, len(b)); err != nil {
				return err
			}
		}
	}
}

// absorb takes content in that could not be opened in its place. It returns how much it took: less
// than all when the stream is paused.
func (c *core) absorb(s *stream, b []byte) (int, error) {
	in := &s.in
	took := 0
	for len(b) > 0 && !in.paused {
		k := 0
		switch in.state {
		case wantHeader, wantMessage:
			need := headerSize
			if in.state == wantMessage {
				need = int(in.h.msg)
			}
			if in.stage == nil {
				in.stage = make([]byte, stageSize)
			}
			if in.r == in.w {
				in.r, in.w = 0, 0
			}
			k = copy(in.stage[in.w:in.r+need], b)
		case wantTable:
			n := len(in.table)
			k = copy(in.table[n:in.tableSize()], b)
		case wantPayload:
			k = min(len(b), in.left)
			if in.refused == 0 {
				c.st.BytesCopied += uint64(k)
				for i, rest := in.di, b[:k]; len(rest) > 0; i++ {
					rest = rest[copy(in.dst[i].Bytes(), rest):]
				}
			}
		}
		b = b[k:]
		took += k
		if err := c.received(s, k); err != nil {
			return took, err
		}
	}
	return took, nil
}
