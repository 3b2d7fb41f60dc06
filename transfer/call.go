package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/control"
)

// MaxCall is the largest body of a call or its answer in bytes.
const MaxCall = control.MaxCall

// Handler answers the calls of peers to one service. It runs on a goroutine of its own for each
// call; ctx ends when the peer is lost or the node closes. An error travels as its control.Error,
// if it wraps one, otherwise as control.Internal with its text. The body belongs to the handler.
type Handler func(ctx context.Context, p *Peer, body []byte) ([]byte, error)

// services are what packages above this one add to a node.
type services struct {
	mu       sync.Mutex // guards what follows
	handlers map[string]*Handler
	lookups  []*func(ctx context.Context, p *Peer, name string)
	tags     map[uint32]*func(Incoming)
}

func newServices() services {
	return services{handlers: map[string]*Handler{}, tags: map[uint32]*func(Incoming){}}
}

// keep puts what serves a key there until remove is called. The mutex is held.
func keep[K comparable, V any](s *services, all map[K]*V, key K, v *V) (remove func()) {
	all[key] = v
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if all[key] == v {
			delete(all, key)
		}
	}
}

// Handle makes the node answer calls to a service until remove is called. It is an error if the
// service has a handler already. Remove does not wait for calls that are under way.
func (n *Node) Handle(service string, h Handler) (remove func(), err error) {
	s := &n.services
	s.mu.Lock()
	defer s.mu.Unlock()
	if service == "" || len(service) > MaxName {
		return nil, fmt.Errorf("transfer: service name of %d bytes: expected 1 to %d", len(service), MaxName)
	}
	if s.handlers[service] != nil {
		return nil, fmt.Errorf("transfer: service %q has a handler already", service)
	}
	return keep(s, s.handlers, service, &h), nil
}

// OnTag has f called for completed transfers and notifications of peers with this tag, in place of
// Options.OnTransfer and by the same rules, until remove is called. Tag 0 is OnTransfer's. It is an
// error if the tag has a handler already. Remove does not wait for a call that is under way.
func (n *Node) OnTag(tag uint32, f func(Incoming)) (remove func(), err error) {
	s := &n.services
	s.mu.Lock()
	defer s.mu.Unlock()
	if tag == 0 {
		return nil, errors.New("transfer: tag 0: expected another one, that is Options.OnTransfer's")
	}
	if s.tags[tag] != nil {
		return nil, fmt.Errorf("transfer: tag %d has a handler already", tag)
	}
	return keep(s, s.tags, tag, &f), nil
}

// onTag is the handler of a tag, or OnTransfer; nil if the application has neither.
func (n *Node) onTag(tag uint32) func(Incoming) {
	if tag != 0 {
		n.services.mu.Lock()
		f := n.services.tags[tag]
		n.services.mu.Unlock()
		if f != nil {
			return *f
		}
	}
	return n.opts.OnTransfer
}

// OnLookup has f called when a peer asks for a name, before the answer is looked up, so that it can
// export what is asked for, or look whether an export is still up to date; and with no name before
// the answer to a list. Several may be set; each is called until its remove is. f runs on the
// goroutine of the request and may take its time.
func (n *Node) OnLookup(f func(ctx context.Context, p *Peer, name string)) (remove func()) {
	s := &n.services
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookups = append(s.lookups[:len(s.lookups):len(s.lookups)], &f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lookups = slices.DeleteFunc(slices.Clone(s.lookups), func(g *func(context.Context, *Peer, string)) bool {
			return g == &f
		})
	}
}

// beforeLookup calls the functions of OnLookup before the node answers a peer's lookup of a name,
// or, with "", a list.
func (p *Peer) beforeLookup(name string) {
	s := &p.node.services
	s.mu.Lock()
	all := s.lookups
	s.mu.Unlock()
	for _, f := range all {
		(*f)(p.ctx, p, name)
	}
}

// Call asks a service of the peer's node (Node.Handle) and returns its answer. The body has at most
// MaxCall bytes. The error matches control.Unsupported when the node has no such service.
func (p *Peer) Call(ctx context.Context, service string, body []byte) ([]byte, error) {
	r, err := p.request(ctx, &control.Call{Service: service, Body: body})
	if err != nil {
		return nil, err
	}
	a, err := control.Parse[control.CallAnswer](r.Body)
	return a.Body, err
}

func (p *Peer) answerCall(q *control.Call) (control.Body, error) {
	s := &p.node.services
	s.mu.Lock()
	h := s.handlers[q.Service]
	s.mu.Unlock()
	if h == nil {
		return nil, control.Errorf(control.Unsupported, "this node has no service %q", q.Service)
	}
	b, err := (*h)(p.ctx, p, q.Body)
	if err != nil {
		if c := (*control.Error)(nil); !errors.As(err, &c) {
			err = control.AsError(err)
		}
		return nil, err
	}
	if len(b) > MaxCall {
		return nil, control.Errorf(control.Internal, "service %q: an answer of %d bytes", q.Service, len(b))
	}
	return &control.CallAnswer{Body: b}, nil
}
