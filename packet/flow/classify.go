package flow

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/packet"
)

// Verdict says where a packet goes.
type Verdict uint8

// The verdicts. The zero Verdict is that of a packet which no rule accepts.
const (
	Unmatched Verdict = iota // no rule; see Isolation
	Deliver                  // to the queue that the decision names
	Discard                  // dropped by a rule
	Kernel                   // left to the kernel
)

var verdictNames = [...]string{"unmatched", "deliver", "discard", "kernel"}

func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "unknown"
}

// Decision is what a classifier says of one packet.
type Decision struct {
	Rule      int32  // index in the rules that were compiled; -1 when none accepts the packet
	ID        uint32 // of the rule; 0 when it has none
	Queue     uint16 // for Deliver
	Verdict   Verdict
	Transform bool // the rule has transformations to apply before delivery: see Transform
}

// none is the decision when no rule accepts the packet.
var none = Decision{Rule: -1}

// Classifier finds the rule of a packet. It is immutable: any number of goroutines may use one.
type Classifier struct {
	rules    []Rule
	outcomes []outcome        // of each rule
	hash     *packet.Toeplitz // nil when no rule spreads
	blocks   []*block         // in the order of precedence
	key      keySpec          // what a Cache keys on
}

// outcome is what a rule decides: Queue is chosen per packet when there is a table.
type outcome struct {
	Decision
	spread *[IndirectionEntries]uint16
}

// toeplitz is shared by all classifiers: 36 KiB, made at the first need.
var toeplitz = sync.OnceValue(func() *packet.Toeplitz { return packet.NewToeplitz(&packet.MicrosoftKey) })

// Compile makes a classifier for the rules, which it copies. Precedence is by Priority, highest
// first, then by position. It refuses sets with errors (see Validate): the error is Problems then.
// Warnings, such as rules that are never reached, do not stop it.
//
// Time and memory grow with the number of rules times the number of distinct values and bounds per
// field, in blocks of 2,048 rules: a few milliseconds and a few megabytes for 1,000 rules.
func Compile(rules []Rule) (*Classifier, error) {
	if p := checkAll(rules); p.Err() != nil {
		return nil, p.Err()
	}
	c := &Classifier{rules: make([]Rule, len(rules))}
	for i := range rules {
		c.rules[i] = rules[i].Clone()
	}
	c.build()
	return c, nil
}

// build fills everything that follows from rules.
func (c *Classifier) build() {
	c.outcomes = make([]outcome, len(c.rules))
	order := make([]int32, len(c.rules))
	for i := range c.rules {
		order[i] = int32(i)
		c.decide(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(c.rules[b].Priority, c.rules[a].Priority) })
	for part := range slices.Chunk(order, blockRules) {
		matches := make([]*Match, len(part))
		for k, i := range part {
			matches[k] = &c.rules[i].Match
		}
		c.blocks = append(c.blocks, compileBlock(matches, part))
	}
	c.key = newKeySpec(c.rules)
}

func (c *Classifier) decide(i int) {
	r := &c.rules[i]
	d := &c.outcomes[i]
	d.Decision = Decision{Rule: int32(i), ID: r.Carried(), Transform: len(r.Actions) > 1}
	switch a := &r.Actions[len(r.Actions)-1]; a.Kind {
	case ToQueue:
		d.Verdict, d.Queue = Deliver, a.Queue
	case RSS:
		d.Verdict = Deliver
		d.spread = new([IndirectionEntries]uint16)
		for k := range d.spread {
			d.spread[k] = a.Queues[k%len(a.Queues)]
		}
		c.hash = toeplitz()
	case Drop:
		d.Verdict = Discard
	case ToKernel:
		d.Verdict = Kernel
	}
}

// Len returns the number of rules.
func (c *Classifier) Len() int { return len(c.rules) }

// Rule returns a copy of rule i of the set that was compiled.
func (c *Classifier) Rule(i int) Rule { return c.rules[i].Clone() }

// Decision returns what rule i decides. Queue is 0 of a rule that spreads packets.
func (c *Classifier) Decision(i int) Decision { return c.outcomes[i].Decision }

// Classify returns the decision for frame, whose layers Parse (or ParseIP) has put into l. It reads
// only what l says is there, so a frame that Parse found malformed is safe too: fields behind the
// fault are absent. It allocates nothing.
func (c *Classifier) Classify(frame []byte, l *packet.Layers) Decision {
	var d Decision
	c.finish(&d, c.find(frame, l), frame, l)
	return d
}

// find returns the index of the rule, or -1.
func (c *Classifier) find(frame []byte, l *packet.Layers) int32 {
	for _, b := range c.blocks {
		if i := b.find(frame, l); i >= 0 {
			return i
		}
	}
	return -1
}

// finish puts the decision of rule i for this packet into d. It copies a Decision whole: one that
// is returned moves field by field.
func (c *Classifier) finish(d *Decision, i int32, frame []byte, l *packet.Layers) {
	if i < 0 {
		*d = none
		return
	}
	o := &c.outcomes[i]
	*d = o.Decision
	if o.spread != nil {
		d.Queue = o.spread[c.hash.Frame(frame, l)%IndirectionEntries]
	}
}

// lookup returns the row of the rules that accept what the packet has in this field.
func (d *dim) lookup(frame []byte, l *packet.Layers) uint32 {
	switch d.kind {
	case dimSmall:
		switch v, ok := small(d.field, frame, l); {
		case !ok:
			return d.absent
		default:
			return d.base + uint32(d.direct.find(v))
		}
	case dimAddr:
		switch l.IPVersion {
		case 4:
			return d.base + uint32(d.v4.find(addr4(d.field, frame, l)))
		case 6:
			return d.base + uint32(d.v6.find(addr6(d.field, frame, l)))
		}
	case dimMAC:
		if v, ok := mac(d.field, frame, l); ok {
			return d.base + d.exact.find(v)
		}
	case dimFlex:
		if v, ok := flexWord(d.offset, frame, l); ok {
			return d.base + d.exact.find(uint64(v&d.mask))
		}
	case dimFlexByte:
		if v, ok := flexWord(d.offset, frame, l); ok {
			return d.base + uint32(d.bytes[v>>d.shift&0xff])
		}
	}
	return d.absent
}

// maxDims is how many dims have their rows remembered during one search; a set with dozens of flex
// offsets asks the others again.
const maxDims = 64

// fewWords is how many candidate words end the first step of a search.
const fewWords = 2

// find returns the rule of the block that comes first among those that accept the packet, or -1.
//
// It looks fields up until the sums of their rows leave few words. Then it goes through these
// words, field by field, but looks up only what a rule that is still possible asks for: after ports
// or addresses that is one rule or two, mostly.
func (b *block) find(frame []byte, l *packet.Layers) int32 {
	var at [maxDims]uint32 // where the row of a dim begins
	known := 0             // dims that have been looked up in the first step
	candidates := ^uint64(0) >> (64 - b.words)
	for known < len(b.dims) && known < maxDims && bits.OnesCount64(candidates) > fewWords {
		r := b.dims[known].lookup(frame, l)
		at[known] = r * uint32(b.words)
		candidates &= b.sums[r]
		known++
	}
	looked := uint64(1)<<known - 1
	for ; candidates != 0; candidates &= candidates - 1 {
		w := uint32(bits.TrailingZeros64(candidates))
		x := ^uint64(0)
		if int(w) == b.words-1 {
			x >>= (64 - len(b.order)%64) % 64
		}
		asks := b.asks[int(w)*len(b.dims):][:len(b.dims)]
		for k, asking := range asks {
			if x&asking == 0 {
				continue // in none of the rules that are left is this field asked for
			}
			if k >= maxDims {
				x &= b.rows[b.dims[k].lookup(frame, l)*uint32(b.words)+w]
			} else {
				if looked>>k&1 == 0 {
					at[k] = b.dims[k].lookup(frame, l) * uint32(b.words)
					looked |= 1 << k
				}
				x &= b.rows[at[k]+w]
			}
			if x == 0 {
				break
			}
		}
		if x != 0 {
			return b.order[int(w)*64+bits.TrailingZeros64(x)]
		}
	}
	return -1
}
