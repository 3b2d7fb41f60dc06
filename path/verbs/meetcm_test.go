package verbs

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/ibv/cm"
	"github.com/penstock-io/penstock/path"
)

// drawShort is a hello that fits into a request of the connection manager.
func drawShort(t *rapid.T) hello {
	u := func(name string, most uint64) uint64 { return rapid.Uint64Range(1, most).Draw(t, name) }
	h := hello{nonce: u("nonce", 1<<32-1), params: params{window: uint32(u("window", maxWindow)), ctlDepth: ctlDepth, msgDepth: msgDepth, rails: uint8(u("rails", cmRails)),
		mtu: uint8(u("mtu", 5)), reads: uint8(u("reads", 255)), flags: uint8(u("flags", 255))}}
	copy(h.token[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "token"))
	copy(h.gid[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
	second := cmPSN
	if h.flags&flagUC != 0 {
		h.flags &^= flagDC
	}
	if h.transport() == DC {
		second = cmKey
	}
	h.control = endpoint{uint32(u("qpn", 1<<24-1)), second(h.nonce, 0)}
	for i := range int(h.rails) {
		h.rail[i] = endpoint{uint32(u("qpn", 1<<24-1)), second(h.nonce, i+1)}
	}
	return h
}

// TestShortHello: what a request of the connection manager carries comes out as it was, and nothing in it can be changed by who has no secret.
func TestShortHello(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawShort(t)
		secret := rapid.SliceOfN(rapid.Byte(), path.SecretSize, path.SecretSize).Draw(t, "secret")
		b := h.appendCM(nil, secret)
		if len(b) != cmHelloSize || len(b) > cm.MaxConnectData {
			t.Fatalf("%d bytes: expected %d, of %d that there may be", len(b), cmHelloSize, cm.MaxConnectData)
		}
		var got hello
		padded := append(bytes.Clone(b), 0, 0, 0)
		if err := got.parseCM(padded, h.gid); err != nil || got != h || !cmSealed(padded, h.gid, secret) {
			t.Fatalf("%v: %+v became %+v", err, h, got)
		}
		padded[1]++
		if got.parseCM(padded, h.gid) == nil {
			t.Fatal("another version is taken")
		}
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		bad := bytes.Clone(b)
		bad[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if got.parseCM(bad, h.gid) == nil && cmSealed(bad, h.gid, secret) {
			t.Fatalf("byte %d was changed, and it is taken", at)
		}
		other := h.gid
		other[rapid.IntRange(0, 15).Draw(t, "where")]++
		if cmSealed(b, other, secret) {
			t.Fatal("it is taken from another address")
		}
		if cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut"); got.parseCM(b[:cut], h.gid) == nil {
			t.Fatalf("%d bytes of it are taken", cut)
		}

		w := welcome{nonce: h.nonce, status: statusRefused, words: rapid.StringN(0, 200, 400).Draw(t, "words")}
		r := w.appendRefusal(nil, h.gid, secret)
		if len(r) > cm.MaxRejectData {
			t.Fatalf("a refusal of %d bytes", len(r))
		}
		var said welcome
		padded = append(bytes.Clone(r), make([]byte, cm.MaxRejectData-len(r))...)
		if !said.parseRefusal(padded, h.gid, h.nonce, secret) || said.status != w.status || said.words != w.words[:min(len(w.words), cmWords)] {
			t.Fatalf("%+v became %+v", w, said)
		}
		at = rapid.IntRange(0, len(r)-1).Draw(t, "at")
		r[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if said.parseRefusal(r, h.gid, h.nonce, secret) || said.parseRefusal(padded, h.gid, h.nonce+1, secret) {
			t.Fatal("a refusal is believed that is changed, or an answer to another hello")
		}
	})
	if n := len((&welcome{}).append(nil, nil)); n > cm.MaxAcceptData {
		t.Errorf("a welcome has %d bytes, and an acceptance carries %d", n, cm.MaxAcceptData)
	}
}

func FuzzShortHello(f *testing.F) {
	h := hello{nonce: 1, params: params{rails: 2, window: 8, mtu: 5}}
	f.Add(h.appendCM(nil, nil))
	f.Add((&welcome{status: statusRefused, words: "no"}).appendRefusal(nil, h.gid, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h hello
		if h.parseCM(b, [16]byte{}) == nil {
			n := 31 + 3*int(h.rails)
			if again := h.appendCM(nil, nil); !bytes.Equal(again[:n], b[:n]) {
				t.Fatalf("%x became %x", b, again)
			}
		}
		var w welcome
		if w.parseRefusal(b, h.gid, 0, nil) && len(w.words) > cmWords {
			t.Fatal("too many words")
		}
	})
}

// TestTakesHello: a hello goes to who waits for it, once; repeated it gets the same answer, and everything else gets none.
func TestTakesHello(t *testing.T) {
	secret := []byte("secret")
	genuine := func(s []byte) bool { return bytes.Equal(s, secret) }
	h := hello{nonce: 5}
	v := &invitation{secret: secret, came: make(chan hello, 1)}
	l := &Listener{desk: new(desk), waiting: map[path.Token]*invitation{h.token: v}}
	unknown := h
	unknown.token[3]++
	for what, c := range map[string]struct {
		h       hello
		genuine func([]byte) bool
	}{"an unknown token": {unknown, genuine}, "a wrong secret": {h, func([]byte) bool { return false }}} {
		if mine, again := l.take(&c.h, c.genuine, nil); mine || again != nil || v.taken {
			t.Errorf("%s is taken", what)
		}
	}
	if mine, again := l.take(&h, genuine, nil); !mine || again != nil || len(v.came) != 1 {
		t.Error("the hello is not taken")
	}
	if mine, again := l.take(&h, genuine, nil); !mine || again != nil || len(v.came) != 1 {
		t.Error("repeated before the answer it is not what it was")
	}
	other := h
	other.nonce++
	if mine, _ := l.take(&other, genuine, nil); mine {
		t.Error("a second dialer with the same token is taken")
	}
	v.answer = []byte("welcome")
	if mine, again := l.take(&h, genuine, nil); !mine || again == nil {
		t.Error("repeated behind the answer it gets none")
	}
}

// TestMeetUnavailable: without a connection manager the listener says what is missing, beside why there are no datagrams.
func TestMeetUnavailable(t *testing.T) {
	w := newWorld(t, "absent ud")
	for meet, words := range map[Meet][]string{MeetUD: {"listen"}, MeetCM: {"by the connection manager"}, MeetAuto: {"UD", "by the connection manager"}} {
		_, err := New(Options{Library: w.lib, Meet: meet}).Listen()
		if !errors.Is(err, path.ErrUnavailable) {
			t.Errorf("meet %d: %v", meet, err)
			continue
		}
		for _, s := range words {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("meet %d: %v: it does not say %q", meet, err, s)
			}
		}
	}
	if err := New(Options{Meet: 9}).Probe(); !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), "Meet") {
		t.Errorf("an unknown way to meet: %v", err)
	}
	d := New(Options{Library: w.lib, Insecure: true})
	for addr, words := range map[string]string{"cm/10.0.0.1:7471": "4 rails", "cm/10.0.0.1": "expected cm/IP:PORT", "cm/10.0.0.1:0": "expected cm/IP:PORT",
		"cm/[fe80::1%eth0]:5": "expected cm/IP:PORT"} {
		_, err := d.Dial(t.Context(), path.Offer{Addr: addr}, path.Config{Rights: path.Read | path.Write, Exports: new(path.Exports), Streams: 4})
		if !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), words) {
			t.Errorf("dial %s: %v: it does not say %q", addr, err, words)
		}
	}
	if a, is, err := parseCMAddress("cm/[::ffff:10.0.0.1]:80"); !is || err != nil || a != netip.MustParseAddrPort("10.0.0.1:80") {
		t.Errorf("%v %v %v", a, is, err)
	}
	if _, is, _ := parseCMAddress("fe80::1/0/17/0x1234/5"); is {
		t.Error("an address of datagrams is one of the connection manager")
	}
}

// meetings are made by the kernel's connection manager in a guest, or by the stand-in.
func meetings(t *testing.T, d *Driver) {
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	secret, x := bytes.Repeat([]byte{7}, path.SecretSize), new(path.Exports)
	type result struct {
		p   path.Path
		err error
	}
	dial := func(ctx context.Context, tok path.Token, secret []byte, rails int) chan result {
		c := make(chan result, 1)
		go func() {
			p, err := d.Dial(ctx, path.Offer{Addr: l.Addr(), Token: tok}, path.Config{Rights: path.Read | path.Write, Exports: x, Secret: secret, Streams: rails})
			c <- result{p, err}
		}()
		return c
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	// Who has not the secret gets nothing, and takes no dialer's place.
	tok := newToken()
	accepted := make(chan result, 1)
	go func() {
		p, err := l.Accept(ctx, tok, path.Config{Rights: path.Read | path.Write, Exports: x, Secret: secret, Streams: 2})
		accepted <- result{p, err}
	}()
	short, stop := context.WithTimeout(ctx, 3*time.Second)
	wrong := bytes.Clone(secret)
	wrong[9]++
	if r := <-dial(short, tok, wrong, 2); !errors.Is(r.err, context.DeadlineExceeded) {
		t.Errorf("with another secret: %v", r.err)
	}
	if r := <-dial(short, newToken(), secret, 2); !errors.Is(r.err, context.DeadlineExceeded) {
		t.Errorf("with another token: %v", r.err)
	}
	stop()
	dialed := <-dial(ctx, tok, secret, 2)
	r := <-accepted
	if dialed.err != nil || r.err != nil {
		t.Fatalf("dial: %v; accept: %v", dialed.err, r.err)
	}
	r.p.Close()
	dialed.p.Close()

	// A dialer that is early asks again.
	tok = newToken()
	early := dial(ctx, tok, secret, 1)
	<-dial(timeout(t, 300*time.Millisecond), newToken(), secret, 1) // meanwhile the first was rejected
	p, err := l.Accept(ctx, tok, path.Config{Rights: path.Read | path.Write, Exports: x, Secret: secret})
	if r := <-early; err != nil || r.err != nil {
		t.Fatalf("early dial: %v; accept: %v", r.err, err)
	} else {
		r.p.Close()
	}
	p.Close()

	// A refusal has its words.
	tok = newToken()
	refused := dial(ctx, tok, secret, 3)
	if _, err := l.Accept(ctx, tok, path.Config{Rights: path.Read | path.Write, Exports: x, Secret: secret, Streams: 2}); !errors.Is(err, path.ErrUnavailable) {
		t.Errorf("accept of 3 rails by one with 2: %v", err)
	}
	if r := <-refused; r.err == nil || !strings.Contains(r.err.Error(), "the dialer wants 3 rails and this side 2") {
		t.Errorf("dial of 3 rails at one with 2: %v", r.err)
	}

	// Close ends who waits, and a dialer then finds no listener.
	go func() {
		_, err := l.Accept(ctx, newToken(), path.Config{Rights: path.Read | path.Write, Exports: x})
		accepted <- result{nil, err}
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if r := <-accepted; !errors.Is(r.err, ErrListenerClosed) {
		t.Errorf("accept at a listener that closes: %v", r.err)
	}
	if r := <-dial(timeout(t, 2*time.Second), tok, secret, 1); !errors.Is(r.err, context.DeadlineExceeded) {
		t.Errorf("dial without a listener: %v", r.err)
	}
}

func timeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
