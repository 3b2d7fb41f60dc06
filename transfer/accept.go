package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/address"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func (n *Node) listen(ctx context.Context, s string) error {
	a, err := address.Parse(s)
	if err == nil {
		err = n.allows(a)
	}
	if err != nil {
		return err
	}
	if a.Expect != "" {
		return fmt.Errorf("transfer: listen on %s: a name is for dialing; the policy says who may do what", s)
	}
	if n.opts.Anonymous == 0 && (a.Network == "unix" || n.opts.Identity == nil) {
		return fmt.Errorf("transfer: listen on %s: peers there have no certificate, and Options.Anonymous gives "+
			"these no rights: %w", s, ErrNoRights)
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // paths set options that it does not have, kTLS among them
	network := a.Network
	if ap, err := netip.ParseAddrPort(a.Addr); err == nil && ap.Addr().Is4() {
		network = "tcp4" // else 0.0.0.0 is [::] to package net
	}
	l, err := sys.Listen(ctx, &lc, network, a.Addr)
	if err != nil {
		return fmt.Errorf("transfer: listen on %s: %w", s, err)
	}
	n.listeners = append(n.listeners, l)
	n.wg.Add(1)
	go n.accept(l)
	return nil
}

const acceptPause = 50 * time.Millisecond

func (n *Node) accept(l net.Listener) {
	defer n.wg.Done()
	for {
		c, err := l.Accept()
		if err != nil {
			if n.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// For example too many open files: that passes, and must not occupy a core meanwhile.
			n.log.Warn("accept", "error", err)
			select {
			case <-time.After(acceptPause):
				continue
			case <-n.ctx.Done():
				return
			}
		}
		// Here and not in the goroutine, so that they count from when they are accepted, in the
		// order in which they came.
		p, err := n.arrived(c, control.Acceptor)
		if err != nil { // closed: so is the listener
			continue
		}
		n.wg.Add(1)
		go func() {
			err := n.connect(context.Background(), p, address.Address{}, nil)
			n.wg.Done() // OnPeer may call Close
			if errors.Is(err, errTaken) {
				return
			}
			if err != nil {
				n.log.Info("peer refused", "from", c.RemoteAddr(), "error", err)
				n.account.TurnedAway(c.RemoteAddr(), err)
				return
			}
			if n.opts.OnPeer != nil {
				n.opts.OnPeer(p)
			}
			close(p.introduced)
		}()
	}
}

// Addrs are the addresses that the node listens on, in the form that Dial takes, with the ports
// that the kernel chose.
func (n *Node) Addrs() []string {
	var out []string
	for _, l := range n.listeners {
		out = append(out, address.Address{Network: l.Addr().Network(), Addr: l.Addr().String()}.String())
	}
	return out
}

// acceptor is the accepting side of a driver, once done is closed; err is why there is none.
type acceptor struct {
	done chan struct{}
	l    setup.Listener
	err  error
}

// place is a listener of a driver: one with an address of its own, or the one whose connections
// come to the ports of the node.
type place struct {
	driver string
	byPort bool
}

// opened is the listener at a place; nil if there is none.
func (n *Node) opened(at place) setup.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a := n.accepting[at]; a != nil {
		return a.l
	}
	return nil
}

// listener opens the accepting side of a driver when a peer first asks for it. To open devices may
// take long, so it delays only those that ask for the same listener meanwhile. A failure is for
// them; the next one that asks tries again.
func (n *Node) listener(d setup.ListenDriver, byPort bool) (setup.Listener, error) {
	at := place{d.Name(), byPort}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, ErrClosed
	}
	if a := n.accepting[at]; a != nil {
		n.mu.Unlock()
		<-a.done
		return a.l, a.err
	}
	a := &acceptor{done: make(chan struct{})}
	n.accepting[at] = a
	n.mu.Unlock()
	defer close(a.done)
	var l setup.Listener
	var err error
	if byPort {
		l, err = d.(setup.PortDriver).Receiver()
	} else {
		l, err = d.Listen()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && n.closed { // Close has not seen it
		err = errors.Join(ErrClosed, l.Close())
	}
	if err != nil {
		a.err = err
		delete(n.accepting, at)
		return nil, err
	}
	a.l = l
	return l, nil
}
