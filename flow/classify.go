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

// BatchSize is how many packets ClassifyBatch works on at a time; batches of a multiple of it are best.
const BatchSize = 32

// Classifier finds the rule of a packet. It is immutable: any number of goroutines may use one.
type Classifier struct {
	rules     []Rule
	decisions []Decision       // of each rule; Queue is not yet chosen for RSS
	spread    [][]uint16       // of each rule: the indirection table of RSS, or nil
	hash      *packet.Toeplitz // nil when no rule spreads
	blocks    []*block         // in the order of precedence
	key       keySpec          // what a Cache keys on
}

// toeplitz is shared by all classifiers: 36 KiB, made at the first need.
var toeplitz = sync.OnceValue(func() *packet.Toeplitz { return packet.NewToeplitz(&packet.MicrosoftKey) })

// Compile makes a classifier for the rules, which it copies. Precedence is by Priority, highest first, then by position. It refuses
// sets with errors (see Validate): the error is Problems then. Warnings, such as rules that are never reached, do not stop it.
//
// Time and memory grow with the number of rules times the number of distinct values and bounds per field, in blocks of 2,048 rules:
// a few milliseconds and about a megabyte for 1,000 rules.
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
	c.decisions = make([]Decision, len(c.rules))
	c.spread = make([][]uint16, len(c.rules))
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
	d := Decision{Rule: int32(i), ID: r.ID, Transform: len(r.Actions) > 1}
	switch a := &r.Actions[len(r.Actions)-1]; a.Kind {
	case ToQueue:
		d.Verdict, d.Queue = Deliver, a.Queue
	case RSS:
		d.Verdict = Deliver
		table := make([]uint16, IndirectionEntries)
		for k := range table {
			table[k] = a.Queues[k%len(a.Queues)]
		}
		c.spread[i] = table
		c.hash = toeplitz()
	case Drop:
		d.Verdict = Discard
	case ToKernel:
		d.Verdict = Kernel
	}
	c.decisions[i] = d
}

// Len returns the number of rules.
func (c *Classifier) Len() int { return len(c.rules) }

// Rule returns a copy of rule i of the set that was compiled.
func (c *Classifier) Rule(i int) Rule { return c.rules[i].Clone() }

// Classify returns the decision for frame, whose layers Parse (or ParseIP) has put into l. It reads only what l says is there, so a
// frame that Parse found malformed is safe too: fields behind the fault are absent. It allocates nothing.
func (c *Classifier) Classify(frame []byte, l *packet.Layers) Decision {
	return c.finish(c.find(frame, l), frame, l)
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

// finish makes the decision of rule i for this packet.
func (c *Classifier) finish(i int32, frame []byte, l *packet.Layers) Decision {
	if i < 0 {
		return none
	}
	d := c.decisions[i]
	if t := c.spread[i]; t != nil {
		d.Queue = t[c.hash.Frame(frame, l)%IndirectionEntries]
	}
	return d
}

// ClassifyBatch classifies frames[i], with layers[i], into out[i], for every frame. It is Classify, faster: it asks one table for many
// packets before it goes on to the next one. layers and out must be at least as long as frames. It allocates nothing.
func (c *Classifier) ClassifyBatch(frames [][]byte, layers []packet.Layers, out []Decision) {
	layers, out = layers[:len(frames)], out[:len(frames)]
	var found [BatchSize]int32
	for len(frames) > 0 {
		n := min(len(frames), BatchSize)
		c.findBatch(frames[:n], layers[:n], &found)
		for i := range n {
			out[i] = c.finish(found[i], frames[i], &layers[i])
		}
		frames, layers, out = frames[n:], layers[n:], out[n:]
	}
}

// findBatch is find for up to BatchSize packets.
func (c *Classifier) findBatch(frames [][]byte, layers []packet.Layers, found *[BatchSize]int32) {
	for i := range frames {
		found[i] = -1
	}
	if len(c.blocks) == 1 && len(c.blocks[0].dims) <= maxBatchDims {
		c.blocks[0].findBatch(frames, layers, found)
		return
	}
	for i := range frames {
		found[i] = c.find(frames[i], &layers[i])
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
			return d.base + uint32(d.direct[v])
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
			return d.base + uint32(d.direct[v>>d.shift&0xff])
		}
	}
	return d.absent
}

// maxDims is how many dims are looked up before their rows are intersected; further ones, which take a set with dozens of flex
// offsets, are folded into the candidates one by one.
const maxDims = 32

func (b *block) find(frame []byte, l *packet.Layers) int32 {
	var at [maxDims]int
	stride := b.stride()
	candidates := ^uint64(0) >> (64 - b.words)
	dims := b.dims
	if len(dims) > maxDims {
		dims = dims[:maxDims]
	}
	for i := range dims {
		r := int(dims[i].lookup(frame, l)) * stride
		candidates &= b.rows[r]
		if candidates == 0 {
			return -1
		}
		at[i] = r + 1
	}
	return b.first(candidates, at[:len(dims)], frame, l)
}

// first intersects the words that are candidates and returns the rule of the first bit. at is where the bit vector of each dim begins.
func (b *block) first(candidates uint64, at []int, frame []byte, l *packet.Layers) int32 {
	for ; candidates != 0; candidates &= candidates - 1 {
		w := bits.TrailingZeros64(candidates)
		x := ^uint64(0)
		if w == b.words-1 {
			x >>= (64 - len(b.order)%64) % 64
		}
		for _, r := range at {
			if x &= b.rows[r+w]; x == 0 {
				break
			}
		}
		if x != 0 && len(b.dims) > maxDims {
			x = b.rest(x, w, frame, l)
		}
		if x != 0 {
			return b.order[w*64+bits.TrailingZeros64(x)]
		}
	}
	return -1
}

// rest intersects word w with the dims behind the first maxDims.
func (b *block) rest(x uint64, w int, frame []byte, l *packet.Layers) uint64 {
	for i := range b.dims[maxDims:] {
		r := b.dims[maxDims+i].lookup(frame, l)
		x &= b.rows[int(r)*b.stride()+1+w]
	}
	return x
}

// maxBatchDims is how many dims the batch path keeps rows of; sets with more take the other path.
const maxBatchDims = 12

func (b *block) findBatch(frames [][]byte, layers []packet.Layers, found *[BatchSize]int32) {
	var at [BatchSize][maxBatchDims]int
	var candidates [BatchSize]uint64
	stride := b.stride()
	for i := range frames {
		candidates[i] = ^uint64(0) >> (64 - b.words)
	}
	for k := range b.dims {
		d := &b.dims[k]
		for i := range frames {
			r := int(d.lookup(frames[i], &layers[i])) * stride
			at[i][k] = r + 1
			candidates[i] &= b.rows[r]
		}
	}
	for i := range frames {
		if candidates[i] != 0 {
			found[i] = b.first(candidates[i], at[i][:len(b.dims)], frames[i], &layers[i])
		}
	}
}
