package kernels

import (
	"fmt"
	"math"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/mem/ring"
)

// The kernels that are fed by rings (package ring, Descriptors): see cl/feed.h. Their arguments are
// those of FeedParams. They stay (driver.Control is their first argument), or drain what there is
// in one launch.
var (
	// FeedParse says what a frame carries and of which class it is; cl/feed_parse.cl has the value,
	// the hash, and the rules that weights are.
	FeedParse = feed("feed_parse", parsePacket)
	// FeedEcho makes the answer to a UDP frame in its place.
	FeedEcho = feed("feed_echo", echoPacket)
	// FeedPower makes floats of samples, and the power of each channel: param is PowerParam.
	FeedPower = feed("feed_power", powerPacket)
	// FeedGemm multiplies a row of floats with the weights: param is GemmParam.
	FeedGemm = feed("feed_gemm", gemmPacket)
	// FeedSum sums the bytes of each packet: benchmarks feed it. Its row has 4 bytes for each item
	// of the group.
	FeedSum = feed("feed_sum", sumPacket)
)

// FeedDrop in the flags of a result says that the packet ends here.
const FeedDrop = 1 << 16

// WeightsHeader is the size in bytes of what is before the weights: the version that holds, and the
// one that is being written, 64 bits each. Version v is in half v mod 2 behind it.
const WeightsHeader = 128

// feedBatch is how many descriptors a group claims at once.
const feedBatch = 32

// PowerParam is the param of FeedPower for packets whose samples begin behind skip bytes.
func PowerParam(channels, skip uint32) uint64 { return uint64(skip)<<32 | uint64(channels) }

// GemmParam is the param of FeedGemm for rows of k floats and weights of k rows with m floats each.
func GemmParam(k, m uint32) uint64 { return uint64(m)<<32 | uint64(k) }

// FeedParams are the parameters of every kernel that rings feed. in and out are rings, each of
// slots descriptors and one behind the other; group g serves ring g mod rings. payload is the
// memory that descriptors name. The row of the result with ticket t of ring r is at (r*slots + t
// mod slots)*row_len in rows. weights is WeightsHeader and twice weights_len bytes, or any memory
// with weights_len 0. param is the kernel's own.
func FeedParams() []driver.Param {
	return []driver.Param{buffer("control"), buffer("in"), buffer("out"), u32("slots"), u32("rings"), buffer("payload"),
		u64("payload_len"), buffer("rows"), u64("row_len"),
		buffer("weights"), u64("weights_len"), u64("param")}
}

// FeedProgram is a user's kernel: OpenCL C that defines name by PS_FEED, as those in cl/ do, or,
// where ptx is not "", PTX for sm with an entry name. What cl/feed.h offers is before the source.
func FeedProgram(name, source, ptx string, sm, version int) *driver.Program {
	p := &driver.Program{Name: name, Kernels: []driver.Signature{{Name: name, Params: FeedParams()}}}
	if source != "" {
		p.Source = Source("#include \"resident.h\"\n#include \"ring_layout.h\"\n#include \"ring.h\"\n#include " +
			"\"feed.h\"\n#include \"headers.h\"\n" + source)
	}
	if ptx != "" {
		p.PTX = []driver.PTX{{SM: sm, Version: version, Text: ptx}}
	}
	return p
}

// packet is a packet as a kernel in Go has it, and its result afterwards: ps_packet of cl/feed.h.
type packet struct {
	ring.Desc
	payload        []byte
	row            []byte
	weights        []byte
	version, param uint64
}

func (p *packet) bytes() []byte { return p.payload[p.Off:][:p.Len] }

func feed(name string, f func(*packet)) *driver.Program {
	return program(name, driver.Groups(func(group uint32, _ driver.Grid, a []driver.GoArg) {
		feedGo(f, group, a)
	}), FeedParams()...)
}

// feedGo is the loop of cl/feed.h for one group.
func feedGo(f func(*packet), group uint32, a []driver.GoArg) {
	slots, rings, payload, rows, rowLen, weights, weightsLen, param := a[3].U32(), a[4].U32(), a[5].Bytes[:a[6].U64()],
		a[7].Bytes, a[8].U64(), a[9].Bytes, a[10].U64(), a[11].U64()
	at, size := uint64(group%rings), uint64(ring.DescriptorsSize(int(slots)))
	from, err := ring.AttachDescriptors(a[1].Bytes[at*size:][:size])
	if err != nil {
		panic(err)
	}
	to, err := ring.AttachDescriptors(a[2].Bytes[at*size:][:size])
	if err != nil {
		panic(err)
	}
	p := driver.Enter(a[0].Bytes, group)
	// Descriptors that were claimed and found no room for results stay claimed until the next
	// launch.
	kept := p.Checkpoint()
	n, t, did := kept[0], uint64(kept[1])|uint64(kept[2])<<32, uint32(0)
	var ds [feedBatch]ring.Desc
	for p.Pass(did) {
		if did = 0; n == 0 {
			ticket, k, _ := from.Claim(ds[:]) // a descriptor that is outside is void
			t, n = ticket, uint32(k)
		} else {
			_ = from.Read(ds[:n], t)
		}
		if n == 0 {
			continue
		}
		o, k, _ := to.Reserve(int(n))
		for i := range uint64(k) {
			x := packet{Desc: ds[i], payload: payload, param: param}
			x.Value = 0
			x.row = rows[(at*uint64(slots)+(o+i)&uint64(slots-1))*rowLen:][:rowLen]
			if x.Flags&ring.DescVoid == 0 {
				x.run(f, weights, weightsLen)
			}
			to.Put(o+i, x.Desc)
		}
		from.Release(t, k)
		t, n, did = t+uint64(k), n-uint32(k), uint32(k)
	}
	if n == 0 {
		t = 0
	}
	kept[0], kept[1], kept[2] = n, uint32(t), uint32(t>>32)
	p.Leave()
}

// run calls f, again where the weights were overwritten meanwhile.
func (p *packet) run(f func(*packet), weights []byte, n uint64) {
	if n == 0 {
		f(p)
		return
	}
	version, writing := Word64(weights), Word64(weights[8:])
	for was := *p; ; *p = was {
		p.version = version.Load()
		p.weights = weights[WeightsHeader+p.version&1*n:][:n]
		if f(p); writing.Load()-p.version <= 1 {
			return
		}
	}
}

// headers is ps_headers of cl/headers.h.
type headers struct {
	version, proto uint32
	l3, l4, end    int
	fragment       bool
}

func parseHeaders(p []byte) (h headers, ok bool) {
	at := 12
	if len(p) < 14 {
		return h, false
	}
	kind := be.Uint16(p[at:])
	for tags := 0; tags < 2 && (kind == 0x8100 || kind == 0x88a8); tags++ {
		at += 4
		if len(p) < at+2 {
			return h, false
		}
		kind = be.Uint16(p[at:])
	}
	h.l3 = at + 2
	ip := p[h.l3:]
	switch kind {
	case 0x0800:
		if len(ip) < 20 {
			return h, false
		}
		head, total := int(ip[0]&15)*4, int(be.Uint16(ip[2:]))
		if ip[0]>>4 != 4 || head < 20 || total < head || total > len(ip) {
			return h, false
		}
		h.version, h.proto, h.l4, h.end, h.fragment = 4, uint32(ip[9]), h.l3+head, h.l3+total,
			be.Uint16(ip[6:])&0x3fff != 0
	case 0x86dd:
		if len(ip) < 40 {
			return h, false
		}
		n := int(be.Uint16(ip[4:]))
		if ip[0]>>4 != 6 || n > len(ip)-40 {
			return h, false
		}
		h.version, h.proto, h.l4, h.end = 6, uint32(ip[6]), h.l3+40, h.l3+40+n
	}
	return h, true
}

func fnv(h uint32, p []byte) uint32 {
	for _, b := range p {
		h = (h ^ uint32(b)) * 16777619
	}
	return h
}

func sumPacket(k *packet) {
	for _, b := range k.bytes() {
		k.Value += uint64(b)
	}
}

func parsePacket(k *packet) {
	p := k.bytes()
	h, ok := parseHeaders(p)
	if !ok {
		k.Flags |= FeedDrop
		return
	}
	if h.version == 0 {
		return
	}
	hash := uint32(2166136261)
	if h.version == 4 {
		hash = fnv(hash, p[h.l3+12:][:8])
	} else {
		hash = fnv(hash, p[h.l3+8:][:32])
	}
	var to, from uint16
	if !h.fragment && (h.proto == 6 || h.proto == 17) {
		l4 := p[h.l4:h.end]
		if len(l4) < 8 || h.proto == 6 && len(l4) < 20 {
			k.Flags |= FeedDrop
			return
		}
		from, to = be.Uint16(l4), be.Uint16(l4[2:])
		hash = fnv(hash, l4[:4])
	}
	k.Hash = (hash ^ h.proto) * 16777619
	k.Value = uint64(h.proto) | uint64(h.version)<<8 | uint64(h.l4)<<16 | uint64(to)<<32 | uint64(from)<<48
	for w := k.weights; len(w) >= 16; w = w[16:] {
		if proto := le.Uint32(w); (proto == 0 || proto == h.proto) && uint32(to) >= le.Uint32(w[4:]) &&
			uint32(to) <= le.Uint32(w[8:]) {
			k.Flow = le.Uint32(w[12:])
			break
		}
	}
}

func echoPacket(k *packet) {
	p := k.bytes()
	h, ok := parseHeaders(p)
	if !ok || h.version == 0 || h.proto != 17 || h.fragment || h.end-h.l4 < 8 || h.version == 4 &&
		onesSum(p[h.l3:h.l4]) != 0xffff {
		k.Flags |= FeedDrop
		return
	}
	swap(p[:6], p[6:12])
	swap(p[h.l4:][:2], p[h.l4+2:][:2])
	if ip := p[h.l3:]; h.version == 4 {
		swap(ip[12:16], ip[16:20])
		ip[8], ip[10], ip[11] = 64, 0, 0
		be.PutUint16(ip[10:], ^uint16(onesSum(ip[:h.l4-h.l3])))
	} else {
		swap(ip[8:24], ip[24:40])
		ip[7] = 64
	}
	k.Value = uint64(h.end - h.l4)
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

func powerPacket(k *packet) {
	p, skip, channels, row := k.bytes(), k.param>>32, k.param&math.MaxUint32, uint64(len(k.row))/4
	turns := uint64(0)
	if channels > 0 && skip <= k.Len {
		turns = (k.Len - skip) / 2 / channels
	}
	if turns == 0 || row < channels || (row-channels)/channels < turns {
		k.Flags |= FeedDrop
		return
	}
	p = p[skip:]
	for c := range channels {
		sum := uint64(0)
		for i := range turns {
			s := int16(le.Uint16(p[2*(i*channels+c):]))
			sum += uint64(int64(s) * int64(s))
			putFloat(k.row, channels+i*channels+c, float32(s)*(1.0/32768))
		}
		putFloat(k.row, c, float32(sum/turns)*(1.0/1073741824))
	}
	k.Value = turns
}

func gemmPacket(k *packet) {
	x, n, m := k.bytes(), k.param&math.MaxUint32, k.param>>32
	if n == 0 || m == 0 || k.Len != 4*n || uint64(len(k.row))/4 < m || uint64(len(k.weights))/4/n < m {
		k.Flags |= FeedDrop
		return
	}
	for c := range m {
		sum := float32(0)
		for i := range n {
			// the conversion forbids a fused multiply-add
			sum += float32(math.Float32frombits(le.Uint32(x[4*i:])) * math.Float32frombits(le.Uint32(k.weights[4*(i*m+
				c):])))
		}
		putFloat(k.row, c, sum)
	}
	k.Value = k.version
}

func putFloat(b []byte, i uint64, f float32) { le.PutUint32(b[4*i:], math.Float32bits(f)) }

// FeedNamed is a kernel of this package by its short name: parse, echo, power, gemm.
func FeedNamed(name string) (*driver.Program, error) {
	for _, p := range []*driver.Program{FeedParse, FeedEcho, FeedPower, FeedGemm} {
		if p.Name == "feed_"+name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("kernels: there is no kernel %q for rings: expected parse, echo, power or gemm", name)
}
