package transfer

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock-io/penstock/transfer/address"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// CheckAddress says what is wrong with the text of an address, as Node.Connect does before it
// dials.
func CheckAddress(addr string) error {
	_, err := address.Parse(addr)
	return err
}

// allows refuses addresses at which the node would talk in the clear beyond this machine, unless
// Options.Insecure permits it.
func (n *Node) allows(a address.Address) error {
	switch {
	case a.Expect != "" && n.opts.Identity == nil:
		return fmt.Errorf("transfer: address %v: this node has no identity, so the other side cannot prove the "+
			"name %q: %w", a, a.Expect, ErrPlaintext)
	case a.Local || n.opts.Identity != nil:
		return nil
	case n.opts.Insecure:
		n.log.Warn("PLAINTEXT: whoever is on the way can read and change everything; give the node an identity "+
			"(penstock pair)", "address", a.String())
		n.account.Bus.Emit(observe.Event{Kind: observe.EventPlaintext, Address: a.String(),
			Security: path.SecurityNone.String()})
		return nil
	}
	from := "\"penstock pair\" makes one"
	if own, err := identity.DefaultDir(); err == nil {
		if _, err = os.Stat(filepath.Join(own, identity.NodeFile)); err == nil {
			from = "security: {} in a configuration, identity=True in Python and Options.Identity in Go use that of " +
				own
		}
	}
	return fmt.Errorf("transfer: address %v is beyond this machine, and this node has no identity (%s) and no "+
		"permission "+
		"for plaintext: %w", a, from, ErrPlaintext)
}

// address is where the peer is, in the form of Dial, as far as the connection tells.
func (p *Peer) address() string {
	a := p.conn.RemoteAddr()
	return a.Network() + "://" + a.String()
}
