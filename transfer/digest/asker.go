package digest

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

const (
	// MaxBytes is the number of bytes that one request may have hashed: little enough that many
	// requests before it, on a busy machine, do not make it time out, and enough that the round
	// trips between do not matter (6 ms of hashing each).
	MaxBytes = 8 << 20
	// MaxAsked is the number of requests for digests that wait for one peer's answer at once. A
	// node refuses more.
	MaxAsked = 8
	// maxOpen is the number of digests of more than one request that a node has open at one peer.
	// Peers keep more.
	maxOpen = 128
)

// Asker asks one peer for digests of its memory. Its methods may be called from any goroutine.
type Asker struct {
	ctx   context.Context // of the session, with the cause of its end
	name  fmt.Stringer
	ask   func(q *control.Digest) (*control.Response, error)
	body  func() int
	asked chan struct{} // holds one element for each request that the peer has not answered
	open  chan struct{} // holds one element for each digest open at the peer
}

// NewAsker makes the asker of a session, which ends with ctx, with the peer of that name: ask waits
// for an answer, and body is the largest body of a request.
func NewAsker(ctx context.Context, name fmt.Stringer, ask func(q *control.Digest) (*control.Response, error),
	body func() int) *Asker {
	return &Asker{ctx, name, ask, body, make(chan struct{}, MaxAsked), make(chan struct{}, maxOpen)}
}

// Sum is the digest of n bytes of an export from off, as the peer computes it.
func (a *Asker) Sum(ctx context.Context, id observe.ID, key path.Key, off, n uint64) ([32]byte, error) {
	d := remote{asker: a, id: id}
	if err := d.begin(ctx, n > MaxBytes); err != nil {
		return [32]byte{}, err
	}
	defer d.end()
	if err := d.add(ctx, key, off, n); err != nil {
		return [32]byte{}, err
	}
	if err := d.flush(ctx, true, [32]byte{}); err != nil {
		return [32]byte{}, err
	}
	return d.sum, nil
}

// remote asks a peer to hash blocks of its memory, in as many requests as it takes.
type remote struct {
	asker  *Asker
	id     observe.ID
	room   int    // blocks per request
	at     uint64 // bytes that were answered
	blocks []control.Block
	bytes  uint64 // in blocks
	sum    [32]byte
	open   bool // counts as one of maxOpen
}

// begin waits for its turn; long says that it may take more than one request.
func (d *remote) begin(ctx context.Context, long bool) error {
	a := d.asker
	d.room = control.DigestRoom(a.body())
	if !long {
		return nil
	}
	select {
	case a.open <- struct{}{}:
		d.open = true
		return nil
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *remote) end() {
	if d.open {
		<-d.asker.open
		d.open = false
	}
}

// add takes another block, and asks for those it has when they are as many as one request takes.
func (d *remote) add(ctx context.Context, key path.Key, off, n uint64) error {
	for n > 0 {
		last := len(d.blocks) - 1
		adjacent := last >= 0 && d.blocks[last].Key == key && d.blocks[last].Off+d.blocks[last].Len == off
		if d.bytes == MaxBytes || len(d.blocks) == d.room && !adjacent {
			if err := d.flush(ctx, false, [32]byte{}); err != nil {
				return err
			}
			continue
		}
		take := min(n, MaxBytes-d.bytes)
		if adjacent {
			d.blocks[last].Len += take
		} else {
			d.blocks = append(d.blocks, control.Block{Key: key, Off: off, Len: take})
		}
		d.bytes += take
		off, n = off+take, n-take
	}
	return nil
}

// flush asks for the blocks added since the last time.
func (d *remote) flush(ctx context.Context, last bool, expect [32]byte) error {
	a := d.asker
	select {
	case a.asked <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	type answer struct {
		r   *control.Response
		err error
	}
	c := make(chan answer, 1)
	q := &control.Digest{ID: d.id, At: d.at, Last: last, Expect: expect, Blocks: d.blocks}
	go func() { // the peer works on it until it answers, even when this call has ended
		r, err := a.ask(q)
		<-a.asked
		c <- answer{r, err}
	}()
	var x answer
	select {
	case x = <-c:
	case <-ctx.Done():
		d.blocks = nil // they belong to the request
		return ctx.Err()
	}
	if x.err != nil {
		return x.err
	}
	s, err := control.Parse[control.DigestSum](x.r.Body)
	if err == nil && s.Bytes != d.at+d.bytes {
		err = fmt.Errorf("transfer: digest of %s: it hashed %d bytes of %d: %w", a.name, s.Bytes, d.at+d.bytes,
			path.ErrProtocol)
	}
	if err != nil {
		return err
	}
	d.at, d.sum = s.Bytes, s.Sum
	d.blocks, d.bytes = d.blocks[:0], 0
	return nil
}
