package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// serve answers a request of the peer.
func (p *Peer) serve(r *control.Request) {
	body, err := p.answer(r)
	if errors.Is(err, ErrClosed) {
		err = control.Errorf(control.Shutdown, "the node is closing")
	}
	if err != nil {
		p.node.log.Debug("request refused", "peer", p.info.Name, "method", r.Method.String(), "error", err)
		p.account.Refused(r.Method.String(), err.Error())
	}
	p.mu.Lock()
	if err != nil {
		err = p.session.Refuse(time.Now(), r.ID, err)
	} else {
		if err = p.session.Respond(time.Now(), r.ID, body); err != nil {
			// an answer that cannot be sent is none; fails where the session has ended
			p.session.Refuse(time.Now(), r.ID, err)
		}
	}
	var messages []control.Message
	if p.lost == nil {
		messages = p.taken() // requests whose answers have room now; the writer may be held up by the peer
		p.node.wg.Add(1)     // for handle; the goroutines of a session that is not lost are in it
		defer p.node.wg.Done()
	}
	p.mu.Unlock()
	p.wake()
	for _, m := range messages {
		p.handle(m)
	}
	if err != nil && p.ctx.Err() == nil {
		p.node.log.Warn("answer not sent", "peer", p.info.Name, "method", r.Method, "error", err)
	}
}

// needs are the rights of which a peer must have one to ask for something. A method that is not
// here needs none, or its answerer decides.
var needs = map[control.Method]identity.Rights{
	control.MethodOpenPath: identity.Read | identity.Write,
	control.MethodLookup:   identity.Read | identity.Write,
	control.MethodList:     identity.List,
	control.MethodNames:    identity.List,
	control.MethodOffer:    identity.Write,
	control.MethodStage:    identity.Read | identity.Write,
	control.MethodPlace:    identity.Write,
	control.MethodFetch:    identity.Read,
	control.MethodStatus:   identity.Status,
	control.MethodCall:     identity.All,
}

func (p *Peer) answer(r *control.Request) (control.Body, error) {
	if want, ok := needs[r.Method]; ok {
		if err := p.Require(want); err != nil {
			return nil, err
		}
	}
	switch r.Method {
	case control.MethodOpenPath:
		return parsed(r, p.answerOpenPath)
	case control.MethodLookup:
		return parsed(r, p.answerLookup)
	case control.MethodList:
		return parsed(r, p.answerList)
	case control.MethodNames:
		return parsed(r, p.answerNames)
	case control.MethodOffer:
		return parsed(r, p.answerOffer)
	case control.MethodDigest:
		return parsed(r, p.answerDigest)
	case control.MethodStage:
		return parsed(r, p.staged.Stage)
	case control.MethodUnstage:
		return parsed(r, p.staged.Unstage)
	case control.MethodPlace:
		return parsed(r, p.staged.Place)
	case control.MethodFetch:
		return parsed(r, p.staged.Fetch)
	case control.MethodPathDown:
		return parsed(r, p.answerPathDown)
	case control.MethodStatus:
		return parsed(r, p.answerStatus)
	case control.MethodDelivered:
		return parsed(r, p.deliveredHere)
	case control.MethodEnd:
		return parsed(r, p.answerEnd)
	case control.MethodCall:
		return parsed(r, p.answerCall)
	}
	return nil, control.Errorf(control.Unsupported, "%v", r.Method)
}

// parsed is what f answers to the body of a request.
func parsed[Q any, P interface {
	*Q
	control.Body
}](r *control.Request, f func(P) (control.Body, error)) (control.Body, error) {
	q, err := control.Parse[Q, P](r.Body)
	if err != nil {
		return nil, err
	}
	return f(&q)
}

func (p *Peer) answerLookup(q *control.Lookup) (control.Body, error) {
	p.beforeLookup(q.Name)
	p.node.mu.Lock()
	x := p.node.names[q.Name]
	p.node.mu.Unlock()
	if x == nil || !x.visible(p) {
		return nil, control.Errorf(control.NotFound, "no export %q", q.Name)
	}
	e := x.entryFor(p)
	if e.Desc.Rights == 0 {
		return nil, control.Errorf(control.NotPermitted, "the export %q permits %v, and %s may %v on this node", q.Name,
			x.e.Rights(), p.who(), p.rights)
	}
	return &e, nil
}

func (p *Peer) answerPathDown(q *control.PathDown) (control.Body, error) {
	p.mu.Lock()
	ch := p.paths[q.PathID]
	down := fmt.Errorf("%w: the peer says: %s", path.ErrDown, q.Reason)
	if at := p.coming[q.PathID]; at != nil {
		at.down = down
		if at.end != nil {
			at.end()
		}
	}
	p.mu.Unlock()
	if ch != nil {
		ch.shut(down)
	}
	return &control.Empty{}, nil
}

func (p *Peer) answerEnd(q *control.EndSessions) (control.Body, error) {
	p.endSessions(p.party(), q.Sessions)
	return &control.Empty{}, nil
}

func (p *Peer) maxBody() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session.MaxBody()
}

// maxPaths is the number of paths that a peer may have, queues and those that it was invited to
// dial included.
const maxPaths = 256

// accepts is the side of a path that was asked for it, before the peer comes: what its offer says,
// and what waits for the peer.
type accepts struct {
	ownEnd
	offer setup.Offer
	wait  func(context.Context) (path.Path, error)
}

// accept prepares the side of a path that was asked for it. It accepts the path, or dials where it
// dialed the session if the peer accepts.
func (p *Peer) accept(d setup.Driver, q *control.OpenPath) (a accepts, err error) {
	cfg := p.pathConfig(0, int(q.Window), q.NoChecksum)
	cfg.Streams = int(q.Streams) // whatever this side would dial with
	var l setup.Listener
	dials := q.Token != setup.Token{}
	switch d := d.(type) {
	case setup.EndpointDriver:
		if len(q.Endpoint) == 0 || dials {
			return a, control.Errorf(control.BadRequest, "path %q: a request without an endpoint, or with a token",
				q.Path)
		}
	case setup.ListenDriver:
		if len(q.Endpoint) > 0 {
			return a, control.Errorf(control.BadRequest,
				"path %q: a request with an endpoint, which this path has none of", q.Path)
		}
		byPort := p.byPort(d)
		if dials && !p.dialedTCP() || !dials && byPort && p.dialedTCP() {
			return a, control.Errorf(control.BadRequest, "path %q: the side that dialed the session dials it", q.Path)
		}
		if dials {
			break
		}
		if l, err = p.node.accepting.Open(d, byPort); err != nil {
			return a, err
		}
		rand.Read(a.offer.Token[:])
		a.offer.Addr = l.Addr()
		if cfg.Secret, err = p.secret(a.offer.Token); err != nil {
			return a, err
		}
	}
	g, err := p.charge(pathNeeds(d, &cfg))
	if err != nil {
		return a, err
	}
	if a.ownEnd, err = endpoint(d, cfg, q.Endpoint, g); err != nil {
		return a, err
	}
	a.wait = func(ctx context.Context) (path.Path, error) {
		if a.ep != nil {
			return a.ep.Connect(ctx, q.Endpoint)
		}
		if dials {
			return p.dialOffer(ctx, d.(setup.ListenDriver), setup.Offer{Token: q.Token}, cfg)
		}
		return l.Accept(ctx, a.offer.Token, cfg) // the listener holds a peer that comes before this
	}
	return a, nil
}

// answerOpenPath prepares the accepting side of a path. The peer dials once it has the answer.
func (p *Peer) answerOpenPath(q *control.OpenPath) (control.Body, error) {
	d := p.node.driver(q.Path)
	if d == nil {
		return nil, control.Errorf(control.Unsupported, "this node has no path %q", q.Path)
	}
	if q.Window > 1<<16 || q.Streams > 64 {
		return nil, control.Errorf(control.BadRequest, "window %d, streams %d: expected at most %d and 64", q.Window,
			q.Streams, 1<<16)
	}
	if have, need := p.potential(d.Traits()), p.floor(path.SecurityNone); have < need {
		return nil, control.Errorf(control.NotPermitted, "path %q gives the security %q, this session needs %q", q.Path,
			have, need)
	}
	if q.Queue != "" {
		p.node.mu.Lock()
		c := p.node.queues[q.Queue]
		p.node.mu.Unlock()
		if c == nil {
			return nil, control.Errorf(control.NotFound, "no program accepts queues named %q on this node", q.Queue)
		}
	} else if err := p.cannotPace(d.Traits()); err != nil {
		return nil, err
	}
	acc, err := p.accept(d, q)
	if err != nil {
		return nil, err
	}
	// Both sides choose ids for what they accept: the dialer of the session odd ones, the other
	// even ones.
	p.mu.Lock()
	p.nextID += 2
	id := p.nextID
	if p.role == control.Dialer {
		id++
	}
	crowded := len(p.coming)+len(p.paths)+len(p.queues) >= maxPaths
	if !crowded {
		p.coming[id] = new(upcoming)
	}
	p.mu.Unlock()
	if crowded {
		acc.giveUp()
		return nil, control.Errorf(control.Busy, "this peer has %d paths, open or invited", maxPaths)
	}
	ctx, cancel := context.WithTimeout(p.ctx, requestTimeout)
	p.node.wg.Add(1)
	go func() {
		defer p.node.wg.Done()
		defer cancel()
		defer p.arrived(id)
		g := acc.g
		pth, err := acc.wait(ctx)
		if err != nil {
			g.release()
			p.node.log.Warn("path not accepted", "peer", p.info.Name, "path", q.Path, "error", err)
			if q.Token != (setup.Token{}) { // the peer waits
				p.request(p.ctx, &control.PathDown{PathID: id, Reason: clipReason(err)})
			}
			return
		}
		if q.Queue != "" {
			err := p.endLostSessions(ctx)
			if err == nil {
				err = p.node.offerQueue(p, q.Queue, pth, g)
			} else {
				pth.Close()
				g.release()
			}
			if err != nil {
				p.node.log.Warn("queue not accepted", "peer", p.info.Name, "queue", q.Queue, "error", err)
			}
			return
		}
		ch, err := p.adopt(pth, g, id)
		if err != nil {
			return
		}
		// This side can use the path as well, unless it has opened one of its own.
		p.mu.Lock()
		if p.channels[q.Path] == nil && p.paths[id] == ch { // it may be down already
			p.channels[q.Path] = &opening{done: closedChan, ch: ch}
			p.changed()
		}
		p.mu.Unlock()
	}()
	return &control.PathOffer{Offer: acc.offer, PathID: id, Endpoint: acc.description()}, nil
}

// visible reports whether a peer may know of the export.
func (x *Export) visible(p *Peer) bool { return x.only == nil || x.only == p }

// entryFor describes the export with the rights that the peer has of those that it gives. A peer
// that has none of them gets no key, and no tag, which may be made of the content.
func (x *Export) entryFor(p *Peer) control.Entry {
	e := control.Entry{Name: x.name, Desc: x.e.Desc(), Tensor: x.wire, Generation: x.generation, Tag: x.tag}
	if e.Desc.Rights &= pathRights(p.rights); e.Desc.Rights == 0 {
		e.Desc.Key, e.Tag = path.Key{}, [16]byte{}
	} else {
		x.told.Store(true)
	}
	return e
}

func (p *Peer) known(e *control.Entry) (*Remote, error) {
	r, err := p.remoteOf(e)
	if err == nil && e.Desc.Rights != 0 {
		p.mu.Lock()
		if now := (remote{e.Desc, true}); p.remotes[e.Desc.Key] != now {
			p.remotes[e.Desc.Key] = now
			p.changed()
		}
		p.mu.Unlock()
	}
	return r, err
}

// remoteOf checks what the peer says of an export.
func (p *Peer) remoteOf(e *control.Entry) (*Remote, error) {
	r := &Remote{Peer: p, Name: e.Name, Desc: e.Desc, Generation: e.Generation, Tag: e.Tag}
	if len(e.Tensor) > 0 {
		d, err := parseTensor(e.Tensor)
		if err != nil {
			return nil, fmt.Errorf("transfer: export %q of %s: %w", e.Name, p, err)
		}
		if size, err := tensorSize(d); err != nil || size > e.Desc.Size {
			return nil, fmt.Errorf("transfer: export %q of %s: a tensor of %v in %d bytes", e.Name, p, d, e.Desc.Size)
		}
		r.Tensor = &d
	}
	return r, nil
}

// Import makes an export known that was described by other means than Lookup and List.
func (p *Peer) Import(d path.Desc) *Remote {
	p.mu.Lock()
	if _, ok := p.remotes[d.Key]; !ok && !p.wasRevoked(d.Key) {
		p.remotes[d.Key] = remote{d, false}
	}
	p.mu.Unlock()
	return &Remote{Peer: p, Desc: d}
}

// Lookup asks the peer for the export of a name. The error matches control.NotFound when there is
// none.
func (p *Peer) Lookup(ctx context.Context, name string) (*Remote, error) {
	r, err := p.request(ctx, &control.Lookup{Name: name})
	if err != nil {
		return nil, err
	}
	e, err := control.Parse[control.Entry](r.Body)
	if err != nil {
		return nil, err
	}
	return p.known(&e)
}
