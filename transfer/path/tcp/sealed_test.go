package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/seal"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// meet connects two ends, through a middle if via is not nil; nil paths come with errors.
func meet(t testing.TB, oa, ob Options, ca, cb setup.Config, via func(m *middle)) (pa, pb *Path, ea, eb error) {
	t.Helper()
	l, err := New(ob).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr()
	if via != nil {
		m := newMiddle(t, addr)
		via(m)
		m.start()
		addr = m.l.Addr().String()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tok := newToken()
	var wg sync.WaitGroup
	wg.Go(func() {
		p, err := l.Accept(ctx, tok, cb)
		if eb = err; err == nil {
			pb = p.(*Path)
		}
	})
	p, err := New(oa).Dial(ctx, setup.Offer{Addr: addr, Token: tok}, ca)
	if ea = err; err == nil {
		pa = p.(*Path)
	} else if !errors.Is(err, path.ErrProtocol) && !errors.Is(err, path.ErrIntegrity) && !errors.Is(err, path.ErrDown) {
		cancel() // the listener has not heard of it
	}
	wg.Wait()
	return pa, pb, ea, eb
}

func sealedConfigs(streams int) (ca, cb setup.Config) {
	ca, cb = configs()
	ca.Secret, cb.Secret, ca.Streams, cb.Streams = aSecret(), aSecret(), streams, streams
	return ca, cb
}

// TestManInTheMiddle: whatever an attacker does to records on the way ends the path with an error
// that says so, and no operation that was touched succeeds.
func TestManInTheMiddle(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const at = 3 // the first records are the confirmation and the first puts
	type edit = func(w *wire, up bool, n int, b []byte) bool
	on := func(f func(w *wire, n int, b []byte) bool) edit {
		return func(w *wire, up bool, n int, b []byte) bool {
			if !up || w.link != 0 || n < at {
				w.pass(b)
				return true
			}
			return f(w, n, b)
		}
	}
	once := func(f func(w *wire, b []byte)) edit {
		return on(func(w *wire, n int, b []byte) bool {
			if n == at {
				f(w, b)
			} else {
				w.pass(b)
			}
			return true
		})
	}
	var other struct {
		sync.Mutex
		rec []byte
	}
	for _, c := range []struct {
		name string
		edit edit
		want error
	}{
		{"flips a bit of the content", once(func(w *wire, b []byte) { b[7] ^= 4; w.pass(b) }), path.ErrIntegrity},
		{"flips a bit of the tag", once(func(w *wire, b []byte) { b[len(b)-1] ^= 1; w.pass(b) }), path.ErrIntegrity},
		{"flips a bit of the header", once(func(w *wire, b []byte) { b[0] ^= 1; w.pass(b) }), path.ErrProtocol},
		{"drops a record", once(func(*wire, []byte) {}), path.ErrIntegrity},
		{"repeats a record", once(func(w *wire, b []byte) { w.pass(b); w.pass(b) }), path.ErrIntegrity},
		{"reorders two records", on(func(w *wire, n int, b []byte) bool {
			switch n {
			case at:
				w.held = bytes.Clone(b)
			case at + 1:
				w.pass(b)
				w.pass(w.held)
			default:
				w.pass(b)
			}
			return true
		}), path.ErrIntegrity},
		{"splices in a record of another connection", func(w *wire, up bool, n int, b []byte) bool {
			other.Lock()
			defer other.Unlock()
			switch {
			case up && w.link == 1 && n == 0: // both number their records alike
				other.rec = bytes.Clone(b)
			case up && w.link == 0 && n == at:
				w.pass(other.rec)
				return true
			}
			w.pass(b)
			return true
		}, path.ErrIntegrity},
		{"sends a record back", func(w *wire, up bool, n int, b []byte) bool {
			other.Lock()
			defer other.Unlock()
			switch {
			case !up && w.link == 0 && n == 0:
				other.rec = bytes.Clone(b)
			case up && w.link == 0 && n == at:
				w.pass(other.rec)
				return true
			}
			w.pass(b)
			return true
		}, path.ErrIntegrity},
		{"ends the connection in order between records", on(func(*wire, int, []byte) bool { return false }), ErrTruncated},
		{"ends the connection in order within a record", on(func(w *wire, _ int, b []byte) bool { w.pass(b[:len(b)/2]); return false }), ErrTruncated},
	} {
		t.Run(c.name, func(t *testing.T) {
			ca, cb := sealedConfigs(2)
			la, lb := region(t, 1<<16), region(t, 1<<16)
			e, err := cb.Exports.Add(lb.All(), path.Read|path.Write)
			if err != nil {
				t.Fatal(err)
			}
			o := Options{CongestionControl: "reno"}
			a, b, ea, eb := meet(t, o, o, ca, cb, func(m *middle) { m.edit = c.edit })
			if ea != nil || eb != nil {
				t.Fatal(ea, eb)
			}
			defer a.Close()
			defer b.Close()
			var downA, downB error
			good := 0
			deadline := time.Now().Add(30 * time.Second)
			var ev [16]path.Event
			for posted, out := 0, 0; downB == nil || downA == nil; {
				if out == 0 && downA == nil && downB == nil && posted < 10 {
					la.All().Bytes()[0] = byte(posted)
					if _, err := a.Post([]path.Op{{Kind: path.Put, Notify: true, Token: uint64(posted),
						Copies: []path.Copy{{Local: mem.Span{Region: la, Len: 4000}, Key: e.Key()}}}}); err == nil {
						posted++
						out++
						if c.name == "reorders two records" || c.name == "drops a record" {
							out = 0 // another one must follow
						}
					}
				}
				for _, x := range ev[:a.Poll(ev[:])] {
					switch {
					case x.Kind == path.EventDown:
						downA = x.Err
					case x.Err == nil && x.Kind == path.EventDone:
						good++
						out = 0
					}
				}
				for _, x := range ev[:b.Poll(ev[:])] {
					if x.Kind == path.EventDown {
						downB = x.Err
						a.Close() // it may not hear of it: the one in the middle lives
						downA = x.Err
					}
				}
				if time.Now().After(deadline) {
					t.Fatalf("nobody noticed; %d puts succeeded", good)
				}
			}
			if !errors.Is(downB, c.want) || !errors.Is(downB, path.ErrDown) {
				t.Errorf("the receiver: %v; expected %v", downB, c.want)
			}
			if good > 2*at {
				t.Errorf("%d puts succeeded", good)
			}
		})
	}
}

// TestDowngrade: an attacker on the way can neither change what both ends agree on nor talk them
// out of encryption.
func TestDowngrade(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	o := Options{CongestionControl: "reno"}
	for _, c := range []struct {
		name    string
		do      func(up bool, b []byte)
		dial    error
		accept  error
		explain string // in one of them
	}{
		{"a smaller window in the hello", func(up bool, b []byte) {
			if up {
				rehello(b, func(h *hello) { h.window = 1 })
			}
		}, path.ErrIntegrity, path.ErrIntegrity, "changed on the way"},
		{"a smaller window in the answer", func(up bool, b []byte) {
			if !up {
				rehello(b, func(h *hello) { h.window = 1 })
			}
		}, path.ErrIntegrity, path.ErrIntegrity, "changed on the way"},
		{"another nonce", func(up bool, b []byte) {
			if up {
				rehello(b, func(h *hello) { h.nonce[3]++ })
			}
		}, path.ErrIntegrity, path.ErrIntegrity, "changed on the way"},
		{"a flag in both", func(_ bool, b []byte) {
			rehello(b, func(h *hello) { h.flags ^= helloChecksum })
		}, path.ErrIntegrity, path.ErrIntegrity, "changed on the way"},
		{"no encryption in the hello", func(up bool, b []byte) {
			if up {
				rehello(b, func(h *hello) { h.flags &^= helloSealed })
			}
		}, path.ErrProtocol, path.ErrProtocol, "requires encryption"},
		{"no encryption in the answer", func(up bool, b []byte) {
			if !up {
				rehello(b, func(h *hello) { h.flags &^= helloSealed })
			}
		}, path.ErrProtocol, path.ErrDown, "one side encrypts and the other does not"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ca, cb := sealedConfigs(1)
			a, b, ea, eb := meet(t, o, o, ca, cb, func(m *middle) { m.hello = c.do })
			if a != nil || b != nil || !errors.Is(ea, c.dial) || !errors.Is(eb, c.accept) {
				t.Errorf("dial: %v\naccept: %v", ea, eb)
			}
			if !strings.Contains(fmt.Sprint(ea, eb), c.explain) {
				t.Errorf("nobody explains %q: %v, %v", c.explain, ea, eb)
			}
		})
	}
}

// TestSecrets: only ends with the same secret meet, and the errors say on which side it is missing,
// but never a secret.
func TestSecrets(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	wrong := bytes.Repeat([]byte{0x5a}, setup.SecretSize)
	for _, c := range []struct {
		name         string
		a, b         []byte
		dial, accept error
		says         [2]string
	}{
		{"wrong", wrong, aSecret(), path.ErrIntegrity, path.ErrIntegrity, [2]string{"not the secret", "knows the token, but"}},
		{"none at the dialer", nil, aSecret(), path.ErrProtocol, path.ErrProtocol, [2]string{"this side has no secret", "the dialer at 127.0.0.1"}},
		{"none at the listener", aSecret(), nil, path.ErrProtocol, path.ErrProtocol, [2]string{"the listener has no secret", "the dialer at 127.0.0.1"}},
	} {
		ca, cb := configs()
		ca.Secret, cb.Secret = c.a, c.b
		a, b, ea, eb := meet(t, Options{}, Options{}, ca, cb, nil)
		if a != nil || b != nil || !errors.Is(ea, c.dial) || !errors.Is(eb, c.accept) ||
			!strings.Contains(ea.Error(), c.says[0]) || !strings.Contains(eb.Error(), c.says[1]) {
			t.Errorf("%s: dial: %v\naccept: %v", c.name, ea, eb)
		}
		for _, s := range [][]byte{c.a, c.b} {
			if len(s) > 0 && (strings.Contains(fmt.Sprint(ea, eb), string(s)) ||
				strings.Contains(fmt.Sprint(ea, eb), fmt.Sprintf("%x", s))) {
				t.Errorf("%s: a secret is in an error", c.name)
			}
		}
	}
	ca, cb := configs()
	ca.Secret = aSecret()[:31]
	if _, _, ea, eb := meet(t, Options{}, Options{}, ca, cb, func(m *middle) {
		m.l.Close()
	}); ea == nil || !strings.Contains(ea.Error(), "31 bytes") || eb == nil {
		t.Errorf("a short secret: %v", ea)
	}
}

// TestSealedSays: what a path says of its encryption.
func TestSealedSays(t *testing.T) {
	if !New(Options{}).Traits().Encrypts {
		t.Error("the driver does not say that it encrypts")
	}
	ca, cb := sealedConfigs(0)
	a, b, ea, eb := meet(t, Options{KTLS: Off}, Options{KTLS: Off}, ca, cb, nil)
	if ea != nil || eb != nil {
		t.Fatal(ea, eb)
	}
	defer b.Close()
	defer a.Close()
	c := a.Capabilities()
	if c.Security != path.SecurityEncrypted || c.Proof != path.ProofAEAD || c.UserCopies != 3 {
		t.Errorf("capabilities %+v", c)
	}
	s := strings.Join(a.Explain(), "\n")
	for _, want := range []string{"AES-128-GCM", "no kTLS: as configured", "3 passes in user space"} {
		if !strings.Contains(s, want) {
			t.Errorf("it does not explain %q:\n%s", want, s)
		}
	}
	for _, p := range a.streams {
		if p.tx == nil || p.rx == nil {
			t.Errorf("connection %d is not encrypted", p.index)
		}
	}
}

// TestKeysChange: a transfer that uses many keys, over one and over several connections, arrives as
// it was sent.
func TestKeysChange(t *testing.T) {
	o := Options{CongestionControl: "reno", KTLS: Off, sealLimit: 4096}
	for _, streams := range []int{1, 3} {
		ca, cb := sealedConfigs(streams)
		const size = 8<<20 + 12345
		la, lb := region(t, size), region(t, size)
		e, err := cb.Exports.Add(lb.All(), path.Read|path.Write)
		if err != nil {
			t.Fatal(err)
		}
		a, b, ea, eb := meet(t, o, o, ca, cb, nil)
		if ea != nil || eb != nil {
			t.Fatal(ea, eb)
		}
		pathtest.Fill(la.All().Bytes(), uint64(streams))
		one := func(kind path.OpKind) {
			t.Helper()
			if _, err := a.Post([]path.Op{{Kind: kind,
				Copies: []path.Copy{{Local: mem.Span{Region: la, Len: size}, Key: e.Key()}}}}); err != nil {
				t.Fatal(err)
			}
			var ev [4]path.Event
			for {
				for _, x := range ev[:b.Poll(ev[:])] {
					t.Fatal(x.Err)
				}
				for _, x := range ev[:a.Poll(ev[:])] {
					if x.Err != nil || x.Proof != path.ProofAEAD {
						t.Fatalf("%+v", x)
					}
					return
				}
			}
		}
		one(path.Put)
		if !bytes.Equal(la.All().Bytes()[:size], lb.All().Bytes()[:size]) {
			t.Fatal("put: bytes differ")
		}
		clear(la.All().Bytes())
		one(path.Get)
		if !bytes.Equal(la.All().Bytes()[:size], lb.All().Bytes()[:size]) {
			t.Fatal("get: bytes differ")
		}
		s := a.streams[streams-1]
		if s.tx.seal.Updates() < 20 || s.rx.open.Updates() < 20 {
			t.Errorf("%d streams: %d keys out, %d in", streams, s.tx.seal.Updates(), s.rx.open.Updates())
		}
		if st, sb := a.Stats(), b.Stats(); st.BytesCopied > size/100 || sb.BytesCopied > size/100 {
			t.Errorf("%d and %d of %d bytes were copied", st.BytesCopied, sb.BytesCopied, size)
		}
		a.Close()
		b.Close()
	}
}

// TestSpentKeys: where one end cannot follow a change of keys, the path ends before the limit and
// says so at both.
func TestSpentKeys(t *testing.T) {
	o := Options{CongestionControl: "reno", KTLS: Off, sealLimit: spentMargin + 1<<15}
	ca, cb := sealedConfigs(1)
	la, lb := region(t, 1<<20), region(t, 1<<20)
	e, err := cb.Exports.Add(lb.All(), path.Read|path.Write)
	if err != nil {
		t.Fatal(err)
	}
	a, b, ea, eb := meet(t, o, o, ca, cb, nil)
	if ea != nil || eb != nil {
		t.Fatal(ea, eb)
	}
	defer b.Close()
	defer a.Close()
	a.streams[0].tx.fixed = true // as if the peer had said so
	downA, downB := putUntilDown(t, a, b, la.All(), e.Key())
	if !errors.Is(downA, seal.ErrSpent) || !errors.Is(downA, path.ErrDown) || !errors.Is(downB, errBye) {
		t.Errorf("%v\n%v", downA, downB)
	}
}

// TestSealedAnySplit feeds the records of random frames in pieces of any size, and compares with
// the frames.
func TestSealedAnySplit(t *testing.T) {
	const size = 2 << 20
	ca, cb := sealedConfigs(1)
	_ = cb
	rapid.Check(t, func(rt *rapid.T) {
		a, b := newNode(t, size, 32, 1, false), newNode(t, size, 32, 1, false)
		join := func(x, y *node, label string) {
			s, err := seal.Derive(ca.Secret, label, nil)
			if err != nil {
				rt.Fatal(err)
			}
			w, _ := seal.NewSealer(s, seal.Options{Limit: 4096})
			r, _ := seal.NewOpener(s, seal.Options{Limit: 4096})
			x.streams[0].tx, y.streams[0].rx = &recordOut{seal: w}, &recordIn{open: r}
		}
		join(a, b, "up")
		join(b, a, "down")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2))
		la, lb := a.region.All().Bytes(), b.region.All().Bytes()
		pathtest.Fill(la, rng.Uint64())
		clear(lb)
		want := make([]byte, size)
		var ops []path.Op
		for at := 0; len(ops) < 12; {
			op := path.Op{Kind: path.Put, Token: uint64(len(ops)), Notify: true, Msg: []byte("message")}
			for range rapid.SampledFrom([]int{1, 1, 3, 60}).Draw(rt, "blocks") {
				n := rapid.SampledFrom([]int{0, 1, 64, 300, directMin - 1, directMin, directMin + 1, seal.MaxContent,
					seal.MaxContent + 1, bulk, 100_000}).Draw(rt, "n")
				if at+n > size {
					break
				}
				src := rng.IntN(size - n)
				copy(want[at:], la[src:src+n])
				op.Copies = append(op.Copies, path.Copy{Local: mem.Span{Region: a.region, Off: uint64(src),
					Len: uint64(n)}, Key: b.export.Key(), RemoteOff: uint64(at)})
				at += n
			}
			ops = append(ops, op)
		}
		if n, err := a.post(ops); n != len(ops) {
			rt.Fatal(n, err)
		}
		done, notified := 0, 0
		for idle := 0; idle < 3; idle++ {
			for _, d := range [][2]*node{{a, b}, {b, a}} {
				x, y := d[0].streams[0], d[1].streams[0]
				if !x.busy() {
					d[0].fill(x, true)
				}
				if x.tx.r == x.tx.w && x.out.left > 0 {
					if err := x.tx.pack(&x.out); err != nil {
						rt.Fatal(err)
					}
				}
				for x.tx.r < x.tx.w {
					to := y.rx.space()
					if len(to) == 0 || y.in.paused {
						break
					}
					n := copy(to[:min(len(to), 1+rng.IntN(40_000))], x.tx.buf[x.tx.r:x.tx.w])
					x.tx.r += n
					y.rx.w += n
					idle = 0
					if err := d[1].unseal(y); err != nil {
						rt.Fatal(err)
					}
				}
			}
			for _, e := range a.events() {
				if e.Err != nil {
					rt.Fatal(e.Err)
				}
				done++
			}
			for _, e := range b.events() {
				if string(e.Msg) != "message" {
					rt.Fatalf("%+v", e)
				}
				notified++
			}
		}
		if done != len(ops) || notified != len(ops) || !bytes.Equal(lb, want) {
			rt.Fatalf("%d done and %d notified of %d, bytes right: %v", done, notified, len(ops), bytes.Equal(lb, want))
		}
	})
}

// TestNoKTLS: where the kernel has none, On is an error that says so, and Auto is not.
func TestNoKTLS(t *testing.T) {
	c, s := rawPair(t, "reno")
	if err := sys.AttachTLS(c); err == nil {
		return // this kernel has kTLS; TestGuestKTLS tests it
	}
	_ = s
	ca, cb := sealedConfigs(1)
	_, _, ea, eb := meet(t, Options{KTLS: On}, Options{}, ca, cb, nil)
	if !errors.Is(ea, path.ErrUnavailable) || !strings.Contains(ea.Error(), "kTLS") || eb == nil {
		t.Errorf("dial: %v; accept: %v", ea, eb)
	}
	if _, _, _, eb = meet(t, Options{}, Options{KTLS: On}, ca, cb, nil); !errors.Is(eb, path.ErrUnavailable) {
		t.Errorf("accept: %v", eb)
	}
	a, b, ea, eb := meet(t, Options{}, Options{}, ca, cb, nil)
	if ea != nil || eb != nil {
		t.Fatal(ea, eb)
	}
	defer b.Close()
	defer a.Close()
	if s := strings.Join(a.Explain(), "\n"); !strings.Contains(s, "no kTLS: the kernel does not have it") {
		t.Errorf("it explains:\n%s", s)
	}
}

// TestGoldenKeys pins down how the keys of a connection come from the secret, hello and answer; the
// expected ones are from the same arithmetic in Python.
func TestGoldenKeys(t *testing.T) {
	h := hello{version: version, kind: kindHello, flags: helloSealed | 2, window: 256,
		token: setup.Token{0: 0xa0, 15: 0xaf},
		index: 1, count: 2, frame: maxFrameBytes, blocks: maxFrameBlocks,
		nonce: [nonceSize]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}
	a := hello{version: version, kind: kindAnswer, flags: helloSealed | helloFixed, window: 64, frame: maxFrameBytes,
		blocks: maxFrameBlocks, nonce: [nonceSize]byte{11: 0xff}}
	var said, answered [helloSize]byte
	h.put(said[:])
	a.put(answered[:])
	for at, want := range map[int]string{8: "00000006", 32: "00010002", 48: "0102030405060708090a0b0c"} {
		if b := unhex(t, want); !bytes.Equal(said[at:at+len(b)], b) {
			t.Errorf("hello at %d: %x, expected %s", at, said[at:at+len(b)], want)
		}
	}
	for _, dialer := range []bool{true, false} {
		c, err := newChannel(aSecret(), dialer, &h, said[:], answered[:], 0)
		if err != nil {
			t.Fatal(err)
		}
		out, in := goldenKeys[0], goldenKeys[1]
		if !dialer {
			out, in = in, out
		}
		for k, want := range map[*keyed]string{c.out: out, c.in: in} {
			key, iv, err := k.secret.Keys()
			if got := fmt.Sprintf("%x %x", key, iv); err != nil || got != want {
				t.Errorf("dialer %v: key and iv %s, %v; expected %s", dialer, got, err, want)
			}
		}
	}
}

// Of the dialer and of the acceptor.
var goldenKeys = [2]string{"005175f1796af3ba2e928f97fd0a40cf 1452ca25a104a16b1682c72a",
	"99659cebda95ca50533871a5505b83ea f008dcaca3e38d9cf47c966d"}

// FuzzRecords: whatever bytes come where records are expected, they are refused or wait for more;
// nothing panics, and nothing is written to exported memory.
func FuzzRecords(f *testing.F) {
	s, err := seal.Derive(aSecret(), "fuzz", nil)
	if err != nil {
		f.Fatal(err)
	}
	w, err := seal.NewSealer(s, seal.Options{})
	if err != nil {
		f.Fatal(err)
	}
	rec := make([]byte, headerSize+seal.Overhead)
	(&header{typ: framePut, payload: 100}).put(rec[seal.HeaderSize:])
	f.Add(rec[:w.Seal(rec, seal.Data, headerSize)])
	f.Add([]byte{23, 3, 3, 0x40, 0x11})
	n := newNode(f, 1<<16, 4, 1, false)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := seal.NewOpener(s, seal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		x := newCore(n.reach, 4, 1, false, maxFrameBytes, maxFrameBlocks)
		x.trash = n.trash
		st := x.streams[0]
		st.rx = &recordIn{open: r}
		for len(b) > 0 {
			k := copy(st.rx.space(), b)
			if k == 0 {
				t.Fatal("no room, and nothing is refused")
			}
			b = b[k:]
			st.rx.w += k
			if x.unseal(st) != nil {
				break
			}
		}
		for i, v := range n.region.All().Bytes() {
			if v != 0 {
				t.Fatalf("byte %d was written", i)
			}
		}
	})
}

// TestPausedWakes: a side that stopped reading because its owner fetched no notifications goes on
// when the owner fetches them, although all that is missing is here already and no descriptor
// reports it.
func TestPausedWakes(t *testing.T) {
	for _, secret := range [][]byte{nil, aSecret()} {
		ca, cb := configs()
		ca.Secret, cb.Secret = secret, secret
		a, b, ea, eb := meet(t, Options{KTLS: Off}, Options{KTLS: Off}, ca, cb, nil)
		if ea != nil || eb != nil {
			t.Fatal(ea, eb)
		}
		const all = 60
		msg := make([]byte, path.MaxMessage)
		for i := range all {
			if _, err := a.Post([]path.Op{{Kind: path.Notify, Imm: uint64(i), Msg: msg}}); err != nil {
				t.Fatal(err)
			}
		}
		var ev [512]path.Event
		for got := 0; got < all; {
			a.Poll(ev[:4])
			n := b.Poll(ev[:])
			for i := range n {
				if ev[i].Imm != uint64(got+i) {
					t.Fatalf("notification %d comes as number %d", ev[i].Imm, got+i)
				}
			}
			if got += n; got == all || b.Arm() {
				continue
			}
			if i, err := sys.PollIn(10_000, b.FD()); err != nil || i < 0 {
				t.Fatalf("sealed %v: asleep with %d of %d notifications: %v", secret != nil, got, all, err)
			}
		}
		a.Close()
		b.Close()
	}
}

// putUntilDown puts the same again and again until both ends are down, because the key was used as
// much as it may be, and returns why.
func putUntilDown(t *testing.T, a, b *Path, src mem.Span, key path.Key) (downA, downB error) {
	t.Helper()
	const most = 5
	var ev [4]path.Event
	for posted, done := 0, 0; downA == nil || downB == nil; {
		if posted == done && downA == nil && posted < most {
			if n, _ := a.Post([]path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: src, Key: key}}}}); n == 1 {
				posted++
			}
		}
		for _, x := range ev[:a.Poll(ev[:])] {
			done++
			if x.Kind == path.EventDown {
				downA = x.Err
			}
		}
		for _, x := range ev[:b.Poll(ev[:])] {
			downB = x.Err
		}
		if done >= most {
			t.Fatal("the path outlives its key")
		}
	}
	return downA, downB
}
