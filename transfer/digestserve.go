package transfer

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/digest"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// hashers is the number of digests that a node computes for its peers at once.
func hashers() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// pushed reports whether a request is about nothing but a tensor that the peer is pushing and has
// promised a digest of. That memory was cleared, and only the peer has written there since. Of any
// other memory this node cannot know which bytes the peer wrote: over shared memory it writes them
// itself. A peer could then find a byte by comparing digests of bytes that it wrote around it.
func (p *Peer) pushed(q *control.Digest) bool {
	n := p.node
	n.mu.Lock()
	defer n.mu.Unlock()
	in := n.offers[q.ID]
	if in == nil || in.rec.From != p || !in.digest {
		return false
	}
	return !slices.ContainsFunc(q.Blocks, func(b control.Block) bool { return b.Key != in.export.e.Key() })
}

// answerDigest hashes what the peer may read, or is pushing. A peer without the right to read
// learns whether the sum is the one that it expects, and no other. It runs on a goroutine of its
// own.
func (p *Peer) answerDigest(q *control.Digest) (control.Body, error) {
	reads := p.Rights()&identity.Read != 0
	want := path.Read
	if p.pushed(q) {
		want = path.Write
	} else if !reads {
		return nil, control.Errorf(control.NotPermitted,
			"%s may %v on this node, not read: a digest tells what bytes are; without that right only a tensor that "+
				"is pushed with a digest is compared", p.who(), p.Rights())
	}
	var total uint64
	for i := range q.Blocks {
		n := q.Blocks[i].Len
		if n > digest.MaxBytes-total {
			return nil, control.Errorf(control.OverBudget, "more than %d bytes in one request for a digest",
				uint64(digest.MaxBytes))
		}
		total += n
	}
	d, err := p.served.Take(q)
	if err != nil {
		return nil, err
	}
	var keep *digest.Open // a request that fails ends its digest
	defer func() { p.served.Give(keep) }()
	select {
	case p.node.hashing <- struct{}{}:
		defer func() { <-p.node.hashing }()
	case <-p.ctx.Done():
		return nil, path.ErrCanceled
	}
	for _, b := range q.Blocks {
		if err := p.hash(d, b, want); err != nil {
			return nil, err
		}
	}
	a := &control.DigestSum{Bytes: d.Bytes}
	var sum [32]byte
	d.H.Sum(sum[:0])
	if !q.Last {
		keep = d
	} else if q.Expect != ([32]byte{}) {
		if err := p.node.decideOffer(p, d, sum, q.Expect); err != nil {
			return nil, err
		}
	}
	if reads || sum == q.Expect {
		a.Sum = sum
	}
	return a, nil
}

// hash adds a block of an export that permits the peer what is wanted. The export cannot be taken
// away meanwhile, and a revocation waits for no more than a step.
func (p *Peer) hash(d *digest.Open, b control.Block, want path.Rights) error {
	n := p.node
	n.mu.Lock()
	x := n.byKey[b.Key]
	n.mu.Unlock()
	done, ok := x.use()
	if ok {
		defer done()
	}
	span, err := p.reach().Locate(b.Key, b.Off, b.Len, want)
	if err == nil && !ok {
		err = path.ErrRevoked
	}
	if err != nil {
		return fmt.Errorf("transfer: digest: %w", err)
	}
	if d.Bytes == 0 {
		d.Key = b.Key
	}
	d.Whole = d.Whole && b.Key == d.Key && b.Off == d.Bytes
	err = digest.Hash(p.ctx, n.staging, d.H, span, func(bytes uint64) error {
		d.Bytes += bytes
		switch {
		case x.e.Revoked():
			return path.ErrRevoked
		case p.ctx.Err() != nil:
			return path.ErrCanceled
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("transfer: digest: %w", err)
	}
	return nil
}

// reach is what the peer may reach on this node.
func (p *Peer) reach() path.Reach {
	c := p.pathConfig(0, 0, false)
	return c.Reach()
}

// decideOffer decides about a tensor that the peer offered with a digest: this is its last request.
func (n *Node) decideOffer(p *Peer, d *digest.Open, sum, expect [32]byte) error {
	n.mu.Lock()
	in := n.offers[d.ID]
	if in == nil || in.rec.From != p || !in.digest {
		n.mu.Unlock()
		return nil // of something else: the peer compares
	}
	if d.Bytes != in.rec.Span.Len || !d.Whole || d.Bytes > 0 && d.Key != in.export.e.Key() {
		n.mu.Unlock()
		return control.Errorf(control.BadRequest, "the digest of tensor %q does not cover it", in.rec.Name)
	}
	if sum == expect {
		in.rec.Digest, in.proven = sum, true
		n.mu.Unlock()
		return nil
	}
	delete(n.offers, d.ID)
	n.mu.Unlock()
	n.discard(in, control.Errorf(control.Integrity,
		"tensor %q: SHA-256 of the %d bytes that came is %x, %s sent %x: they were damaged on the way",
		in.rec.Name, d.Bytes, sum, p, expect))
	return nil // the answer says enough
}

// uses counts the readers of an export without a path.
type uses struct {
	mu     sync.Mutex
	n      int
	ended  bool
	closed chan struct{} // once the export has ended and its last reader is done
}

// use keeps the export's memory until done is called; it fails when the export was revoked, or is
// nil.
func (x *Export) use() (done func(), ok bool) {
	if x == nil {
		return nil, false
	}
	u := &x.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return nil, false
	}
	u.n++
	return u.done, true
}

func (u *uses) done() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n--; u.n == 0 && u.ended {
		close(u.closed)
	}
}

// end refuses further uses and returns what to wait for until those under way have ended.
func (u *uses) end() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	u.closed = make(chan struct{})
	if u.n == 0 {
		close(u.closed)
	}
	return u.closed
}
