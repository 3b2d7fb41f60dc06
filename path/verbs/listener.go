package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/path"
)

// ErrListenerClosed is what Accept returns after Close.
var ErrListenerClosed = errors.New("verbs: listener is closed")

// Listener takes the hellos of all peers of a node. One goroutine reads them; it sleeps while nothing comes.
type Listener struct {
	d    *Driver
	dev  *device
	u    *ud
	addr place
	done chan struct{} // closed when the goroutine is gone
	stop chan struct{} // closed by Close
	once sync.Once

	mu      sync.Mutex // guards what follows
	waiting map[path.Token]*invitation
}

// invitation is one Accept.
type invitation struct {
	secret []byte
	came   chan hello // capacity 1
	taken  bool
	hello  hello
	answer []byte // the welcome, for a hello that is repeated
}

// Listen opens the device and a queue pair for datagrams.
func (d *Driver) Listen() (path.Listener, error) {
	dev, err := d.device()
	if err != nil {
		return nil, err
	}
	u, err := openUD(dev, 64)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: listen: %w: %w", path.ErrUnavailable, err), dev.put())
	}
	l := &Listener{d: d, dev: dev, u: u, done: make(chan struct{}), stop: make(chan struct{}), waiting: map[path.Token]*invitation{},
		addr: place{dev.raw, dev.port.LID, u.qp.Num(), u.qkey, uint8(dev.port.ActiveMTU)}}
	go l.serve()
	return l, nil
}

// Addr is the address for an Offer.
func (l *Listener) Addr() string { return l.addr.String() }

// serve reads hellos until Close.
func (l *Listener) serve() {
	defer close(l.done)
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
	l.mu.Lock()
	v := l.waiting[h.token]
	if v == nil || !sealed(b, v.secret) {
		l.mu.Unlock()
		return
	}
	var again []byte
	switch {
	case !v.taken:
		v.taken, v.hello = true, h
		v.came <- h
	case h == v.hello:
		again = v.answer
	}
	l.mu.Unlock()
	if again != nil {
		l.u.send(&h.params, again)
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
		l.mu.Unlock()
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
	l.mu.Lock()
	v.answer = b
	l.mu.Unlock()
	l.u.send(&h.params, b)
}

// Close stops accepting: waiting Accepts return an error. Paths that are set up stay.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		l.mu.Lock()
		close(l.stop)
		l.mu.Unlock()
		l.u.wake()
		<-l.done
		err = errors.Join(l.u.close(), l.dev.put())
	})
	return err
}
