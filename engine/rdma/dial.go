package rdma

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
)

// Connect connects to another port, besides the one in the address, and returns the id of the
// connection. A port whose address names no peer, as that of DAQIRI's clients, connects by this
// alone.
func (p *Port) Connect(ctx context.Context, to netip.AddrPort) (id uint32, err error) {
	if p.a.listen {
		return 0, failed(engine.ErrUnsupported, "port %q accepts connections", p.name)
	}
	if !to.IsValid() || to.Port() == 0 {
		return 0, invalid("Connect to %v: expected an IP address and a port", to)
	}
	return p.conns.Connect(ctx, to, func(ctx context.Context) (session, error) {
		if p.lacksQueue() {
			return nil, failed(engine.ErrNotReady,
				"port %q connects by rdma_cm, and has no receive queue: AddRxQueue comes before Connect", p.name)
		}
		return p.connector.dial(ctx, p.a.local, to)
	})
}

// lacksQueue reports whether a connection cannot be made for lack of a receive queue.
func (p *Port) lacksQueue() bool { return p.o.Connect == ByCM && len(p.rx.Live()) == 0 }

// host is a port as its connections see it: it implements conns.Port.
type host Port

func (h *host) Dialer() func(context.Context) (session, error) {
	if (*Port)(h).lacksQueue() {
		return nil // AddRxQueue dials
	}
	return func(ctx context.Context) (session, error) { return h.connector.dial(ctx, h.a.local, h.a.remote) }
}

func (h *host) Admit(ch session, main bool) (*conn, error) {
	p := (*Port)(h)
	c := &conn{port: p, ch: ch}
	c.Main, c.Local, c.Remote = main, ch.local(), ch.remote()
	_, c.plain = ch.(*link)
	p.conns.Add(c)
	c.ch.send(&record{kind: kindHello, transport: p.o.Transport})
	c.late = time.AfterFunc(p.o.ConnectTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !c.Met {
			p.conns.End(c, failed(engine.ErrConnect, "the peer has said nothing for %v", p.o.ConnectTimeout))
		}
	})
	p.conns.Go(c.serve)
	return c, nil
}

func (h *host) Refuse(ch session, why string) {
	if why != "" {
		ch.send(&record{kind: kindBye, text: why})
	}
	ch.close()
}

// Assign gives a connection to a queue when its peer has said who it is. A plain one has its queue
// from the beginning.
func (h *host) Assign(c *conn) {
	if !c.Met || c.Over || c.plain {
		return
	}
	if to := conns.Pick(h.rx.Live(), c.ID, (*rxQueue).load); to != c.q {
		(*Port)(h).move(c, to)
	}
}

// Sever drops what the peer has not acknowledged besides what waits.
func (h *host) Sever(c *conn, err error) (why error, orderly bool) {
	c.late.Stop()
	if c.plain {
		c.part()
	} else {
		c.sever()
	}
	c.q = nil
	bye := &record{kind: kindBye}
	if orderly = err == nil || errors.Is(err, engine.ErrClosed); !orderly {
		bye.text = err.Error()
		h.counts.broken.Add(1)
	}
	c.ch.send(bye)
	c.ch.close()
	return err, orderly
}

func (h *host) Fail(id uint32, err error) {
	for _, q := range h.rx.Live() {
		if id == 0 || q.Spec().Conn == id {
			q.fail(err)
		}
	}
}

func (h *host) Changed() {
	for _, q := range h.tx {
		q.box.Kick()
	}
}
