package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/internal/ibv/cm"
	"github.com/penstock-io/penstock/path"
)

// ErrListenerClosed is what Accept returns after Close.
var ErrListenerClosed = errors.New("verbs: listener is closed")

// Listener takes the hellos of all peers of a node. One goroutine reads them; it sleeps while nothing comes.
type Listener struct {
	d    *Driver
	dev  *device
	u    *ud   // for dialers that come by datagrams, or
	desk *desk // by the connection manager
	addr string
	done chan struct{} // closed when the goroutine is gone
	stop chan struct{} // closed by Close
	once sync.Once

	mu      sync.Mutex // guards what follows
	waiting map[path.Token]*invitation
}

// invitation is one Accept.
type invitation struct {
	secret  []byte
	came    chan hello // capacity 1
	taken   bool
	hello   hello
	answer  []byte // the welcome, for a hello that is repeated
	qpn     uint32 // of this side's control connection; 0 of a refusal
	visitor *cm.ID // waits for the answer, at the connection manager
}

// Listen opens the device and a queue pair for datagrams, or the connection manager as Options.Meet says.
func (d *Driver) Listen() (path.Listener, error) {
	dev, err := d.device()
	if err != nil {
		return nil, err
	}
	l := &Listener{d: d, dev: dev, done: make(chan struct{}), stop: make(chan struct{}), waiting: map[path.Token]*invitation{}}
	if d.o.Meet != MeetCM {
		if l.u, err = openUD(dev, 64); err == nil {
			l.addr = place{dev.raw, dev.port.LID, l.u.qp.Num(), l.u.qkey, uint8(dev.port.ActiveMTU)}.String()
		}
	}
	if d.o.Meet == MeetCM || d.o.Meet == MeetAuto && err != nil {
		var other error
		if l.desk, other = openDesk(dev); other == nil {
			err, l.addr = nil, cmPrefix+l.desk.id.Local().String()
		} else {
			err = errors.Join(err, fmt.Errorf("by the connection manager: %w", other))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: listen: %w: %w", path.ErrUnavailable, err), dev.put())
	}
	go l.serve()
	return l, nil
}

// Addr is the address for an Offer.
func (l *Listener) Addr() string { return l.addr }

// serve reads hellos until Close.
func (l *Listener) serve() {
	defer close(l.done)
	if l.desk != nil {
		l.desk.serve(l)
		return
	}
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		b, err := l.u.receive(-1)
		if err != nil {
			return
		}
		if b != nil {
			l.hello(b)
		}
	}
}

// hello gives a hello to the Accept that waits for its token. Everything else is dropped without a word: a dialer that is early
// repeats itself.
func (l *Listener) hello(b []byte) {
	var h hello
	if h.parse(b) != nil {
		return
	}
	if _, again := l.take(&h, func(secret []byte) bool { return sealed(b, secret) }, nil); again != nil {
		again(nil)
	}
}

// take gives a hello to the Accept that waits for its token, if it is genuine. false: no Accept wants it. again sends the answer once more,
// where there is one.
func (l *Listener) take(h *hello, genuine func(secret []byte) bool, visitor *cm.ID) (mine bool, again func(*cm.ID)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.waiting[h.token]
	if v == nil || !genuine(v.secret) {
		return false, nil
	}
	switch {
	case !v.taken:
		v.taken, v.hello, v.visitor = true, *h, visitor
		v.came <- *h
	case *h != v.hello:
		return false, nil
	case v.answer != nil:
		answer, qpn := v.answer, v.qpn
		return true, func(id *cm.ID) { l.send(h, id, answer, qpn) }
	default:
		visitor, v.visitor = v.visitor, visitor
		if visitor != nil {
			visitor.Close() // its dialer asks again
		}
	}
	return true, nil
}

// send sends an answer the way that the hello came. Whether it arrives shows when the dialer begins.
func (l *Listener) send(h *hello, id *cm.ID, b []byte, qpn uint32) {
	switch {
	case l.desk == nil:
		l.u.send(&h.params, b)
	case id == nil:
	case qpn == 0:
		id.Reject(b)
		id.Close()
	case id.Accept(cmParams(b, qpn)) != nil:
		id.Close()
	}
}

// Accept waits for the dialer that presents the token. Each token serves one path.
func (l *Listener) Accept(ctx context.Context, token path.Token, cfg path.Config) (path.Path, error) {
	window, rails, err := l.d.terms(cfg)
	if err != nil {
		return nil, err
	}
	v := &invitation{secret: slices.Clone(cfg.Secret), came: make(chan hello, 1)}
	l.mu.Lock()
	select {
	case <-l.stop:
		err = ErrListenerClosed
	default:
	}
	if err == nil && l.waiting[token] != nil {
		err = errors.New("verbs: another Accept waits for this token")
	}
	if err == nil {
		l.waiting[token] = v
	}
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer func() {
		l.mu.Lock()
		delete(l.waiting, token)
		clear(v.secret)
		visitor := v.visitor
		v.visitor = nil
		l.mu.Unlock()
		if visitor != nil {
			visitor.Close()
		}
	}()
	select {
	case h := <-v.came:
		p, err := l.accept(ctx, v, &h, cfg, window, rails)
		if err != nil {
			return nil, fmt.Errorf("verbs: accept at %s: %w", l.addr, err)
		}
		return p, nil
	case <-l.stop:
		return nil, ErrListenerClosed
	case <-ctx.Done():
		return nil, fmt.Errorf("verbs: accept at %s: no dialer came: %w", l.addr, ctx.Err())
	}
}

// accept answers a hello and waits until the dialer begins.
func (l *Listener) accept(ctx context.Context, v *invitation, h *hello, cfg path.Config, window, rails int) (_ *Path, err error) {
	refuse := func(err error) (*Path, error) {
		w := welcome{nonce: h.nonce, status: statusRefused, words: err.Error()}
		l.reply(v, h, w)
		return nil, err
	}
	if err := l.dev.permits(h.gid); err != nil {
		return refuse(err)
	}
	transport := h.transport()
	if own := l.d.o.Transport; own != AnyTransport && own != transport {
		return refuse(fmt.Errorf("the dialer wants %s and this side has %s (Options.Transport): %w", transport, own, path.ErrUnavailable))
	}
	extra := transport.extra()
	rails = min(rails, maxRails-extra)
	if int(h.rails) != rails+extra && cfg.Streams == 0 {
		rails = int(h.rails) - extra
	}
	if int(h.rails) != rails+extra || rails < 1 {
		return refuse(fmt.Errorf("the dialer wants %d rails and this side %d: %w", int(h.rails)-extra, rails, path.ErrUnavailable))
	}
	dev, err := l.d.device()
	if err != nil {
		return refuse(err)
	}
	p, err := newPath(dev, cfg, &l.d.o, window, rails, transport)
	if err != nil {
		return refuse(err)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err = p.start(h.params); err == nil {
		p.greeting = h.nonce
		l.reply(v, h, welcome{nonce: h.nonce, params: p.params(window)})
		err = p.until(ctx, func() bool { return p.greeting == 0 })
	}
	if err != nil {
		return nil, errors.Join(err, p.abandon())
	}
	return p, nil
}

// reply sends the answer, and keeps it for a hello that is repeated because it was lost.
func (l *Listener) reply(v *invitation, h *hello, w welcome) {
	b := w.append(nil, v.secret)
	if w.status != statusWelcome && l.desk != nil {
		b = w.appendRefusal(nil, h.gid, v.secret)
	}
	l.mu.Lock()
	v.answer, v.qpn = b, w.control.qpn
	visitor := v.visitor
	v.visitor = nil
	l.mu.Unlock()
	l.send(h, visitor, b, w.control.qpn)
}

// Close stops accepting: waiting Accepts return an error. Paths that are set up stay.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		l.mu.Lock()
		close(l.stop)
		l.mu.Unlock()
		if l.desk != nil {
			l.desk.wake()
			<-l.done
			err = l.desk.close()
		} else {
			l.u.wake()
			<-l.done
			err = l.u.close()
		}
		err = errors.Join(err, l.dev.put())
	})
	return err
}
