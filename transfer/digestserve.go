package transfer

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"runtime"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// digestsKept is the number of unfinished digests that a node keeps for one peer; when there are
// more, the one that was not asked for longest is forgotten. Honest peers have fewer (digestsOpen),
// besides those that they gave up.
const digestsKept = 256

// digests is the state that digests need for one peer, on both sides.
type digests struct {
	asked  chan struct{} // holds one element for each request that the peer has not answered
	opened chan struct{} // holds one element for each digest open at the peer

	mu   sync.Mutex // guards what follows, which is about the peer's requests
	busy int
	kept []*openDigest // the first one was not asked for longest
}

func newDigests() digests {
	return digests{asked: make(chan struct{}, digestsAsked), opened: make(chan struct{}, digestsOpen)}
}

// openDigest is a digest that a peer asks for. The goroutine that took it from the table owns it.
type openDigest struct {
	id    observe.ID
	h     hash.Hash
	bytes uint64
	key   path.Key // of the first block
	whole bool     // the blocks follow one another from the start of one export
}

// take admits a request and hands out the digest that it continues, or a new one.
func (s *digests) take(q *control.Digest) (*openDigest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy >= digestsAsked {
		return nil, control.Errorf(control.Busy, "%d requests for digests are being answered", digestsAsked)
	}
	d := s.forget(q.ID)
	switch {
	case q.At == 0:
		d = &openDigest{id: q.ID, h: sha256.New(), whole: true}
	case d == nil:
		return nil, control.Errorf(control.NotFound, "no open digest %v", observe.ID(q.ID))
	case d.bytes != q.At:
		return nil, control.Errorf(control.BadRequest, "digest %v is at byte %d, not %d", d.id, d.bytes, q.At)
	}
	s.busy++
	return d, nil
}

// give ends a request; d, unless nil, is kept for the next one.
func (s *digests) give(d *openDigest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	if d == nil {
		return
	}
	s.forget(d.id) // the peer may have used the id for two at once
	if len(s.kept) == digestsKept {
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	s.kept = append(s.kept, d)
}

// forget takes the open digest of an id out, nil if there is none. The mutex is held.
func (s *digests) forget(id observe.ID) *openDigest {
	i := slices.IndexFunc(s.kept, func(d *openDigest) bool { return d.id == id })
	if i < 0 {
		return nil
	}
	d := s.kept[i]
	s.kept = slices.Delete(s.kept, i, i+1)
	return d
}

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
		if n > digestMax-total {
			return nil, control.Errorf(control.OverBudget, "more than %d bytes in one request for a digest",
				uint64(digestMax))
		}
		total += n
	}
	d, err := p.digests.take(q)
	if err != nil {
		return nil, err
	}
	var keep *openDigest // a request that fails ends its digest
	defer func() { p.digests.give(keep) }()
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
	a := &control.DigestSum{Bytes: d.bytes}
	var sum [32]byte
	d.h.Sum(sum[:0])
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
func (p *Peer) hash(d *openDigest, b control.Block, want path.Rights) error {
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
	if d.bytes == 0 {
		d.key = b.Key
	}
	d.whole = d.whole && b.Key == d.key && b.Off == d.bytes
	err = n.hash(p.ctx, d.h, span, func(bytes uint64) error {
		d.bytes += bytes
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
func (n *Node) decideOffer(p *Peer, d *openDigest, sum, expect [32]byte) error {
	n.mu.Lock()
	in := n.offers[d.id]
	if in == nil || in.rec.From != p || !in.digest {
		n.mu.Unlock()
		return nil // of something else: the peer compares
	}
	if d.bytes != in.rec.Span.Len || !d.whole || d.bytes > 0 && d.key != in.export.e.Key() {
		n.mu.Unlock()
		return control.Errorf(control.BadRequest, "the digest of tensor %q does not cover it", in.rec.Name)
	}
	if sum == expect {
		in.rec.Digest, in.proven = sum, true
		n.mu.Unlock()
		return nil
	}
	delete(n.offers, d.id)
	n.mu.Unlock()
	n.discard(in, control.Errorf(control.Integrity,
		"tensor %q: SHA-256 of the %d bytes that came is %x, %s sent %x: they were damaged on the way",
		in.rec.Name, d.bytes, sum, p, expect))
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
