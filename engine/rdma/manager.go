package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/ibv/cm"
	"github.com/penstock-io/penstock/internal/sys"
)

// manager is the connector over the connection manager of RDMA. Its peers may be any program: they
// take no records, so that a connection is one queue pair, which this side uses in both directions.
type manager struct {
	port  *Port
	ch    *cm.Channel
	waker *engine.Waker
	end   chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	links  map[*cm.ID]*link
	listen *managerListener
	over   error          // why no more events come
	ending sync.WaitGroup // links that are being closed
}

// newManager opens the connection manager and takes its events until stop.
func newManager(p *Port, path string) (*manager, error) {
	l, err := cm.Load(cm.Options{Path: path})
	if err != nil {
		return nil, failed(engine.ErrUnavailable, "port %q, connect=cm: %v", p.name, err)
	}
	ch, err := l.Open()
	if err != nil {
		return nil, failed(engine.ErrUnavailable, "port %q, connect=cm: %v", p.name, err)
	}
	m := &manager{port: p, ch: ch, waker: engine.NewWaker(), end: make(chan struct{}), done: make(chan struct{}),
		links: map[*cm.ID]*link{}}
	if err := engine.Events.Add(ch.FD()); err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	go m.run()
	return m, nil
}

// stop ends the manager. Its listener and its links are closed before.
func (m *manager) stop() error {
	m.ending.Wait()
	close(m.end)
	<-m.done
	engine.Events.Remove(m.ch.FD())
	return m.ch.Close()
}

// run passes events to the links and the listener that they concern.
func (m *manager) run() {
	defer close(m.done)
	for {
		for {
			ev, ok, err := m.ch.Next()
			if err != nil {
				m.lost(err)
				return
			}
			if !ok {
				break
			}
			m.route(ev)
		}
		if err := engine.Events.Arm(m.ch.FD(), m.waker); err != nil {
			m.lost(err)
			return
		}
		select {
		case <-m.waker.C():
		case <-m.end:
			return
		}
	}
}

// lost tells all links, and those to come, that no more events come.
func (m *manager) lost(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = fmt.Errorf("the connection manager tells no more: %w", err)
	for _, l := range m.links {
		l.hear(cm.Event{Type: cm.ConnectError, ID: l.id, Err: m.over})
	}
}

func (m *manager) route(ev cm.Event) {
	switch ev.Type {
	// neither asks for anything: a number is used again only when the device says so
	case cm.AddressChanged, cm.TimeWaitExit:
		return
	case cm.ConnectRequest:
		l := m.link(ev.ID, &ev.Params)
		m.mu.Lock()
		at := m.listen
		m.mu.Unlock()
		if at == nil || !at.offer(l) {
			m.port.conns.Refused()
			l.send(&record{kind: kindBye, text: "too many wait to be accepted"})
			l.close()
		}
		return
	}
	m.mu.Lock()
	l := m.links[ev.ID]
	m.mu.Unlock()
	if l != nil {
		l.hear(ev)
	}
}

// link makes the session of a connection. asked is what a peer that connects has said.
func (m *manager) link(id *cm.ID, asked *cm.Params) *link {
	l := &link{m: m, id: id, asked: asked, events: make(chan cm.Event, linkEvents), over: make(chan struct{}),
		ended: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.links[id] = l
	if m.over != nil {
		l.hear(cm.Event{Type: cm.ConnectError, ID: id, Err: m.over})
	}
	return l
}

// backlog is how many peers may wait to be accepted.
const backlog = 128

// managerListener is a listener of the connection manager. It is bound at once, so that its port is
// known, and listens when there is a receive queue.
type managerListener struct {
	m       *manager
	id      *cm.ID
	at      netip.AddrPort
	pending chan *link
	over    chan struct{}
	once    sync.Once
}

func (m *manager) bind(at netip.AddrPort) (listener, error) {
	id, err := m.ch.NewIDAt(cmServices[m.port.o.Transport], at)
	switch {
	case errors.Is(err, sys.EADDRINUSE):
		return nil, failed(engine.ErrInUse, "listening at %v: %v", at, err)
	case err != nil:
		return nil, failed(engine.ErrUnavailable, "listening at %v: %v", at, err)
	}
	l := &managerListener{m: m, id: id, at: conns.Unmapped(id.Local()), pending: make(chan *link, backlog),
		over: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listen = l
	return l, nil
}

// offer leaves a link to be accepted; false when too many wait.
func (l *managerListener) offer(k *link) bool {
	select {
	case l.pending <- k:
		return true
	default:
		return false
	}
}

func (l *managerListener) accept() (session, error) {
	select {
	case k := <-l.pending:
		return k, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}

func (l *managerListener) addr() netip.AddrPort { return l.at }

func (l *managerListener) close() (err error) {
	l.once.Do(func() {
		close(l.over)
		l.m.mu.Lock()
		l.m.listen = nil // from here on no request is offered
		l.m.mu.Unlock()
		err = l.id.Close()
		for {
			select {
			case k := <-l.pending:
				k.close()
			default:
				return
			}
		}
	})
	return err
}

// dial finds the way to the peer. The connection is asked for when there is a queue pair.
func (m *manager) dial(ctx context.Context, from, to netip.AddrPort) (_ session, err error) {
	id, err := m.newID(from, to)
	if err != nil {
		return nil, err
	}
	l := m.link(id, nil)
	defer func() {
		if err != nil {
			l.close()
			l.wait()
		}
	}()
	left := m.port.o.ConnectTimeout
	if d, ok := ctx.Deadline(); ok {
		left = time.Until(d)
	}
	left = max(left, time.Millisecond)
	if err := id.ResolveAddress(from, to, left); err != nil {
		return nil, err
	}
	if err := l.want(ctx, cm.AddressResolved); err != nil {
		return nil, err
	}
	if err := l.onDevice(); err != nil {
		return nil, err
	}
	if err := id.ResolveRoute(left); err != nil {
		return nil, err
	}
	return l, l.want(ctx, cm.RouteResolved)
}

var cmServices = [numTransports]cm.Service{RC: cm.RC, UC: cm.UC, UD: cm.UD}

// newID is an ID to connect from an address to another one with.
func (m *manager) newID(from, to netip.AddrPort) (*cm.ID, error) {
	if m.port.o.Transport == RC {
		return m.ch.NewID()
	}
	if !from.IsValid() {
		any := netip.IPv4Unspecified()
		if to.Addr().Is6() {
			any = netip.IPv6Unspecified()
		}
		from = netip.AddrPortFrom(any, 0)
	}
	return m.ch.NewIDAt(cmServices[m.port.o.Transport], from)
}

// linkEvents is more than the events that one connection has in its life.
const linkEvents = 16

// link is the session of a connection by the connection manager. Of records it knows only the last
// one: it tells the peer no more than that it is over.
type link struct {
	m      *manager
	id     *cm.ID
	asked  *cm.Params // by a peer that connects; nil: this side does
	events chan cm.Event
	over   chan struct{} // closed by close
	ended  chan struct{} // closed when the ID is
	once   sync.Once

	mu       sync.Mutex
	answered bool // a peer that connects has been
	said     bool // goodbye
}

func (l *link) local() netip.AddrPort  { return conns.Unmapped(l.id.Local()) }
func (l *link) remote() netip.AddrPort { return conns.Unmapped(l.id.Remote()) }

// hear takes an event. There is room for all that a connection has.
func (l *link) hear(ev cm.Event) {
	select {
	case l.events <- ev:
	default:
	}
}

// next waits for an event.
func (l *link) next(ctx context.Context) (cm.Event, error) {
	select {
	case ev := <-l.events:
		return ev, nil
	case <-l.over:
		return cm.Event{}, net.ErrClosed
	case <-ctx.Done():
		return cm.Event{}, ctx.Err()
	}
}

// want waits for that event.
func (l *link) want(ctx context.Context, t cm.EventType) error {
	ev, err := l.next(ctx)
	switch {
	case err != nil:
		return err
	case ev.Err != nil:
		return ev.Err
	case ev.Type != t:
		return failed(engine.ErrConnect, "the connection manager says %q where %q was expected", ev.Type, t)
	}
	return nil
}

// onDevice checks that the connection goes over the port's device.
func (l *link) onDevice() error {
	p := l.m.port
	if name, port := l.id.Device(); name != p.dev.Name() || port != p.o.Port {
		return failed(engine.ErrConnect,
			"the way leads over device %q, port %d, and this port is open on %s, port %d: name the other one, or its "+
				"address", name, port, p.dev.Name(), p.o.Port)
	}
	return nil
}

// send implements session: a goodbye rejects a peer that was not accepted, with the reason, and
// ends a connection. A peer takes no other record.
func (l *link) send(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.kind != kindBye || l.said {
		return
	}
	l.said = true
	if l.asked != nil && !l.answered {
		most := cm.MaxRejectData
		if l.m.port.o.Transport == UD {
			most = cm.MaxDatagramData
		}
		l.id.Reject([]byte(r.text[:min(len(r.text), most)])) // close does it as well, without the reason
		return
	}
	l.id.Disconnect() // without a connection it fails, which is no error here
}

// accept says yes to a peer that connects, unless it was said no meanwhile.
func (l *link) accept(p cm.Params) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said {
		return net.ErrClosed
	}
	l.answered = true
	return l.id.Accept(p)
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.over)
		l.m.ending.Add(1)
		go func() { // the library may wait for the kernel
			defer l.m.ending.Done()
			defer close(l.ended)
			l.m.mu.Lock()
			delete(l.m.links, l.id)
			l.m.mu.Unlock()
			l.id.Close()
		}()
	})
}

func (l *link) wait() { <-l.ended }

// reason is what a peer that rejects says with it, for people.
func reason(ev cm.Event) error {
	said := strings.TrimRight(string(ev.Params.PrivateData), "\x00")
	if !errors.Is(ev.Err, cm.ErrRejected) || said == "" {
		return ev.Err
	}
	return fmt.Errorf("%w: it says %q", ev.Err, said)
}
