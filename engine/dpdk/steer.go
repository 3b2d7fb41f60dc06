//go:build dpdk

package dpdk

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/dpdk/rteflow"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/packet/flow"
)

// steering is what the device carries out of the port's rules. Software decides about every packet
// that has no mark, so the device is never needed, but where it leaves what no rule accepts to the
// kernel (isolated).
type steering struct {
	sync.Mutex
	flows    []steered
	lines    []string              // for people
	isolated bool                  // by the device
	past     map[uint32]flow.Count // of rules that drop, by the flows that they had before
}

// steered is a pattern of a rule in the device.
type steered struct {
	flow   cdpdk.Flow
	id     uint32 // of the rule
	counts bool   // it drops, and counts what it drops
}

// queueOf is the number of the device's queue for one that a rule names. The caller holds the lock
// of the set of queues.
func (p *Port) queueOf(live []*rxQueue) func(id uint16) (uint16, bool) {
	return func(id uint16) (uint16, bool) {
		for _, q := range live {
			if n := slices.Index(p.halves, q.h); q.ID() == int(id) && n >= 0 {
				return uint16(n), true
			}
		}
		return 0, false
	}
}

// form is a pattern of a rule as the driver takes it.
func (p *Port) form(c *rteflow.Compiled, actions []rteflow.Action, pattern []rteflow.Item) *cdpdk.FlowRule {
	r := &cdpdk.FlowRule{Priority: c.Priority, RSSTypes: p.rss(), RSSKey: p.o.RSSKey}
	for _, i := range pattern {
		r.Items = append(r.Items, cdpdk.FlowItem{Header: uint8(i.Header), NoTags: i.Tags == rteflow.NoTags,
			Offset: int(i.Offset), Spec: i.Spec, Last: i.Last, Mask: i.Mask})
	}
	for _, a := range actions {
		r.Actions = append(r.Actions, cdpdk.FlowAction{Kind: uint8(a.Kind), Value: a.Value, Queues: a.Queues})
	}
	return r
}

// plan is what the driver says that it can carry out of the rules. It changes nothing.
func (p *Port) plan(rules []flow.Rule, live []*rxQueue) (out []rteflow.Compiled, lines []string) {
	limits := make(map[int]rteflow.Limit, len(rules))
	words := make(map[int]error, len(rules))
again:
	for {
		out = rteflow.Compile(rules, rteflow.Options{Queue: p.queueOf(live), Tagged: p.steer.isolated,
			Limit: func(rule int) rteflow.Limit {
				return limits[rule]
			}})
		for i := range out {
			c := &out[i]
			actions := c.Do()
			if actions == nil {
				continue
			}
			for _, pattern := range c.Patterns {
				if err := p.dev.ValidateFlow(p.form(c, actions, pattern)); err != nil {
					limits[c.Rule]++
					words[c.Rule] = err
					continue again
				}
			}
		}
		break
	}
	whole := 0
	for i := range out {
		c := &out[i]
		r := &rules[c.Rule]
		why := c.Why
		if err := words[c.Rule]; err != nil && (c.Do() == nil || c.Whole == nil) {
			why = err.Error()
		}
		switch {
		case c.Whole != nil:
			whole++
		case c.Do() != nil:
			lines = append(lines, fmt.Sprintf("the device steers, and software classifies: rule %s: %s",
				rteflow.Name(r), why))
		default:
			lines = append(lines, fmt.Sprintf("in software only: rule %s: %s", rteflow.Name(r), why))
		}
	}
	if whole > 0 {
		lines = append([]string{fmt.Sprintf("the device carries out %d rules by itself (rte_flow)", whole)}, lines...)
	}
	return out, lines
}

// agree is plan, and an error where the device isolates the port and cannot carry out all of the
// rules.
func (p *Port) agree(rules []flow.Rule, live []*rxQueue) ([]rteflow.Compiled, []string, error) {
	want, lines := p.plan(rules, live)
	if !p.steer.isolated {
		return want, lines, nil
	}
	var problems flow.Problems
	for i := range want {
		if c := &want[i]; c.Do() == nil && rules[c.Rule].Actions[len(rules[c.Rule].Actions)-1].Kind != flow.ToKernel {
			problems = append(problems, flow.Problem{Kind: flow.Unsupported, Rule: c.Rule, Name: rules[c.Rule].Name,
				Other: -1, Field: "rule",
				Text: "the device isolates the port, so it has to carry out each rule: " + lines[len(lines)-1]})
		}
	}
	return want, lines, problems.Err()
}

// errAgreed ends a change of rules that was only to be checked.
var errAgreed = errors.New("agreed")

// check is what install would say of changes of the rules. It changes nothing.
func (p *Port) check(changes []flow.Change) error {
	p.rx.Lock()
	defer p.rx.Unlock()
	_, err := p.table.Install(func(next *flow.Snapshot) error {
		if p.state != portStarted || p.away {
			return errAgreed
		}
		p.steer.Lock()
		defer p.steer.Unlock()
		if _, _, err := p.agree(next.Rules(), p.rx.Live()); err != nil {
			return err
		}
		return errAgreed
	}, changes...)
	if err == errAgreed {
		return nil
	}
	return err
}

// install has the device carry out what it can of the rules, if it has started. What it cannot is
// software's; it is an error where the device isolates the port. The caller holds the lock of the
// set of queues.
func (p *Port) install(rules []flow.Rule, live []*rxQueue) error {
	s := &p.steer
	if p.state != portStarted || p.away || len(rules) == 0 && len(s.flows) == 0 {
		return nil
	}
	s.Lock()
	defer s.Unlock()
	want, lines, err := p.agree(rules, live)
	if err != nil {
		return err
	}
	p.uninstall()
	for i := range want {
		c := &want[i]
		actions := c.Do()
		for _, pattern := range c.Patterns {
			if actions == nil {
				break
			}
			f, err := p.dev.CreateFlow(p.form(c, actions, pattern))
			if err != nil {
				p.uninstall()
				s.lines = []string{"the device carries out no rules: " + err.Error()}
				if s.isolated {
					return fmt.Errorf("rule %s: %w: %w", rteflow.Name(&rules[c.Rule]), engine.ErrUnsupported, err)
				}
				return nil
			}
			s.flows = append(s.flows, steered{f, c.ID, actions[0].Kind == rteflow.Count})
		}
	}
	s.lines = lines
	return nil
}

// uninstall takes all rules out of the device. The caller holds the lock of steer.
func (p *Port) uninstall() {
	for _, f := range p.steer.flows {
		if f.counts {
			if p.steer.past == nil {
				p.steer.past = map[uint32]flow.Count{}
			}
			p.steer.count(p.dev, f, p.steer.past)
		}
		_ = p.dev.DestroyFlow(f.flow) // the device is stopped or gone where that fails, and the rule with it
	}
	p.steer.flows = nil
}

// isolate has the device leave to the kernel what no rule accepts, where it can. Elsewhere software
// drops it: the device has no kernel behind it.
func (p *Port) isolate() {
	if !p.spec.Isolated {
		return
	}
	if err := p.dev.Isolate(); err != nil {
		p.can.Notes = append(p.can.Notes,
			"what no rule accepts is dropped by software, because the driver does not isolate: "+err.Error())
		return
	}
	p.steer.isolated = true
}

// discarded is how many packets the device has dropped by rules, in all and of each that there is.
func (p *Port) discarded() (all uint64, byRule map[uint32]flow.Count) {
	s := &p.steer
	s.Lock()
	defer s.Unlock()
	byRule = map[uint32]flow.Count{}
	maps.Copy(byRule, s.past)
	for _, f := range s.flows {
		if f.counts {
			s.count(p.dev, f, byRule)
		}
	}
	for _, n := range byRule {
		all += n.Packets
	}
	return all, byRule
}

// count adds what the device has counted for a rule.
func (s *steering) count(dev cdpdk.Port, f steered, to map[uint32]flow.Count) {
	if packets, bytes, err := dev.CountFlow(f.flow); err == nil {
		n := to[f.id]
		to[f.id] = flow.Count{Packets: n.Packets + packets, Bytes: n.Bytes + bytes}
	}
}
