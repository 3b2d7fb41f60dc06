//go:build dpdk

package dpdk

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/internal/sys"
)

// start configures the port for the queues that are there and those that are expected, and starts
// it. The caller holds the set's lock.
func (p *Port) start() error { return p.ns.Do(p.startHere) }

func (p *Port) startHere() (err error) {
	live := p.rx.Live()
	rx, tx := max(len(live), 1), max(p.spec.TxQueues, 1)
	for _, q := range append(slices.Clone(p.txs), p.leftTx...) {
		tx = max(tx, q.n+1)
	}
	defer p.pause()()
	if p.state == portStarted {
		if err := p.stop(live); err != nil {
			return err
		}
	}
	c := cdpdk.Config{Rx: rx, Tx: tx, MTU: p.info.MTU, RxOffloads: p.receives(), TxOffloads: p.offloads()}
	if c.RxOffloads&cdpdk.RxTime|c.TxOffloads&cdpdk.TxTime != 0 {
		if err := p.clock.start(); err != nil {
			return err
		}
	}
	if hashes := c.RxOffloads&cdpdk.RxRSSHash != 0; rx > 1 || hashes {
		c.RSSTypes, c.RSSKey = p.rss(), p.o.RSSKey
		if c.RSSTypes == 0 { // a hash without RSS is refused
			c.RxOffloads &^= cdpdk.RxRSSHash
		}
	}
	if err := p.dev.Configure(c); err != nil {
		return err
	}
	if err := p.place(live, rx); err != nil {
		return err
	}
	for n, h := range p.halves {
		if err := p.setupRx(n, h, c.RxOffloads); err != nil {
			return err
		}
	}
	rings := make([]int, tx)
	for n := range rings {
		rings[n] = p.sendRing(2 * sendRing)
	}
	for _, q := range p.txs {
		rings[q.n] = q.ring
	}
	for n, ring := range rings {
		if err := p.dev.SetupTx(n, ring, c.TxOffloads&p.info.TxQueueOffloads); err != nil {
			return err
		}
	}
	err = p.dev.Start()
	p.away = err != nil && p.redial != nil
	switch {
	case p.away:
	case errors.Is(err, sys.ENOMEM):
		return fmt.Errorf("%w: a driver fills its rings when it starts: make the pools of receive queues larger than "+
			"their depth", err)
	case err != nil:
		return err
	}
	p.state, p.rings, p.config = portStarted, rings, c
	p.begin(live)
	for _, q := range p.txs {
		q.limit()
	}
	if info, err := p.dev.Info(); err == nil {
		p.info.MAC = info.MAC // some drivers know it only now
	}
	if err := p.spread(rx); err != nil {
		return err
	}
	if p.redial != nil {
		p.redial.Reset(redialEvery)
	}
	if p.away {
		return nil
	}
	if p.o.Promiscuous {
		if err := p.dev.Promiscuous(true); err != nil {
			return fmt.Errorf("promiscuous: %w", err)
		}
	}
	return p.install(p.table.Snapshot().Rules(), live)
}

// setupRx sets up a receive queue of the device.
func (p *Port) setupRx(n int, h *half, offloads uint64) error {
	return p.dev.SetupRx(n, p.receiveRing(h), h.own, h.head, h.at, offloads&p.info.RxQueueOffloads)
}

// spread has RSS spread packets over the first queues of the device.
func (p *Port) spread(n int) error {
	if p.info.RetaSize == 0 || p.config.RSSTypes == 0 {
		return nil
	}
	queues := make([]uint16, n)
	for i := range queues {
		queues[i] = uint16(i)
	}
	return p.dev.Spread(p.info.RetaSize, queues)
}

// suspend ends the last receive queue of the device while the port runs on. It is false where that
// cannot be: the port starts again then.
func (p *Port) suspend(h *half) bool {
	n := len(p.halves) - 1
	if n < 1 || p.halves[n] != h || p.info.DevCapa&cdpdk.SetupWhileRunning == 0 || p.config.RSSTypes != 0 &&
		p.info.RetaSize == 0 {
		return false
	}
	p.halves = p.halves[:n:n]
	return p.spread(n) == nil && p.install(p.table.Snapshot().Rules(), p.rx.Live()) == nil &&
		p.dev.RunRx(n, false) == nil
}

// resume begins a receive queue that takes the place of one that was suspended. It is false where
// there is none.
func (p *Port) resume(live []*rxQueue) bool {
	n := len(p.halves)
	if !p.inPlace || n >= p.config.Rx || len(live) != n+1 || p.receives()&^p.config.RxOffloads != 0 {
		return false
	}
	for i, h := range p.halves {
		if live[i].h != h {
			return false
		}
	}
	q := live[n]
	q.hw.Lock()
	defer q.hw.Unlock()
	q.h.rx.Move(n)
	if q.h.lent == nil {
		q.h.fill()
	}
	if p.setupRx(n, q.h, p.config.RxOffloads) != nil || p.dev.RunRx(n, true) != nil {
		return false
	}
	p.halves = append(p.halves[:n:n], q.h)
	q.on = true
	return p.spread(n+1) == nil
}

// rss is what the device hashes to spread packets over its queues, of what the options name.
func (p *Port) rss() (types uint64) {
	for _, t := range p.o.RSSTypes {
		types |= [...]uint64{RSSIP: cdpdk.RSSIP, RSSTCP: cdpdk.RSSTCP, RSSUDP: cdpdk.RSSUDP, RSSSCTP: cdpdk.RSSSCTP,
			RSSEthernet: cdpdk.RSSEthernet, RSSVLAN: cdpdk.RSSVLAN}[t]
	}
	return types & p.info.RSSTypes
}

// stop stops the device, of which no queue is used meanwhile.
func (p *Port) stop(live []*rxQueue) error {
	for _, q := range live {
		q.on = false
	}
	for _, q := range p.txs {
		q.started = false
	}
	p.state = portAttached
	p.steer.Lock()
	p.uninstall()
	p.steer.Unlock()
	return p.dev.Stop()
}

// dial starts a driver that connects when it starts again, while it is not connected.
func (p *Port) dial() {
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.state != portStarted {
		return
	}
	defer p.redial.Reset(redialEvery)
	if up, _, err := p.dev.Link(); !p.away && (err != nil || up) {
		return
	}
	live := p.rx.Live()
	defer p.pause()()
	if !p.away {
		if err := p.stop(live); err != nil {
			return
		}
		p.state = portStarted
	}
	if p.away = p.dev.Start() != nil; !p.away {
		p.begin(live)
		_ = p.install(p.table.Snapshot().Rules(), live) // no driver that connects isolates
	}
}

// begin has the queues use the device, if it has started. None of them does meanwhile.
func (p *Port) begin(live []*rxQueue) {
	for _, q := range live {
		q.on = !p.away
	}
	for _, q := range p.txs {
		q.started = !p.away
	}
}

// pause has no queue use the device until the result is called.
func (p *Port) pause() (goOn func()) {
	rxs, txs := slices.Clone(p.rx.Live()), slices.Clone(p.txs)
	for _, q := range rxs {
		q.hw.Lock()
	}
	for _, q := range txs {
		q.mu.Lock()
	}
	return func() {
		for _, q := range rxs {
			q.hw.Unlock()
		}
		for _, q := range txs {
			q.mu.Unlock()
		}
	}
}
