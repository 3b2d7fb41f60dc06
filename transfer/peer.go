package transfer

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/address"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/digest"
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/path"
)

// Peer is a node that this one is connected to. Its methods may be called from any goroutine.
type Peer struct {
	node   *Node
	number uint64 // on this node, from 1
	peerUser
	peerConn
	peerLife
	inbox   inbox.Inbox[Incoming, *channel]
	parts   inbox.Parts // of long notifications
	seen    inbox.Seen
	asks    *digest.Asker
	served  digest.Served
	staged  *bounce.Peer
	account *account.Peer
	peerLimits
	streams streams
	changes atomic.Uint64 // of channels and remotes; see changed
	ways    [keptWays]atomic.Pointer[way]

	mu      sync.Mutex // guards what follows
	session *control.Session
	pending map[uint64]chan *control.Response
	peerPaths
	peerExports
	lost error
}

// opening is a channel that is being set up, is set up, or could not be.
type opening struct {
	done chan struct{}
	ch   *channel
	err  error
	at   time.Time // of the failure
}

// upcoming is a path that is being set up, once both sides know its id.
type upcoming struct {
	down error  // the peer says that it is
	end  func() // ends what waits for it; may be nil
}

// retryAfter is how long a path that could not be set up is not tried again.
const retryAfter = time.Second

// arrived takes a fresh connection among those whose handshake is under way; connect is called
// next.
func (n *Node) arrived(c net.Conn, role control.Role) (*Peer, error) {
	p := &Peer{
		node: n, pending: map[uint64]chan *control.Response{},
		peerConn: peerConn{conn: c, raw: c},
		peerUser: peerUser{role: role, local: isLocal(c.RemoteAddr()),
			owner: sync.OnceValues(func() (int, error) {
				return path.UserAt(c)
			})},
		peerLife: peerLife{introduced: make(chan struct{}), ready: make(chan struct{}), gone: make(chan struct{}),
			kick: make(chan struct{}, 1)},
		peerPaths: peerPaths{channels: map[string]*opening{}, paths: map[uint64]*channel{},
			queues: map[*Queue]bool{}, coming: map[uint64]*upcoming{}},
		peerExports: peerExports{remotes: map[path.Key]remote{}, revokedTo: map[uint32]uint32{}},
	}
	p.parts.Charge = p.chargeLong
	p.account = n.account.Peer((*peerRow)(p))
	if role == control.Dialer {
		rand.Read(p.id[:]) // never fails
	}
	if err := n.meet(p); err != nil {
		c.Close()
		return nil, err
	}
	return p, nil
}

// connect runs the handshake of a connection, and closes it if that fails.
func (n *Node) connect(ctx context.Context, p *Peer, a address.Address, replaces [][16]byte) (err error) {
	defer n.met(p)
	defer context.AfterFunc(n.ctx, func() { p.raw.Close() })()
	defer func() {
		if err != nil {
			p.raw.Close()
		}
	}()
	paths := make([]string, len(n.drivers))
	for i, d := range n.drivers {
		paths[i] = d.Name()
	}
	if err := p.secure(ctx, a); err != nil {
		return err
	}
	p.rights = p.Rights()
	p.session, err = control.New(p.role, control.Options{
		Session: p.id, Replaces: replaces, Admit: p.admit,
		Identity: control.Identity{Node: n.id, Instance: n.instance, Name: n.opts.Name, Host: n.host,
			Paths: paths},
		HeartbeatEvery: n.opts.HeartbeatEvery, DeadAfter: n.opts.DeadAfter, RequestTimeout: requestTimeout,
		HandshakeTimeout: p.patience(ctx), RoundTrip: p.shook, Charge: p.chargeHeld,
	}, time.Now())
	if err != nil {
		return err
	}
	p.limits, _ = newLimits("a new peer", Quota{}, n.limits) // of a peer that leaves before it was ready
	p.ctx, p.end = context.WithCancelCause(context.Background())
	p.asks = digest.NewAsker(p.ctx, p, func(q *control.Digest) (*control.Response, error) {
		return p.request(p.ctx, q)
	},
		p.maxBody)
	p.staged = bounce.NewPeer(p.ctx, n.staging, (*stageSession)(p))
	n.mu.Lock()
	if err = n.usable(); err != nil {
		n.mu.Unlock()
		return err
	}
	n.peers[p] = true
	n.peerCount++
	p.number = n.peerCount
	n.wg.Add(2)
	n.mu.Unlock()
	if p.role == control.Dialer {
		p.mu.Lock()
		if p.lost == nil {
			p.grant = n.own(sessionNeeds)
		}
		p.mu.Unlock()
	}
	go p.read()
	go p.write()
	if err = p.introduction(ctx); err == nil {
		n.log.Info("peer connected", "peer", p.info.Name, "address", p.address(), "security", p.Security().String(),
			"certificate", p.cert.Name)
		return nil
	}
	p.unwelcome.Store(true)
	close(p.introduced)
	return err
}

// introduction waits until the session is ready. One that was is a peer, also if it ended before
// this goroutine woke: what came by it was delivered, and its sender knows that.
func (p *Peer) introduction(ctx context.Context) (err error) {
	select {
	case <-p.ready:
	case <-p.ctx.Done():
		<-p.gone
		err = context.Cause(p.ctx)
	case <-ctx.Done():
		if err = ctx.Err(); !p.wasReady() {
			p.fail(err)
			<-p.gone
		}
	}
	if p.wasReady() {
		return nil
	}
	return err
}

// wasReady reports whether the session came so far that it could be used.
func (p *Peer) wasReady() bool {
	select {
	case <-p.ready:
		return true
	default:
		return false
	}
}

// Name is the peer's name; "" while it is not known yet.
func (p *Peer) Name() string {
	if !p.wasReady() {
		return ""
	}
	return p.info.Name
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

// Err is nil while the peer is connected. Afterwards it wraps ErrPeerLost, or ErrClosed after a
// Close of this side, and says why.
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
	p.closed.Store(true)
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
			if p.tls != nil { // whatever it calls itself
				p.info.Name = p.cert.Name
			}
			p.mu.Unlock()
			l, err := p.node.limitsFor(p) // asks the node's user
			p.mu.Lock()
			if err == nil {
				p.limits = l
				p.account.Up(p.info.Name, p.number, p.address(), p.Security().String())
				close(p.ready)
			} else {
				rerr = err
			}
		}
		p.mu.Unlock()
		p.wake() // there may be something to write, or a new deadline
		for _, m := range messages {
			p.handle(m)
		}
		if rerr != nil {
			p.flushAll() // there may be a goodbye that says why
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
	var looked time.Time
	for {
		now := time.Now()
		if now.Sub(looked) > lookEvery {
			looked = now
			if err := p.holds(); err != nil {
				e := control.AsError(err)
				p.goodbye(e.Code, e.Text)
			}
		}
		p.mu.Lock()
		err := p.session.Tick(now)
		var messages []control.Message
		if p.wasReady() { // else read has the limits of the peer still to ask for
			messages = p.taken() // answers that did not come in time, and requests whose answers have room now
		}
		deadline := p.session.Deadline()
		over := p.session.State() == control.Closed || p.session.State() == control.Failed
		p.mu.Unlock()
		for _, m := range messages {
			p.handle(m)
		}
		var wrote bool
		var werr error
		if over = over || err != nil; over {
			p.flushAll()
		} else if wrote, werr = p.flush(); wrote && werr == nil {
			continue
		}
		if werr == nil && !over {
			p.mu.Lock()
			if len(p.coming)+len(p.queues) == 0 && !p.gave() {
				p.session.Leave() // the goodbye costs no round trip
			}
			over = p.session.State() == control.Closed
			p.mu.Unlock()
		}
		if werr != nil && err == nil && !p.wasReady() {
			// A peer that refuses this one says why and closes: that is still to be read.
			p.conn.SetReadDeadline(time.Now().Add(p.node.opts.DeadAfter))
			<-p.ctx.Done()
			return
		}
		if werr != nil && err == nil {
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
			wait := time.Until(deadline)
			if p.tls != nil { // new rules may take its rights away meanwhile
				wait = min(wait, lookEvery)
			}
			timer.Reset(wait)
		}
		select {
		case <-p.kick:
		case <-timer.C:
		case <-p.ctx.Done():
			return
		}
	}
}

// flushSize is how many bytes a peer has to take within the silence after which it is dead.
const flushSize = 16 << 10

// flush writes a part of what the session has to say. The mutex of the session is not held
// meanwhile.
func (p *Peer) flush() (wrote bool, err error) {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	out, silence := p.session.Outgoing(), p.session.Silence()
	p.mu.Unlock()
	if len(out) == 0 {
		return false, nil
	}
	p.conn.SetWriteDeadline(time.Now().Add(silence))
	n, err := p.conn.Write(out[:min(len(out), flushSize)])
	p.mu.Lock()
	p.session.Sent(n)
	p.mu.Unlock()
	return true, err
}

// flushAll writes what a session that has ended has to say, as far as the peer takes it soon.
func (p *Peer) flushAll() {
	p.mu.Lock()
	until := time.Now().Add(p.session.Silence())
	p.mu.Unlock()
	for time.Now().Before(until) {
		if wrote, err := p.flush(); !wrote || err != nil {
			return
		}
	}
}

// enter has the node wait for the caller's goroutine when it is closed, until node.wg.Done. It
// fails when the peer is lost.
func (p *Peer) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == nil {
		p.node.wg.Add(1)
	}
	return p.lost
}

// fail ends everything that concerns the peer, once.
func (p *Peer) fail(cause error) {
	if cause == nil {
		cause = control.Shutdown
	}
	err := fmt.Errorf("%w: %s: %w", ErrPeerLost, p, cause)
	if p.closed.Load() || p.node.ctx.Err() != nil { // the cause is what this side said to the other
		err = fmt.Errorf("%w: %s", ErrClosed, p)
	}
	p.mu.Lock()
	if p.lost != nil {
		p.mu.Unlock()
		return
	}
	p.lost = err
	pending := p.pending
	p.pending = map[uint64]chan *control.Response{}
	// none is added once lost is set
	queues, channels := slices.Collect(maps.Keys(p.queues)), slices.Collect(maps.Values(p.paths))
	p.mu.Unlock()
	p.drop(err)
	p.end(err)
	finish := p.staged.End()
	// not a TLS close, which would wait for a peer that does not read: the goodbye says that this
	// is the end
	p.raw.Close()
	for _, c := range pending {
		close(c)
	}
	for _, q := range queues {
		q.fail(err)
	}
	for _, ch := range channels {
		ch.shut(err)
		p.node.account.PathDown(ch, err) // the loop may have found it down, and be about to say so
		p.forget(ch)
	}
	finish() // nothing of the peer moves on this side any more
	p.parts.End(err)
	p.node.peerLost(p, err)
	p.mu.Lock()
	g := p.grant
	p.mu.Unlock()
	g.release()
	close(p.gone)
}

// drop has the session give back what it holds for the peer. A request that is being served does so
// when it is answered.
func (p *Peer) drop(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session.Disconnected(cause)
	for _, m := range p.taken() {
		if r, ok := m.(*control.Request); ok {
			p.session.Refuse(time.Now(), r.ID, cause)
		}
	}
}

func (n *Node) peerLost(p *Peer, err error) {
	if p.wasReady() { // else no path was ever set up
		n.lost.Lose(p.party(), p.id)
	}
	n.log.Info("peer gone", "peer", p.Name(), "error", err)
	// A tensor whose completion was delivered belongs to its receiver: the sender knows of it.
	p.inbox.Drained(func() { n.offerPeerLost(p, err) })
	n.mu.Lock()
	delete(n.peers, p)
	n.mu.Unlock()
	p.account.Down(err)
}

// Number tells the sessions of this node apart, from 1: observe.PeerStatus.ID.
func (p *Peer) Number() uint64 { return p.number }
