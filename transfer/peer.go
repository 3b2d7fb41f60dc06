package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
)

// requestTimeout bounds how long an answer of a peer is waited for.
const requestTimeout = 10 * time.Second

// Peer is a node that this one is connected to. Its methods may be called from any goroutine.
type Peer struct {
	node       *Node
	role       control.Role
	conn       net.Conn
	info       control.Identity
	ctx        context.Context // ends when the peer is lost
	end        context.CancelCauseFunc
	introduced chan struct{} // closed when the node's user has been told of the peer
	ready      chan struct{} // closed when the handshake is done
	gone       chan struct{} // closed when nothing of the peer is left
	kick       chan struct{} // wakes the writer
	inbox      inbox
	seen       seen
	refused    atomic.Uint64
	unwelcome  atomic.Bool // nobody was told of it, nor will be
	writing    sync.Mutex  // held while the connection is written

	mu      sync.Mutex // guards what follows
	session *control.Session
	pending map[uint64]chan *control.Response
	lanes   map[string]*opening
	paths   map[uint64]*lane // by path id
	queues  map[*Queue]bool
	remotes map[path.Key]path.Desc
	nextID  uint64
	lost    error
}

// opening is a lane that is being set up, is set up, or could not be.
type opening struct {
	done chan struct{}
	ln   *lane
	err  error
	at   time.Time // of the failure
}

// retryAfter is how long a path that could not be set up is not tried again.
const retryAfter = time.Second

// connect runs the handshake on a fresh connection.
func (n *Node) connect(ctx context.Context, c net.Conn, role control.Role) (*Peer, error) {
	paths := make([]string, len(n.drivers))
	for i, d := range n.drivers {
		paths[i] = d.Name()
	}
	s, err := control.New(role, control.Options{
		Identity:       control.Identity{Node: n.id, Instance: n.instance, Name: n.opts.Name, Host: n.host, Paths: paths},
		HeartbeatEvery: n.opts.HeartbeatEvery, DeadAfter: n.opts.DeadAfter, RequestTimeout: requestTimeout,
	}, time.Now())
	if err != nil {
		c.Close()
		return nil, err
	}
	p := &Peer{
		node: n, role: role, conn: c, session: s,
		introduced: make(chan struct{}), ready: make(chan struct{}), gone: make(chan struct{}), kick: make(chan struct{}, 1),
		pending: map[uint64]chan *control.Response{}, lanes: map[string]*opening{}, paths: map[uint64]*lane{},
		queues: map[*Queue]bool{}, remotes: map[path.Key]path.Desc{},
	}
	p.ctx, p.end = context.WithCancelCause(context.Background())
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		c.Close()
		return nil, ErrClosed
	}
	n.peers[p] = true
	n.wg.Add(2)
	n.mu.Unlock()
	go p.read()
	go p.write()
	select {
	case <-p.ready:
		n.log.Info("peer connected", "peer", p.info.Name)
		return p, nil
	case <-p.ctx.Done():
		<-p.gone
		err = context.Cause(p.ctx)
	case <-ctx.Done():
		err = ctx.Err()
		p.fail(err)
		<-p.gone
	}
	p.unwelcome.Store(true)
	close(p.introduced)
	return nil, err
}

// Name is the peer's name.
func (p *Peer) Name() string {
	select {
	case <-p.ready:
		return p.info.Name
	default:
		return "" // it is not known yet
	}
}

// SameHost reports whether the peer shares this machine's memory and network namespace.
func (p *Peer) SameHost() bool { return p.info.Host == p.node.host }

func (p *Peer) String() string {
	if name := p.Name(); name != "" {
		return strconv.Quote(name)
	}
	return "peer at " + p.conn.RemoteAddr().String()
}

// Gone is closed when the peer was closed or lost; Err says why.
func (p *Peer) Gone() <-chan struct{} { return p.gone }

// Err is nil while the peer is connected. Afterwards it wraps ErrPeerLost and says why.
func (p *Peer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// RoundTrip is the time that the last heartbeat took, 0 before the first.
func (p *Peer) RoundTrip() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session.RTT()
}

// Close says goodbye, ends every transfer with the peer and waits until nothing of it is left.
func (p *Peer) Close() error {
	p.goodbye(control.Shutdown, "closed by the other side")
	<-p.gone
	return nil
}

func (p *Peer) goodbye(code control.Code, reason string) {
	p.mu.Lock()
	p.session.Goodbye(time.Now(), code, reason)
	p.mu.Unlock()
	p.wake()
}

func (p *Peer) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// read takes what the peer sends until the connection ends.
func (p *Peer) read() {
	defer p.node.wg.Done()
	buf := make([]byte, 16<<10)
	ready := false
	for {
		n, err := p.conn.Read(buf)
		p.mu.Lock()
		rerr := p.session.Receive(time.Now(), buf[:n])
		if rerr == nil && err != nil {
			rerr = p.session.Disconnected(err)
		}
		messages := p.taken()
		if !ready && p.session.State() == control.Ready {
			ready = true
			p.info = p.session.Peer()
			close(p.ready)
		}
		p.mu.Unlock()
		p.wake() // there may be something to write, or a new deadline
		for _, m := range messages {
			p.handle(m)
		}
		if rerr != nil {
			p.flush() // there may be a goodbye that says why
			p.fail(rerr)
			return
		}
	}
}

// taken empties the session of messages. The mutex is held.
func (p *Peer) taken() []control.Message {
	var out []control.Message
	for {
		m, ok := p.session.Next()
		if !ok {
			return out
		}
		out = append(out, m)
	}
}

// write sends what the session has to say and keeps its deadlines.
func (p *Peer) write() {
	defer p.node.wg.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.mu.Lock()
		now := time.Now()
		err := p.session.Tick(now)
		messages := p.taken() // requests that were not answered in time
		deadline := p.session.Deadline()
		over := p.session.State() == control.Closed || p.session.State() == control.Failed
		p.mu.Unlock()
		for _, m := range messages {
			p.handle(m)
		}
		if werr := p.flush(); werr != nil && err == nil {
			p.mu.Lock()
			err = p.session.Disconnected(werr)
			p.mu.Unlock()
		}
		if err != nil || over {
			if err == nil {
				p.mu.Lock()
				err = p.session.Err()
				p.mu.Unlock()
			}
			p.fail(err)
			return
		}
		if !deadline.IsZero() {
			timer.Reset(time.Until(deadline))
		}
		select {
		case <-p.kick:
		case <-timer.C:
		case <-p.ctx.Done():
			return
		}
	}
}

// flush writes what the session has to say. The mutex of the session is not held meanwhile.
func (p *Peer) flush() error {
	p.writing.Lock()
	defer p.writing.Unlock()
	for {
		p.mu.Lock()
		out := p.session.Outgoing()
		p.mu.Unlock()
		if len(out) == 0 {
			return nil
		}
		p.conn.SetWriteDeadline(time.Now().Add(p.node.opts.DeadAfter))
		n, err := p.conn.Write(out)
		p.mu.Lock()
		p.session.Sent(n)
		p.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// fail ends everything that concerns the peer, once.
func (p *Peer) fail(cause error) {
	if cause == nil {
		cause = control.Shutdown
	}
	err := fmt.Errorf("%w: %s: %w", ErrPeerLost, p, cause)
	p.mu.Lock()
	if p.lost != nil {
		p.mu.Unlock()
		return
	}
	p.lost = err
	pending := p.pending
	p.pending = map[uint64]chan *control.Response{}
	queues := make([]*Queue, 0, len(p.queues))
	for q := range p.queues {
		queues = append(queues, q)
	}
	p.mu.Unlock()
	p.end(err)
	p.conn.Close()
	for _, c := range pending {
		close(c)
	}
	for _, q := range queues {
		q.fail(err)
	}
	// No lane is added once lost is set.
	for {
		p.mu.Lock()
		var ln *lane
		for _, l := range p.paths {
			ln = l
			break
		}
		p.mu.Unlock()
		if ln == nil {
			break
		}
		ln.shut(err)
		p.forget(ln)
	}
	p.node.peerLost(p, err)
	close(p.gone)
}

func (n *Node) peerLost(p *Peer, err error) {
	n.log.Info("peer gone", "peer", p.Name(), "error", err)
	// A tensor whose completion was delivered belongs to its receiver: the sender was told so.
	p.drained(func() { n.offerPeerLost(p, err) })
	n.mu.Lock()
	delete(n.peers, p)
	n.mu.Unlock()
}

// request asks the peer and waits for the answer.
func (p *Peer) request(ctx context.Context, q control.Query) (*control.Response, error) {
	c := make(chan *control.Response, 1)
	p.mu.Lock()
	if p.lost != nil {
		defer p.mu.Unlock()
		return nil, p.lost
	}
	id, err := p.session.Request(time.Now(), q)
	if err != nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("transfer: %v of %s: %w", q.Method(), p, err)
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
			return nil, fmt.Errorf("transfer: %v of %s: %w", q.Method(), p, err)
		}
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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
		p.node.wg.Add(1)
		go func() {
			defer p.node.wg.Done()
			p.serve(m)
		}()
	case *control.KeyRevoked:
		p.mu.Lock()
		delete(p.remotes, m.Key)
		p.mu.Unlock()
	case *control.Complete:
		p.node.offerEnded(ID(m.ID), p, m.Err())
	}
}

// lane returns the peer's lane of a driver and sets it up first if there is none.
func (p *Peer) lane(ctx context.Context, driver string) (*lane, error) {
	p.mu.Lock()
	if p.lost != nil {
		defer p.mu.Unlock()
		return nil, p.lost
	}
	o := p.lanes[driver]
	if o == nil || o.failedBefore(time.Now().Add(-retryAfter)) {
		o = &opening{done: make(chan struct{})}
		p.lanes[driver] = o
		p.node.wg.Add(1)
		go func() {
			defer p.node.wg.Done()
			p.open(o, driver)
		}()
	}
	p.mu.Unlock()
	select {
	case <-o.done:
		return o.ln, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (o *opening) failedBefore(t time.Time) bool {
	select {
	case <-o.done:
		return o.err != nil && o.at.Before(t)
	default:
		return false
	}
}

// openedLane returns the lane of a driver if it is set up, and the error if it could not be a moment ago.
func (p *Peer) openedLane(driver string) (*lane, error) {
	p.mu.Lock()
	o := p.lanes[driver]
	p.mu.Unlock()
	if o == nil || o.failedBefore(time.Now().Add(-retryAfter)) {
		return nil, nil
	}
	select {
	case <-o.done:
		return o.ln, o.err
	default:
		return nil, nil
	}
}

func (p *Peer) open(o *opening, driver string) {
	var ln *lane
	pth, id, err := p.dialPath(p.ctx, driver, QueueOptions{Path: driver})
	if err == nil {
		ln, err = p.adopt(pth, id)
	}
	// Under the mutex, so that a lane that went down meanwhile is not kept: forget did not find it here.
	p.mu.Lock()
	if err == nil && p.paths[id] != ln {
		err = fmt.Errorf("%w: as soon as it was set up", path.ErrDown)
	}
	if err != nil && p.lost != nil {
		err = p.lost // that is why
	}
	if err == nil {
		o.ln = ln
	} else {
		o.err, o.at = fmt.Errorf("set up %s: %w", driver, err), time.Now()
	}
	close(o.done)
	p.mu.Unlock()
	if err != nil {
		p.node.log.Warn("path not set up", "peer", p.info.Name, "path", driver, "error", err)
	}
}

// dialPath asks the peer to accept a path and dials it.
func (p *Peer) dialPath(ctx context.Context, driver string, o QueueOptions) (path.Path, uint64, error) {
	d := p.node.driver(driver)
	if d == nil {
		return nil, 0, fmt.Errorf("transfer: path %q: %w", driver, path.ErrUnavailable)
	}
	cfg := p.node.pathConfig(o.Streams, o.Window, o.NoChecksum)
	r, err := p.request(ctx, &control.OpenPath{Path: driver, Streams: uint32(cfg.Streams), Window: uint32(cfg.Window), NoChecksum: cfg.NoChecksum, Queue: o.Name})
	if err != nil {
		return nil, 0, err
	}
	offer, err := control.Parse[control.PathOffer](r.Body)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pth, err := d.Dial(ctx, offer.Offer, cfg)
	return pth, offer.PathID, err
}

// adopt makes a lane of a path and gives it to the node's loop.
func (p *Peer) adopt(pth path.Path, id uint64) (*lane, error) {
	ln := newLane(p, id, pth)
	p.mu.Lock()
	err := p.lost
	if err == nil && p.paths[id] != nil {
		err = fmt.Errorf("transfer: %s gave the path id %d twice", p, id)
	}
	if err == nil {
		p.paths[id] = ln
	}
	p.mu.Unlock()
	if err == nil {
		if err = p.node.loop.add(ln); err == nil {
			return ln, nil
		}
	}
	ln.shut(err)
	p.forget(ln)
	return nil, err
}

func (p *Peer) forget(ln *lane) {
	p.mu.Lock()
	if p.paths[ln.id] == ln {
		delete(p.paths, ln.id)
	}
	for name, o := range p.lanes {
		select {
		case <-o.done:
			if o.ln == ln {
				delete(p.lanes, name)
			}
		default:
		}
	}
	p.mu.Unlock()
	p.node.loop.remove(ln)
}

// laneDown is called when a path ended; the peer stays as long as its control connection does.
func (p *Peer) laneDown(ln *lane, err error) {
	p.forget(ln)
	if !errors.Is(err, ErrPeerLost) {
		p.node.log.Warn("path down", "peer", p.info.Name, "path", ln.p.Name(), "error", err)
	}
}

// fence asks every path of the peer for a fence and returns what to wait for.
func (p *Peer) fence(key path.Key) []<-chan error {
	p.mu.Lock()
	var lanes []*lane
	for _, l := range p.paths {
		lanes = append(lanes, l)
	}
	p.mu.Unlock()
	var out []<-chan error
	for _, l := range lanes {
		out = append(out, l.fence(key))
		p.node.loop.kick(l)
	}
	return out
}

func (p *Peer) addQueue(q *Queue) {
	p.node.keepQueue(q)
	p.mu.Lock()
	lost := p.lost
	if lost == nil {
		p.queues[q] = true
	}
	p.mu.Unlock()
	if lost != nil {
		q.fail(lost)
	}
}

func (p *Peer) removeQueue(q *Queue) {
	p.mu.Lock()
	delete(p.queues, q)
	p.mu.Unlock()
	p.node.dropQueue(q)
}

func (p *Peer) remote(k path.Key) (path.Desc, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, ok := p.remotes[k]
	return d, ok
}
