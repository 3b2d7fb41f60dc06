package transfer

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// requestTimeout bounds how long an answer of a peer is waited for.
const requestTimeout = 10 * time.Second

// request asks the peer and waits for the answer.
func (p *Peer) request(ctx context.Context, q control.Query) (*control.Response, error) {
	if err := invariants.Context(ctx, "transfer.Peer"); err != nil {
		return nil, err
	}
	c := make(chan *control.Response, 1)
	p.mu.Lock()
	if p.lost != nil {
		defer p.mu.Unlock()
		return nil, p.lost
	}
	var id uint64
	err := p.roomFor(q)
	if err == nil {
		id, err = p.session.Request(time.Now(), q)
	}
	if err != nil {
		defer p.mu.Unlock()
		return nil, p.requestError(q, err)
	}
	p.pending[id] = c
	p.mu.Unlock()
	p.wake()
	select {
	case r, ok := <-c:
		if !ok {
			return nil, p.Err()
		}
		if err := r.Err(); err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			return nil, p.requestError(q, err)
		}
		return r, nil
	case <-ctx.Done():
		if lost := p.Err(); lost != nil { // perhaps ctx ends with the peer
			return nil, lost
		}
		return nil, fmt.Errorf("transfer: %v of %s: %w", q.Method(), p, endOf(ctx))
	}
}

// keptRequests is how many of the requests that may wait for their answers are left to the change
// of paths: a path that goes down while the others are taken must not cost the session, which is
// all that else keeps the peer from writing by it.
const keptRequests = 8

// roomFor refuses a request that would take what is left to others. The mutex is held.
func (p *Peer) roomFor(q control.Query) error {
	switch q.Method() {
	case control.MethodPathDown, control.MethodDelivered, control.MethodOpenPath:
		return nil
	}
	if n := p.session.Pending(); n >= control.MaxPendingRequests-keptRequests {
		return fmt.Errorf("%d requests: %w", n, control.ErrPending)
	}
	return nil
}

// requestError is the error of a request that could not be made, or was answered by one. The mutex
// is held.
func (p *Peer) requestError(q control.Query, err error) error {
	if s := p.session.State(); s == control.Closing || s == control.Closed || s == control.Failed {
		// that is why, and the peer is about to be given up
		p.mu.Unlock()
		<-p.ctx.Done()
		p.mu.Lock()
		return p.lost
	}
	return fmt.Errorf("transfer: %v of %s: %w", q.Method(), p, err)
}

// send queues a one-way message; it is dropped when the peer is lost.
func (p *Peer) send(m control.Message) error {
	p.mu.Lock()
	err := p.session.Send(time.Now(), m)
	p.mu.Unlock()
	p.wake()
	return err
}

func (p *Peer) revoked(key path.Key) { p.send(&control.KeyRevoked{Key: key}) }

// handle acts on one message; what can take long gets a goroutine.
func (p *Peer) handle(m control.Message) {
	switch m := m.(type) {
	case *control.Response:
		p.mu.Lock()
		c := p.pending[m.ID]
		delete(p.pending, m.ID)
		p.mu.Unlock()
		if c != nil {
			c <- m
		}
	case *control.Request:
		if m.Method == control.MethodCall || m.Method == control.MethodLookup {
			go p.serve(m) // Close does not wait for it: the answerer (Handle, OnLookup) may call Close
			return
		}
		p.node.wg.Add(1)
		go func() {
			defer p.node.wg.Done()
			p.serve(m)
		}()
	case *control.KeyRevoked:
		p.mu.Lock()
		p.forgetRemote(m.Key)
		p.mu.Unlock()
	case *control.Complete:
		p.node.offerEnded(observe.ID(m.ID), p, m.Err())
	}
}
