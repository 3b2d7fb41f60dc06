package xdp

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp/card"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/packet/flow"
)

// driver is the driver of the port's card: an *ethtool.Device, or a test's.
type driver interface {
	card.Device
	Driver() (ethtool.Driver, error)
	Rename(name string)
	Close() error
}

// openCard takes back what an earlier process left in the card. The program is on the interface,
// and the caller in the port's namespace.
func (p *Port) openCard() {
	open := p.o.driver
	if open == nil {
		open = func(name string) (driver, error) { return ethtool.Open(name) }
	}
	d, err := open(p.link.Name())
	if err != nil {
		p.notes = append(p.notes, "the card is left as it is: "+err.Error())
		return
	}
	bus := ""
	if x, err := d.Driver(); err == nil {
		bus = x.Bus
	}
	id, err := card.Identify(p.link.Index(), bus)
	if err != nil {
		p.notes = append(p.notes, "the card is left as it is: "+err.Error())
		_ = d.Close()
		return
	}
	p.driver = d
	p.card, err = card.Open(d, card.Options{Interface: p.link.Name(), Identity: id, Queues: p.o.Queues,
		Have: p.link.RxQueues(), Dir: p.o.records, Leave: p.o.LeaveCard})
	if err != nil {
		p.notes = append(p.notes, err.Error())
	}
}

// steer makes the card do what it can of these rules. The error says that packets which are the
// port's would go to the kernel. The caller holds rules.
func (p *Port) steer(rules []flow.Rule, rest flow.Isolation) error {
	if p.card == nil || p.link.Gone() {
		return nil
	}
	p.driver.Rename(p.link.Name())
	r, err := p.card.Set(card.Want{Rules: rules, All: rest.Unmatched == flow.Deliver})
	if err != nil && !is(err, card.ErrSpread) {
		r.Notes = append(r.Notes, err.Error())
		err = nil
	}
	p.report.Store(&r)
	if err != nil {
		kind := engine.ErrUnsupported
		if is(err, ethtool.ErrNotPermitted) {
			kind = engine.ErrUnavailable
		}
		return fmt.Errorf("xdp: %s: %w: %w", p.name, err, kind)
	}
	return nil
}

// closeCard puts the card back as it was.
func (p *Port) closeCard() error {
	p.rules.Lock()
	defer p.rules.Unlock()
	if p.driver == nil {
		return nil
	}
	var err error
	if p.link.Gone() {
		err = p.card.Forget()
	} else {
		p.driver.Rename(p.link.Name())
		err = p.card.Close()
	}
	err = errors.Join(err, p.driver.Close())
	p.driver, p.card = nil, nil
	return err
}
