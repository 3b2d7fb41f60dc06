package card

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine/xdp/ntuple"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/packet/flow"
)

// ErrSpread: packets arrive on queues of the card that are not the port's, and the card's table of
// RSS cannot be changed. The text says what can be done.
var ErrSpread = errors.New("the card gives packets to queues that are not the port's")

// Device is what a Card uses of a driver: an *ethtool.Device.
type Device interface {
	ntuple.Card
	RSS() (ethtool.RSS, error)
	SetRSSTable(table []uint32) error
}

// Options say which card it is, and what of it is the port's.
type Options struct {
	Interface string // its name, for messages
	Identity  Identity
	Queues    []int  // of the card that the port uses, ascending
	Have      int    // receive queues of the card; 0: not known
	Dir       string // of records; empty: DefaultDir
	Leave     bool   // look only, and change nothing
}

// Want is what a port takes.
type Want struct {
	Rules []flow.Rule // in force
	All   bool        // also what no rule accepts
}

// Report says what came of a Want.
type Report struct {
	Steered  int      // rules that the card carries out
	Software []string // rules that only the program does, each with the reason
	Notes    []string // what else is to be said, a line each
}

// Lines are the report for people. There are none where a card has nothing to do.
func (r *Report) Lines() (out []string) {
	if r.Steered > 0 {
		out = append(out, fmt.Sprintf("the card steers packets of %d rules to their queues by n-tuple rules",
			r.Steered))
	}
	for _, s := range r.Software {
		out = append(out, "in software only: "+s)
	}
	return append(out, r.Notes...)
}

// Card is a card that a port has changed, or may change. One goroutine uses it.
type Card struct {
	dev   Device
	o     Options
	store store
	now   record   // what is in the card of ours; RSS nil: untouched
	notes []string // about what an earlier process left
	why   error    // the card is left alone
}

// Open takes back what a killed process has left in the card. The port's XDP program is on the
// interface. The error is about that: then the card is used all the same, but for the part that is
// not clear.
func Open(dev Device, o Options) (*Card, error) {
	c := &Card{dev: dev, o: o}
	if o.Leave {
		c.why = errors.New("the options keep the card unchanged")
	} else if c.o.Dir == "" {
		if c.o.Dir, c.why = DefaultDir(); c.why != nil {
			c.why = fmt.Errorf("the card stays unchanged: %w", c.why)
		}
	}
	c.now = record{Version: recordVersion, Device: o.Identity, Name: o.Interface}
	if c.why != nil {
		return c, nil
	}
	c.store = newStore(c.o.Dir, o.Identity)
	r, err := c.store.load(o.Identity)
	if err != nil { // what is there may be of an earlier process
		c.why = fmt.Errorf("the card stays unchanged: %w", err)
	}
	if r == nil {
		return c, err
	}
	c.now.Rules, c.now.RSS = r.Rules, r.RSS
	if err := c.Close(); err != nil {
		return c, fmt.Errorf("card: %s: what an earlier process left: %w", o.Interface, err)
	}
	c.notes = append(c.notes, "n-tuple rules or a table of RSS that an earlier process left in the card were taken back")
	return c, nil
}

// some reports whether the port uses some of the card's queues and not all.
func (c *Card) some() bool { return c.o.Have > len(c.o.Queues) }

// Set makes the card do what it can of a Want, and takes away what it did before and is not wanted
// any more. The error wraps ErrSpread: then packets that are the port's would go to the kernel. All
// else that the card does not do is in the report.
func (c *Card) Set(w Want) (Report, error) {
	rep := Report{Notes: slices.Clone(c.notes)}
	alone := c.steer(w.Rules, &rep)
	err := c.spread(c.some() && (w.All || alone), w.All, &rep)
	return rep, err
}

// plan is a rule for the card.
type plan struct {
	name    string
	specs   []ethtool.FlowSpec // all
	missing []ethtool.FlowSpec // that are not in the card yet
	why     string             // it is not for the card
}

// steer puts rules into the card. It says whether any rule that takes packets is done by software
// alone.
func (c *Card) steer(rules []flow.Rule, rep *Report) (alone bool) {
	var plans []plan
	if c.o.Have > 1 { // else there is one queue for all
		plans = c.plan(rules)
	}
	if len(plans) == 0 && len(c.now.Rules) == 0 {
		return false
	}
	if why := c.insert(plans); why != nil {
		for i := range plans {
			if plans[i].why == "" {
				plans[i].why = why.Error()
			}
		}
	}
	reasons := map[string][]string{}
	var order []string
	for _, p := range plans {
		if p.why == "" {
			rep.Steered++
			continue
		}
		alone = true
		if reasons[p.why] == nil {
			order = append(order, p.why)
		}
		reasons[p.why] = append(reasons[p.why], p.name)
	}
	for _, why := range order {
		names := reasons[why]
		if len(names) > 3 {
			names = append(names[:3:3], fmt.Sprintf("and %d more", len(names)-3))
		}
		rep.Software = append(rep.Software, strings.Join(names, ", ")+": "+why)
	}
	return alone
}

// plan compiles the rules that take packets, in the order of precedence.
func (c *Card) plan(rules []flow.Rule) (plans []plan) {
	rules = slices.Clone(rules)
	slices.SortStableFunc(rules, func(a, b flow.Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	for i := range rules {
		r := rules[i].Clone()
		p := plan{name: fmt.Sprintf("rule %d", r.ID)}
		if r.Name != "" {
			p.name = fmt.Sprintf("rule %q", r.Name)
		}
		switch {
		case slices.ContainsFunc(r.Actions, func(a flow.Action) bool { return a.Kind == flow.ToKernel }):
			continue // the kernel gets them on any queue
		case slices.ContainsFunc(r.Actions, func(a flow.Action) bool { return a.Kind == flow.Drop }):
			p.why = "it drops packets, which the program counts"
		default:
			for k := range r.Actions { // a receive queue is at home on one queue of the card
				if a := &r.Actions[k]; a.Kind == flow.ToQueue {
					a.Queue = uint16(c.o.Queues[int(a.Queue)%len(c.o.Queues)])
				}
			}
			entries, err := ntuple.Compile([]flow.Rule{r}, ntuple.Limits{})
			var problems flow.Problems
			if errors.As(err, &problems) {
				p.why = problems[0].Text
			} else if err != nil {
				p.why = err.Error()
			}
			for _, e := range entries {
				p.specs = append(p.specs, e.Spec)
			}
		}
		plans = append(plans, p)
	}
	return plans
}

// insert changes the card's table to that of the plans. The error is why nothing was inserted.
func (c *Card) insert(plans []plan) error {
	if c.why != nil {
		return c.why
	}
	t, err := ntuple.OpenTable(c.dev)
	if err != nil {
		return fmt.Errorf("%w: see \"ethtool -K %s ntuple on\", or \"penstock tune nic %s\"", err, c.o.Interface,
			c.o.Interface)
	}
	there := map[ethtool.FlowMeaning]bool{}
	for _, s := range t.Rules() {
		there[s.Meaning()] = true
	}
	wanted := map[ethtool.FlowMeaning]bool{}
	need := 0
	for i := range plans {
		p := &plans[i]
		for _, s := range p.specs {
			m := s.Meaning()
			// A rule of another program that says the same serves as well, and stays that
			// program's.
			if !wanted[m] && !there[m] {
				p.missing = append(p.missing, s)
			}
			wanted[m] = true
		}
		need += len(p.missing)
	}
	// A rule that another program took out is ours no more. Stale rules go when the new ones are
	// there, or before, to make room.
	c.now.Rules = slices.DeleteFunc(c.now.Rules, func(s ethtool.FlowSpec) bool { return !t.Has(s) })
	var stale []ethtool.FlowSpec
	for _, s := range c.now.Rules {
		if !wanted[s.Meaning()] {
			stale = append(stale, s)
		}
	}
	if need+len(stale) == 0 {
		return nil
	}
	if room := t.Room(); room >= 0 && need > room && len(stale) > 0 {
		if err := c.delete(t, stale); err != nil {
			return err
		}
		stale = nil
	}
	missing := fit(plans, t.Room())
	if len(missing) > 0 {
		if err := c.announce(missing); err != nil {
			return err
		}
	}
	for i := len(plans) - 1; i >= 0; i-- { // the last one gets the last place
		p := &plans[i]
		if p.why != "" || len(p.missing) == 0 {
			continue
		}
		var among []ethtool.FlowSpec // of greater precedence
		if t.Chooses() {
			for _, o := range plans[:i] {
				among = append(among, o.specs...)
			}
		}
		in, err := t.Insert(p.missing, among)
		if err != nil {
			p.why = err.Error()
			continue
		}
		c.now.Rules = append(c.now.Rules, in...)
	}
	err = errors.Join(c.delete(t, stale), c.keep())
	clear(there)
	for _, s := range t.Rules() {
		there[s.Meaning()] = true
	}
	for i := range plans { // one entry may stand for several rules
		p := &plans[i]
		if p.why == "" && slices.ContainsFunc(p.specs, func(s ethtool.FlowSpec) bool { return !there[s.Meaning()] }) {
			p.why = "another rule that needs the same entry was refused"
		}
	}
	return err
}

// fit is what is to be inserted: as much as there is room for, what has the greatest precedence
// first.
func fit(plans []plan, room int) (missing []ethtool.FlowSpec) {
	for i := range plans {
		p := &plans[i]
		switch {
		case p.why != "":
			continue
		case room >= 0 && len(p.missing) > room:
			p.why = fmt.Sprintf("%v: it takes %d more entries, and %d places are free", ethtool.ErrFull, len(p.missing),
				room)
			continue
		case room >= 0:
			room -= len(p.missing)
		}
		missing = append(missing, p.missing...)
	}
	return missing
}

// announce writes down the rules that are about to be inserted. None of them is in the card, ours
// or another program's.
func (c *Card) announce(missing []ethtool.FlowSpec) error {
	r := c.now
	r.Rules = slices.Clone(r.Rules)
	for _, s := range missing {
		s.Location = ethtool.AnyLocation
		r.Rules = append(r.Rules, s)
	}
	if len(r.Rules) > mostRules {
		return fmt.Errorf("card: %d n-tuple rules: expected at most %d", len(r.Rules), mostRules)
	}
	return c.store.save(&r)
}

// delete takes rules of ours out of the card.
func (c *Card) delete(t *ntuple.Table, rules []ethtool.FlowSpec) (err error) {
	for _, s := range rules {
		if e := t.Delete(s); e != nil {
			err = errors.Join(err, e)
			continue
		}
		c.now.Rules = slices.DeleteFunc(c.now.Rules, func(o ethtool.FlowSpec) bool { return o == s })
	}
	return err
}

// keep writes down what is in the card.
func (c *Card) keep() error {
	if len(c.now.Rules) == 0 && c.now.RSS == nil {
		return c.store.remove()
	}
	return c.store.save(&c.now)
}

// spread sees to it that packets which no rule steers arrive on the port's queues, if they are to.
func (c *Card) spread(need, all bool, rep *Report) error {
	if !need && c.now.RSS != nil {
		err := c.restoreTable()
		return errors.Join(err, c.keep())
	}
	if !need && !all {
		return nil
	}
	rss, err := c.dev.RSS()
	if err != nil || len(rss.Table) == 0 {
		if need {
			rep.Notes = append(rep.Notes,
				fmt.Sprintf("the port has queues %v of %d, and the driver does not tell how it spreads packets over "+
					"them: what comes on another queue goes to the kernel (\"ethtool -L %s\" changes their number)",
					c.o.Queues, c.o.Have, c.o.Interface))
		}
		return nil
	}
	outside := slices.ContainsFunc(rss.Table, func(q uint32) bool { return !slices.Contains(c.o.Queues, int(q)) })
	if !outside {
		var idle []int
		for _, q := range c.o.Queues {
			if !slices.Contains(rss.Table, uint32(q)) {
				idle = append(idle, q)
			}
		}
		if c.now.RSS != nil && slices.Equal(rss.Table, c.now.RSS.Ours) {
			rep.Notes = append(rep.Notes, c.spreads())
		}
		if idle != nil {
			rep.Notes = append(rep.Notes,
				fmt.Sprintf("the card's table of RSS gives nothing to queues %v: %q spreads packets over all", idle,
					c.command()))
		}
		return nil
	}
	if !need { // all queues are the port's, and the table names one that is not there
		return nil
	}
	fail := func(err error) error {
		return fmt.Errorf("%w: %s has %d queues, the port %v of them, and the kernel would get what comes on the "+
			"others: %w: \"%s\", or \"penstock tune nic %s --queues %d --apply\" and no Options.Queues, or all "+
			"queues for the port",
			ErrSpread, c.o.Interface, c.o.Have, c.o.Queues, err, c.command(), c.o.Interface, len(c.o.Queues))
	}
	if c.o.Leave { // look only: the notes say what would be wrong
		rep.Notes = append(rep.Notes, fail(c.why).Error())
		return nil
	}
	if c.why != nil {
		return fail(c.why)
	}
	ours := make([]uint32, len(rss.Table))
	for i := range ours {
		ours[i] = uint32(c.o.Queues[i%len(c.o.Queues)])
	}
	s := &spread{Before: rss.Table, Default: rss.Default(c.o.Have), Ours: ours}
	if c.now.RSS != nil { // another program has changed it since
		s.Before, s.Default = c.now.RSS.Before, c.now.RSS.Default
	}
	had := c.now.RSS
	c.now.RSS = s
	if err := c.keep(); err != nil {
		c.now.RSS = had
		return fail(err)
	}
	err = c.dev.SetRSSTable(ours)
	if err == nil {
		var got ethtool.RSS
		if got, err = c.dev.RSS(); err == nil && !slices.Equal(got.Table, ours) {
			err = fmt.Errorf("the card reports %v after the change: %w", got.Table, ethtool.ErrRefused)
		}
	}
	if err != nil {
		c.now.RSS = had
		return fail(errors.Join(err, c.keep()))
	}
	rep.Notes = append(rep.Notes, c.spreads())
	return nil
}

func (c *Card) spreads() string {
	return fmt.Sprintf("the card's table of RSS is set to queues %v while the port is open", c.o.Queues)
}

// command sets the table by hand.
func (c *Card) command() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ethtool -X %s weight", c.o.Interface)
	for q := range max(c.o.Have, c.o.Queues[len(c.o.Queues)-1]+1) {
		if slices.Contains(c.o.Queues, q) {
			b.WriteString(" 1")
		} else {
			b.WriteString(" 0")
		}
	}
	return b.String()
}

// restoreTable puts the table of RSS back, unless another program has changed it since.
func (c *Card) restoreTable() error {
	s := c.now.RSS
	if s == nil {
		return nil
	}
	rss, err := c.dev.RSS()
	if err == nil && slices.Equal(rss.Table, s.Ours) {
		err = c.putBack(s)
	}
	if err != nil {
		return fmt.Errorf("card: %s: put the table of RSS back: %w", c.o.Interface, err)
	}
	c.now.RSS = nil
	return nil
}

func (c *Card) putBack(s *spread) error {
	if s.Default {
		err := c.dev.SetRSSTable(nil)
		// Some drivers spread over all queues that they can have then, and not over those that
		// there are (virtio_net).
		if rss, e := c.dev.RSS(); err == nil && e == nil && slices.Equal(rss.Table, s.Before) {
			return nil
		}
	}
	return c.dev.SetRSSTable(s.Before)
}

// Close takes everything back that is still as it was set. What cannot be taken back stays in the
// record, for the next Open. A card that is gone (ethtool.ErrNoDevice) has nothing of ours any
// more.
func (c *Card) Close() error {
	if len(c.now.Rules) == 0 && c.now.RSS == nil {
		return nil
	}
	var errs []error
	if len(c.now.Rules) > 0 {
		errs = append(errs, c.takeOut())
	}
	errs = append(errs, c.restoreTable())
	err := errors.Join(errs...)
	if errors.Is(err, ethtool.ErrNoDevice) {
		c.now.Rules, c.now.RSS, err = nil, nil, nil
	}
	return errors.Join(err, c.keep())
}

// Forget gives a card up that is gone: another one may have its name, and nothing is asked of that.
func (c *Card) Forget() error {
	had := len(c.now.Rules) > 0 || c.now.RSS != nil
	c.now.Rules, c.now.RSS = nil, nil
	if !had {
		return nil
	}
	return c.store.remove()
}

// takeOut takes all rules of ours out of the card.
func (c *Card) takeOut() error {
	t, err := ntuple.OpenTable(c.dev)
	if errors.Is(err, ethtool.ErrNotSupported) { // an administrator has turned them off
		c.now.Rules = nil
		return nil
	}
	if err != nil {
		return err
	}
	there := t.Rules()
	var ours []ethtool.FlowSpec
	for _, s := range c.now.Rules {
		if s.Location != ethtool.AnyLocation {
			ours = append(ours, s)
			continue
		}
		// It was about to be inserted, and may be there or not.
		for _, r := range there {
			if r.Same(s) {
				ours = append(ours, r)
			}
		}
	}
	c.now.Rules = ours
	return c.delete(t, slices.Clone(ours))
}
