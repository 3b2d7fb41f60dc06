package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/path"
)

// defaultQueue is the wire name of the queue without a name: "" means the node itself there.
const defaultQueue = "default"

// OpenQueue sets up a path that the caller owns. The peer's side is handed out by Node.AcceptQueue
// for the same name.
func (p *Peer) OpenQueue(ctx context.Context, o QueueOptions) (*Queue, error) {
	if err := invariants.Context(ctx, "transfer.Peer.OpenQueue"); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = defaultQueue
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("transfer: open queue to %s: %w", p, err)
	}
	if err := p.endLostSessions(ctx); err != nil {
		return nil, err
	}
	names := []string{o.Path}
	if o.Path == "" {
		names = names[:0]
		for _, c := range p.candidates(0, nil, nil, p.floor(o.Security)) {
			if c.Usable {
				names = append(names, c.Path)
			}
		}
	}
	var errs []error
	for _, name := range names {
		pth, g, id, err := p.dialPath(ctx, name, o)
		p.arrived(id)
		if err == nil {
			if err = below(pth.Capabilities().Security, p.floor(o.Security)); err != nil {
				pth.Close()
				g.release()
			}
		}
		if err == nil {
			return newQueue(p, o.Name, pth, g, queueOwned)
		}
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	return nil, p.verdict(ctx, fmt.Errorf("transfer: open queue %q to %s: %w", o.Name, p, errors.Join(errs...)))
}

// maxUnaccepted is the number of queues that peers may open under one name before the node accepts
// them.
const maxUnaccepted = 64

func (n *Node) queueChan(name string) chan *Queue {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.queues[name]
	if c == nil {
		c = make(chan *Queue, maxUnaccepted)
		n.queues[name] = c
	}
	return c
}

func (n *Node) offerQueue(p *Peer, name string, pth path.Path, g *grant) error {
	n.mu.Lock()
	c := n.queues[name]
	n.mu.Unlock()
	if c == nil {
		pth.Close()
		g.release()
		return fmt.Errorf("no program accepts queues named %q", name)
	}
	q, err := newQueue(p, name, pth, g, queueOffered)
	if err != nil {
		return err
	}
	select {
	case c <- q:
		return nil
	default:
		q.Close()
		return fmt.Errorf("%d queues named %q wait to be accepted", maxUnaccepted, name)
	}
}

func (n *Node) keepQueue(q *Queue) {
	n.mu.Lock()
	n.owned[q] = true
	n.mu.Unlock()
}

// dropQueue is called when a queue was closed.
func (n *Node) dropQueue(q *Queue) {
	n.mu.Lock()
	delete(n.owned, q)
	var retire []*Export
	if len(n.owned) == 0 {
		retire, n.retire = n.retire, nil
	}
	n.mu.Unlock()
	for _, x := range retire {
		n.exports.Retire(x.e)
	}
}

// fenceQueues asks the queues by which an export could be reached for a fence, also those of lost
// peers: their owners may still be inside Poll.
func (n *Node) fenceQueues(x *Export) []<-chan error {
	n.mu.Lock()
	var queues []*Queue
	for q := range n.owned {
		if x.visible(q.peer) {
			queues = append(queues, q)
		}
	}
	n.mu.Unlock()
	var out []<-chan error
	for _, q := range queues {
		out = append(out, q.fence(x.e.Key()))
	}
	return out
}

// closeQueues ends the exports of a node whose channels are all closed. The owner of a queue may be
// inside Poll: the exports are retired when the last queue is closed.
func (n *Node) closeQueues(exports map[path.Key]*Export) {
	for _, x := range exports {
		n.exports.Revoke(x.e)
	}
	n.mu.Lock()
	for _, x := range exports {
		n.retire = append(n.retire, x)
	}
	n.mu.Unlock()
	n.dropQueue(nil)
}

// AcceptQueues makes the node take queues of that name ("" for the default queue) from now on;
// AcceptQueue calls it.
func (n *Node) AcceptQueues(name string) {
	if name == "" {
		name = defaultQueue
	}
	n.queueChan(name)
}

// AcceptQueue waits for a queue of that name ("" for the default queue) that a peer opens.
func (n *Node) AcceptQueue(ctx context.Context, name string) (*Queue, error) {
	if err := invariants.Context(ctx, "transfer.Node.AcceptQueue"); err != nil {
		return nil, err
	}
	if name == "" {
		name = defaultQueue
	}
	for {
		select {
		case q := <-n.queueChan(name):
			if q.accept() {
				return q, nil
			}
			// Its peer was lost before a call took it.
		case <-n.ctx.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
