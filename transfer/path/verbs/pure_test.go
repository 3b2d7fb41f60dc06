package verbs

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func drawFrame(t *rapid.T, typ frameType) *frame {
	f := &frame{typ: typ, consumed: rapid.Uint32().Draw(t, "consumed"),
		qp: uint8(rapid.IntRange(0, maxQPs-1).Draw(t, "queue pair"))}
	f.key = path.Key{Index: rapid.Uint32().Draw(t, "index"), Epoch: rapid.Uint32().Draw(t, "epoch"),
		Secret: rapid.Uint64().Draw(t, "secret")}
	switch f.typ {
	case frameHello:
	case frameNotify:
		f.imm, f.bytes = rapid.Uint64().Draw(t, "imm"), rapid.Uint64().Draw(t, "bytes")
		f.msg = rapid.SliceOfN(rapid.Byte(), 0, path.MaxMessage).Draw(t, "msg")
	case frameGrant:
		f.addr, f.size = uint64(rapid.Uint32().Draw(t, "addr"))<<20, uint64(rapid.Uint32().Draw(t, "size"))
		f.rights, f.flush = path.Rights(rapid.IntRange(0, 3).Draw(t, "rights")), rapid.Bool().Draw(t, "flush")
		f.n = rapid.IntRange(0, maxQPs).Draw(t, "queue pairs")
		for i := range f.n {
			f.grants[i] = grantKey{uint8(i), rapid.Uint32().Draw(t, "gen"), rapid.Uint32().Draw(t, "rkey")}
		}
	case frameRefuse:
		f.status = uint8(rapid.IntRange(1, len(refusals)-1).Draw(t, "status"))
	case frameFlushed:
		f.status = uint8(rapid.IntRange(0, flushFailed).Draw(t, "status"))
	case frameReplace:
		f.gen, f.delivered = rapid.Uint32().Draw(t, "gen"), rapid.Uint32().Draw(t, "delivered")
		f.qpn, f.psn = rapid.Uint32Range(0, 1<<24-1).Draw(t, "qpn"), rapid.Uint32().Draw(t, "psn")
	case frameReady:
		f.gen = rapid.Uint32().Draw(t, "gen")
	case frameCredit:
		f.n = rapid.IntRange(0, maxQPs).Draw(t, "queue pairs")
		for i := range f.n {
			f.credit[i] = qpCredit{rapid.Uint32().Draw(t, "gen"), rapid.Uint32().Draw(t, "consumed")}
		}
	}
	return f
}

// TestFrames: what is written is read again, byte for byte, fits a receive, and does not parse when
// it is cut.
func TestFrames(t *testing.T) {
	for typ := range frameEnd {
		if typ == 0 {
			continue // no frame
		}
		rapid.Check(t, func(t *rapid.T) {
			f := drawFrame(t, typ)
			b := f.append(make([]byte, 0, frameSize))
			if len(b) > frameSize {
				t.Fatalf("type %d: %d bytes do not fit a receive of %d", f.typ, len(b), frameSize)
			}
			var g frame
			if err := g.parse(b); err != nil {
				t.Fatalf("type %d: %v", f.typ, err)
			}
			if again := g.append(nil); !bytes.Equal(again, b) {
				t.Fatalf("type %d: %x became %x", f.typ, b, again)
			}
			if f.typ != frameRefuse && f.typ != frameAttach && f.typ != frameRevoked && f.typ != frameGrant &&
				g.key != (path.Key{}) {
				t.Fatalf("type %d carries a key", f.typ)
			}
			if cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut"); g.parse(b[:cut]) == nil {
				t.Fatalf("type %d: %d of %d bytes parse", f.typ, cut, len(b))
			}
		})
	}
}

func drawDescription(t *rapid.T) description {
	p := description{lid: rapid.Uint16().Draw(t, "lid"), window: rapid.Uint32Range(1, maxWindow).Draw(t, "window"),
		ctlDepth: rapid.Uint16Range(2*plainReserve+1, 999).Draw(t, "ctl"),
		msgDepth: rapid.Uint16Range(2, 999).Draw(t, "msgs"),
		dataQPs:  rapid.Uint8Range(1, maxQPs).Draw(t, "queue pairs"), mtu: rapid.Uint8Range(1, 5).Draw(t, "mtu"),
		reads: rapid.Byte().Draw(t, "reads"), flags: rapid.Byte().Draw(t, "flags")}
	copy(p.gid[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
	e := func() qpAddress {
		return qpAddress{rapid.Uint32Range(0, 1<<24-1).Draw(t, "qpn"), rapid.Uint32Range(0, 1<<24-1).Draw(t, "psn")}
	}
	p.control = e()
	for i := range p.data {
		p.data[i] = e()
	}
	return p
}

// TestDescription: a description comes back as it was.
func TestDescription(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDescription(t)
		b := d.append(nil)
		var got description
		if err := got.parse(b); err != nil || got != d || len(b) > setup.MaxDescription {
			t.Fatalf("%d bytes: %v: %+v became %+v", len(b), err, d, got)
		}
	})
}

// TestCreditsNeverStop lets two ends exchange messages and reports in random order and at random
// pace. Neither ever sends what the other has no receive for, and when the owners take everything
// in, everything arrives.
func TestCreditsNeverStop(t *testing.T) {
	type message struct {
		report bool
		freed  uint32
	}
	type end struct {
		out   credits
		in    debt
		line  []message // to the peer, in flight
		held  int       // arrived, and not taken by the owner
		todo  int
		taken int
	}
	rapid.Check(t, func(t *rapid.T) {
		depth := rapid.Uint32Range(2*plainReserve+1, 40).Draw(t, "depth")
		start := rapid.Uint32().Draw(t, "start") // counters wrap around
		const total = 200
		var e [2]end
		for i := range e {
			e[i].out, e[i].in, e[i].todo = credits{depth, start, start}, debt{depth, start, start}, total
		}
		send := func(i int, report bool) {
			x := &e[i]
			x.out.sent++
			x.in.said = x.in.freed
			x.line = append(x.line, message{report, x.in.freed})
		}
		// act does one thing at end i, and says whether there was something to do.
		act := func(i, what int) bool {
			x, y := &e[i], &e[1-i]
			switch what {
			case 0: // a plain message
				if x.todo > 0 && x.out.left() > plainReserve {
					x.todo--
					send(i, false)
					return true
				}
			case 1: // a report
				if x.in.due() && x.out.left() > reportReserve {
					send(i, true)
					return true
				}
			case 2: // something arrives
				if len(y.line) > 0 {
					m := y.line[0]
					y.line = y.line[1:]
					if err := x.out.told(m.freed); err != nil {
						t.Fatal(err)
					}
					if m.report {
						x.in.freed++
					} else {
						x.held++
					}
					if uint32(x.held) > depth {
						t.Fatalf("%d messages in %d receives", x.held, depth)
					}
					return true
				}
			case 3: // its owner takes one
				if x.held > 0 {
					x.held--
					x.taken++
					x.in.freed++
					return true
				}
			}
			if x.out.left() > depth {
				t.Fatalf("%+v: more than all is left", x.out)
			}
			return false
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		lazy := rng.IntN(20)
		for range 3000 {
			what := rng.IntN(4)
			if what == 3 && rng.IntN(20) < lazy {
				continue
			}
			act(rng.IntN(2), what)
		}
		for busy := true; busy; {
			busy = false
			for i := range e {
				for what := range 4 {
					for act(i, what) {
						busy = true
					}
				}
			}
		}
		for i := range e {
			if e[i].todo != 0 || e[i].taken != total {
				t.Fatalf("end %d: %d messages not sent, %d of %d received; credits %+v and %+v", i, e[i].todo,
					e[i].taken, total, e[0].out, e[1].out)
			}
			if e[i].out.left() == 0 {
				t.Fatalf("end %d cannot say goodbye", i)
			}
		}
	})
}

// TestCreditsRefuseNonsense: a peer cannot claim to have taken more than was sent, nor take a claim
// back.
func TestCreditsRefuseNonsense(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Uint32().Draw(t, "start")
		sent := rapid.Uint32Range(0, 100).Draw(t, "sent")
		freed := rapid.Uint32Range(0, sent).Draw(t, "freed")
		c := credits{100, start + sent, start + freed}
		claim := rapid.Uint32().Draw(t, "claim")
		good := claim-freed <= sent-freed
		if err := c.told(start + claim); (err == nil) != good {
			t.Fatalf("%d sent, %d freed, claim %d: %v", sent, freed, claim, err)
		}
		if c.left() > 100 || c.left() < 100-sent {
			t.Fatalf("%d left", c.left())
		}
	})
}

// TestPieces: the pieces of an operation are its bytes, each once and in order, within their
// bounds.
func TestPieces(t *testing.T) {
	r, err := mem.Alloc(mem.Options{Name: "pieces", Size: 3 * granule, Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rapid.Check(t, func(t *rapid.T) {
		copies := make([]path.Copy, rapid.IntRange(0, 8).Draw(t, "blocks"))
		var want uint64
		for i := range copies {
			n := rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(0, 100_000),
				rapid.Uint64Range(0, 2*granule)).Draw(t, "bytes")
			off := rapid.OneOf(rapid.Uint64Range(0, 3*granule-n), rapid.Just(min(3*granule-n, granule-1))).Draw(t,
				"off")
			copies[i].Local = mem.Span{Region: r, Off: off, Len: n}
			want += n
		}
		limit := rapid.Uint64Range(1000, 64<<20).Draw(t, "limit")
		var c cursor
		at := cursor{}
		var total uint64
		for {
			wasDone := c.done(copies)
			p, ok := c.next(copies, limit)
			if ok == wasDone {
				t.Fatalf("done is %v before a piece that is there: %v", wasDone, ok)
			}
			if !ok {
				break
			}
			for at.block < p.block {
				if at.off != copies[at.block].Local.Len {
					t.Fatalf("block %d ends at %d of %d", at.block, at.off, copies[at.block].Local.Len)
				}
				at = cursor{block: at.block + 1}
			}
			s := copies[p.block].Local
			if p.off != at.off || p.n == 0 || p.n > limit || p.off+p.n > s.Len ||
				(s.Off+p.off)/granule != (s.Off+p.off+p.n-1)/granule {
				t.Fatalf("piece %+v at %+v of a block of %d bytes at %d, limit %d", p, at, s.Len, s.Off, limit)
			}
			at.off += p.n
			total += p.n
		}
		if total != want {
			t.Fatalf("%d of %d bytes", total, want)
		}
	})
}

func FuzzFrame(f *testing.F) {
	for typ := frameHello; typ < frameEnd; typ++ {
		x := frame{typ: typ, status: 1, n: 2, msg: []byte("message")}
		f.Add(x.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var x frame
		if x.parse(b) == nil {
			if again := x.append(nil); !bytes.Equal(again, b) {
				t.Fatalf("%x became %x", b, again)
			}
		}
	})
}

func FuzzDescription(f *testing.F) {
	d := description{dataQPs: 1, window: 8, ctlDepth: 64, msgDepth: 64, mtu: 5}
	f.Add(d.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d description
		if d.parse(b) == nil {
			if again := d.append(nil); !bytes.Equal(again, b) {
				t.Fatalf("%x became %x", b, again)
			}
		}
	})
}

// TestAskedBefore: the answer to a question that was asked before a queue pair was replaced has no
// key for the new queue pair. The key is asked for once more, and only once.
func TestAskedBefore(t *testing.T) {
	p := &Path{reaches: map[path.Key]*reach{}}
	l := &queuePair{p: p, index: 1, gen: 2, ring: make([]record, 8)}
	p.data = []*queuePair{l}
	r := &reach{known: true, asked: true}
	if best, stall := p.queuePairFor(r, 0); best != nil || stall || len(p.asks) != 0 {
		t.Errorf("with a question under way: %v, %v, %d more questions; expected to wait for its answer", best, stall,
			len(p.asks))
	}
	r.asked = false // the answer came, without a key
	if best, stall := p.queuePairFor(r, 0); best != nil || stall || len(p.asks) != 1 {
		t.Errorf("after the answer: %v, %v, %d questions; expected one", best, stall, len(p.asks))
	}
	r.asked, p.asks = false, nil
	if _, stall := p.queuePairFor(r, 0); stall || len(p.asks) != 0 {
		t.Errorf("after the second answer: %v, %d questions; expected none", stall, len(p.asks))
	}
	r.rkeys[0] = remoteKey{gen: 2, ok: true}
	if best, _ := p.queuePairFor(r, 0); best != l {
		t.Error("a queue pair with a key is not taken")
	}
}
