package tcp

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// node is one end without sockets.
type node struct {
	*core
	region  *mem.Region
	exports *path.Exports
	export  *path.Export
	other   *path.Export // of the same memory
	rxv     []sys.Iovec
}

func newNode(t testing.TB, size, window, streams int, crc bool) *node {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	x := new(path.Exports)
	e, err := x.Add(r.All(), path.Read|path.Write)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x.Add(r.All(), path.Read|path.Write)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{core: newCore((&setup.Config{Rights: path.Read | path.Write, Exports: x}).Reach(), window, streams, crc,
		maxFrameBytes, maxFrameBlocks), region: r, exports: x, export: e, other: other,
		rxv: make([]sys.Iovec, 0, sys.MaxIovecs)}
	n.trash = make([]byte, trashSize)
	return n
}

// feed gives a stream bytes as a socket would: into the places that it names. It returns how many
// it took.
func (n *node) feed(s *stream, b []byte) (int, error) {
	took := 0
	for len(b) > 0 {
		v := s.in.targets(n.rxv, n.trash)
		k := 0
		for i := range v {
			k += copy(v[i].Bytes(), b[k:])
		}
		if k == 0 {
			return took, nil
		}
		took += k
		b = b[k:]
		if err := n.received(s, k); err != nil {
			return took, err
		}
	}
	return took, nil
}

// emit takes up to limit bytes of what a stream has to send.
func (n *node) emit(s *stream, limit int) []byte {
	if s.out.left == 0 {
		n.fill(s, true)
	}
	var b []byte
	for _, v := range s.out.batch() {
		b = append(b, v.Bytes()[:min(v.Len(), limit-len(b))]...)
	}
	return b
}

// shuttle moves bytes both ways in pieces of random size until nothing moves any more.
func shuttle(t interface{ Fatal(...any) }, a, b *node, rnd func(int) int) {
	for moved := true; moved; {
		moved = false
		for _, d := range [][2]*node{{a, b}, {b, a}} {
			for i, s := range d[0].streams {
				out := d[0].emit(s, 1+rnd(100_000))
				if len(out) == 0 {
					continue
				}
				n, err := d[1].feed(d[1].streams[i], out)
				if err != nil {
					t.Fatal(err)
				}
				s.out.gone(n)
				moved = moved || n > 0
			}
		}
	}
}

func (n *node) events() (out []path.Event) {
	var ev [16]path.Event
	for {
		k := n.report(ev[:])
		if k == 0 {
			n.notes.release() // as the next Poll does; the messages stay until more comes
			return out
		}
		out = append(out, ev[:k]...)
	}
}

// TestAnySplit sends random operations over streams that deliver any number of bytes at a time, and
// compares all memory with a model.
func TestAnySplit(t *testing.T) {
	const size = 4 << 20
	for _, streams := range []int{1, 5} {
		a, b := newNode(t, size, 32, streams, true), newNode(t, size, 32, streams, streams > 1)
		a.crc = b.crc
		rapid.Check(t, func(t *rapid.T) {
			seed := rapid.Uint64().Draw(t, "seed")
			rng := rand.New(rand.NewPCG(seed, 1))
			la, lb := a.region.All().Bytes(), b.region.All().Bytes()
			for i := 0; i < size; i += 8 {
				la[i], lb[i] = byte(rng.Uint32()), byte(rng.Uint32())
			}
			wantA, wantB := bytes.Clone(la), bytes.Clone(lb)
			// A puts into the upper half of B and gets into its own upper half, from lower halves,
			// in blocks side by side.
			at, end := size/2, size
			atGet := size / 2
			var ops []path.Op
			for len(ops) < 20 {
				op := path.Op{Kind: path.Put, Token: uint64(len(ops)), Notify: rapid.Bool().Draw(t, "notify")}
				if rapid.Bool().Draw(t, "get") {
					op.Kind = path.Get
				}
				for range rapid.SampledFrom([]int{1, 1, 2, 40, 700}).Draw(t, "blocks") {
					n := rapid.SampledFrom([]int{0, 1, 17, 64, 255, 4096}).Draw(t, "n")
					if len(op.Copies) == 0 && rapid.IntRange(0, 7).Draw(t, "big") == 0 {
						n = rapid.IntRange(stripeMin-2, stripeMin+300_000).Draw(t, "size")
					}
					src := rng.IntN(size/2 - n)
					key := rapid.SampledFrom([]*path.Export{b.export, b.export, b.other}).Draw(t, "export").Key()
					if op.Kind == path.Put {
						if at+n > end {
							break
						}
						op.Copies = append(op.Copies,
							path.Copy{Local: mem.Span{Region: a.region, Off: uint64(src), Len: uint64(n)}, Key: key,
								RemoteOff: uint64(at)})
						copy(wantB[at:at+n], wantA[src:])
						at += n
					} else {
						if atGet+n > end {
							break
						}
						op.Copies = append(op.Copies,
							path.Copy{Local: mem.Span{Region: a.region, Off: uint64(atGet), Len: uint64(n)}, Key: key,
								RemoteOff: uint64(src)})
						copy(wantA[atGet:atGet+n], wantB[src:src+n])
						atGet += n
					}
				}
				ops = append(ops, op)
			}
			if n, err := a.post(ops); n != len(ops) {
				t.Fatal(err)
			}
			shuttle(t, a, b, rng.IntN)
			done := 0
			for _, e := range a.events() {
				if e.Err != nil {
					t.Fatal(e.Err)
				}
				done++
			}
			notified := 0
			for _, op := range ops {
				if op.Notify {
					notified++
				}
			}
			if got := len(b.events()); done != len(ops) || got != notified {
				t.Fatalf("%d of %d operations done, %d of %d notifications", done, len(ops), got, notified)
			}
			if !bytes.Equal(la, wantA) || !bytes.Equal(lb, wantB) {
				t.Fatal("memory differs from the model")
			}
			if a.wanted != 0 || a.requests != 0 || b.serveSmall.bn+b.serveBig.bn != 0 ||
				b.serveSmall.n+b.serveBig.n != 0 || len(a.free) != 32 {
				t.Fatalf("credits are missing: wanted %d, requests %d, blocks %d, requests %d, open %d", a.wanted,
					a.requests, b.serveSmall.bn+b.serveBig.bn, b.serveSmall.n+b.serveBig.n, 32-len(a.free))
			}
		})
	}
}

// TestGetOfManyExports has one operation get blocks of different exports: it does not ask for them
// one after another, which would take a round trip each, nor for more than its share. It ends when
// all were answered, also when it is canceled on the way.
func TestGetOfManyExports(t *testing.T) {
	const blocks, window = 200, 96
	for _, cancel := range []bool{false, true} {
		a, b := newNode(t, 1<<20, window, 1, true), newNode(t, 1<<20, window, 1, true)
		a.peerBlock = 1 // many requests
		get := func(token uint64) path.Op {
			op := path.Op{Kind: path.Get, Token: token}
			for i := range uint64(blocks) {
				key := b.export.Key()
				if i%2 > 0 {
					key = b.other.Key()
				}
				op.Copies = append(op.Copies, path.Copy{Local: mem.Span{Region: a.region, Off: i * 64, Len: 64},
					Key: key, RemoteOff: i * 64})
			}
			return op
		}
		for i := range b.region.All().Bytes() {
			b.region.All().Bytes()[i] = byte(i * 7 >> 3)
		}
		if n, err := a.post([]path.Op{get(1), get(2)}); n != 2 {
			t.Fatal(err)
		}
		out := a.emit(a.streams[0], 1<<20)
		if n, err := b.feed(b.streams[0], out); n != len(out) || err != nil {
			t.Fatal(n, err)
		}
		a.streams[0].out.gone(len(out))
		if a.requests != window || b.serveSmall.n != window {
			t.Errorf("%d requests are open, the peer has %d, expected %d", a.requests, b.serveSmall.n, window)
		}
		for i := range a.ops {
			if n := a.ops[i].requests; n > opRequests {
				t.Errorf("operation %d has %d requests open, expected at most %d", i, n, opRequests)
			}
		}
		if cancel {
			a.cancelToken(1)
		}
		shuttle(t, a, b, func(n int) int { return n / 2 })
		for _, e := range a.events() {
			if canceled := cancel && e.Token == 1; canceled != errors.Is(e.Err, path.ErrCanceled) || !canceled &&
				e.Err != nil {
				t.Errorf("operation %d: %v", e.Token, e.Err)
			}
		}
		if open := len(a.ops) - len(a.free); open != 0 || a.requests != 0 || a.wanted != 0 || b.serveSmall.n != 0 {
			t.Errorf("%d operations, %d requests and %d blocks are left, %d at the peer", open, a.requests, a.wanted,
				b.serveSmall.n)
		}
		if !cancel && !bytes.Equal(a.region.All().Bytes()[:blocks*64], b.region.All().Bytes()[:blocks*64]) {
			t.Error("the bytes are others")
		}
	}
}

// frame is a whole frame as a hostile peer could make it.
func frame(h header, table []block, payload, msg []byte) []byte {
	b := make([]byte, headerSize)
	for _, k := range table {
		b = append(b, make([]byte, blockSize)...)
		k.put(b[len(b)-blockSize:])
	}
	switch h.typ {
	case framePutv:
		if h.where == 0 {
			h.where = uint64(len(table))<<32 | uint64(vec.CRC32C(0, b[headerSize:]))
		}
	case frameGet:
		if h.crc == 0 {
			h.crc = vec.CRC32C(0, b[headerSize:])
		}
	}
	h.put(b)
	return append(append(b, payload...), msg...)
}

// TestHostileFrames feeds single frames that no honest peer sends. Each takes the path down, and
// nothing is written.
func TestHostileFrames(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(n *node) []byte
		want error
	}{
		{"no frame", func(*node) []byte { return make([]byte, headerSize) }, errMagic},
		{"replayed", func(n *node) []byte {
			f := frame(header{typ: frameNotify, flags: flagNotify}, nil, nil, nil)
			return append(bytes.Clone(f), f...)
		}, errSeq},
		{"from the future", func(n *node) []byte { return frame(header{typ: frameAck, seq: 1}, nil, nil, nil) }, errSeq},
		{"ack of nothing", func(n *node) []byte { return frame(header{typ: frameAck, where: 0}, nil, nil, nil) }, errAck},
		{"ack that rides in an ack", func(n *node) []byte { return frame(header{typ: frameAck, flags: flagAck}, nil, nil, nil) }, errShape},
		{"ack without its flag", func(n *node) []byte { return frame(header{typ: frameNotify, flags: flagNotify, ack: 1}, nil, nil, nil) }, errShape},
		{"ack of the past", func(n *node) []byte { return frame(header{typ: frameAck, where: 0xfffffff0}, nil, nil, nil) }, errAck},
		{"table of no blocks", func(n *node) []byte { return frame(header{typ: framePutv, where: 1}, nil, nil, nil) }, errBlocks},
		{"table of too many blocks", func(n *node) []byte {
			return frame(header{typ: framePutv, where: (maxFrameBlocks + 1) << 32}, nil, nil, nil)
		}, errBlocks},
		{"table and payload differ", func(n *node) []byte {
			return frame(header{typ: framePutv, key: n.export.Key(), payload: 9}, []block{{0, 4}, {8, 4}}, nil, nil)
		}, errShape},
		{"request that counts wrong", func(n *node) []byte {
			return frame(header{typ: frameGet, payload: blockSize, imm: 2}, []block{{0, 4}}, nil, nil)
		}, errBlocks},
		{"request whose table lacks the keys", func(n *node) []byte {
			return frame(header{typ: frameGet, flags: flagKeys, payload: blockSize, imm: 1}, []block{{0, 4}}, nil, nil)
		}, errBlocks},
		{"request with a table of keys beyond the limit", func(n *node) []byte {
			return frame(header{typ: frameGet, flags: flagKeys, payload: 513 * wantSize, imm: 513}, make([]block, 1026),
				nil, nil)
		}, errBlocks},
		{"request with damaged table", func(n *node) []byte {
			return frame(header{typ: frameGet, payload: blockSize, imm: 1, crc: 1}, []block{{0, 4}}, nil, nil)
		}, errTableSum},
		{"more requests than the window", func(n *node) (b []byte) {
			for i := range 9 {
				b = append(b, frame(header{typ: frameGet, seq: uint32(i), key: n.export.Key(), payload: blockSize,
					imm: 1}, []block{{0, 4}}, nil, nil)...)
			}
			return b
		}, errRequests},
		{"more blocks than agreed", func(n *node) (b []byte) {
			for i := range 5 {
				b = append(b, frame(header{typ: frameGet, seq: uint32(i), key: n.export.Key(),
					payload: 1000 * blockSize, imm: 1000}, make([]block, 1000), nil, nil)...)
			}
			return b
		}, errRequests},
		{"data nobody asked for", func(n *node) []byte {
			return frame(header{typ: frameData, op: 1 << 16, payload: 4}, nil, make([]byte, 4), nil)
		}, errUnknownOp},
		{"refusal of nothing", func(n *node) []byte { return frame(header{typ: frameRefuse, op: 77, imm: 1}, nil, nil, nil) }, errUnknownOp},
		{"refusal without reason", func(n *node) []byte { return frame(header{typ: frameRefuse, imm: uint64(reasons)}, nil, nil, nil) }, errReason},
	} {
		n := newNode(t, 4096, 8, 1, false)
		if _, err := n.feed(n.streams[0], c.make(n)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, expected %v", c.name, err, c.want)
		}
		if !bytes.Equal(n.region.All().Bytes(), make([]byte, 4096)) {
			t.Errorf("%s: memory was written", c.name)
		}
	}
	n := newNode(t, 4096, 8, 1, true)
	f := frame(header{typ: framePut, key: n.export.Key(), payload: 4}, nil, make([]byte, 4), nil)
	if _, err := n.feed(n.streams[0], f); !errors.Is(err, errChecksum) {
		t.Errorf("frame without the checksum that was agreed: %v", err)
	}
}

// TestRefusedReferences: what names memory badly is drained and refused, and the path lives.
func TestRefusedReferences(t *testing.T) {
	n := newNode(t, 4096, 8, 1, false)
	k := n.export.Key()
	forged := k
	forged.Secret++
	payload := bytes.Repeat([]byte{0xee}, 300_000)
	for i, c := range []struct {
		h     header
		table []block
		size  int
		want  reason
	}{
		{header{typ: framePut, key: forged, where: 0}, nil, 100, refusedKey},
		{header{typ: framePut, key: k, where: 4000}, nil, 97, refusedBounds},
		{header{typ: framePut, key: k, where: ^uint64(0) - 10}, nil, 100, refusedBounds},
		{header{typ: framePut, key: k, where: 0}, nil, 300_000, refusedBounds},
		{header{typ: framePut, flags: flagPart, key: k, where: 0, imm: 5000}, nil, 100, refusedBounds},
		{header{typ: framePutv, key: k}, []block{{0, 50}, {^uint64(0), 50}}, 100, refusedBounds},
		{header{typ: framePutv, key: k, where: 2<<32 | 1}, []block{{0, 50}, {60, 50}}, 100, refusedIntegrity},
	} {
		c.h.op, c.h.seq, c.h.payload = uint64(i+1), uint32(i), uint32(c.size)
		s := n.streams[0]
		if _, err := n.feed(s, frame(c.h, c.table, payload[:c.size], nil)); err != nil {
			t.Fatalf("case %d: %v", i, err)
		}
		if len(s.out.ctl) != 1 || s.out.ctl[0].typ != frameRefuse || s.out.ctl[0].op != c.h.op ||
			reason(s.out.ctl[0].imm) != c.want {
			t.Errorf("case %d: refusals %+v, expected one with reason %d", i, s.out.ctl, c.want)
		}
		s.out.ctl = s.out.ctl[:0]
		if !bytes.Equal(n.region.All().Bytes(), make([]byte, 4096)) {
			t.Fatalf("case %d: memory was written", i)
		}
	}
}

// TestDamage flips bits of payload and message on the way.
func TestDamage(t *testing.T) {
	a, b := newNode(t, 1<<20, 8, 1, true), newNode(t, 1<<20, 8, 1, true)
	key := b.export.Key()
	for i, c := range []struct {
		op      path.Op
		from    *node
		at      int  // which byte from the end of the first batch
		fromEnd bool // of the peer's answer instead
	}{
		{op: path.Op{Kind: path.Put, Copies: []path.Copy{{Local: mem.Span{Region: a.region, Len: 5000}, Key: key}}}, at: 100},
		{op: path.Op{Kind: path.Put, Notify: true, Msg: []byte("hello"), Copies: []path.Copy{{Local: mem.Span{Region: a.region, Len: 5000}, Key: key}}}, at: 2},
		{op: path.Op{Kind: path.Notify, Msg: []byte("hello")}, at: 3},
		{op: path.Op{Kind: path.Get, Copies: []path.Copy{{Local: mem.Span{Region: a.region, Len: 5000}, Key: key}}}, at: 9, fromEnd: true},
	} {
		if n, err := a.post([]path.Op{c.op}); n != 1 {
			t.Fatal(err)
		}
		damage := func(from, to *node) {
			out := from.emit(from.streams[0], 1<<20)
			out[len(out)-c.at] ^= 4
			if n, err := to.feed(to.streams[0], out); err != nil || n != len(out) {
				t.Fatalf("case %d: %d of %d bytes, %v", i, n, len(out), err)
			}
			from.streams[0].out.gone(len(out))
		}
		if c.fromEnd {
			out := a.emit(a.streams[0], 1<<20)
			b.feed(b.streams[0], out)
			a.streams[0].out.gone(len(out))
			damage(b, a)
		} else {
			damage(a, b)
		}
		shuttle(t, a, b, rand.IntN)
		ev := a.events()
		if len(ev) != 1 || !errors.Is(ev[0].Err, path.ErrIntegrity) {
			t.Errorf("case %d: %+v, expected ErrIntegrity", i, ev)
		}
		if ev := b.events(); len(ev) != 0 {
			t.Errorf("case %d: the peer was notified: %+v", i, ev)
		}
		if a.st.Corrupt+b.st.Corrupt != uint64(i+1) {
			t.Errorf("case %d: %d frames counted as damaged", i, a.st.Corrupt+b.st.Corrupt)
		}
	}
}

// TestOverlappingData: a peer that sends one byte of a request twice cannot write after the
// operation has ended.
func TestOverlappingData(t *testing.T) {
	n := newNode(t, 4096, 8, 2, false)
	n.post([]path.Op{{Kind: path.Get, Copies: []path.Copy{{Local: mem.Span{Region: n.region, Len: 1000}}}}})
	n.emit(n.streams[0], 1<<20)
	h := header{typ: frameData, op: n.ops[0].number(0), payload: 1000}
	for i := range n.ops {
		if n.ops[i].kind == path.Get {
			h.op = n.ops[i].number(uint16(i))
		}
	}
	f := frame(h, nil, make([]byte, 1000), nil)
	if _, err := n.feed(n.streams[1], f[:500]); err != nil { // half of it on one stream
		t.Fatal(err)
	}
	if _, err := n.feed(n.streams[0], f); !errors.Is(err, errLength) { // and all of it on the other
		t.Errorf("data was accepted twice: %v", err)
	}
}

// FuzzReceiver feeds arbitrary bytes, with and without a repaired checksum, to a whole receiver
// with operations under way.
func FuzzReceiver(f *testing.F) {
	put := frame(header{typ: framePut, payload: 4}, nil, []byte("abcd"), nil)
	f.Add(append(put, frame(header{typ: frameNotify, seq: 1, flags: flagNotify, msg: 3}, nil, nil, []byte("xyz"))...),
		uint8(3))
	f.Add(frame(header{typ: framePutv, payload: 8}, []block{{0, 4}, {8, 4}}, make([]byte, 8), nil), uint8(1))
	f.Add(frame(header{typ: frameGet, payload: 16, imm: 1}, []block{{0, 4}}, nil, nil), uint8(64))
	f.Add(frame(header{typ: frameGet, flags: flagKeys, payload: 32, imm: 1}, []block{{0, 4}, {}}, nil, nil), uint8(64))
	f.Add(frame(header{typ: frameData, op: 1 << 16, payload: 8, flags: flagEnd}, nil, make([]byte, 8), nil), uint8(64))
	r, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		x := new(path.Exports)
		span, _ := r.Span(1024, 1024)
		e, err := x.Add(span, path.Read|path.Write)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { x.Revoke(e); x.Retire(e) }()
		all := r.All().Bytes()
		clear(all)
		other, err := x.Add(r.All(), path.Read|path.Write)
		if err != nil {
			t.Fatal(err)
		}
		n := &node{core: newCore((&setup.Config{Rights: path.Read | path.Write, Exports: x}).Reach(), 4, 2, false,
			maxFrameBytes, maxFrameBlocks), region: r, exports: x, export: e, other: other,
			rxv: make([]sys.Iovec, 0, sys.MaxIovecs)}
		n.trash = make([]byte, 1024)
		local, _ := r.Span(1100, 50)
		n.post([]path.Op{{Kind: path.Get, Copies: []path.Copy{{Local: local}}},
			{Kind: path.Put, Copies: []path.Copy{{Local: local}}}})
		n.emit(n.streams[0], 1<<20)
		n.streams[0].out.gone(n.streams[0].out.left)
		// Headers get the right magic number, key, sequence and checksum, so that the fuzzer gets
		// past them.
		seq := uint32(0)
		for i := 0; i+headerSize <= len(b); i += headerSize {
			if b[i]&1 == 0 {
				continue
			}
			h := header{typ: frameType(b[i+3]%byte(frameTypes-1) + 1), flags: uint16(b[i+5]) & flagKnown,
				msg: uint16(b[i+7]), crc: uint32(b[i+12]),
				seq: seq, payload: uint32(b[i+22])<<8 | uint32(b[i+23]), op: 1<<16 | uint64(b[i+31]&3), key: e.Key(),
				where: uint64(b[i+54])<<32 | uint64(b[i+55]), imm: uint64(b[i+63])}
			seq++
			h.put(b[i:])
		}
		for len(b) > 0 {
			k := min(len(b), int(step)+1)
			if _, err := n.feed(n.streams[0], b[:k]); err != nil {
				n.fail(err)
				break
			}
			b = b[k:]
			if n.streams[0].out.left == 0 {
				n.fill(n.streams[0], true)
				n.streams[0].out.gone(n.streams[0].out.left)
			}
		}
		for _, m := range [][]byte{all[:1024], all[2048:]} {
			if !bytes.Equal(m, make([]byte, len(m))) {
				t.Fatal("memory outside the export was written")
			}
		}
		n.fail(path.ErrDown)
		done := 0
		for _, e := range n.events() {
			if e.Kind == path.EventDone {
				done++
			}
		}
		if done != 2 {
			t.Fatalf("%d operations ended, expected 2", done)
		}
	})
}

// TestAckRides: an acknowledgement is part of the next header, unless there is none or the
// difference does not fit.
func TestAckRides(t *testing.T) {
	a, b := newNode(t, 4096, 8, 1, false), newNode(t, 4096, 8, 1, false)
	op := []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: mem.Span{Region: a.region, Len: 8},
		Key: b.export.Key()}}}}
	back := []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: mem.Span{Region: b.region, Len: 8},
		Key: a.export.Key()}}}}
	s := b.streams[0]
	for i, c := range []struct {
		work  bool
		extra uint32 // frames that came and needed no acknowledgement
		want  int    // bytes of the answer
	}{
		{true, 0, headerSize + 8}, {false, 0, headerSize}, {true, 0xfffd, headerSize + 8}, {true, 0x10000, 2*headerSize + 8}, {true, 0, headerSize + 8},
	} {
		a.streams[0].out.seq += c.extra
		s.in.seq += c.extra
		a.post(op)
		out := a.emit(a.streams[0], 1<<20)
		a.streams[0].out.gone(len(out))
		if _, err := b.feed(s, out); err != nil {
			t.Fatal(err)
		}
		if c.work {
			b.post(back)
		}
		out = b.emit(s, 1<<20)
		s.out.gone(len(out))
		if len(out) != c.want {
			t.Errorf("case %d: an answer of %d bytes, expected %d", i, len(out), c.want)
		}
		if _, err := a.feed(a.streams[0], out); err != nil {
			t.Fatalf("case %d: %v", i, err)
		}
		if ev := a.events(); len(ev) != 1 || ev[0].Err != nil {
			t.Fatalf("case %d: events %+v, expected that the put is done", i, ev)
		}
		// What the peer put is acknowledged as well, so that its window stays free.
		out = a.emit(a.streams[0], 1<<20)
		a.streams[0].out.gone(len(out))
		if _, err := b.feed(s, out); err != nil {
			t.Fatal(err)
		}
		if ev := b.events(); c.work && len(ev) != 1 {
			t.Fatalf("case %d: the answering put: %+v", i, ev)
		}
	}
	if _, err := b.feed(s, frame(header{typ: frameNotify, seq: s.in.seq, flags: flagNotify | flagAck, ack: 1}, nil, nil,
		nil)); !errors.Is(err, errAck) {
		t.Errorf("acknowledgement of what was not sent: %v", err)
	}
}

// TestFullOfRefusals: refusals that fill a batch to its last byte leave no room for the
// acknowledgement, which comes next.
func TestFullOfRefusals(t *testing.T) {
	const n = scratchSize / headerSize
	b := newNode(t, 4096, 8, 1, false)
	s := b.streams[0]
	for i := range n {
		h := header{typ: framePut, op: uint64(i), seq: uint32(i), key: path.Key{Index: 99}, payload: 1}
		if _, err := b.feed(s, frame(h, nil, []byte{1}, nil)); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []int{n * headerSize, headerSize} {
		out := b.emit(s, 1<<20)
		s.out.gone(len(out))
		if len(out) != want {
			t.Errorf("batch %d has %d bytes, expected %d", i, len(out), want)
		}
	}
}

// TestAckWithoutRoom: an acknowledgement that waits for work which turns out to have no room goes
// alone.
func TestAckWithoutRoom(t *testing.T) {
	a, b := newNode(t, 4096, 8, 1, false), newNode(t, 4096, 8, 1, false)
	put := func(from, to *node) {
		from.post([]path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: mem.Span{Region: from.region, Len: 8},
			Key: to.export.Key()}}}})
	}
	put(a, b)
	if _, err := b.feed(b.streams[0], a.emit(a.streams[0], 1<<20)); err != nil {
		t.Fatal(err)
	}
	put(b, a)
	b.streams[0].out.fn = flightSize // as if so many frames were not acknowledged
	var h header
	if out := b.emit(b.streams[0], 1<<20); len(out) != headerSize || h.parse(out) != nil || h.typ != frameAck {
		t.Errorf("%d bytes, type %d: expected an acknowledgement alone", len(out), h.typ)
	}
}

// TestFenceCopiesWhatIsBeingSent: once a Fence is posted, exported memory is not read any more, and
// the peer still gets the bytes that were announced.
func TestFenceCopiesWhatIsBeingSent(t *testing.T) {
	const size = 5000
	a, b := newNode(t, 8192, 8, 1, true), newNode(t, 8192, 8, 1, true)
	mine, theirs := a.region.All().Bytes()[:size], b.region.All().Bytes()[:size]
	for i := range theirs {
		theirs[i] = byte(i)
	}
	a.post([]path.Op{{Kind: path.Get, Copies: []path.Copy{{Local: mem.Span{Region: a.region, Len: size},
		Key: b.export.Key()}}}})
	out := a.emit(a.streams[0], 1<<20)
	a.streams[0].out.gone(len(out))
	s := b.streams[0]
	if _, err := b.feed(s, out); err != nil {
		t.Fatal(err)
	}
	out = b.emit(s, 1000)
	s.out.gone(len(out))
	if _, err := a.feed(a.streams[0], out); err != nil {
		t.Fatal(err)
	}
	b.post([]path.Op{{Kind: path.Fence, Key: b.export.Key()}})
	clear(theirs)
	shuttle(t, a, b, func(int) int { return 700 })
	if ev := a.events(); len(ev) != 1 || ev[0].Err != nil {
		t.Fatalf("events %+v", ev)
	}
	for i := range mine {
		if mine[i] != byte(i) {
			t.Fatalf("byte %d is %d: the memory was read after the fence", i, mine[i])
		}
	}
}

// TestNoticesOfStreams: notifications that several connections began to bring when there was room
// for one more are all reported, with their messages.
func TestNoticesOfStreams(t *testing.T) {
	b := newNode(t, 1<<20, 32, maxStreams, false)
	message := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, path.MaxMessage) }
	notes, parts := 0, make([][]byte, maxStreams)
	for i, s := range b.streams[1:] {
		parts[i+1] = frame(header{typ: framePut, flags: flagNotify, key: b.export.Key(), payload: 4096,
			msg: path.MaxMessage, imm: uint64(i + 1)}, nil, make([]byte, 4096), message(i+1))
		if n, err := b.feed(s, parts[i+1][:headerSize+8]); err != nil || s.in.paused || n != headerSize+8 {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	for ; b.notes.room(); notes++ { // as many as there is room for, on the first
		if n, err := b.feed(b.streams[0], frame(header{typ: frameNotify, flags: flagNotify, seq: uint32(notes),
			msg: path.MaxMessage}, nil, nil, message(0))); err != nil || n != headerSize+path.MaxMessage {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	for i, s := range b.streams[1:] {
		if _, err := b.feed(s, parts[i+1][headerSize+8:]); err != nil {
			t.Fatal(err)
		}
	}
	got := b.events()
	for i, e := range got {
		if want := max(0, i-notes+1); e.Imm != uint64(want) || !bytes.Equal(e.Msg, message(want)) {
			t.Errorf("event %d of %d is %d with the message of another one, expected %d", i, len(got), e.Imm, want)
		}
	}
	if len(got) != notes+maxStreams-1 {
		t.Errorf("%d of %d notifications", len(got), notes+maxStreams-1)
	}
}
