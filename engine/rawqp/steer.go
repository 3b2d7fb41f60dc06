package rawqp

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// maxPerRule is how many rules of the card one rule may take.
const maxPerRule = 64

// cardFields are what a rule of the card can match.
var cardFields = flow.Fields(flow.FieldEthSrc, flow.FieldEthDst, flow.FieldEtherType, flow.FieldVLAN, flow.FieldProto,
	flow.FieldSrc, flow.FieldDst,
	flow.FieldSrcPort, flow.FieldDstPort)

// masked is a value under a mask.
type masked struct{ val, mask uint16 }

// split makes values under masks of a range of numbers: together they match exactly the range.
func split(r flow.Range) (out []masked) {
	for lo, hi := uint32(r.Lo), uint32(r.Hi); lo <= hi; {
		size := uint32(1) << min(bits.TrailingZeros32(lo|1<<16), 16)
		for lo+size-1 > hi {
			size /= 2
		}
		out = append(out, masked{uint16(lo), uint16(0xffff &^ (size - 1))})
		lo += size
	}
	return out
}

func ports(o flow.Opt[flow.Range]) []masked {
	if !o.Set {
		return []masked{{}}
	}
	return split(o.Value)
}

// onCard makes rules of the card of a match: together they match the same frames. The error says
// why the card cannot.
func onCard(m *flow.Match, port uint8) (out []ibv.FlowSpec, err error) {
	if more := m.Fields() &^ cardFields; more != 0 {
		return nil, fmt.Errorf("the card does not match %v", more)
	}
	base := ibv.FlowSpec{Port: port}
	full := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if m.EthDst.Set {
		base.DstMAC, base.DstMACMask = m.EthDst.Value, full
	}
	if m.EthSrc.Set {
		base.SrcMAC, base.SrcMACMask = m.EthSrc.Value, full
	}
	if m.EtherType.Set {
		base.EtherType, base.EtherTypeMask = uint16(m.EtherType.Value), 0xffff
	}
	if m.VLAN.Set {
		if m.VLAN.Value == flow.Untagged {
			return nil, errors.New("the card does not match that there is no VLAN tag")
		}
		base.VLAN, base.VLANMask = uint16(m.VLAN.Value), 0xfff
	}
	versions, err := families(m)
	if err != nil {
		return nil, err
	}
	src, dst := ports(m.SrcPort), ports(m.DstPort)
	if n := len(versions) * len(src) * len(dst); n > maxPerRule {
		return nil, fmt.Errorf("it would take %d rules of the card, and %d are allowed: choose ranges that begin and "+
			"end at multiples of powers of two", n, maxPerRule)
	}
	for _, v := range versions {
		s := base
		s.Version = v
		if v != 0 {
			address(m.Src, &s.Src, &s.SrcMask)
			address(m.Dst, &s.Dst, &s.DstMask)
			s.Proto, s.ProtoSet = uint8(m.Proto.Value), m.Proto.Set
		}
		for _, a := range src {
			for _, b := range dst {
				s.SrcPort, s.SrcPortMask, s.DstPort, s.DstPortMask = a.val, a.mask, b.val, b.mask
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// families are the versions of IP that a match can mean; 0 is that it does not look.
func families(m *flow.Match) ([]uint8, error) {
	if !m.Src.IsValid() && !m.Dst.IsValid() && !m.Proto.Set {
		return []uint8{0}, nil
	}
	var out []uint8
	for _, f := range []struct {
		version uint8
		typ     packet.EtherType
		four    bool
	}{{4, packet.EtherTypeIPv4, true}, {6, packet.EtherTypeIPv6, false}} {
		fits := !m.EtherType.Set || m.EtherType.Value == f.typ
		for _, p := range []netip.Prefix{m.Src, m.Dst} {
			fits = fits && (!p.IsValid() || p.Addr().Is4() == f.four)
		}
		if fits {
			out = append(out, f.version)
		}
	}
	if out == nil {
		return nil, errors.New("no frame is of both versions of IP, or of that EtherType and IP")
	}
	return out, nil
}

func address(p netip.Prefix, val, mask *[16]byte) {
	if !p.IsValid() {
		return
	}
	n := copy(val[:], p.Masked().Addr().AsSlice())
	for i := range n {
		left := min(max(p.Bits()-8*i, 0), 8)
		mask[i] = byte(0xff << (8 - left))
	}
}

// wants are the rules that the card should have for the rules in force and the queues that there
// are. The caller holds the set's lock.
func (p *Port) wants(rules []flow.Rule) (map[ibv.FlowSpec]*rxQueue, error) {
	live := p.rx.Live()
	want := map[ibv.FlowSpec]*rxQueue{}
	for i := range rules {
		r := &rules[i]
		specs, err := onCard(&r.Match, uint8(p.o.Port))
		if err != nil && p.spec.Isolated {
			return nil, fmt.Errorf("verbs: rule %v: %w: %w: an isolated port takes from the kernel only what the "+
				"card can tell apart; without isolation this process "+
				"does it", r, err, engine.ErrUnsupported)
		}
		if err != nil || len(live) == 0 {
			continue
		}
		to := p.target(r, live)
		if to == live[0] && !p.spec.Isolated {
			continue // they come there anyway
		}
		for _, s := range specs {
			if want[s] == nil { // of two that match the same the first wins
				want[s] = to
			}
		}
	}
	if !p.spec.Isolated && len(live) > 0 {
		want[ibv.FlowSpec{Port: uint8(p.o.Port), Default: true}] = live[0]
	}
	return want, nil
}

// target is the queue in whose memory frames of a rule should land: its own, or the first, which
// counts what is dropped.
func (p *Port) target(r *flow.Rule, live []*rxQueue) *rxQueue {
	a := r.Actions[len(r.Actions)-1]
	id := -1
	switch a.Kind {
	case flow.ToQueue:
		id = int(a.Queue)
	case flow.RSS:
		id = int(a.Queues[0])
	}
	for _, q := range live {
		if q.ID() == id {
			return q
		}
	}
	return live[0]
}

// steer makes the card's rules those for the rules in force and the queues that there are.
func (p *Port) steer() error {
	want, err := p.wants(p.table.Snapshot().Rules())
	if err != nil {
		return err
	}
	return p.install(want)
}

// steered is a rule that the card has.
type steered struct {
	to   *rxQueue
	flow *ibv.Flow // nil: the card refused it, and this process does it
}

// install makes the card's rules those that are wanted, or leaves them as they were. Two rules that
// match the same are never there at once, because a card would then deliver frames twice. The
// caller holds the set's lock.
func (p *Port) install(want map[ibv.FlowSpec]*rxQueue) (err error) {
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; err != nil && i >= 0; i-- {
			if e := undo[i](); e != nil {
				err = errors.Join(err, e)
			}
		}
	}()
	add := func(s ibv.FlowSpec, to *rxQueue) error {
		f, err := to.qp.CreateFlow(s)
		if err != nil && (p.spec.Isolated || s.Default || !errors.Is(err, ibv.ErrUnsupported) &&
			!errors.Is(err, ibv.ErrNoRoom) && !errors.Is(err, ibv.ErrInUse)) {
			return refusedRule(err)
		}
		p.steered[s] = steered{to, f}
		return nil
	}
	remove := func(s ibv.FlowSpec) error {
		if f := p.steered[s].flow; f != nil {
			if err := f.Close(); err != nil {
				return err
			}
		}
		delete(p.steered, s)
		return nil
	}
	for s, to := range want {
		old, there := p.steered[s]
		if there && old.to == to {
			continue
		}
		if there {
			if err = remove(s); err != nil {
				return err
			}
			undo = append(undo, func() error { return add(s, old.to) })
		}
		if err = add(s, to); err != nil {
			return err
		}
		undo = append(undo, func() error { return remove(s) })
	}
	for s, old := range p.steered {
		if want[s] == nil {
			if err = remove(s); err != nil {
				return err
			}
			undo = append(undo, func() error { return add(s, old.to) })
		}
	}
	return nil
}

func refusedRule(err error) error {
	kind := engine.ErrUnavailable
	switch {
	case errors.Is(err, ibv.ErrUnsupported):
		kind = engine.ErrUnsupported
	case errors.Is(err, ibv.ErrNoRoom):
		kind = engine.ErrFull
	case errors.Is(err, ibv.ErrInUse):
		kind = engine.ErrInUse
	case errors.Is(err, ibv.ErrRefused):
		kind = ErrCapability
	}
	return fmt.Errorf("verbs: the card refuses a rule: %w: %w", kind, err)
}

// Rules are the steering rules of a port.
type Rules struct{ p *Port }

// List implements engine.Rules.
func (r *Rules) List() []flow.Rule { return r.p.table.List() }

// Apply makes all changes or none. They are in force for every frame that is taken off the device
// afterwards.
func (r *Rules) Apply(changes ...flow.Change) (flow.Result, error) {
	p := r.p
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() {
		return flow.Result{}, engine.ErrClosed
	}
	res, err := p.table.Install(func(next *flow.Snapshot) error {
		want, err := p.wants(next.Rules())
		if err != nil {
			return err
		}
		return p.install(want)
	}, changes...)
	if err == nil && p.cq != nil {
		p.cq.wait()
	}
	return res, err
}

// Check implements engine.RuleChecker.
func (r *Rules) Check(changes ...flow.Change) error { return r.p.table.Check(changes...) }

// Stats are the packets that each rule matched.
func (r *Rules) Stats() flow.Stats { return r.p.table.Stats() }
