package shm

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

const (
	// inlineBytes is how much one Post copies itself; what is more waits for Poll.
	inlineBytes = 256 << 10
	// quantum is how much one Poll copies before it returns to its owner: about 0.1 ms, for which
	// others may have to wait.
	quantum = 1 << 20
	// tendEvery is the number of Polls and Posts between two looks at the clock, and lookEvery the
	// time between two looks at the socket while the path is busy or spinning. So a spinning side
	// sees the peer's death within a few milliseconds.
	tendEvery = 256
	lookEvery = time.Millisecond
	// maxMessages is the number of notifications with a message that one Poll reports.
	maxMessages = 8
)

// Kinds of messages in the rings.
const (
	messageNotify = 1 + iota // words: imm, bytes; payload: Msg
	messageLook              // there is a packet on the socket
	messageHelp              // see help.go
	messageHelped            // the helper left the job with the generation in the first word
)

// Path is one side of a shared-memory path; see the package comment. Besides path.Path it
// implements path.Borrower.
type Path struct {
	// Read or written by every Post and Poll.
	tx         *ring.MessagesWriter
	rx         *ring.MessagesReader
	peerParked *atomic.Uint64
	ownParked  *atomic.Uint64
	last       *attachment // the one used last, or nil
	downErr    error       // nil while the path is up
	fifo       []slot      // operations in order; the first is under way
	head, mask uint64      // of fifo
	queued     int         // in fifo
	small      slot        // what copySmall needs
	dones      []done
	doneHead   uint64
	doneLen    int
	window     int
	ticks      int // until the next tend
	stopped    stop
	armed      bool
	drain      bool // down, but messages that came before are still reported
	told       bool // EventDown was reported
	closed     bool
	late       []*ring.Message // notifications that had arrived when this side closed
	helping    helpJob         // the peer's job
	job        ownJob          // ours

	fences   []fence
	seq      uint64 // of operations
	lastLook time.Time
	ctl      *control
	reach    path.Reach // of the peer
	sock     int        // -1 when closed
	bell     int        // eventfd that this side alone rings to wake its owner
	epoll    *sys.Epoll
	watching uint32 // events of sock that epoll waits for
	out      []outgoing
	in       [packetSize + 1]byte
	messages [maxMessages]ring.Message
	buffers  [][]byte // for messages of queued operations
	look     bool     // look at the socket in the next Poll
	linger   bool     // down, and the socket is kept to learn that the peer let go

	lingering runtime.Cleanup // closes the socket of a path that was forgotten

	atts     map[path.Key]*attachment
	asked    map[uint32]*attachment
	askID    uint32
	useClock uint64
	viewed   map[path.Key]struct{}    // given up, but views are out, or this side has still to tell the peer
	granted  map[path.Key]*mem.Region // our exports that the peer may have mapped

	principal string // who is charged for mappings and descriptors

	helps    bool // both sides help with large puts
	regions  []helpRegion
	regionID uint32
	lent     map[uint32]lentRegion // the peer's regions, to help copying

	rung     atomic.Bool // bell was rung since it was last emptied
	hasGone  atomic.Bool // gone is not empty
	mu       sync.Mutex  // guards what follows, which any goroutine that releases a view may touch
	gone     []path.Key  // attachments whose last view was released
	bellDead bool

	stats counters
	pid   int
	role  string
}

// slot is an operation that was accepted and is not done.
type slot struct {
	kind   path.OpKind
	notify bool
	owned  bool // msg is one of Path.buffers
	phase  phase
	token  uint64
	imm    uint64
	total  uint64
	seq    uint64
	copies []path.Copy
	msg    []byte
	block  int    // of copies, under way
	off    uint64 // bytes of it done
	err    error  // in phaseDrain: with what to end
}

type phase uint8

const (
	phaseResolve phase = iota // find all exports and check all blocks
	phaseCopy
	phaseNotify
	phaseDrain // failed or canceled: the peer may still be copying a chunk
)

// done is an operation whose EventDone has not been polled.
type done struct {
	token, bytes uint64
	kind         path.OpKind
	err          error
}

type fence struct {
	token uint64
	key   path.Key
}

type outgoing struct {
	b  [packetSize]byte
	fd int // -1, or ours to close after sending
}

// counters are written by the owner and read by any goroutine.
type counters struct {
	posted, done, failed, put, got, placed, sent, received, full, rejected, syscalls, wakeups, helped atomic.Uint64
}

// newPath takes ctl over and duplicates the socket of c.
func newPath(c *net.UnixConn, ctl *control, cfg setup.Config, window, pid int, role string, helps bool) (*Path, error) {
	n := 1
	for n < window {
		n *= 2
	}
	p := &Path{
		tx: ctl.tx, rx: ctl.rx, peerParked: ctl.peerParked, ownParked: ctl.ownParked, ctl: ctl,
		fifo: make([]slot, n), mask: uint64(n - 1), dones: make([]done, n), window: window,
		ticks: tendEvery, reach: cfg.Reach(), sock: -1, bell: -1,
		atts: map[path.Key]*attachment{}, asked: map[uint32]*attachment{}, granted: map[path.Key]*mem.Region{},
		viewed: map[path.Key]struct{}{}, helps: helps, lent: map[uint32]lentRegion{}, principal: cfg.Principal,
		pid: pid, role: role, lastLook: time.Now(),
	}
	if err := p.open(c); err != nil {
		p.closeFiles()
		p.closeSocket()
		ctl.unmap()
		return nil, err
	}
	return p, nil
}

func (p *Path) open(c *net.UnixConn) (err error) {
	if err = sys.OfConn(c, func(fd int) (err error) { p.sock, err = sys.Dup(fd); return err }); err != nil {
		return err
	}
	if p.bell, err = sys.Eventfd(); err != nil {
		p.bell = -1
		return err
	}
	if p.epoll, err = sys.NewEpoll(); err != nil {
		return err
	}
	p.watching = sys.EventIn | sys.EventRdH
	if err := p.epoll.Add(p.sock, p.watching, 0); err != nil {
		return err
	}
	return p.epoll.Add(p.bell, sys.EventIn, 1)
}

// Name is "shm".
func (p *Path) Name() string { return "shm" }

// Capabilities are those of one copy through shared memory.
func (p *Path) Capabilities() path.Capabilities {
	return path.Capabilities{OneSided: true, Proof: path.ProofMemory, Security: path.SecurityHost, Window: p.window,
		MaxMessage: path.MaxMessage, UserCopies: 1}
}

// Reaches refuses exports that are a part of a region, unless their owner lets the whole of it be
// handed over.
func (p *Path) Reaches(d path.Desc) error {
	if !d.Whole {
		return fmt.Errorf("transfer/path/shm: the export is a part of a region or has no memfd, as a served file has "+
			"none: shared memory would hand over the whole file: its owner exports a region of its own, or sets "+
			"ExportOptions.WholeRegion: %w", path.ErrUnreachable)
	}
	if d.Size > maxMapping {
		return fmt.Errorf("transfer/path/shm: the export has %d bytes, more than can be mapped: %w", d.Size,
			path.ErrUnreachable)
	}
	return nil
}

// Post starts operations. Those of up to 256 KiB are done when it returns, unless an earlier one
// waits for the peer; they overtake a larger one whose bytes are being copied.
func (p *Path) Post(ops []path.Op) (int, error) {
	if p.ticks -= len(ops); p.ticks <= 0 {
		p.tend()
	}
	n, err := p.post(ops, inlineBytes)
	if p.armed && p.queued+p.doneLen > 0 {
		p.ringSelf()
	}
	return n, err
}

// PostNow is Post, and reports what is done when it returns: over this path nearly everything of up
// to 1 MiB together, as much as one Poll copies. An owner that sleeps is woken only for what is
// left.
func (p *Path) PostNow(ops []path.Op, events []path.Event) (n, done int, err error) {
	if p.ticks -= len(ops); p.ticks <= 0 && !p.armed {
		// an owner that sleeps waits for what is at the socket: it must not be taken here
		p.tend()
	}
	n, err = p.post(ops, quantum)
	for done < len(events) && p.doneLen > 0 {
		p.reportDone(&events[done])
		done++
	}
	if p.armed && (p.queued+p.doneLen > 0 || p.look) {
		p.ringSelf()
	}
	return n, done, err
}

// post starts operations, and copies up to inline bytes.
func (p *Path) post(ops []path.Op, inline uint64) (int, error) {
	if p.downErr != nil {
		return 0, p.downErr
	}
	var err error
	i := 0
	for ; i < len(ops); i++ {
		op := &ops[i]
		if p.downErr != nil {
			err = p.downErr
			break
		}
		if p.queued+p.doneLen+len(p.fences) >= p.window {
			p.stats.full.Add(1)
			err = path.ErrFull
			break
		}
		var total uint64
		if total, err = p.check(op); err != nil {
			break
		}
		if op.Kind == path.Fence {
			p.fence(op)
			continue
		}
		if p.queued > 0 && total <= inline && p.overtake(op, total) {
			inline -= total
			continue
		}
		if p.downErr != nil {
			err = p.downErr
			break
		}
		s := &p.fifo[(p.head+uint64(p.queued))&p.mask]
		p.seq++
		*s = slot{kind: op.Kind, notify: op.Notify || op.Kind == path.Notify, token: op.Token, imm: op.Imm,
			total: total, seq: p.seq, copies: op.Copies, msg: op.Msg}
		p.queued++
		if p.queued == 1 && total <= inline {
			inline -= total
			p.run(total + 1) // more than it needs, so that the budget is not why it stops
		}
		if p.queued > 0 && len(op.Msg) > 0 && p.downErr == nil {
			p.ownMessage(s)
		}
	}
	if i > 0 {
		p.stats.posted.Add(uint64(i))
	}
	return i, err
}

// check finds what is wrong with an operation before anything of it is done.
func (p *Path) check(op *path.Op) (total uint64, err error) {
	if len(op.Msg) > path.MaxMessage {
		return 0, fmt.Errorf("transfer/path/shm: message of %d bytes, at most %d: %w", len(op.Msg), path.MaxMessage,
			path.ErrTooLarge)
	}
	switch op.Kind {
	case path.Put, path.Get:
		for i := range op.Copies {
			l := &op.Copies[i].Local
			if !l.Valid() {
				return 0, fmt.Errorf("transfer/path/shm: block %d of %d: local offset %d + %d bytes: %w", i,
					len(op.Copies), l.Off, l.Len, mem.ErrBounds)
			}
			if l.Len > 0 && l.Bytes() == nil {
				return 0, fmt.Errorf("transfer/path/shm: block %d of %d: the CPU cannot reach region %q (%s): %w", i,
					len(op.Copies), l.Region.Name(), l.Region.Kind(), path.ErrUnreachable)
			}
			if op.Kind == path.Get && l.Region.ReadOnly() {
				return 0, fmt.Errorf("transfer/path/shm: block %d of %d: get into region %q, which is read-only: %w", i,
					len(op.Copies), l.Region.Name(), path.ErrRights)
			}
			if total += l.Len; total < l.Len {
				return 0, fmt.Errorf("transfer/path/shm: the blocks have more than 2^64 bytes together: %w",
					path.ErrBounds)
			}
		}
	case path.Notify:
		if len(op.Copies) != 0 {
			return 0, fmt.Errorf("transfer/path/shm: notify with %d blocks: use a Put with Notify", len(op.Copies))
		}
	case path.Fence:
		if _, _, err := p.reach.Lookup(op.Key); err == nil {
			return 0, errors.New("transfer/path/shm: fence of an export that is not revoked, which the peer could " +
				"map again: revoke it first")
		}
	default:
		return 0, fmt.Errorf("transfer/path/shm: operation kind %d: expected put, get, notify or fence", op.Kind)
	}
	return total, nil
}

// ownMessage copies the message of an operation that outlives its Post.
func (p *Path) ownMessage(s *slot) {
	if s.owned || len(s.msg) == 0 {
		return
	}
	var b []byte
	if n := len(p.buffers); n > 0 {
		b, p.buffers = p.buffers[n-1], p.buffers[:n-1]
	} else {
		b = make([]byte, 0, path.MaxMessage) // at most a window of them; they are used again
	}
	s.msg, s.owned = append(b[:0], s.msg...), true
}

// Poll makes progress and reports events.
func (p *Path) Poll(events []path.Event) int {
	if p.armed {
		p.wake()
	}
	if p.ticks--; p.ticks <= 0 || p.look {
		p.tend()
	}
	switch {
	case p.queued == 0:
	case p.peerState() == shut: // it has closed the path since the last quantum, and may use the memory again
		p.fail(errShut, true)
	case p.doneLen > 0: // the owner waits for those
		p.run(inlineBytes)
	default:
		p.run(quantum)
	}
	if p.helping.active {
		p.help()
	}
	n := 0
	for n < len(events) && p.doneLen > 0 {
		p.reportDone(&events[n])
		n++
	}
	if p.downErr == nil || p.drain {
		n = p.take(events, n)
	}
	for n < len(events) && len(p.late) > 0 {
		m := p.late[0]
		p.late = p.late[1:]
		events[n] = path.Event{Kind: path.EventNotify, Imm: m.Words[0], Bytes: m.Words[1]}
		if m.Len > 0 {
			events[n].Msg = m.Payload()
		}
		p.stats.received.Add(1)
		n++
	}
	if p.downErr != nil && !p.told && n < len(events) && p.doneLen == 0 && len(p.late) == 0 &&
		!(p.drain && p.rx.Ready()) {
		events[n] = path.Event{Kind: path.EventDown, Err: p.downErr}
		p.told, p.drain = true, false
		n++
	}
	return n
}

func (p *Path) reportDone(e *path.Event) {
	d := &p.dones[p.doneHead&p.mask]
	*e = path.Event{Kind: path.EventDone, Token: d.token, Bytes: d.bytes, Err: d.err}
	if d.err == nil {
		e.Proof = path.ProofMemory
		p.stats.done.Add(1)
		switch d.kind {
		case path.Put:
			p.stats.put.Add(d.bytes)
		case path.Get:
			p.stats.got.Add(d.bytes)
		}
	} else {
		p.stats.failed.Add(1)
	}
	d.err = nil
	p.doneHead++
	p.doneLen--
}

// take reads messages of the peer into events[n:].
func (p *Path) take(events []path.Event, n int) int {
	k, took := 0, false
	for n < len(events) && k < maxMessages && p.rx.Ready() {
		m := &p.messages[k]
		ok, err := p.rx.Get(m)
		if err != nil {
			p.fail(fmt.Errorf("message ring: %w: %w", path.ErrProtocol, err), false)
			p.drain = false // a path that was down already has nothing more to read either: the ring stays as it is
			break
		}
		if !ok {
			break
		}
		took = true
		switch m.Kind {
		case messageNotify:
			events[n] = path.Event{Kind: path.EventNotify, Imm: m.Words[0], Bytes: m.Words[1]}
			if m.Len > 0 {
				events[n].Msg = m.Payload()
				k++
			}
			n++
			p.stats.received.Add(1)
		case messageLook:
			p.look = true
		case messageHelp:
			p.startHelping(m)
		case messageHelped: // what it means is in the done word; the message only wakes us
		default:
			p.fail(fmt.Errorf("message of unknown kind %d: %w", m.Kind, path.ErrProtocol), false)
		}
		if p.downErr != nil && !p.drain {
			break
		}
	}
	if took && p.downErr == nil && p.peerState() == parkedRoom {
		p.ringPeer()
	}
	if p.look && p.downErr == nil {
		p.receive()
	}
	return n
}

// Stats returns the counters.
func (p *Path) Stats() path.Stats {
	c := &p.stats
	return path.Stats{
		OpsPosted: c.posted.Load(), OpsDone: c.done.Load(), OpsFailed: c.failed.Load(),
		BytesPut: c.put.Load(), BytesGot: c.got.Load(), BytesPlaced: c.placed.Load(),
		NotifySent: c.sent.Load(), NotifyReceived: c.received.Load(), WindowFull: c.full.Load(),
		Rejected: c.rejected.Load(),
		Syscalls: c.syscalls.Load(), Wakeups: c.wakeups.Load(), HelpedBytes: c.helped.Load(),
	}
}
