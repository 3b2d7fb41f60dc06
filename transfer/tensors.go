package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// Publish exports a tensor for reading under its name. The span must hold its bytes for as long as
// the export lives.
func (n *Node) Publish(name string, d tensor.Desc, s mem.Span) (*Export, error) {
	return n.Export(s, ExportOptions{Name: name, Rights: path.Read, Tensor: &d})
}

// GetTensor copies a tensor that the peer publishes into dst, which must be large enough, and
// returns what it is.
func (p *Peer) GetTensor(ctx context.Context, name string, dst mem.Span) (tensor.Desc, *Transfer, error) {
	r, err := p.Lookup(ctx, name)
	if err != nil {
		return tensor.Desc{}, nil, err
	}
	if r.Tensor == nil {
		return tensor.Desc{}, nil, fmt.Errorf("transfer: export %q of %s is not a tensor", name, p)
	}
	size, err := tensorSize(*r.Tensor)
	if err != nil {
		return tensor.Desc{}, nil, err
	}
	local, err := dst.Sub(0, size)
	if err != nil {
		return tensor.Desc{}, nil, fmt.Errorf("transfer: tensor %q of %d bytes: %w", name, size, err)
	}
	t, err := p.Get(ctx, []path.Copy{r.At(0, local)}, PutOptions{})
	return *r.Tensor, t, err
}

// SendTensor pushes a tensor to the peer, which must be waiting for it (Node.Receive) or begin to
// while the offer stands: the peer prepares memory of its own, and the bytes go straight there.
// With o.Digest the peer hands the tensor out only if the SHA-256 of what came is that of what was
// sent; otherwise both sides get an error (path.ErrIntegrity).
func (p *Peer) SendTensor(ctx context.Context, name string, d tensor.Desc, src mem.Span, o PutOptions) (*Transfer,
	error) {
	if err := invariants.Context(ctx, "transfer.Peer.SendTensor"); err != nil {
		return nil, err
	}
	size, err := tensorSize(d)
	if err != nil {
		return nil, fmt.Errorf("transfer: send %q: %w", name, err)
	}
	local, err := src.Sub(0, size)
	if err != nil {
		return nil, fmt.Errorf("transfer: send %q: %w", name, err)
	}
	desc, err := d.AppendBinary(nil)
	if err != nil {
		return nil, fmt.Errorf("transfer: send %q: %w", name, err)
	}
	// Before the offer: the peer prepares no memory for what this side refuses itself.
	if o.grant, err = p.limits.Out.Admit(size, d.DType); err != nil {
		return nil, fmt.Errorf("transfer: send %q to %s: %w", name, p, err)
	}
	id := p.node.nextID()
	r, err := p.request(ctx, &control.Offer{ID: id, Name: name, Size: size, Tensor: desc, Digest: o.Digest})
	if err != nil {
		o.grant.Release()
		if ctx.Err() != nil || errors.Is(err, control.Timeout) { // the peer may still accept
			p.send(&control.Complete{ID: id, Code: control.Canceled, Text: "the sender gave up"})
		}
		return nil, err
	}
	a, err := control.Parse[control.Accept](r.Body)
	if err == nil && (a.Desc.Size < size || a.Desc.Rights&path.Write == 0) {
		err = fmt.Errorf("transfer: %s prepared %d bytes with rights %v for a tensor of %d: %w", p, a.Desc.Size,
			a.Desc.Rights, size, path.ErrProtocol)
	}
	var t *Transfer
	if err != nil {
		o.grant.Release()
	} else {
		remote := p.Import(a.Desc)
		o.id = id
		t, err = p.Put(ctx, []path.Copy{remote.At(0, local)}, o)
	}
	if err != nil {
		p.send(&control.Complete{ID: id, Code: control.AsError(err).Code, Text: "the sender gave up"})
		return nil, err
	}
	return t, nil
}

// ended is called once for each transfer; a pushed tensor that failed is reported to the peer,
// which waits for it.
func (p *Peer) ended(t *Transfer, err error) {
	if err != nil && t.offered {
		e := control.AsError(err)
		if errors.Is(err, path.ErrCanceled) {
			e = control.Errorf(control.Canceled, "canceled by the sender")
		}
		p.send(&control.Complete{ID: t.id, Code: e.Code, Text: e.Text, Bytes: t.moved.Load()})
	}
}

// tensorSize is the number of bytes of a tensor that lies in memory without gaps, the only form
// that travels.
func tensorSize(d tensor.Desc) (uint64, error) {
	if !d.Contiguous() {
		return 0, fmt.Errorf("tensor %v has strides: copy it to row-major order first", d)
	}
	n, err := d.Bytes()
	return uint64(n), err
}

// parseTensor reads a description that came from a peer.
func parseTensor(b []byte) (tensor.Desc, error) {
	d, rest, err := tensor.ParseDesc(b)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes after the tensor's description", len(rest))
	}
	return d, err
}

// Received is a tensor that a peer pushed. It owns the memory; Release gives it back.
type Received struct {
	Name string
	From *Peer
	ID   observe.ID
	Desc tensor.Desc
	Span mem.Span
	Path string
	// Digest is the SHA-256 of the bytes, which was the same on both sides; all zero if the sender
	// did not ask for it. It finds damage, not a hostile sender, who can write between the digest
	// and the end of the transfer: to compare with a digest from another source, take it of Span,
	// which no peer writes any more.
	Digest [32]byte
	block  mem.Block
	node   *Node
	space  sched.Grant // of the block
}

// Tensor is a view of the received bytes, valid until Release.
func (r *Received) Tensor() tensor.Tensor {
	t, _ := tensor.New(r.Name, r.Desc, r.Span.Bytes()) // checked when it was offered
	return t
}

// Release gives the memory back. A second Release, of a copy as well, changes nothing and returns
// an error that wraps mem.ErrReleased.
func (r *Received) Release() error {
	err := r.node.pool.Free(r.block)
	if errors.Is(err, mem.ErrFreed) {
		return fmt.Errorf("transfer: tensor %q: %w", r.Name, mem.ErrReleased)
	}
	r.space.Release()
	return err
}

// incomingTensor is a tensor that is being received.
type incomingTensor struct {
	rec    *Received
	export *Export
	grant  sched.Grant
	result chan error // buffered
	digest bool       // to be handed out only when its digest is proven
	proven bool       // it is; guarded by the node's mutex
}

// end tells how the reception ended, once.
func (in *incomingTensor) end(err error) {
	in.grant.Release()
	in.result <- err
}

// Receive waits for a peer to push a tensor of that name and returns when its bytes are in place,
// verified. Memory is taken from the node's budget when the offer comes; the node refuses a tensor
// that does not fit, with an error at the sender. If the sender asked for a digest, it was
// compared, and Received.Digest is set.
func (n *Node) Receive(ctx context.Context, name string) (*Received, error) {
	if err := invariants.Context(ctx, "transfer.Node.Receive"); err != nil {
		return nil, err
	}
	w := &tensorWaiter{offered: make(chan *incomingTensor, 1)}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, ErrClosed
	}
	n.waiting[name] = append(n.waiting[name], w)
	n.signalWaiters()
	n.mu.Unlock()
	var in *incomingTensor
	var stop error
	select {
	case in = <-w.offered:
	case <-ctx.Done():
		stop = ctx.Err()
	case <-n.ctx.Done():
		stop = ErrClosed
	}
	if in == nil {
		n.mu.Lock()
		w.gone = true
		n.dropWaiter(name, w)
		n.mu.Unlock()
		select {
		case in = <-w.offered: // just now
			n.abandon(in, stop)
		default:
			return nil, stop
		}
	}
	select {
	case err := <-in.result:
		if err != nil {
			return nil, err
		}
		return in.rec, nil
	case <-ctx.Done():
		n.abandon(in, ctx.Err())
		if err := <-in.result; err != nil {
			return nil, ctx.Err()
		}
		return in.rec, nil // it was complete after all
	}
}

type tensorWaiter struct {
	offered chan *incomingTensor // buffered
	gone    bool                 // guarded by the node's mutex: the receiver has left
}

// signalWaiters wakes offers that wait for a receiver. n.mu is held.
func (n *Node) signalWaiters() {
	close(n.wanted)
	n.wanted = make(chan struct{})
}

func (n *Node) dropWaiter(name string, w *tensorWaiter) {
	list := slices.DeleteFunc(n.waiting[name], func(x *tensorWaiter) bool { return x == w })
	if len(list) == 0 {
		delete(n.waiting, name)
	} else {
		n.waiting[name] = list
	}
}

// answerOffer prepares memory for a tensor that the peer wants to push, once a receiver waits for
// it.
func (p *Peer) answerOffer(q *control.Offer) (control.Body, error) {
	n := p.node
	id := observe.ID(q.ID)
	if id.Instance() != p.info.Instance {
		return nil, control.Errorf(control.BadRequest, "transfer %v is not of this peer's making", id)
	}
	desc, err := parseTensor(q.Tensor)
	if err != nil {
		return nil, control.Errorf(control.BadRequest, "tensor %q: %v", q.Name, err)
	}
	if size, err := tensorSize(desc); err != nil || size != q.Size {
		return nil, control.Errorf(control.BadRequest, "tensor %q: %v has not %d bytes", q.Name, desc, q.Size)
	}
	if q.Size > n.opts.Budget {
		return nil, control.Errorf(control.OverBudget, "tensor %q of %d bytes: this node takes at most %d", q.Name,
			q.Size, n.opts.Budget)
	}
	if err := p.limits.In.Fits(q.Size, desc.DType); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(p.ctx, requestTimeout/2)
	defer cancel()
	for {
		n.mu.Lock()
		if p.ctx.Err() != nil { // no peer is left to push it, and the receiver would be given it again and again
			n.mu.Unlock()
			return nil, path.ErrCanceled
		}
		if n.withdrawn[id] == p {
			n.mu.Unlock()
			return nil, control.Errorf(control.Canceled, "transfer %v was withdrawn", id)
		}
		if n.offers[id] != nil {
			n.mu.Unlock()
			return nil, control.Errorf(control.Exists, "transfer %v was offered before", id)
		}
		if list := n.waiting[q.Name]; len(list) > 0 {
			w := list[0]
			n.dropWaiter(q.Name, w)
			n.mu.Unlock()
			in, err := n.prepare(p, q, desc)
			n.mu.Lock()
			// The same offer may have been accepted meanwhile: the next round says so.
			withdrawn := n.withdrawn[id] == p || p.ctx.Err() != nil || n.offers[id] != nil
			if err == nil && !w.gone && !withdrawn {
				n.offers[id] = in
				n.offered.Store(true)
				w.offered <- in
				n.mu.Unlock()
				return &control.Accept{Desc: in.export.Desc()}, nil
			}
			if !w.gone { // it goes on waiting, for an offer that fits
				n.waiting[q.Name] = slices.Insert(n.waiting[q.Name], 0, w)
				n.signalWaiters()
			}
			n.mu.Unlock()
			if err != nil {
				return nil, err
			}
			n.discard(in, path.ErrCanceled)
			continue // perhaps another receiver waits
		}
		wanted := n.wanted
		n.mu.Unlock()
		select {
		case <-wanted:
		case <-ctx.Done():
			return nil, control.Errorf(control.Busy, "no receiver waits for a tensor %q", q.Name)
		}
	}
}

func (n *Node) prepare(p *Peer, q *control.Offer, d tensor.Desc) (*incomingTensor, error) {
	name, size := q.Name, q.Size
	grant, err := p.limits.In.Admit(size, d.DType)
	if err != nil {
		return nil, err
	}
	space, err := p.limits.In.Memory(landingSize(size))
	if err != nil {
		grant.Release()
		return nil, err
	}
	block, err := n.pool.Alloc(max(size, 1))
	if err != nil {
		grant.Release()
		space.Release()
		return nil, control.Errorf(control.OverBudget, "tensor %q: %v", name, err)
	}
	// The whole block is exported where it is a region of its own, so that shared memory can reach
	// it too.
	if q.Digest {
		clear(block.Whole().Bytes()) // of what others left there: the digest is of bytes of this peer alone
	}
	x, err := n.Export(block.Whole(), ExportOptions{Rights: path.Write, Peer: p})
	if err != nil {
		n.pool.Free(block)
		grant.Release()
		space.Release()
		return nil, err
	}
	span, _ := block.Whole().Sub(0, size)
	in := &incomingTensor{
		rec:    &Received{Name: name, From: p, ID: q.ID, Desc: d, Span: span, block: block, node: n, space: space},
		export: x, grant: grant, result: make(chan error, 1), digest: q.Digest,
	}
	return in, nil
}

// take removes a tensor that is being received; only one of completion, failure and abandonment
// gets it.
func (n *Node) take(id observe.ID, from *Peer) *incomingTensor {
	n.mu.Lock()
	defer n.mu.Unlock()
	in := n.offers[id]
	if in == nil || in.rec.From != from {
		return nil
	}
	delete(n.offers, id)
	return in
}

// received is called for every completed put; it reports whether it was a tensor that was waited
// for.
func (n *Node) received(i Incoming) bool {
	in := n.take(i.ID, i.Peer)
	if in == nil {
		return false
	}
	if i.Kind != path.Put || i.Bytes != in.rec.Span.Len {
		n.discard(in, fmt.Errorf("transfer: tensor %q: %s put %d of %d bytes: %w", in.rec.Name, i.Peer, i.Bytes,
			in.rec.Span.Len, path.ErrProtocol))
		return true
	}
	if in.digest && !in.proven { // no other goroutine has it now
		n.discard(in, fmt.Errorf("transfer: tensor %q: %s completed it without the digest that it promised: %w",
			in.rec.Name, i.Peer, path.ErrProtocol))
		return true
	}
	in.rec.Path = i.Path
	// The sender must not be able to write once the tensor is handed out.
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if err := in.export.Revoke(ctx); err != nil {
		// never to be used again, and so counted for ever: the sender may still have it mapped
		n.pool.Retire(in.rec.block)
		in.end(err)
		return true
	}
	in.end(nil)
	return true
}

// discard ends the reception of a tensor. Its memory is given back when nothing can write to it any
// more.
func (n *Node) discard(in *incomingTensor, err error) {
	in.end(err)
	go func() {
		if in.export.Revoke(context.Background()) == nil {
			in.rec.Release()
		}
	}()
}

func (n *Node) abandon(in *incomingTensor, err error) {
	if n.take(in.rec.ID, in.rec.From) != nil {
		n.discard(in, err)
	}
}

// offerEnded is called when the peer says how a push ended that it did not complete.
func (n *Node) offerEnded(id observe.ID, p *Peer, err error) {
	if err == nil {
		return // the notification of the path says so, with proof
	}
	in := n.take(id, p)
	if in == nil {
		n.withdraw(id, p)
	} else {
		n.discard(in, fmt.Errorf("transfer: tensor %q from %s: %w", in.rec.Name, p, err))
	}
}

// maxWithdrawn is how many withdrawn offers are remembered.
const maxWithdrawn = 4096

// withdraw remembers an offer that the peer took back before it was answered, and stops its answer.
func (n *Node) withdraw(id observe.ID, p *Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.withdrawn) >= maxWithdrawn { // far more than can be open: these were answered long ago
		clear(n.withdrawn)
	}
	n.withdrawn[id] = p
	n.signalWaiters()
}

func (n *Node) offerPeerLost(p *Peer, err error) {
	n.mu.Lock()
	var lost []*incomingTensor
	for id, in := range n.offers {
		if in.rec.From == p {
			lost = append(lost, in)
			delete(n.offers, id)
		}
	}
	for id, x := range n.withdrawn {
		if x == p {
			delete(n.withdrawn, id)
		}
	}
	n.mu.Unlock()
	for _, in := range lost {
		n.discard(in, err)
	}
}
