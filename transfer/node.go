package transfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/address"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/fence"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/loop"
	"github.com/penstock-io/penstock/transfer/names"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/penstock-io/penstock/transfer/takeover"
)

// MaxName is the largest length in bytes of the name of a node, export, queue or service.
const MaxName = 255

// DefaultSpin is long enough to bridge the gaps of a transfer that is under way, in which a wake-up
// costs 5 to 40 us (docs/measurements/transfer.md).
const DefaultSpin = 100 * time.Microsecond

// Options describe a node. The zero value is a node that only dials.
type Options struct {
	Name   string   // for reports; "" becomes the program's name and process id
	Listen []string // addresses, such as tcp://127.0.0.1:0 or unix:///run/node.sock
	// in order of preference among equals; nil means all that package transfer/path/drivers has, as
	// far as this machine can have them
	Paths []setup.Driver
	// Spin is how long the node's goroutine keeps polling its paths after the last activity before
	// it sleeps in the kernel. A message that comes meanwhile costs no wake-up, and a stream of
	// them over sockets goes about a third faster. 0 means DefaultSpin; a negative value sleeps at
	// once. Other threads that can run on the processor go first, so that polling serves on a
	// machine of two processors as well. An idle node costs no CPU either way.
	Spin time.Duration
	// Budget is the memory in bytes that pushed tensors may occupy; 0 means 1 GiB. See
	// Node.Receive.
	Budget uint64
	// Staging is the pinned host memory in bytes for bytes on their way to and from memory of
	// devices that no path reaches; as much again may be lent to peers. It is taken when first
	// needed and kept until Close, so close the node before the devices. 0 means 64 MiB, the least
	// is 512 KiB. See docs/staging.md.
	Staging uint64
	// RegistrationBudget bounds the bytes of local memory kept registered (populated) for
	// transfers; 0 means 64 GiB.
	RegistrationBudget uint64
	// Identity proves who this node is and who its peers are. With it every tcp:// connection, in
	// and out, is TLS 1.3 with certificates on both sides, and what leaves the machine is
	// encrypted. nil: loopback and unix addresses only.
	Identity *identity.Identity
	// Policy says what peers may do, by the name in their certificate. nil: the rules of the
	// Identity.
	Policy identity.Policy
	// Anonymous is what peers may do that have no certificate: those of unix sockets, and without
	// an Identity those of loopback addresses and what Insecure permits. 0: nothing, and to listen
	// where all peers are such is an error.
	Anonymous identity.Rights
	// Insecure permits addresses beyond this machine without an Identity. Any machine on the way
	// can read and change everything. The node logs each such address.
	Insecure bool
	// AllowUID says which users of this machine, beside the one of this process, may be at the
	// other end of a connection that proves no identity: unix:// addresses, and without an Identity
	// those with a loopback address. It holds for both directions: a node dials no server of
	// another user. root is such another user.
	AllowUID path.Users
	// DataAddrs are addresses at which peers may have this node dial their data connections, beside
	// the address that it dialed the session at. nil: none.
	DataAddrs []netip.Prefix
	// Security is the least that transfers of this node take; single ones may ask for more
	// (PutOptions.Security). A session with TLS never takes less than path.SecurityHost.
	Security   path.Security
	Limits     Limits
	NoChecksum bool // turns payload checksums off where both sides do so
	// outstanding operations per path, at least 2, of which one is kept for revocations; 0 means
	// setup.DefaultWindow
	Window  int
	Streams int // data connections of a wire path; 0 leaves it to the path

	HeartbeatEvery time.Duration // 0: 500 ms
	// silence after which a peer is given up, on a link with short round trips; 0: 1500 ms. See
	// docs/protocol.md
	DeadAfter time.Duration

	// OnPeer is called once for every peer that dialed this node, before any other callback for it.
	OnPeer func(*Peer)
	// OnTransfer is called once for every put, get and notification of a peer that was completed,
	// unless a handler has its tag (Node.OnTag). Calls for one peer come in order and one at a
	// time. While they take long, that peer is held back, not the node: its paths are not served
	// when too many calls wait, so a call must not wait for a transfer with the same peer.
	OnTransfer func(Incoming)
	// OnEvent is called for every event (see Event), in order and one at a time, on a goroutine of
	// its own; nil is silent. While a call takes long, at most 1024 events wait; those beyond are
	// dropped and counted in Event.Missed of the next. More than one listener: Node.Events.
	OnEvent func(observe.Event)
	// Logger logs peers and paths that come and go, never single transfers; nil is silent.
	Logger *slog.Logger
}

// Incoming is a completed put, get or notification of a peer.
type Incoming struct {
	Peer  *Peer
	ID    observe.ID
	Kind  path.OpKind
	Bytes uint64
	Msg   []byte
	Tag   uint32 // see PutOptions.Tag
	Path  string
}

// Node is a process's place in the fleet. Its methods may be called from any goroutine.
type Node struct {
	opts     Options
	id       [16]byte
	instance uint64
	host     [16]byte
	resources
	log           *slog.Logger
	account       *account.Node
	lost          *takeover.Table // sessions
	identityState identityState
	answering     sync.Mutex // held while an answer about all exports, or the node, is made for a peer
	numbers       atomic.Uint64
	services      services
	admission
	wg sync.WaitGroup

	ctx context.Context // ended by Close
	end context.CancelFunc

	mu     sync.Mutex // guards what follows
	closed bool
	failed error // wraps ErrFailed: nothing moves any more
	nameTable
	sessionTable
	queueTable
	tensorTable
}

// resources are what a node moves bytes with. Open makes them, Close gives them back.
type resources struct {
	drivers   []setup.Driver
	missing   []Candidate // what this machine cannot have, with the reason
	loop      *loop.Loop
	exposed   *fence.Closed // paths that are down, whose peers may still reach exports
	regs      *mem.RegCache
	pool      *mem.Allocator
	exports   path.Exports
	staging   *bounce.Memory
	budget    *budget.Budget // of the process
	listeners []net.Listener
	accepting setup.Listeners // of paths
}

// admission is what a node lets peers take.
type admission struct {
	granted  atomic.Int64 // grants to peers that are not given back
	limits   *sched.Bounds
	limitsOf map[string]*sched.Bounds // of peers; guarded by mu
	patience time.Duration            // see cancelPatience
	hashing  chan struct{}            // holds one element for each digest that is being computed for a peer
}

// nameTable has the exports of a node. The mutex of the node guards it.
type nameTable struct {
	names      map[string]*Export
	sorted     names.Index[*Export] // of the same exports
	byKey      map[path.Key]*Export
	generation uint64
}

// sessionTable has the sessions of a node: open, under way and lost. The mutex of the node guards
// it.
type sessionTable struct {
	peers     map[*Peer]bool
	closers   map[*func() error]bool // see OnClose
	peerCount uint64                 // peers so far
	// that dialed this node, whose handshake is under way, and that are not charged yet
	handshaking setup.Pending[*Peer]
}

// tensorTable has the tensors that peers offer and receivers wait for. The mutex of the node guards
// it, but for offered.
type tensorTable struct {
	waiting map[string][]*tensorWaiter // receivers that wait for a tensor, by name
	wanted  chan struct{}              // closed and replaced when a waiter is added
	// there was an offer; to look into offers takes mu, which deliver must not under the mutex of a
	// channel
	offered   atomic.Bool
	offers    map[observe.ID]*incomingTensor
	withdrawn map[observe.ID]*Peer // offers that the peer took back before they were answered
}

// queueTable has the queues of a node. The mutex of the node guards it.
type queueTable struct {
	queues map[string]chan *Queue
	owned  map[*Queue]bool // not closed
	retire []*Export       // at Close: when the last queue is closed
}

// Open starts a node and listens on its addresses.
func Open(ctx context.Context, o Options) (*Node, error) {
	if err := invariants.Context(ctx, "transfer.Open"); err != nil {
		return nil, err
	}
	if o.Name == "" && o.Identity != nil {
		o.Name = o.Identity.Name()
	}
	if o.Name == "" {
		o.Name = fmt.Sprintf("%s-%d", shortProgram(), os.Getpid())
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	if o.Paths == nil {
		var err error
		if o.Paths, err = drivers.New(nil, o.Insecure); err != nil {
			return nil, err
		}
	}
	o.Budget = cmp.Or(o.Budget, 1<<30)
	o.RegistrationBudget = cmp.Or(o.RegistrationBudget, 64<<30)
	o.Spin = cmp.Or(o.Spin, DefaultSpin)
	o.HeartbeatEvery = cmp.Or(o.HeartbeatEvery, 500*time.Millisecond)
	o.DeadAfter = cmp.Or(o.DeadAfter, 1500*time.Millisecond)
	if o.DeadAfter < 2*o.HeartbeatEvery {
		return nil, fmt.Errorf("transfer: Options.DeadAfter is %v: expected at least twice HeartbeatEvery (%v), or a "+
			"living peer would be given up", o.DeadAfter, o.HeartbeatEvery)
	}
	here, missing, err := present(o.Paths)
	if err != nil {
		return nil, err
	}
	n := &Node{
		opts: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), host: hostID(), services: newServices(),
		lost:      takeover.New(o.Identity != nil),
		resources: resources{drivers: here, missing: missing, budget: budget.Process()},
		admission: admission{limitsOf: map[string]*sched.Bounds{}, patience: cancelPatience,
			hashing: make(chan struct{}, hashers())},
		nameTable:    nameTable{names: map[string]*Export{}, byKey: map[path.Key]*Export{}},
		sessionTable: sessionTable{peers: map[*Peer]bool{}, closers: map[*func() error]bool{}},
		tensorTable: tensorTable{waiting: map[string][]*tensorWaiter{}, wanted: make(chan struct{}),
			offers: map[observe.ID]*incomingTensor{}, withdrawn: map[observe.ID]*Peer{}},
		queueTable: queueTable{queues: map[string]chan *Queue{}, owned: map[*Queue]bool{}},
	}
	n.ctx, n.end = context.WithCancel(context.Background())
	names := make([]string, len(n.drivers))
	for i, d := range n.drivers {
		names[i] = d.Name()
	}
	n.account = account.New(names, ErrClosed, ErrPeerLost)
	if o.Identity != nil {
		n.identityState.loaded.Store(o.Identity.Stats().Loaded)
	}
	var r [24]byte
	rand.Read(r[:]) // never fails
	copy(n.id[:], r[:16])
	n.instance = binary.BigEndian.Uint64(r[16:])
	if n.limits, err = newLimits("this node", o.Limits.Node, nil); err != nil {
		return nil, err
	}
	if err = o.Limits.Peer.check("each peer"); err != nil {
		return nil, err
	}
	if err = n.openMemory(); err != nil {
		return nil, err
	}
	if n.loop, err = loop.New(max(o.Spin, 0), n.fail, ErrClosed, ErrFailed); err != nil {
		return nil, errors.Join(err, n.closeMemory())
	}
	n.exposed = fence.NewClosed(n.loop, n.ctx.Done())
	if o.OnEvent != nil {
		n.callOnEvent(o.OnEvent)
	}
	n.Handle(longService, n.longNotified) // the first one: no other has its name
	if o.Identity != nil && o.Policy == nil && o.Identity.Rules() == nil && len(o.Listen) > 0 {
		n.log.Warn("no peer with a certificate has rights on this node: there is no policy file; \"penstock pair "+
			"allow NAME RIGHTS\" makes one", "node", o.Identity.Name())
	}
	for _, s := range o.Listen {
		if err := n.listen(ctx, s); err != nil {
			n.Close()
			return nil, err
		}
	}
	if o.Identity != nil {
		n.lookAtIdentity() // it may warn at once
		n.wg.Add(1)
		go n.watchIdentity()
	}
	return n, nil
}

// fail ends every peer, and with it every transfer, because the node cannot move bytes any more. No
// peer comes after it.
func (n *Node) fail(err error) {
	n.mu.Lock()
	n.failed = err
	n.mu.Unlock()
	n.log.Error("node failed", "error", err)
	n.account.Bus.Emit(observe.Event{Kind: observe.EventNodeFailed, Name: n.opts.Name, Reason: err.Error()})
	for _, p := range n.Peers() {
		p.fail(err)
	}
}

// Err is why the node moves nothing any more: it wraps ErrClosed or ErrFailed. It is nil as long as
// the node works.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.usable()
}

// usable returns why the node takes no more peers, nil if it does. The mutex is held.
func (n *Node) usable() error {
	if n.closed {
		return ErrClosed
	}
	return n.failed
}

// present parts the drivers that this machine can have from those that it lacks something for.
// Lacking all of them is an error.
func present(all []setup.Driver) (here []setup.Driver, missing []Candidate, err error) {
	var reasons []error
	for _, d := range all {
		if err := drivers.Probe(d); err != nil {
			reasons = append(reasons, err)
			// Not wrapped: what is missing does not come by trying again, whatever error number
			// lies behind it.
			missing = append(missing, Candidate{Path: d.Name(), Reason: err.Error(),
				err: fmt.Errorf("%v (%w)", err, path.ErrUnavailable)})
			continue
		}
		here = append(here, d)
	}
	if len(here) == 0 && len(all) > 0 {
		return nil, nil, fmt.Errorf("transfer: none of the paths that were asked for is available: %w",
			errors.Join(reasons...))
	}
	return here, missing, nil
}

// Name is the node's name.
func (n *Node) Name() string { return n.opts.Name }

// Dial connects to a node. The peer belongs to this node until either closes it.
func (n *Node) Dial(ctx context.Context, addr string) (*Peer, error) {
	if err := invariants.Context(ctx, "transfer.Node.Dial"); err != nil {
		return nil, err
	}
	a, err := address.Parse(addr)
	if err == nil {
		err = n.allows(a)
	}
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, a.Network, a.Addr)
	if err != nil {
		return nil, fmt.Errorf("transfer: dial %s: %w", addr, err)
	}
	before := n.lost.At(addr)
	replaces := n.lost.With(before)
	p, err := n.arrived(c, control.Dialer)
	if err == nil {
		err = n.connect(ctx, p, a, replaces)
	}
	if err != nil {
		return nil, fmt.Errorf("transfer: dial %s: %w", addr, err)
	}
	n.lost.Answered(addr, p.party())
	if p.party() == before {
		n.lost.Forget(before, replaces)
	}
	close(p.introduced)
	return p, nil
}

// Peers are the connected peers, in no order.
func (n *Node) Peers() []*Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.peers))
}

// Close says goodbye to all peers, ends every transfer and gives back everything but regions that
// the caller owns. Queues go down; their owners close them, and until then the regions of exports
// stay leased. It may be called from callbacks.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.end() // all handshakes as well
	listeners := n.accepting.End(ErrClosed)
	exports := n.byKey
	n.byKey = map[path.Key]*Export{}
	n.mu.Unlock()
	err := n.closeAbove()
	for _, l := range n.listeners {
		err = errors.Join(err, l.Close())
	}
	for _, p := range n.Peers() {
		p.goodbye(control.Shutdown, "the node is closing")
	}
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	for _, p := range n.Peers() {
		<-p.gone
	}
	n.wg.Wait()
	n.account.Await()
	n.loop.Close()
	n.closeQueues(exports)
	n.exposed.Forget()
	if invariants.Enabled {
		n.mu.Lock()
		queues := len(n.owned) // which their owners close
		n.mu.Unlock()
		if g := n.granted.Load(); g > int64(queues) {
			invariants.Broken("transfer: %d grants of a closed node are not given back, %d queues are open", g, queues)
		}
	}
	n.account.Bus.Close()
	return errors.Join(err, n.closeMemory())
}

func (n *Node) nextID() observe.ID { return observe.NewID(n.instance, n.numbers.Add(1)) }

func (n *Node) driver(name string) setup.Driver {
	for _, d := range n.drivers {
		if d.Name() == name {
			return d
		}
	}
	return nil
}

// OnClose has f called when the node begins to close, before its peers hear of it, until remove is
// called: by packages above that keep sessions. It fails when the node is closed.
func (n *Node) OnClose(f func() error) (remove func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	n.closers[&f] = true
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.closers, &f)
	}, nil
}

// closeAbove calls what OnClose got.
func (n *Node) closeAbove() (err error) {
	n.mu.Lock()
	closers := n.closers
	n.closers = nil
	n.mu.Unlock()
	for f := range closers {
		err = errors.Join(err, (*f)())
	}
	return err
}
