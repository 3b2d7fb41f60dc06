package cli

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/stage/record"
	root "github.com/penstock-io/penstock/system"
	"github.com/penstock-io/penstock/transfer/observe"
)

// A runSample is what `penstock run` shows at one moment: counts since the start, and rates since
// the sample before. Its JSON form is the event "sample", see penstock help json.
type runSample struct {
	Event        string         `json:"event"`
	Seconds      float64        `json:"seconds"`      // since the start
	Interval     float64        `json:"interval"`     // seconds that the rates are of
	CPU          float64        `json:"cpu"`          // processors that the process used in the interval
	Interfaces   []runInterface `json:"interfaces"`   //
	Drops        []runDrop      `json:"drops"`        // of interfaces, queues and applications, by place and reason
	Queues       []runQueue     `json:"queues"`       //
	Pools        []runPool      `json:"pools"`        //
	Rules        []runRule      `json:"rules"`        //
	Stages       []runStage     `json:"stages"`       // what stages count besides packets and drops
	Recordings   []runRecording `json:"recordings"`   // of the stages record
	Applications []runApp       `json:"applications"` //
	Node         *runNode       `json:"node,omitempty"`
}

// runFlow is packets in one direction.
type runFlow struct {
	Packets          uint64  `json:"packets"`
	Bytes            uint64  `json:"bytes"`
	PacketsPerSecond float64 `json:"packets_per_second"`
	BitsPerSecond    float64 `json:"bits_per_second"`
}

type runInterface struct {
	Name    string  `json:"name"`
	Engine  string  `json:"engine"`
	Device  string  `json:"device,omitempty"`
	Up      bool    `json:"up"`
	In      runFlow `json:"in"`
	Out     runFlow `json:"out"`
	Dropped uint64  `json:"dropped"` // both ways
	Kernel  uint64  `json:"kernel"`  // left to the kernel
	Copied  uint64  `json:"copied_bytes"`
}

// runRecording is what a stage writes to files.
type runRecording struct {
	Where string `json:"where"` // queue and stage
	*record.Snapshot
}

// runStage is what a stage counts, such as whole batches.
type runStage struct {
	Where     string  `json:"where"` // queue and stage
	Event     string  `json:"event"`
	Count     uint64  `json:"count"`
	PerSecond float64 `json:"per_second"`
}

type runDrop struct {
	Where            string  `json:"where"` // "near in", "near out", or the name of an application
	Reason           string  `json:"reason"`
	Packets          uint64  `json:"packets"`
	PacketsPerSecond float64 `json:"packets_per_second"`

	iface string // that it is of; "": an application
}

type runQueue struct {
	Interface string `json:"interface"`
	ID        int    `json:"id"`
	Direction string `json:"direction"` // in, out
	Poller    string `json:"poller,omitempty"`
	Core      int    `json:"core"`   // of the poller; -1: any
	Held      uint64 `json:"held"`   // in: bursts that wait for the application; out: packets that have not left
	Of        int    `json:"of"`     // room for such
	Stalls    uint64 `json:"stalls"` // in: times that all bursts were out; out: times that descriptors were missing
	Packets   uint64 `json:"packets"`
	Dropped   uint64 `json:"dropped"`
}

type runPool struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Slots     int    `json:"slots"`
	Used      int    `json:"used"`
	Lowest    int    `json:"lowest_free"` // of what was seen
	Exhausted uint64 `json:"exhausted"`
}

type runRule struct {
	Interface        string  `json:"interface"`
	ID               uint32  `json:"id"`
	Name             string  `json:"name"`
	Rule             string  `json:"rule"`
	Packets          uint64  `json:"packets"`
	Bytes            uint64  `json:"bytes"`
	PacketsPerSecond float64 `json:"packets_per_second"`
	Closed           uint64  `json:"closed"` // of its flow: waited at the end, and no application received them
}

type runApp struct {
	app.Snapshot
	From, To         string  `json:"-"`
	PacketsPerSecond float64 `json:"packets_per_second"`
	BitsPerSecond    float64 `json:"bits_per_second"`
	SentPerSecond    float64 `json:"sent_per_second"`
	Ended            string  `json:"ended,omitempty"` // why, if it has
}

type runNode struct {
	Name         string    `json:"name"`
	Addresses    []string  `json:"addresses"`
	In           uint64    `json:"bytes_in"` // of the peers that are connected
	Out          uint64    `json:"bytes_out"`
	InPerSecond  float64   `json:"bytes_in_per_second"`
	OutPerSecond float64   `json:"bytes_out_per_second"`
	Running      int       `json:"transfers"`
	Peers        []runPeer `json:"peers"`
	PeersEver    uint64    `json:"peers_ever"`
}

type runPeer struct {
	Name         string  `json:"name"`
	ID           uint64  `json:"id"`
	Paths        string  `json:"paths"` // that it has
	Security     string  `json:"security"`
	In           uint64  `json:"bytes_in"`
	Out          uint64  `json:"bytes_out"`
	InPerSecond  float64 `json:"bytes_in_per_second"`
	OutPerSecond float64 `json:"bytes_out_per_second"`
}

// runRaw is what a sample is made of.
type runRaw struct {
	at  time.Time
	cpu time.Duration
	sys root.Snapshot
}

// cpuNow is the processor time of the process; 0 where the kernel does not say.
func cpuNow() time.Duration {
	d, _ := sys.ProcessCPU()
	return d
}

// sampler turns what is read into samples. It remembers what the rates need.
type sampler struct {
	plan   *root.Plan
	first  time.Time
	last   *runRaw
	lowest map[string]int // free slots of pools
}

func newSampler(p *root.Plan, now time.Time) *sampler {
	return &sampler{plan: p, first: now, lowest: map[string]int{}}
}

// sample is the sample of now; what is now becomes what the next one is compared with.
func (m *sampler) sample(now *runRaw) *runSample {
	last := m.last
	m.last = now
	s := &runSample{Event: "sample", Seconds: now.at.Sub(m.first).Seconds(), Interfaces: []runInterface{},
		Drops: []runDrop{}, Queues: []runQueue{}, Pools: []runPool{}, Rules: []runRule{}, Stages: []runStage{},
		Recordings:   []runRecording{},
		Applications: []runApp{}}
	if last == nil {
		last = &runRaw{at: m.first, cpu: now.cpu}
	}
	s.Interval = now.at.Sub(last.at).Seconds()
	per := func(now, last uint64) float64 {
		if s.Interval <= 0 || now < last {
			return 0
		}
		return float64(now-last) / s.Interval
	}
	if s.Interval > 0 {
		s.CPU = (now.cpu - last.cpu).Seconds() / s.Interval
	}
	for i := range now.sys.Interfaces {
		m.iface(s, &now.sys.Interfaces[i], interfaceOf(last, i), per, now)
	}
	for _, r := range now.sys.Regions {
		free := r.Stats.Slots - r.Stats.InUse
		low, known := m.lowest[r.Name]
		if !known || free < low {
			low = free
		}
		m.lowest[r.Name] = low
		s.Pools = append(s.Pools, runPool{r.Name, r.Kind.String(), r.Stats.Slots, r.Stats.InUse, low,
			r.Stats.Exhausted})
	}
	for i := range now.sys.Applications {
		a, was := &now.sys.Applications[i], root.ApplicationSnapshot{}
		if i < len(last.sys.Applications) {
			was = last.sys.Applications[i]
		}
		s.Applications = append(s.Applications, runApp{a.Snapshot, a.From, a.To, per(a.Packets, was.Packets),
			8 * per(a.Bytes, was.Bytes), per(a.Sent, was.Sent), a.Ended})
		for reason, n := range a.Drops {
			if n > 0 {
				s.Drops = append(s.Drops, runDrop{a.Name, app.Drop(reason).String(), n, per(n, was.Drops[reason]), ""})
			}
		}
	}
	if n := now.sys.Node; n != nil {
		s.Node = nodeSample(n, last.sys.Node, per)
	}
	return s
}

func queueName(iface string, id int) string { return fmt.Sprintf("%s/%d", iface, id) }

func interfaceOf(r *runRaw, i int) *root.InterfaceSnapshot {
	if i < len(r.sys.Interfaces) {
		return &r.sys.Interfaces[i]
	}
	return &root.InterfaceSnapshot{}
}

func flowOf(packets, bytes, wasPackets, wasBytes uint64, per func(now, last uint64) float64) runFlow {
	return runFlow{packets, bytes, per(packets, wasPackets), 8 * per(bytes, wasBytes)}
}

func (m *sampler) iface(s *runSample, f, was *root.InterfaceSnapshot, per func(now, last uint64) float64, now *runRaw) {
	x, y := &f.Stats, &was.Stats
	in, before := x.Drops, y.Drops // of the port, and of its queues
	in.Add(&x.Rx.Drops)
	before.Add(&y.Rx.Drops)
	s.Interfaces = append(s.Interfaces, runInterface{
		Name: f.Name, Engine: f.Info.Engine, Device: f.Info.Device, Up: f.Info.Up, Kernel: x.Kernel,
		Copied:  x.Rx.Copied + x.Tx.Copied,
		In:      flowOf(x.Rx.Packets, x.Rx.Bytes, y.Rx.Packets, y.Rx.Bytes, per),
		Out:     flowOf(x.Tx.Packets, x.Tx.Bytes, y.Tx.Packets, y.Tx.Bytes, per),
		Dropped: in.Total() + x.Tx.Drops.Total(),
	})
	for _, d := range []struct {
		way      string
		now, was *engine.Drops
	}{{"in", &in, &before}, {"out", &x.Tx.Drops, &y.Tx.Drops}} {
		for reason, n := range d.now {
			if n > 0 {
				s.Drops = append(s.Drops, runDrop{f.Name + " " + d.way, engine.Drop(reason).String(), n,
					per(n, d.was[reason]), f.Name})
			}
		}
	}
	p := m.planned(f.Name)
	closed := map[uint32]uint64{}
	for i, q := range f.Rx {
		waited := uint64(0)
		for id, n := range q.Closed {
			closed[id] += n.Packets
			waited += n.Packets
		}
		if waited > 0 {
			s.Interfaces[len(s.Interfaces)-1].Dropped += waited
			s.Drops = append(s.Drops, runDrop{queueName(f.Name, q.ID), engine.DropClosed.String(), waited,
				per(waited, 0), f.Name})
		}
		for k, x := range q.Stages {
			where := fmt.Sprintf("%s %s", queueName(f.Name, q.ID), x.Type)
			if x.Record != nil { // which has the counts
				s.Recordings = append(s.Recordings, runRecording{where, x.Record})
				x.Counts = nil
			}
			for n, c := range x.Counts {
				before := c.N // a gauge has no rate
				if !c.Gauge {
					if before = 0; i < len(was.Rx) {
						before = was.Rx[i].Stages[k].Counts[n].N
					}
				}
				s.Stages = append(s.Stages, runStage{where, c.Name, c.N, per(c.N, before)})
			}
			for reason, n := range x.Stats.Drops {
				if n > 0 {
					var before uint64
					if i < len(was.Rx) {
						before = was.Rx[i].Stages[k].Stats.Drops[reason]
					}
					s.Drops = append(s.Drops, runDrop{where, engine.Drop(reason).String(), n, per(n, before), f.Name})
				}
			}
		}
		r := runQueue{Interface: f.Name, ID: q.ID, Direction: "in", Poller: q.Poller, Core: -1,
			Packets: q.Stats.Packets, Dropped: q.Stats.Drops.Total() + waited}
		if q.Polled != nil {
			r.Held, r.Stalls = uint64(q.Polled.Waiting), q.Polled.Stalls
		}
		if k := slices.IndexFunc(p.Rx, func(x root.RxPlan) bool { return x.ID == q.ID }); k >= 0 && q.Polled != nil {
			r.Of = p.Rx[k].HandOff
		}
		r.Core = pollerCore(q.Poller, now)
		s.Queues = append(s.Queues, r)
	}
	for _, q := range f.Tx {
		r := runQueue{Interface: f.Name, ID: q.ID, Direction: "out", Core: -1, Held: q.Stats.Queued,
			Stalls: q.Stats.Full + q.Stats.NoBuffers, Packets: q.Stats.Packets, Dropped: q.Stats.Drops.Total()}
		if k := slices.IndexFunc(p.Tx, func(x root.TxPlan) bool { return x.ID == q.ID }); k >= 0 {
			r.Of = p.Tx[k].Depth
		}
		s.Queues = append(s.Queues, r)
	}
	for _, r := range f.Rules {
		var before uint64
		if k := slices.IndexFunc(was.Rules, func(x root.RuleSnapshot) bool { return x.Rule.ID == r.Rule.ID }); k >= 0 {
			before = was.Rules[k].Packets
		}
		id := r.Rule.ID // of the flow
		if r.Rule.Mark.Set {
			id = r.Rule.Mark.Value
		}
		thrown := closed[id]
		closed[id] = 0 // rules may have one flow
		bare := r.Rule
		bare.ID, bare.Name = 0, "" // they stand beside it
		bare.Mark = flow.Opt[uint32]{}
		s.Rules = append(s.Rules, runRule{f.Name, r.Rule.ID, r.Rule.Name, bare.String(), r.Packets, r.Bytes,
			per(r.Packets, before), thrown})
	}
	if f.Unmatched.Packets > 0 && len(f.Rules) > 0 {
		s.Rules = append(s.Rules, runRule{f.Name, 0, "", "no rule", f.Unmatched.Packets, f.Unmatched.Bytes,
			per(f.Unmatched.Packets, was.Unmatched.Packets), closed[0]})
	}
}

func (m *sampler) planned(name string) *root.InterfacePlan {
	for i := range m.plan.Interfaces {
		if m.plan.Interfaces[i].Name == name {
			return &m.plan.Interfaces[i]
		}
	}
	return &root.InterfacePlan{}
}

// pollerCore is the core of a poller, -1 for any.
func pollerCore(name string, now *runRaw) int {
	if k := slices.IndexFunc(now.sys.Pollers, func(p root.PollerSnapshot) bool { return p.Name == name }); k >= 0 {
		return now.sys.Pollers[k].Core
	}
	return -1
}

func nodeSample(n, last *observe.Snapshot, per func(now, last uint64) float64) *runNode {
	out := &runNode{Name: n.Node.Name, Addresses: n.Node.Addresses, Running: n.Node.TransfersRunning,
		PeersEver: n.Node.PeersTotal, Peers: []runPeer{}}
	for _, p := range n.Peers {
		var in, outBytes uint64
		if last != nil {
			if k := slices.IndexFunc(last.Peers, func(x observe.PeerStatus) bool { return x.ID == p.ID }); k >= 0 {
				in, outBytes = last.Peers[k].BytesIn, last.Peers[k].BytesOut
			}
		}
		r := runPeer{Name: p.Name, ID: p.ID, Security: p.Security, In: p.BytesIn, Out: p.BytesOut,
			InPerSecond: per(p.BytesIn, in), OutPerSecond: per(p.BytesOut, outBytes)}
		if p.Certificate != "" {
			r.Name = p.Certificate
		}
		for _, x := range p.Paths {
			if r.Paths != "" {
				r.Paths += ", "
			}
			r.Paths += x.Path
		}
		out.Peers = append(out.Peers, r)
		out.In += r.In
		out.Out += r.Out
		out.InPerSecond += r.InPerSecond
		out.OutPerSecond += r.OutPerSecond
	}
	return out
}

// formatCount is a count in at most six columns: 123456 becomes 123k.
func formatCount(n uint64) string { return scaled(float64(n), 99999, "%.0f") }

// formatPerSecond is a rate in at most six columns.
func formatPerSecond(r float64) string {
	if r > 0 && r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return scaled(r, 9999, "%.0f")
}

// formatBits is bits per second in at most nine columns: "9.87 Gb/s".
func formatBits(r float64) string {
	for _, u := range []struct {
		by   float64
		unit string
	}{{1e12, "Tb/s"}, {1e9, "Gb/s"}, {1e6, "Mb/s"}, {1e3, "kb/s"}} {
		if r >= u.by*0.9995 {
			return three(r/u.by) + " " + u.unit
		}
	}
	return fmt.Sprintf("%.0f b/s", r)
}

func three(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// scaled writes a number that is more than most in thousands, millions and so on.
func scaled(v, most float64, plain string) string {
	if v <= most {
		return fmt.Sprintf(plain, v)
	}
	for _, u := range []struct {
		by   float64
		unit string
	}{{1e18, "E"}, {1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}} {
		if v >= u.by*0.9995 {
			return three(v/u.by) + u.unit
		}
	}
	return three(v/1e3) + "k"
}
