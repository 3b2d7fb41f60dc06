package transfer

import (
	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// What peers make this process use is charged to their principals: each session that a peer dialed,
// from when its handshake is done, each path that it dials or is invited to dial, until nothing of
// it is left, and beyond control.Allowance what a session holds for its peer: requests, answers and
// messages that the peer does not read. See package budget for how much a principal may have.

const (
	sessionMemory = 256 << 10 // two goroutines, buffers, TLS, control.Allowance
	channelMemory = 256       // for each operation of a path's window, beside what the path needs
	// guessDescriptors and guessMemory are for each path, and for each of its streams, of a driver
	// that is no setup.Estimator.
	guessDescriptors = 8
	guessMemory      = 1 << 20
)

var sessionNeeds = budget.Amounts{budget.Sessions: 1, budget.Descriptors: 1, budget.Memory: sessionMemory}

// grant is what was charged for one session or path. It is given back once.
type grant struct {
	g *budget.Grant
	n *Node // nil: this side's own
}

func (g *grant) release() {
	if g == nil {
		return
	}
	g.g.Release()
	if g.n != nil {
		g.n.granted.Add(-1)
	}
}

// charge takes something on the peer's account. The error matches budget.ErrOver, and the peer gets
// control.Busy.
func (p *Peer) charge(a budget.Amounts) (*grant, error) {
	n := p.node
	g, err := n.budget.Take(p.principal(), a)
	if err != nil {
		return nil, err
	}
	n.granted.Add(1)
	return &grant{g, n}, nil
}

// chargeHeld charges what is held for the peer: by the session (control.Options), and of long
// notifications. The mutex is held. It is no grant of Node.granted: a handler of calls or
// notifications that runs on has it after Close.
func (p *Peer) chargeHeld(bytes int) (err error) {
	now := uint64(int(p.heldBytes) + bytes)
	a := budget.Amounts{budget.Memory: now}
	switch {
	case now == 0:
		p.held.Release()
		p.held = nil
	case p.held == nil:
		p.held, err = p.node.budget.Take(p.principal(), a)
	default:
		err = p.held.Change(a)
	}
	if err == nil {
		p.heldBytes = now
	}
	return err
}

// own counts what this node takes because its user wants it.
func (n *Node) own(a budget.Amounts) *grant { return &grant{n.budget.Own(a), nil} }

// pathNeeds is what one side of a path takes.
func pathNeeds(d setup.Driver, cfg *setup.Config) budget.Amounts {
	window := cfg.Window
	if window == 0 {
		window = setup.DefaultWindow
	}
	streams := max(cfg.Streams, 1)
	need := setup.Needs{Descriptors: streams + guessDescriptors, Memory: uint64(streams+1) * guessMemory}
	if e, ok := d.(setup.Estimator); ok {
		need = e.Needs(cfg)
	}
	return budget.Amounts{budget.Paths: 1, budget.Descriptors: uint64(need.Descriptors),
		budget.Memory: need.Memory + uint64(window)*channelMemory}
}
