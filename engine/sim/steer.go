package sim

import (
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// rules is the table of a port.
type rules struct {
	*flow.Table
	net  *Network
	open flow.Isolation // what a port that is not isolated does with packets that no rule accepts: its first queue
}

func newRules(n *Network, isolated bool) *rules {
	r := &rules{net: n, open: flow.Isolation{Unmatched: flow.Deliver}}
	o := flow.TableOptions{Isolation: r.open}
	if isolated {
		o.Isolation = flow.Isolation{}
	}
	t, err := flow.NewTable(o)
	if err != nil {
		panic(err) // these options are good
	}
	r.Table = t
	return r
}

// Apply implements engine.Rules. When it returns no packet is steered by the rules before any more.
func (r *rules) Apply(changes ...flow.Change) (flow.Result, error) {
	result, err := r.Table.Apply(changes...)
	if err == nil {
		r.net.quiesce()
	}
	return result, err
}

// quiesce waits until the goroutines that carry packets now, perhaps by the rules from before, have
// finished.
func (n *Network) quiesce() {
	n.mu.Lock()
	defer n.mu.Unlock()
}

// steering is the classifier of a port with its scratch memory: one packet after the other, as in a
// NIC.
type steering struct {
	port *Port

	mu      sync.Mutex // guards what follows
	counts  *flow.Counters
	seen    *flow.Snapshot
	actions [][]flow.Action // of each rule of seen
	room    []int           // and the headroom that they need
	frames  [][]byte
	layers  []packet.Layers
	out     []flow.Decision
	gaps    [][]byte // packets that are not in one piece
	buf     []byte
}

func (s *steering) init(p *Port) {
	s.port, s.counts = p, p.rules.NewCounters()
}

// prepare returns the rules in force, and takes note of another version. The caller holds mu.
func (s *steering) prepare() *flow.Snapshot {
	now := s.port.rules.Snapshot() // under mu, so that no goroutine goes back to an older one
	if s.layers == nil {
		s.frames, s.layers = make([][]byte, batchSize), make([]packet.Layers, batchSize)
		s.out, s.gaps = make([]flow.Decision, batchSize), make([][]byte, batchSize)
	}
	if s.seen == now {
		return now
	}
	s.seen, s.actions, s.room = now, s.actions[:0], s.room[:0]
	for _, r := range now.Rules() {
		s.actions = append(s.actions, r.Actions)
		s.room = append(s.room, flow.Headroom(r.Actions))
	}
	return now
}

// batchSize is how many packets carry counts at once.
const batchSize = 32

// carry steers packets from to to-1 of a burst. The caller holds Network.mu for reading.
func (s *steering) carry(c *sending, from, to int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.prepare()
	for ; from < to; from += batchSize {
		end := min(from+batchSize, to)
		n := end - from
		for i := range n {
			s.frames[i] = view(&s.gaps[i], c.b, from+i)
			packet.Parse(s.frames[i], &s.layers[i])
			s.out[i] = now.Classify(s.frames[i], &s.layers[i])
		}
		s.counts.CountBatch(now, s.frames[:n], s.out[:n])
		for i := 0; i < n; {
			q := s.queue(&s.out[i])
			k := i + 1
			if s.out[i].Transform && q != nil {
				var at int64
				if q.Spec().Timestamps {
					at = c.now()
				}
				s.transform(q, &s.out[i], s.frames[i], &s.layers[i], at)
				i = k
				continue
			}
			for k < n && (s.out[k] == s.out[i] || s.out[k].Queue == s.out[i].Queue &&
				s.out[k].Verdict == flow.Deliver && s.out[i].Verdict == flow.Deliver &&
				s.out[k].Rule >= 0 && s.out[i].Rule >= 0 && !s.out[k].Transform) {
				k++
			}
			if q == nil {
				s.refuse(&s.out[i], k-i)
			} else {
				for j := i; j < k; j++ {
					h := s.headers(s.out[j].ID, s.frames[j], &s.layers[j])
					h.set(c.b, from+j)
				}
				q.put(c, from+i, from+k, true)
			}
			i = k
		}
		clear(s.frames[:n])
	}
}

// headers are what was read of the headers of a packet.
type headers struct {
	flow, hash uint32
	typ        burst.Type
	hashed     bool
}

// read returns what set has noted of packet i of b.
func read(b *burst.Burst, i int) headers {
	h := headers{flow: b.Flow(i), typ: b.Type(i)}
	h.hash, h.hashed = b.Hash(i)
	return h
}

// set notes of packet i of b what was read of its headers.
func (h *headers) set(b *burst.Burst, i int) {
	b.Builder().SetFlow(i, h.flow)
	b.Builder().SetType(i, h.typ)
	if h.hashed {
		b.Builder().SetHash(i, h.hash)
	}
}

// headers are those of a frame that a rule sends on with that flow id.
func (s *steering) headers(id uint32, frame []byte, l *packet.Layers) headers {
	h := headers{flow: id, typ: engine.TypeOf(l)}
	if s.port.net.opts.Hash && l.IPVersion != 0 {
		h.hash, h.hashed = toeplitz().Frame(frame, l), true
	}
	return h
}

// toeplitz makes the tables of the receive hash when they are needed first.
var toeplitz = sync.OnceValue(func() *packet.Toeplitz { return packet.NewToeplitz(&packet.MicrosoftKey) })

// queue is where a decision sends packets; nil for nowhere.
func (s *steering) queue(d *flow.Decision) *rxQueue {
	switch {
	case d.Verdict != flow.Deliver:
		return nil
	case d.Rule < 0 && d.Queue == 0:
		return s.port.first()
	}
	return s.port.rx.Find(int(d.Queue))
}

// refuse counts packets that go to no queue.
func (s *steering) refuse(d *flow.Decision, n int) {
	switch d.Verdict {
	case flow.Kernel, flow.Unmatched:
		s.port.kernel.Add(uint64(n))
	case flow.Discard:
		s.port.drop(engine.DropRule, n)
	default:
		s.port.drop(engine.DropNoQueue, n)
	}
}

// transform changes a copy of a frame as its rule says, and puts it into q.
func (s *steering) transform(q *rxQueue, d *flow.Decision, frame []byte, l *packet.Layers, now int64) {
	room := s.room[d.Rule]
	if need := room + len(frame); cap(s.buf) < need {
		s.buf = make([]byte, max(need, 2048))
	}
	buf := s.buf[:room+len(frame)]
	copy(buf[room:], frame)
	out, why := flow.Transform(s.actions[d.Rule], buf, room, l)
	if why != flow.Applied {
		s.port.drop(engine.DropTransform, 1)
		return
	}
	q.frame(out, headers{flow: d.ID}, now)
}

// frame steers one frame.
func (s *steering) frame(frame []byte, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := s.prepare()
	l := &s.layers[0]
	packet.Parse(frame, l)
	d := snap.Classify(frame, l)
	s.counts.Count(snap, d, len(frame))
	q := s.queue(&d)
	switch {
	case q == nil:
		s.refuse(&d, 1)
	case d.Transform:
		s.transform(q, &d, frame, l, now)
	default:
		q.frame(frame, s.headers(d.ID, frame, l), now)
	}
}
