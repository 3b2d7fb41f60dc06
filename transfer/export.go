package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// Export is memory of this node that its peers can name. It holds a lease on the region until it is
// revoked.
type Export struct {
	node       *Node
	e          *path.Export
	name       string
	tensor     *tensor.Desc
	wire       []byte // the tensor's description in its binary form
	generation uint64
	only       *Peer // nil: all peers
	tag        [16]byte
	closing    atomic.Bool
	told       atomic.Bool // the key may have left this node; before that no peer has anything to do with the memory
	uses       uses
}

// ExportOptions describe an export. The zero value exports for reading, without a name.
type ExportOptions struct {
	Name   string       // peers find it by Lookup and List; with "" they need the descriptor
	Rights path.Rights  // 0 means path.Read
	Tensor *tensor.Desc // what the bytes are; its size must not exceed the span's
	// Tag names the content, so that a peer that got a part of it before this process was started
	// again can tell whether it is still the same: for example a hash of it. Zero: unknown.
	Tag [16]byte
	// Peer is the only peer that may reach the export; nil: all.
	Peer *Peer
	// WholeRegion lets shared memory hand over the region of a span that is a part of it, as the
	// blocks of a slab are: a peer on this host can then reach the whole region with the export's
	// rights. Without it, such a span goes by other paths. The span begins and ends at a page.
	WholeRegion bool
	// Replaces is an export whose name the new one takes over in one step: a lookup finds the old
	// one or the new one, never nothing. The old one stays reachable for peers with its key,
	// without a name, until it is revoked.
	Replaces *Export
}

// Export makes a span reachable for the node's peers until Revoke. Shared memory hands over a whole
// memfd, so it reaches a part of a region only with ExportOptions.WholeRegion. Named exports must
// have different names.
func (n *Node) Export(s mem.Span, o ExportOptions) (*Export, error) {
	if o.Rights == 0 {
		o.Rights = path.Read
	}
	if len(o.Name) > MaxName {
		return nil, fmt.Errorf("transfer: export name of %d bytes: expected at most %d", len(o.Name), MaxName)
	}
	var wire []byte
	if o.Tensor != nil {
		size, err := tensorSize(*o.Tensor)
		if err != nil {
			return nil, fmt.Errorf("transfer: export %q: %w", o.Name, err)
		}
		if size > s.Len {
			return nil, fmt.Errorf("transfer: export %q: the tensor has %d bytes, the span %d", o.Name, size, s.Len)
		}
		if wire, err = o.Tensor.AppendBinary(nil); err != nil {
			return nil, fmt.Errorf("transfer: export %q: %w", o.Name, err)
		}
	}
	if s.Region == nil {
		return nil, fmt.Errorf("transfer: export %q: the span has no region", o.Name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	old := n.names[o.Name]
	if o.Name != "" && old != nil && old != o.Replaces {
		return nil, fmt.Errorf("transfer: export %q: the name is taken", o.Name)
	}
	only := path.AllPeers
	if o.Peer != nil {
		only = o.Peer.number
	}
	e, err := n.exports.AddFor(s, o.Rights, only, o.WholeRegion)
	if err != nil {
		return nil, fmt.Errorf("transfer: export %q: %w", o.Name, err)
	}
	n.generation++
	x := &Export{node: n, e: e, name: o.Name, tensor: o.Tensor, wire: wire, generation: n.generation, tag: o.Tag,
		only: o.Peer}
	n.byKey[e.Key()] = x
	if o.Name != "" {
		if old != nil {
			n.sorted.Remove(o.Name)
		}
		n.names[o.Name] = x
		n.sorted.Insert(x)
	}
	x.announce(observe.EventExportAdded)
	return x, nil
}

func (x *Export) announce(k observe.EventKind) {
	if b := &x.node.account.Bus; b.On() {
		b.Emit(observe.Event{Kind: k, Name: x.name, Bytes: x.Span().Len})
	}
}

// Name is the export's name.
func (x *Export) Name() string { return x.name }

// Key is what peers name the memory by.
func (x *Export) Key() path.Key {
	x.told.Store(true)
	return x.e.Key()
}

// Span is the exported memory.
func (x *Export) Span() mem.Span { return x.e.Span() }

// Desc describes the export as peers see it.
func (x *Export) Desc() path.Desc {
	x.told.Store(true)
	return x.e.Desc()
}

// Revoke ends the export. When it returns without an error nothing can read or write the memory
// through this node any more: every path of the peers that could reach it was fenced; for a Queue
// that takes its owner's next Poll, Wait or Close. Where no peer was told of the key there is
// nothing to wait for. If ctx ends first the key is invalid all the same, but a peer that maps the
// memory may not have confirmed yet; the region then stays leased until it has, or is dead. A
// second call does nothing.
func (x *Export) Revoke(ctx context.Context) error {
	if err := invariants.Context(ctx, "transfer.Export.Revoke"); err != nil {
		return err
	}
	if x.closing.Swap(true) {
		return nil
	}
	n, key := x.node, x.e.Key()
	n.mu.Lock()
	delete(n.byKey, key)
	if n.names[x.name] == x {
		delete(n.names, x.name)
		n.sorted.Remove(x.name)
	}
	n.mu.Unlock()
	n.exports.Revoke(x.e)
	x.announce(observe.EventExportRevoked)
	unused := x.uses.end()
	if !x.told.Load() { // and whoever is told from here on is told of a key that is refused
		select {
		case <-unused:
			n.exports.Retire(x.e)
			return nil
		default:
		}
	}
	var waits []<-chan error
	for _, p := range n.Peers() {
		if x.visible(p) { // no other peer could reach it: no wait for those
			p.revoked(key)
			waits = append(waits, p.fence(key)...)
		}
	}
	// Last those that are down: what goes down now was found above, or is found here.
	waits = append(waits, n.fenceQueues(x)...)
	waits = append(waits, n.exposed.Fence(key)...)
	done := make(chan error, 1)
	go func() {
		<-unused // within a step of hashing
		var err error
		for _, c := range waits {
			err = errors.Join(err, <-c)
		}
		if err == nil {
			n.exports.Retire(x.e)
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("transfer: revoke %q: a peer has not confirmed yet: %w", x.name, ctx.Err())
	}
}

// Remote is memory that a peer exports.
type Remote struct {
	Peer       *Peer
	Name       string
	Desc       path.Desc
	Tensor     *tensor.Desc // nil if the peer did not say
	Generation uint64       // grows with every export of the peer: tells a name that was exported again
	Tag        [16]byte     // see ExportOptions.Tag
}

// Size is the number of bytes.
func (r *Remote) Size() uint64 { return r.Desc.Size }

// At pairs a local span with the remote bytes from off: one block of a Put or Get.
func (r *Remote) At(off uint64, local mem.Span) path.Copy {
	return path.Copy{Local: local, Key: r.Desc.Key, RemoteOff: off}
}

// In is the same export in another session: after the one of r was lost, r.In(ctx, peer) goes on
// with the peer of the next one, such as Link.Peer gives. The name has to stand for the same
// content, by the rule of jobs: the same tag where both sides have one, or else the same export of
// the same process. Otherwise the error wraps ErrChanged and says what is different. An export
// without a name has no way back.
func (r *Remote) In(ctx context.Context, p *Peer) (*Remote, error) {
	if err := invariants.Context(ctx, "transfer.Remote.In"); err != nil {
		return nil, err
	}
	if p == nil || r.Peer == nil {
		return nil, errors.New("transfer: expected a Remote of Lookup and the peer of another session")
	}
	if r.Name == "" {
		return nil, fmt.Errorf("transfer: an export without a name is of its session alone: %w", path.ErrKey)
	}
	now, err := p.Lookup(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	was, is := r.Content(), now.Content()
	if !was.Same(is) {
		return nil, fmt.Errorf("transfer: %q: %w: %s", r.Name, ErrChanged, was.Difference(is))
	}
	return now, nil
}

// Content is what a name stands for at one moment.
type Content struct {
	Tag        [16]byte // see ExportOptions.Tag
	Node       [16]byte // that has the name
	Instance   uint64   // see Peer.Instance
	Generation uint64
	Size       uint64
	DType      string // "" if the peer did not say
}

// Content says what the export is.
func (r *Remote) Content() Content {
	p := r.Peer
	c := Content{Tag: r.Tag, Node: p.info.Node, Instance: p.info.Instance, Generation: r.Generation, Size: r.Size()}
	if r.Tensor != nil {
		c.DType = r.Tensor.String()
	}
	return c
}

// Same reports whether bytes of c go on with bytes of d: the tag says so, or it is the same export
// of the same process.
func (c Content) Same(d Content) bool {
	if c.Size != d.Size || c.DType != d.DType {
		return false
	}
	if c.Tag != ([16]byte{}) && d.Tag != ([16]byte{}) {
		return c.Tag == d.Tag
	}
	return c.Node == d.Node && c.Instance == d.Instance && c.Generation == d.Generation
}

// Difference says in words how c differs from what is there now.
func (c Content) Difference(now Content) string {
	switch {
	case c.Size != now.Size:
		return fmt.Sprintf("it had %d bytes and has %d", c.Size, now.Size)
	case c.DType != now.DType:
		return fmt.Sprintf("it was %s and is %s", c.DType, now.DType)
	case c.Tag != now.Tag:
		return "it has another tag"
	case c.Node != now.Node:
		return "another node has the name, and no tag says that the content is the same"
	case c.Instance != now.Instance:
		return "its process was restarted, and no tag says that the content is the same"
	}
	return "the name was given to other memory, and no tag says that the content is the same"
}
