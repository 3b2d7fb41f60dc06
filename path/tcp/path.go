package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

const (
	moveBudget = 4 << 20 // bytes that one call moves in each direction, at most (rounded up to one read or send)
	trashSize  = 64 << 10
	heatMax    = 64 // fruitless reads until a stream other than the first counts as cold
	coldEvery  = 16 // a cold stream is read in each so-manieth call
)

// Path is one path over TCP: the protocol of core on a set of sockets. It implements path.Path.
type Path struct {
	core
	fds      []int
	ep       *sys.Epoll
	bell     int // eventfd: a Post while armed left something to do
	interest []uint32
	heat     []int
	calls    uint
	armed    bool
	rung     bool
	more     bool // the last send stopped at its budget
	closed   bool
	rxv      []sys.Iovec
	peer     netip.AddrPort
	cc       chooser
	zc       zeroCopy
	cost     costMeter

	mu    sync.Mutex // guards what other goroutines may read
	pub   path.Stats
	lines []string
	costs path.Cost

	ccLine, zcLine string
}

var errClosed = fmt.Errorf("tcp: closed on this side: %w", path.ErrDown)

// newPath takes the connections over; it closes them when it fails.
func newPath(fds []int, data int, peer netip.AddrPort, x *path.Exports, d deal, o *Options) (*Path, error) {
	p := &Path{
		core: *newCore(x, d.window, data, d.crc, d.frame, d.blocks),
		fds:  fds, bell: -1, peer: peer,
		interest: make([]uint32, len(fds)), heat: make([]int, len(fds)),
		rxv: make([]sys.Iovec, 0, sys.MaxIovecs),
	}
	for i := data; i < len(fds); i++ {
		p.streams = append(p.streams, &stream{index: i})
	}
	err := p.open()
	if err != nil {
		p.closeSockets(false)
		p.closeEvents()
		return nil, err
	}
	p.trash = make([]byte, trashSize)
	p.cost.init(d.rtt)
	p.cc.init(p, o)
	p.zc.init(p, o)
	p.explain(d, o)
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

// Capabilities are those of kernel sockets: two-sided, one copy in each kernel, none here.
func (p *Path) Capabilities() path.Capabilities {
	c := path.Capabilities{Window: p.window, MaxMessage: path.MaxMessage, KernelCopies: 2}
	if p.crc {
		c.Proof = path.ProofCRC32C
	}
	return c
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
		p.cost.posted(&p.core, ops[:n])
		if p.err == nil {
			p.cc.want(p)
			p.send(false)
		}
		p.ring()
	}
	p.dirty = true
	p.publish()
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
		if s.out.left > 0 {
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
		got := p.receive(all)
		if p.err == nil {
			p.cc.step(p)
			p.send(got == 0)
			p.zc.reap(p)
		}
		n += p.report(events[n:])
	}
	p.cost.reported(events[:n])
	p.publish()
	return n
}

// receive reads the streams that may have something; all means every one. It returns how many bytes came.
func (p *Path) receive(all bool) int {
	p.calls++
	all = all || p.calls%coldEvery == 0
	sum := 0
	for i, s := range p.streams {
		if p.fds[i] < 0 || i > 0 && !all && p.heat[i] == 0 {
			continue
		}
		n := p.read(s, p.fds[i])
		if p.err != nil {
			return sum
		}
		if n > 0 {
			p.heat[i] = heatMax
		} else if p.heat[i] > 0 {
			p.heat[i]--
		}
		sum += n
		if sum >= moveBudget {
			break
		}
	}
	return sum
}

func (p *Path) read(s *stream, fd int) int {
	sum := 0
	if s.in.paused {
		if err := p.process(s); err != nil {
			p.broken(err)
			return 0
		}
	}
	for sum < moveBudget {
		v := s.in.targets(p.rxv, p.trash)
		if len(v) == 0 {
			break
		}
		asked := 0
		for i := range v {
			asked += v[i].Len()
		}
		n, e := sys.Recvv(fd, v)
		p.st.Syscalls++
		if e != 0 {
			if e == sys.EINTR {
				continue
			}
			if e != sys.EAGAIN {
				p.cut(s, e)
			}
			break
		}
		if n == 0 {
			p.cut(s, nil)
			break
		}
		sum += n
		if err := p.received(s, n); err != nil {
			p.broken(err)
			break
		}
		if n < asked { // the socket is empty: spare the call that would say so
			break
		}
	}
	return sum
}

// cut acts on a connection that ended.
func (p *Path) cut(s *stream, cause error) {
	if s.index >= p.data { // only measures; nothing depends on it
		sys.Close(p.fds[s.index])
		p.fds[s.index] = -1
		p.cc.lost(p)
		return
	}
	if cause == nil {
		p.down(fmt.Errorf("tcp: %w: the peer closed connection %d", path.ErrDown, s.index))
		return
	}
	p.down(fmt.Errorf("tcp: %w: connection %d: %w", path.ErrDown, s.index, cause))
}

// broken takes the path down because of what the peer sent.
func (p *Path) broken(err error) {
	if errors.Is(err, path.ErrDown) {
		p.down(err)
		return
	}
	p.down(fmt.Errorf("tcp: %w: %w: %w", path.ErrDown, path.ErrProtocol, err))
}

func (p *Path) down(err error) {
	p.fail(err)
	p.cc.lost(p)
	p.closeSockets(true)
}

// send fills and sends batches until the sockets take no more, there is nothing left or the budget is used up. Idle says
// that an acknowledgement has nothing to travel with.
func (p *Path) send(idle bool) {
	budget := moveBudget
	for progress := true; progress && budget > 0; {
		progress = false
		for i, s := range p.streams {
			o := &s.out
			if p.fds[i] < 0 {
				continue
			}
			if o.left == 0 {
				ackNow := s.in.ackOwed && (idle || s.ackDue())
				if ackNow || len(o.ctl) > 0 || p.workFor(s) {
					p.fill(s, ackNow)
				}
				if o.left == 0 && i >= p.data {
					p.cc.fill(p, s)
				}
				if o.left == 0 {
					continue
				}
			}
			n := p.write(s, p.fds[i])
			if p.err != nil {
				return
			}
			budget -= n
			if o.left == 0 {
				progress = true
			}
			if n > 0 && i > 0 {
				p.heat[i] = heatMax
			}
		}
	}
	p.more = budget <= 0
}

// write sends what is left of a batch, as far as the socket takes it.
func (p *Path) write(s *stream, fd int) int {
	o := &s.out
	sum := 0
	for o.left > 0 {
		v, flags := o.batch(), 0
		if p.zc.on && o.large && len(o.served) == 0 {
			v, flags = zeroCopyRun(v)
		}
		n, e := sys.Sendv(fd, v, flags)
		p.st.Syscalls++
		if e != 0 {
			if e == sys.EINTR {
				continue
			}
			if e == sys.ENOBUFS && flags == sys.MsgZeroCopy { // too many sends whose memory is in use: copy instead
				o.large = false
				continue
			}
			if e != sys.EAGAIN {
				p.cut(s, e)
			}
			break
		}
		if flags == sys.MsgZeroCopy {
			o.zcSent++
			p.st.ZeroCopySends++
		}
		sum += n
		o.gone(n)
		p.dirty = true
	}
	return sum
}

// Arm prepares for sleeping. See path.Path.
func (p *Path) Arm() bool {
	if p.err != nil {
		return p.pending()
	}
	p.send(true)
	p.publish()
	if p.err != nil || p.pending() || p.more {
		return true
	}
	for i, s := range p.streams {
		if p.fds[i] < 0 {
			continue
		}
		want := uint32(sys.EventIn)
		if s.out.left > 0 {
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
		p.send(false)
	}
	p.ring()
	return true
}

// Close says goodbye if the connection has room for it and cuts all connections. See path.Path.
func (p *Path) Close() error {
	if p.closed {
		return nil
	}
	if p.err == nil {
		p.send(true)
	}
	if p.err == nil {
		if s := p.streams[0]; s.out.left == 0 {
			if s.out.iov != nil {
				s.out.reset()
			}
			s.out.header(s.out.reserve(headerSize), &header{typ: frameBye})
			p.write(s, p.fds[0])
		}
	}
	p.fail(errClosed)
	p.cc.lost(p)
	p.closeSockets(false)
	p.closed = true
	p.publish()
	return p.closeEvents()
}

// closeSockets ends all connections; reset drops what is still in the kernel's send buffers.
func (p *Path) closeSockets(reset bool) {
	for i, fd := range p.fds {
		if fd < 0 {
			continue
		}
		if reset || p.streams[i].out.left > 0 || p.streams[i].out.zcSent != p.streams[i].out.zcDone {
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
	p.costs = p.cost.cost
	p.mu.Unlock()
}

// Stats may be called from any goroutine. Syscalls that found nothing are added with the next one that did.
func (p *Path) Stats() path.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pub
}

// Cost may be called from any goroutine.
func (p *Path) Cost() path.Cost {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.costs
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
	frame  int
	blocks int
	rtt    time.Duration // of the handshake; 0 on the accepting side
}
