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
				n.account.Rejected(c.RemoteAddr(), err)
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
