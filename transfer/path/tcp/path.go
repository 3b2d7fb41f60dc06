package tcp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/seal"
)

const (
	moveBudget  = 1 << 20   // bytes that one call moves in each direction, at most (rounded up to one read or send)
	smallBudget = 256 << 10 // the same, while small operations travel beside large ones: what they wait for at each end
	smallCalls  = 256       // calls without anything small until that is over
	trashSize   = 64 << 10
	heatMax     = 64 // fruitless reads until a stream other than the first counts as cold
	coldEvery   = 16 // one call in this many reads a cold stream
)

// Path is one path over TCP: the protocol of core on a set of sockets. It implements path.Path.
type Path struct {
	core
	fds       []int
	ep        *sys.Epoll
	bell      int // eventfd: a Post while armed left something to do
	interest  []uint32
	heat      []int
	turn      int  // which stream after the first is read and sent first
	beside    int  // calls until nothing small travels any more
	prompt    bool // the first stream is acknowledged at once: the other ones go on and on
	calls     uint
	armed     bool
	rung      bool
	sealLimit uint64 // blocks for each key
	more      bool   // the last send stopped at its budget
	closed    bool
	rxv       []sys.Iovec
	txv       [1]sys.Iovec
	peer      netip.AddrPort
	zc        zeroCopy

	mu    sync.Mutex // guards what other goroutines may read
	pub   path.Stats
	lines []string

	zcLine           string
	ccLine, sealLine string // do not change
}

// ErrTruncated is part of the error of an encrypted path that ended without the goodbye of the
// peer: it died, or the connection was cut on the way. It comes with path.ErrDown.
var ErrTruncated = errors.New("the connection ended without a goodbye under the peer's key")

var errEnd = errors.New("the peer closed it")

var errClosed = fmt.Errorf("tcp: closed on this side: %w", path.ErrDown)

// newPath takes the connections over; it closes them when it fails.
func newPath(fds []int, peer netip.AddrPort, x path.Reach, d deal, channels []*channel, o *Options) (*Path, error) {
	p := &Path{
		core: *newCore(x, d.window, len(fds), d.crc, d.frame, d.blocks),
		fds:  fds, bell: -1, peer: peer,
		interest: make([]uint32, len(fds)), heat: make([]int, len(fds)),
		rxv: make([]sys.Iovec, 0, sys.MaxIovecs),
	}
	p.sealed = d.sealed
	p.sealLimit = cmp.Or(o.sealLimit, seal.Limit)
	err := p.encrypt(channels, o)
	if err == nil {
		err = p.open()
	}
	if err != nil {
		p.closeSockets(false)
		p.closeEvents()
		return nil, err
	}
	p.trash = make([]byte, trashSize)
	p.ccLine = o.congestion(fds[0])
	p.zc.init(p, o)
	p.explain(d)
	return p, nil
}

func (p *Path) open() (err error) {
	if p.ep, err = sys.NewEpoll(); err != nil {
		return err
	}
	if p.bell, err = sys.Eventfd(); err != nil {
		return err
	}
	if err = p.ep.Add(p.bell, sys.EventIn, 0); err != nil {
		return err
	}
	for i, fd := range p.fds {
		p.interest[i] = sys.EventIn
		if err = p.ep.Add(fd, sys.EventIn, uint64(i+1)); err != nil {
			return err
		}
	}
	return nil
}

// Name is "tcp".
func (p *Path) Name() string { return Name }

// Capabilities are those of kernel sockets: two-sided, one copy in each kernel, none here unless it
// encrypts here.
func (p *Path) Capabilities() path.Capabilities {
	c := path.Capabilities{Window: p.window, MaxMessage: path.MaxMessage, KernelCopies: 2, UserCopies: p.userCopies()}
	if p.peer.Addr().IsLoopback() {
		c.Security = path.SecurityHost
	}
	switch {
	case p.sealed:
		c.Proof, c.Security = path.ProofAEAD, path.SecurityEncrypted
	case p.crc:
		c.Proof = path.ProofCRC32C
	}
	return c
}

// userCopies is how often payload passes this processor in user space, for puts from here plus for
// puts to here: encryption copies it into a record and encrypts it there, decryption brings it to
// its place.
func (p *Path) userCopies() int {
	n := 0
	if p.streams[0].tx != nil {
		n += 2
	}
	if p.streams[0].rx != nil {
		n++
	}
	return n
}

// encrypt gives every connection its keys.
func (p *Path) encrypt(channels []*channel, o *Options) error {
	p.sealLine = "none: the session has no secret"
	if !p.sealed {
		return nil
	}
	for i, s := range p.streams {
		if err := channels[i].install(s, p.fds[i], o.KTLS == On); err != nil {
			return err
		}
	}
	who := func(kernel bool) string {
		if kernel {
			return "the kernel (kTLS)"
		}
		return "this process"
	}
	s, c := p.streams[0], channels[0]
	p.sealLine = fmt.Sprintf("AES-128-GCM in records of TLS 1.3, sent by %s, received by %s", who(s.kernelOut),
		who(s.kernelIn))
	if !s.kernelOut || !s.kernelIn {
		p.sealLine += "; no kTLS: " + c.why
	}
	return nil
}

// Reaches accepts every export: sockets reach all memory that the peer's process can touch.
func (p *Path) Reaches(path.Desc) error { return nil }

// FD is the epoll instance that holds all connections; -1 after Close.
func (p *Path) FD() int {
	if p.closed {
		return -1
	}
	return p.ep.FD()
}

// Post hands operations over and sends what the sockets take at once. See path.Path.
func (p *Path) Post(ops []path.Op) (int, error) {
	n, err := p.post(ops)
	if n > 0 {
		if p.err == nil {
			p.sendGuarded(false)
		}
		p.ring()
	}
	p.dirty = true
	p.publish()
	if invariants.Enabled {
		p.verify()
	}
	return n, err
}

// ring makes FD readable if a call while armed left something for Poll.
func (p *Path) ring() {
	if !p.armed || p.rung {
		return
	}
	if p.pending() || p.more || p.blocked() {
		p.rung = true
		sys.Ring(p.bell)
	}
}

func (p *Path) blocked() bool {
	for _, s := range p.streams {
		if s.busy() {
			return true
		}
	}
	return false
}

// Poll makes progress and reports events. See path.Path.
func (p *Path) Poll(events []path.Event) int {
	if p.rung {
		p.rung = false
		if !p.closed {
			sys.Unring(p.bell)
		}
	}
	all := p.armed
	p.armed = false
	p.notes.release()
	n := p.report(events)
	if p.err == nil {
		got := p.receiveGuarded(all)
		if p.err == nil {
			p.sendGuarded(got == 0)
			p.zc.reap(p)
		}
		n += p.report(events[n:])
	}
	p.publish()
	if invariants.Enabled {
		p.verify()
	}
	return n
}

// cut acts on a connection that ended.
func (p *Path) cut(s *stream, cause error) {
	if cause == nil {
		p.readFirst(s)
		if p.sealed {
			cause = ErrTruncated
		} else {
			cause = errEnd
		}
	}
	if cause == sys.EBADMSG && s.kernelIn {
		cause = fmt.Errorf("%w: the kernel refused a record: %w", path.ErrIntegrity, cause)
	}
	p.down(fmt.Errorf("tcp: %w: connection %d: %w", path.ErrDown, s.index, cause))
}

// broken takes the path down because of what the peer sent.
func (p *Path) broken(s *stream, err error) {
	switch {
	case errors.Is(err, path.ErrDown):
		p.readFirst(s)
		p.down(err)
	case errors.Is(err, seal.ErrTag):
		p.down(fmt.Errorf("tcp: %w: %w: connection %d: %w", path.ErrDown, path.ErrIntegrity, s.index, err))
	default:
		p.down(fmt.Errorf("tcp: %w: %w: %w", path.ErrDown, path.ErrProtocol, err))
	}
}

// readFirst takes in what the first connection still has, when the end of another one was seen
// before it.
func (p *Path) readFirst(s *stream) {
	if s.index > 0 && p.err == nil && p.fds[0] >= 0 {
		p.read(p.streams[0], p.fds[0], moveBudget)
	}
}

func (p *Path) down(err error) {
	p.fail(err)
	p.closeSockets(true)
}

// Arm prepares for sleeping. See path.Path.
func (p *Path) Arm() bool {
	if p.err != nil {
		return p.pending()
	}
	p.sendGuarded(true)
	p.publish()
	if p.err != nil || p.pending() || p.more {
		return true
	}
	for i, s := range p.streams {
		if p.fds[i] < 0 {
			continue
		}
		if s.in.paused { // what it waits for may be here already, and then no descriptor reports it
			return true
		}
		want := uint32(sys.EventIn)
		if s.busy() {
			want |= sys.EventOut
		}
		if want != p.interest[i] {
			if err := p.ep.Set(p.fds[i], want, uint64(i+1)); err != nil {
				p.down(fmt.Errorf("tcp: %w: %w", path.ErrDown, err))
				return true
			}
			p.interest[i] = want
		}
	}
	p.armed = true
	return false
}

// Cancel asks to end an operation early. See path.Path.
func (p *Path) Cancel(token uint64) bool {
	if !p.cancelToken(token) {
		return false
	}
	if p.err == nil {
		p.sendGuarded(false)
	}
	p.ring()
	if invariants.Enabled {
		p.verify()
	}
	return true
}

// Close says goodbye if the connection has room for it and cuts all connections. See path.Path.
func (p *Path) Close() error {
	if p.closed {
		return nil
	}
	if p.err == nil {
		p.sendGuarded(true)
	}
	p.goodbye()
	p.fail(errClosed)
	p.closeSockets(false)
	p.closed = true
	p.publish()
	return p.closeEvents()
}

// goodbye says on every connection that has room for it that the path is closed, so that the peer
// can tell it from a cut.
func (p *Path) goodbye() {
	for i, s := range p.streams {
		if p.err != nil || p.fds[i] < 0 || s.busy() {
			continue
		}
		s.out.reset()
		s.out.header(s.out.reserve(headerSize), &header{typ: frameBye})
		p.write(s, p.fds[i], moveBudget)
	}
}

// closeSockets ends all connections; reset drops what is still in the kernel's send buffers.
func (p *Path) closeSockets(reset bool) {
	for i, fd := range p.fds {
		if fd < 0 {
			continue
		}
		if reset || p.streams[i].busy() || p.streams[i].out.zcSent != p.streams[i].out.zcDone {
			sys.ResetOnClose(fd)
		}
		sys.Close(fd)
		p.fds[i] = -1
	}
}

func (p *Path) closeEvents() error {
	var err error
	if p.bell >= 0 {
		err = sys.Close(p.bell)
	}
	if p.ep != nil {
		err = errors.Join(err, p.ep.Close())
	}
	return err
}

// publish lets other goroutines see what changed.
func (p *Path) publish() {
	if !p.dirty {
		return
	}
	p.dirty = false
	p.mu.Lock()
	p.pub = p.st
	p.mu.Unlock()
}

// Stats may be called from any goroutine. Syscalls that found nothing are added with the next one
// that did.
func (p *Path) Stats() path.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pub
}

// Explain may be called from any goroutine.
func (p *Path) Explain() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := append([]string(nil), p.lines...)
	out = append(out, "congestion control: "+p.ccLine)
	return append(out, "zero-copy send: "+p.zcLine)
}

// deal is what a handshake agreed on.
type deal struct {
	window int
	crc    bool
	sealed bool
	frame  int
	blocks int
}
