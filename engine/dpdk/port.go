//go:build dpdk

package dpdk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Port is an open port. It implements engine.Port.
type Port struct {
	spec engine.PortSpec
	o    Options
	name string
	dev  cdpdk.Port
	card cdpdk.Device
	// the network namespace in which it was opened, where drivers over the kernel find their
	// interfaces
	ns   *netif.Namespace
	info cdpdk.Info
	can  engine.Capabilities
	regs *mem.RegCache // memory that the device reaches; nil for a virtual one

	depth   int    // descriptors of a queue that nothing says more of
	inPlace bool   // receive queues receive into their pools
	makes   bool   // the device makes packets when it is asked for some
	reads   bool   // the device sends from any memory
	chains  bool   // the device sends chains of segments
	lazy    bool   // the driver may keep what it has sent until it needs the descriptor
	clock   *clock // of the device; nil where it has none

	table  *flow.Table
	steer  steering
	counts engine.SteerCounts

	// rx are the receive queues. Its lock also guards the next fields.
	rx      engine.RxSet[*rxQueue]
	state   portState
	txs     []*txQueue
	gone    []*txQueue // the last that were closed
	pastTx  engine.TxStats
	halves  []*half      // what the device receives into, by its number of the queue
	rings   []int        // descriptors of its queues to send by
	leftTx  []*txQueue   // that were closed, whose memory the driver still has
	left    []*half      // of queues that were closed, whose mbufs the driver still has
	closing *half        // of the queue that is being closed
	config  cdpdk.Config // that the device has
	limited map[int]bool // its queues whose rate it limits
	ended   cdpdk.Stats  // the driver's counts when the port was closed
	redial  *time.Timer  // of a driver that connects when it starts; nil of others
	away    bool         // the device could not start, because no peer is at the other end yet

	bell engine.LinkBell
	link struct {
		sync.Mutex
		timer *time.Timer // nil until LinkState is called
		engine.LinkState
	}
}

// portState is how far a port is.
type portState uint8

const (
	portAttached portState = iota // it waits for its queues
	portStarted
	portClosed
)

// redialEvery is how often a driver tries to connect.
const redialEvery = 100 * time.Millisecond

// linkEvery is how often the state of the link is looked at.
const linkEvery = 500 * time.Millisecond

// opened are the ports of DPDK that ports of this process have.
var opened sync.Map // by cdpdk.Port

func open(spec engine.PortSpec, where string, o Options) (_ *Port, err error) {
	ids, err := cdpdk.Attach(where)
	if err != nil {
		return nil, unavailable(err)
	}
	if _, taken := opened.LoadOrStore(ids[0], true); taken {
		// DPDK attaches a device that it has once more, and means the same
		return nil, fmt.Errorf("dpdk: %s: another port of this process has the device: %w", spec.Address,
			engine.ErrInUse)
	}
	p := &Port{spec: spec, o: o, name: spec.Name, dev: ids[0], card: ids[0].Device(), depth: 1024}
	if o.Descriptors > 0 {
		p.depth = o.Descriptors
	}
	if p.name == "" {
		p.name = spec.Address
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("dpdk: %s: %w", p.name, err), p.dev.Close(), p.card.Remove())
			opened.Delete(p.dev)
			if p.ns != nil {
				err = errors.Join(err, p.ns.Close())
			}
		}
	}()
	if p.ns, err = netif.OpenNamespace(); err != nil {
		return nil, err
	}
	if len(ids) > 1 {
		return nil, fmt.Errorf("the device has %d ports: representors are not supported: %w", len(ids),
			engine.ErrUnsupported)
	}
	if p.info, err = p.dev.Info(); err != nil {
		return nil, err
	}
	if spec.MTU > 0 {
		if err := p.dev.SetMTU(spec.MTU); err != nil && spec.MTU != p.info.MTU {
			return nil, fmt.Errorf("MTU of %d bytes: expected %d to %d: %w", spec.MTU, p.info.MinMTU, p.info.MaxMTU,
				err)
		}
		p.info.MTU = spec.MTU
	}
	p.arrange(where)
	p.isolate()
	p.keepTime()
	if dials(where) {
		p.redial = time.AfterFunc(redialEvery, p.dial)
		p.redial.Stop()
	}
	if p.info.Bus != "vdev" && p.o.Memory != MemoryLent {
		if p.regs, err = mem.NewRegCache(mem.RegCacheOptions{Name: p.name, Registrar: p.registrar()}); err != nil {
			return nil, err
		}
	}
	p.table, err = flow.NewTable(flow.TableOptions{Engine: p.can.Steering})
	return p, err
}

// arrange says where packets lie and what the port can do.
func (p *Port) arrange(where string) {
	why := external(where)
	if p.o.Memory == MemoryLent {
		why = "memory: lent says so"
	}
	p.inPlace = p.o.Memory == MemoryInPlace || why == ""
	p.reads = reads(where) && !cdpdk.Physical() && (p.info.Bus == "vdev" || p.o.Memory != MemoryLent)
	p.makes = driver(where) == "net_null"
	p.lazy = p.info.Bus != "vdev" || driver(where) == "net_virtio_user"
	p.chains = p.info.TxOffloads&cdpdk.TxMultiSegs != 0
	c, _ := (*Engine)(nil).PortCapabilities(p.spec)
	c.Notes = []string{
		"receiving is polling: a reader looks again after a pause, or always with a spin",
		"a queue that is added to a running port, or closed, stops it for a moment",
		"DPDK runs with: " + strings.Join(cdpdk.Running(), " "),
	}
	if !p.inPlace {
		c.MemoryUse = engine.UseCopied
		c.Notes = append(c.Notes, "packets are copied into the pools of a queue, and not for a queue without pools: "+
			why)
	}
	c.ZeroCopyForward = p.reads
	switch driver(where) {
	// a full virtqueue refuses packets, and its other end takes them out one for one
	case "net_vhost", "net_virtio_user":
		c.Lossless = true
	}
	c.RxQueues, c.TxQueues = min(p.info.MaxRxQueues, maxQueues), min(p.info.MaxTxQueues, maxQueues)
	c.MaxPacket = p.info.MTU + packet.EthernetLen + 2*packet.VLANLen
	if p.info.MaxRxPkt > 0 {
		c.MaxPacket = min(c.MaxPacket, p.info.MaxRxPkt)
	}
	if p.offloads()&checksums != checksums {
		c.TxChecksum = "software"
	}
	c.Hash = p.info.RSSTypes != 0 && p.info.RxOffloads&cdpdk.RxRSSHash != 0
	c.Chains = p.inPlace && p.chains && p.info.RxOffloads&cdpdk.RxScatter != 0
	if p.cuts(cdpdk.TxCutTCP | cdpdk.TxCutUDP) {
		c.TxSegmentation = "device"
		if !p.cuts(cdpdk.TxCutTCP) || !p.cuts(cdpdk.TxCutUDP) {
			c.Notes = append(c.Notes, "the device segments TCP or UDP, and software the other")
		}
	}
	if p.inPlace && p.info.Split > 1 {
		c.Notes = append(c.Notes,
			"the device splits headers from data (buffer split) where split_at says the place: headers are copied "+
				"into their slots, data lies where the device wrote it")
	} else {
		c.Notes = append(c.Notes, "header/data split copies each packet, in software (RxStats.Copied)")
	}
	p.can = c
}

// keepTime reads the device's clock, where times of packets could be told by it.
func (p *Port) keepTime() {
	p.can.HardwareTime = false
	if p.info.RxOffloads&cdpdk.RxTime == 0 && p.info.TxOffloads&cdpdk.TxTime == 0 {
		return
	}
	c, err := newClock(p.dev.Clock)
	if err == nil {
		err = cdpdk.RegisterTimes()
	}
	if err != nil {
		p.can.Notes = append(p.can.Notes, "no times of the device, because its clock cannot be read: "+err.Error())
		return
	}
	p.clock = c
	p.can.HardwareTime = p.info.RxOffloads&cdpdk.RxTime != 0
	if p.info.TxOffloads&cdpdk.TxTime != 0 {
		p.can.SendAtIn = "device"
	}
}

// tell adds a note to the capabilities. The caller holds the lock of the set of queues.
func (p *Port) tell(note string) {
	p.steer.Lock()
	defer p.steer.Unlock()
	if !slices.Contains(p.can.Notes, note) {
		p.can.Notes = append(slices.Clone(p.can.Notes), note)
	}
}

// cuts reports whether the device segments packets of some of these kinds.
func (p *Port) cuts(kinds uint64) bool { return p.offloads()&kinds != 0 }

// checksums are the offloads of a device that computes those of what it sends.
const checksums = cdpdk.TxIPv4Checksum | cdpdk.TxUDPChecksum | cdpdk.TxTCPChecksum

// offloads are those that the port asks its device for when it sends.
func (p *Port) offloads() uint64 {
	want := p.info.TxOffloads & cdpdk.TxMultiSegs
	if p.info.TxOffloads&checksums == checksums {
		want |= checksums
		if p.chains && p.reads && p.info.Driver != "net_tap" {
			// a chain that net_tap was to segment crashed in its transmit function; the cause is
			// not known
			want |= p.info.TxOffloads & (cdpdk.TxCutTCP | cdpdk.TxCutUDP)
		}
	}
	if slices.ContainsFunc(p.txs, func(q *txQueue) bool { return q.held }) {
		want |= cdpdk.TxTime
	}
	return want
}

// receives are the offloads that the port asks its device for when it receives.
func (p *Port) receives() uint64 {
	want := uint64(cdpdk.RxChecksum | cdpdk.RxScatter | cdpdk.RxRSSHash)
	if p.can.HardwareTime && slices.ContainsFunc(p.rx.Live(), func(q *rxQueue) bool { return q.Spec().HardwareTime }) {
		want |= cdpdk.RxTime // drivers are slower with it
	}
	return p.info.RxOffloads & want
}

// Name implements engine.Port.
func (p *Port) Name() string { return p.name }

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities {
	p.steer.Lock()
	defer p.steer.Unlock()
	c := p.can
	c.Notes = append(slices.Clone(c.Notes), p.steer.lines...)
	return c
}

// Info implements engine.Port.
func (p *Port) Info() engine.PortInfo {
	up, speed, _ := p.dev.Link()
	return engine.PortInfo{Engine: Name, Address: p.spec.Address, Device: p.info.Name, MAC: p.mac(), MTU: p.info.MTU,
		Up: up && p.started(), Speed: speed, NUMA: p.info.NUMA}
}

func (p *Port) mac() packet.MAC { return packet.MAC(p.info.MAC) }

func (p *Port) started() bool {
	p.rx.Lock()
	defer p.rx.Unlock()
	return p.state == portStarted
}

// LinkState implements engine.LinkReporter. The port looks at the link twice a second from the
// first call on.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	p.look()
	p.link.Lock()
	defer p.link.Unlock()
	return p.link.LinkState
}

// look looks at the link, and does so again after a while.
func (p *Port) look() {
	started := p.started()
	up, _, _ := p.dev.Link()
	gone := p.dev.Removed()
	up = up && started && !gone
	p.link.Lock()
	defer p.link.Unlock()
	switch {
	case p.link.Gone:
		return
	case gone:
		p.link.Gone = true
		p.bell.Ring()
	case p.link.timer == nil:
		p.link.timer = time.AfterFunc(linkEvery, p.look)
		p.link.Up = up
	default:
		p.link.timer.Reset(linkEvery)
	}
	if up != p.link.Up {
		p.link.Up = up
		p.link.Changes++
		p.bell.Ring()
	}
}

// Rules implements engine.Port: it is a *Rules.
func (p *Port) Rules() engine.Rules { return &Rules{p} }

// Rules are the steering rules of a port. The device does what it can of them, and software the
// rest: the queue that takes a frame from the device passes it on. See package rteflow.
type Rules struct{ port *Port }

// List implements engine.Rules.
func (r *Rules) List() []flow.Rule { return r.port.table.List() }

// Apply makes all changes or none; see flow.Table. They are in force for every packet that is taken
// from the device afterwards.
func (r *Rules) Apply(changes ...flow.Change) (flow.Result, error) {
	p := r.port
	p.rx.Lock()
	live := p.rx.Live()
	res, err := p.table.Install(func(next *flow.Snapshot) error {
		err := p.install(next.Rules(), live)
		if err != nil {
			_ = p.install(p.table.Snapshot().Rules(), live)
		}
		return err
	}, changes...)
	p.rx.Unlock()
	if err == nil {
		for _, q := range live {
			q.barrier()
		}
	}
	return res, err
}

// Check implements engine.RuleChecker.
func (r *Rules) Check(changes ...flow.Change) error { return r.port.check(changes) }

// Stats are the packets that each rule matched, in software and in the device.
func (r *Rules) Stats() flow.Stats {
	s := r.port.table.Stats()
	_, byRule := r.port.discarded()
	for i := range s.Rules {
		n := byRule[s.Rules[i].ID]
		s.Rules[i].Packets += n.Packets
		s.Rules[i].Bytes += n.Bytes
	}
	return s
}

// Stats implements engine.Port. What the device has dropped is the port's: it does not say of which
// queue.
func (p *Port) Stats(s *engine.PortStats) {
	p.rx.Lock()
	defer p.rx.Unlock()
	*s = engine.PortStats{Tx: p.pastTx}
	p.rx.Sum(&s.Rx)
	p.counts.AddTo(s)
	n, _ := p.discarded()
	s.Drops[engine.DropRule] += n
	engine.SumTx(&s.Tx, p.txs, p.gone)
	d := p.ended
	if p.state != portClosed {
		d = p.driverStats()
	}
	s.Drops[engine.DropNIC] += d.Imissed
	s.Drops[engine.DropBadFrame] += d.Ierrors
	switch p.info.Driver {
	// elsewhere RxNoMbuf counts attempts that are repeated, and Oerrors also packets that the
	// driver did not take
	case "net_tap":
		s.Drops[engine.DropNoBuffers] += d.RxNoMbuf
	case "net_af_packet":
		s.Tx.Drops[engine.DropRefused] += d.Oerrors
		s.Tx.Packets -= min(s.Tx.Packets, d.Oerrors)
	}
	p.link.Lock()
	s.LinkChanges = p.link.Changes
	p.link.Unlock()
}

// driverStats are the driver's counts, zero before the device has started once: net_vhost crashes
// when it is asked then.
func (p *Port) driverStats() (s cdpdk.Stats) {
	if len(p.rings) > 0 {
		s, _ = p.dev.Stats()
	}
	return s
}

// Families implements engine.Counted: the driver's own counts.
func (p *Port) Families(name string) []metrics.Family {
	names, values, err := p.xstats()
	if err != nil || len(names) == 0 {
		return nil
	}
	f := metrics.Family{Name: "penstock_dpdk_driver_total",
		Help: "Counts of the poll-mode driver (rte_eth_xstats_get).", Kind: metrics.KindCounter,
		Labels: []string{"port", "count"}}
	for i, n := range names {
		f.Samples = append(f.Samples, metrics.Sample{Values: []string{name, n}, Value: float64(values[i])})
	}
	return []metrics.Family{f}
}

func (p *Port) xstats() ([]string, []uint64, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.state == portClosed {
		return nil, nil, engine.ErrClosed
	}
	if len(p.rings) == 0 { // see driverStats
		return nil, nil, nil
	}
	return p.dev.XStats()
}

// ring is the number of descriptors for a queue of that depth.
func (p *Port) ring(depth int) int {
	if p.o.Descriptors > 0 {
		return p.o.Descriptors
	}
	return depth
}

// descriptors is the size of a ring that the driver takes, for so many packets.
func descriptors(want, least, most, align int) int {
	align = max(align, 1)
	n := (max(want, least, 32) + align - 1) / align * align
	if most > 0 {
		n = min(n, most/align*align)
	}
	return min(n, 1<<15)
}

// due starts the port when its queues are there. The caller holds the set's lock.
func (p *Port) due() error {
	live := p.rx.Live()
	switch {
	// served and sending have them go on
	case p.state == portStarted && p.has() && (p.resume(live) || p.served(live)) && p.sending():
		return p.install(p.table.Snapshot().Rules(), live)
	case p.state == portAttached && len(live) < p.spec.RxQueues:
		return nil // more are to come
	}
	if err := p.start(); err != nil {
		hint := ""
		if p.spec.RxQueues == 0 {
			hint = ": a driver may take its number of queues only once: say it beforehand (PortSpec.RxQueues, TxQueues)"
		}
		return fmt.Errorf("starting driver %s: %w%s", p.info.Driver, advised(err), hint)
	}
	return nil
}

// has reports whether the device was configured for all that its queues ask for.
func (p *Port) has() bool {
	return (p.receives()&cdpdk.RxTime)&^p.config.RxOffloads == 0 && p.offloads()&^p.config.TxOffloads == 0
}

// sending reports whether the device sends by each transmit queue, after it has had those begin by
// which it does. The caller holds the set's lock.
func (p *Port) sending() bool {
	for _, q := range p.txs {
		if q.n >= len(p.rings) || q.ring < p.rings[q.n] {
			return false
		}
		if !q.started && !p.away {
			q.limit()
			q.mu.Lock()
			q.started = true
			q.mu.Unlock()
		}
	}
	return true
}

// Close implements engine.Port. Bursts of lent memory stay valid.
func (p *Port) Close() error {
	rxs, first := p.rx.End()
	if !first {
		return nil
	}
	p.link.Lock()
	p.link.Gone = true
	if p.link.timer != nil {
		p.link.timer.Stop()
	}
	p.link.Unlock()
	var errs []error
	p.rx.Lock()
	if p.state == portStarted {
		goOn := p.pause()
		errs = append(errs, p.stop(rxs))
		goOn()
	}
	txs := slices.Clone(p.txs)
	p.rx.Unlock()
	for _, q := range rxs {
		errs = append(errs, q.Close())
	}
	for _, q := range txs {
		errs = append(errs, q.Close())
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	p.ended = p.driverStats()
	p.state = portClosed
	if p.redial != nil {
		p.redial.Stop()
	}
	halves := slices.DeleteFunc(append(p.halves, p.left...), func(h *half) bool { return h == nil })
	errs = append(errs, p.unreach(halves))
	closed := p.shut()
	errs = append(errs, closed)
	for _, h := range halves {
		errs = append(errs, h.close())
	}
	for _, q := range p.leftTx {
		errs = append(errs, q.finish())
	}
	if closed == nil {
		errs = append(errs, p.card.Remove())
	}
	opened.Delete(p.dev)
	errs = append(errs, p.ns.Close())
	return errors.Join(errs...)
}

// shut has the driver free what it still has. net_af_xdp takes its program off the interface, which
// it finds in the port's namespace only.
func (p *Port) shut() error {
	done := false
	err := p.ns.Do(func() error { done = true; return p.dev.Close() })
	if !done { // the namespace cannot be entered
		err = errors.Join(err, p.dev.Close())
	}
	return err
}
