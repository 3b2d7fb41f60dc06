package seal

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func pair(t testing.TB, s Secret, o Options) (*Sealer, *Opener) {
	t.Helper()
	w, err := NewSealer(s, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewOpener(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return w, r
}

func testSecret(t testing.TB, label string) Secret {
	t.Helper()
	s, err := Derive(bytes.Repeat([]byte{7}, 32), label, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Sealer) record(t Type, msg []byte) []byte {
	b := make([]byte, len(msg)+Overhead)
	copy(b[HeaderSize:], msg)
	return b[:s.Seal(b, t, len(msg))]
}

// TestStandardVectors: the keys and the record of RFC 8448 section 3.
func TestStandardVectors(t *testing.T) {
	s := Secret{[32]byte(unhex(t, "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5"))}
	key, iv, err := s.Keys()
	if err != nil || hex.EncodeToString(key[:]) != "17422dda596ed5d9acd890e3c63f5051" ||
		hex.EncodeToString(iv[:]) != "5b78923dee08579033e523d9" {
		t.Fatalf("key %x, iv %x, %v", key, iv, err)
	}
	w, r := pair(t, s, Options{})
	msg := make([]byte, 50)
	for i := range msg {
		msg[i] = byte(i)
	}
	want := unhex(t, "17 03 03 00 43 a2 3f 70 54 b6 2c 94 d0 af fa fe 82 28 ba 55 cb ef ac ea 42 f9 14 aa 66 bc ab "+
		"3f 2b 98 19 a8 a5 b4 6b 39 5b d5 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62 92 a2 97 70 14 bd 1e 3d ea e6 3a ee bb "+
		"21 69 49 15 e4")
	rec := w.record(Data, msg)
	if !bytes.Equal(rec, want) {
		t.Fatalf("sealed %x", rec)
	}
	typ, got, err := r.Open(nil, rec)
	if err != nil || typ != Data || !bytes.Equal(got, msg) {
		t.Fatalf("opened %d %x, %v", typ, got, err)
	}
}

// From the same arithmetic in Python.
const (
	goldenSecret = "71ccec418ab8a5aca5892d87d5945f0aedb363c42f4f6edda1531362ac2e1062"
	goldenNext   = "45c917827c75ad577e7536af759816cd42600434727ca08ca83fb6a3a65933d9"
)

// TestGolden pins down what is this package's own: how a secret comes from what is shared.
func TestGolden(t *testing.T) {
	s := testSecret(t, "penstock test")
	if got := hex.EncodeToString(s.b[:]); got != goldenSecret {
		t.Errorf("derived %s", got)
	}
	n, err := s.Next()
	if got := hex.EncodeToString(n.b[:]); err != nil || got != goldenNext {
		t.Errorf("after an update %s, %v", got, err)
	}
	for _, f := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(f, s); got != "seal.Secret(hidden)" {
			t.Errorf("%s prints %s", f, got)
		}
	}
	if _, err := Derive(make([]byte, 15), "x", nil); err == nil {
		t.Error("a short secret was taken")
	}
	if _, err := Derive(make([]byte, 32), "", nil); err == nil {
		t.Error("an empty label was taken")
	}
}

// TestSecretsDiffer: label, transcript and shared secret each change the result.
func TestSecretsDiffer(t *testing.T) {
	seen := map[Secret]string{}
	for _, shared := range []byte{1, 2} {
		for _, label := range []string{"a", "b"} {
			for _, tr := range []string{"", "x"} {
				s, err := Derive(bytes.Repeat([]byte{shared}, 32), label, []byte(tr))
				if err != nil {
					t.Fatal(err)
				}
				name := fmt.Sprint(shared, label, tr)
				if old, ok := seen[s]; ok {
					t.Errorf("%s and %s have the same secret", name, old)
				}
				seen[s] = name
			}
		}
	}
}

// TestRefused: the Opener refuses whatever an attacker between the ends does, and opens nothing
// afterwards.
func TestRefused(t *testing.T) {
	other := testSecret(t, "the other direction")
	for _, c := range []struct {
		name string
		do   func(w *Sealer, r *Opener) []byte // what comes after one good record
		want error
	}{
		{"flipped content", func(w *Sealer, _ *Opener) []byte { b := w.record(Data, []byte("abc")); b[6] ^= 1; return b }, ErrTag},
		{"flipped type", func(w *Sealer, _ *Opener) []byte { b := w.record(Data, []byte("abc")); b[8] ^= 1; return b }, ErrTag},
		{"flipped tag", func(w *Sealer, _ *Opener) []byte { b := w.record(Data, []byte("abc")); b[len(b)-1] ^= 0x80; return b }, ErrTag},
		{"flipped header", func(w *Sealer, _ *Opener) []byte { b := w.record(Data, []byte("abc")); b[1] ^= 1; return b }, ErrRecord},
		{"shortened", func(w *Sealer, _ *Opener) []byte { b := w.record(Data, []byte("abc")); b[4]--; return b[:len(b)-1] }, ErrTag},
		{"cut", func(w *Sealer, _ *Opener) []byte { b := w.record(Data, []byte("abc")); return b[:len(b)-1] }, ErrRecord},
		{"left out", func(w *Sealer, _ *Opener) []byte { w.record(Data, []byte("abc")); return w.record(Data, []byte("abc")) }, ErrTag},
		{"repeated", func(w *Sealer, r *Opener) []byte {
			b := w.record(Data, []byte("abc"))
			again := bytes.Clone(b)
			if _, _, err := r.Open(nil, b); err != nil {
				panic(err)
			}
			return again
		}, ErrTag},
		{"of another direction", func(_ *Sealer, _ *Opener) []byte {
			x, err := NewSealer(other, Options{})
			if err != nil {
				panic(err)
			}
			x.record(Data, nil)
			return x.record(Data, []byte("abc"))
		}, ErrTag},
		{"in clear", func(_ *Sealer, _ *Opener) []byte {
			return []byte{23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}
		}, ErrTag},
		{"too long", func(_ *Sealer, _ *Opener) []byte { return append([]byte{23, 3, 3, 0x41, 1}, make([]byte, 0x4101)...) }, ErrRecord},
		{"too short", func(_ *Sealer, _ *Opener) []byte { return append([]byte{23, 3, 3, 0, 16}, make([]byte, 16)...) }, ErrRecord},
		{"an alert", func(w *Sealer, _ *Opener) []byte { return w.record(Alert, []byte{1, 0}) }, errType},
		{"another message", func(w *Sealer, _ *Opener) []byte { return w.record(Handshake, []byte{4, 0, 0, 1, 0}) }, errUpdate},
		{"an update that wants one", func(w *Sealer, _ *Opener) []byte { return w.record(Handshake, []byte{24, 0, 0, 1, 1}) }, errUpdate},
		{"only zeros", func(w *Sealer, _ *Opener) []byte { return w.record(0, make([]byte, 9)) }, errEmpty},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, r := pair(t, testSecret(t, "one direction"), Options{})
			if _, _, err := r.Open(nil, w.record(Data, []byte("first"))); err != nil {
				t.Fatal(err)
			}
			_, b, err := r.Open(nil, c.do(w, r))
			if !errors.Is(err, c.want) || !errors.Is(err, ErrRecord) || b != nil {
				t.Fatalf("opened %q, %v; expected %v", b, err, c.want)
			}
			if _, _, again := r.Open(nil, w.record(Data, nil)); again != err {
				t.Errorf("afterwards: %v", again)
			}
		})
	}
}

// TestPadding: zeros behind the type are permitted to the other end.
func TestPadding(t *testing.T) {
	w, r := pair(t, testSecret(t, "x"), Options{})
	b := make([]byte, 10+Overhead)
	copy(b[HeaderSize:], "abc\x17")
	if _, got, err := r.Open(nil, b[:w.Seal(b, 0, 10)]); err != nil || string(got) != "abc" {
		t.Fatalf("%q, %v", got, err)
	}
}

// TestPlaces: a record is opened into a place that has one byte more than the content, and not into
// a shorter one, which does no harm.
func TestPlaces(t *testing.T) {
	w, r := pair(t, testSecret(t, "x"), Options{})
	for _, n := range []int{0, 1, 100, MaxContent} {
		msg := bytes.Repeat([]byte{byte(n), 3}, n)[:n]
		rec := w.record(Data, msg)
		if _, _, err := r.Open(make([]byte, n), rec); err != errRoom {
			t.Fatalf("%d bytes in %d: %v", n, n, err)
		}
		dst := bytes.Repeat([]byte{0xee}, n+3)
		_, got, err := r.Open(dst, rec)
		if err != nil || !bytes.Equal(got, msg) || !bytes.Equal(dst[:n], msg) || dst[n+1] != 0xee || dst[n+2] != 0xee {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// TestKeyUpdate: with a small limit keys change by themselves, and the opener refuses one that goes
// on too long.
func TestKeyUpdate(t *testing.T) {
	o := Options{Limit: 2048}
	w, r := pair(t, testSecret(t, "x"), o)
	rec := make([]byte, MaxRecord)
	for i := range 200 {
		n := i * 37 % MaxContent
		if w.Due(n) {
			k, err := w.Update(rec)
			if err != nil {
				t.Fatal(err)
			}
			if typ, b, err := r.Open(nil, rec[:k]); err != nil || typ != Handshake || len(b) != 0 {
				t.Fatalf("update: %d, %q, %v", typ, b, err)
			}
			if w.Seq() != 0 || r.Seq() != 0 {
				t.Fatal("the numbers do not begin again")
			}
		}
		rec[HeaderSize] = byte(i)
		if _, b, err := r.Open(nil, rec[:w.Seal(rec, Data, n)]); err != nil || len(b) != n || n > 0 && b[0] != byte(i) {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if w.Updates() < 20 || w.Updates() != r.Updates() {
		t.Fatalf("%d and %d updates", w.Updates(), r.Updates())
	}
	// A sealer that does not ask.
	w, r = pair(t, testSecret(t, "x"), o)
	var err error
	for range 3 {
		_, _, err = r.Open(nil, rec[:w.Seal(rec, Data, MaxContent)])
	}
	if err != errLimit {
		t.Fatalf("beyond the limit: %v", err)
	}
	for _, l := range []uint64{1, Limit + 1} {
		if _, err := NewSealer(Secret{}, Options{Limit: l}); err == nil {
			t.Errorf("a limit of %d was taken", l)
		}
	}
}

// TestAnyRecords: any content through any number of updates, opened in either place.
func TestAnyRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := Derive(bytes.Repeat([]byte{1}, 16), rapid.StringN(1, 40, 80).Draw(t, "label"), nil)
		if err != nil {
			t.Fatal(err)
		}
		w, _ := NewSealer(s, Options{Limit: 4096})
		r, _ := NewOpener(s, Options{Limit: 4096})
		for range rapid.IntRange(1, 20).Draw(t, "records") {
			msg := rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "msg")
			if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
				msg = append(msg, make([]byte, MaxContent-len(msg))...)
			}
			if w.Due(len(msg)) || rapid.IntRange(0, 9).Draw(t, "update") == 0 {
				rec := make([]byte, UpdateSize)
				n, err := w.Update(rec)
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := r.Open(nil, rec[:n]); err != nil {
					t.Fatal(err)
				}
			}
			rec := w.record(Data, msg)
			if n, err := RecordSize(rec); err != nil || n != len(rec) {
				t.Fatal(n, err)
			}
			var dst []byte
			if rapid.Bool().Draw(t, "apart") {
				dst = make([]byte, len(msg)+1)
			}
			if _, got, err := r.Open(dst, rec); err != nil || !bytes.Equal(got, msg) {
				t.Fatal(err)
			}
		}
	})
}

func TestNoAllocations(t *testing.T) {
	w, r := pair(t, testSecret(t, "x"), Options{})
	rec, dst := make([]byte, MaxRecord), make([]byte, MaxRecord)
	if n := testing.AllocsPerRun(100, func() {
		k := w.Seal(rec, Data, 5000)
		if _, _, err := r.Open(dst, rec[:k]); err != nil {
			t.Fatal(err)
		}
		k = w.Seal(rec, Data, 5000)
		if _, _, err := r.Open(nil, rec[:k]); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// keyLog collects the traffic secrets of a handshake of crypto/tls.
type keyLog struct{ bytes.Buffer }

func (k *keyLog) secret(t *testing.T, label string) Secret {
	t.Helper()
	for line := range strings.Lines(k.String()) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == label {
			return Secret{[32]byte(unhex(t, f[2]))}
		}
	}
	t.Fatalf("no %s in the log of keys", label)
	return Secret{}
}

// TestStandardPeer exchanges records with Go's own TLS: after its handshake this package takes the
// client's place.
func TestStandardPeer(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"peer"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	server := tls.Server(sc, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true})
	log := new(keyLog)
	client := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, KeyLogWriter: log})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s := client.ConnectionState().CipherSuite; s != tls.TLS_AES_128_GCM_SHA256 {
		testenv.Missing(t, "a processor with AES instructions, for which crypto/tls chooses what this package has",
			fmt.Errorf("it chose %s", tls.CipherSuiteName(s)))
	}
	w, err := NewSealer(log.secret(t, "CLIENT_TRAFFIC_SECRET_0"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewOpener(log.secret(t, "SERVER_TRAFFIC_SECRET_0"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { // the server sends everything back
		_, err := io.Copy(server, server)
		done <- err
	}()
	var in []byte
	buf := make([]byte, 1<<16)
	for i, n := range []int{1, 100, MaxContent, 3000} {
		msg := make([]byte, n)
		rand.Read(msg)
		if i == 2 { // a change of keys in between
			up := make([]byte, UpdateSize)
			k, err := w.Update(up)
			if err != nil {
				t.Fatal(err)
			}
			c.Write(up[:k])
		}
		if _, err := c.Write(w.record(Data, msg)); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for len(got) < n {
			size, err := RecordSize(in)
			if err != nil {
				t.Fatal(err)
			}
			if size == 0 || len(in) < size {
				k, err := c.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				in = append(in, buf[:k]...)
				continue
			}
			_, b, err := r.Open(nil, in[:size])
			if err != nil {
				t.Fatal(err)
			}
			got, in = append(got, b...), in[size:]
		}
		if !bytes.Equal(got, msg) {
			t.Fatalf("%d bytes came back changed", n)
		}
	}
	c.Close()
	<-done
}

// FuzzOpen: whatever comes, an Opener refuses it or returns what was sealed; nothing panics.
func FuzzOpen(f *testing.F) {
	s := Secret{[32]byte{1, 2, 3}}
	w, _ := NewSealer(s, Options{})
	f.Add(w.record(Data, []byte("hello")))
	f.Add([]byte{23, 3, 3, 0, 17})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewOpener(s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := RecordSize(b)
		if err == nil && n > HeaderSize+maxCipher {
			t.Fatalf("size %d", n)
		}
		if err != nil || n == 0 || n > len(b) {
			return
		}
		w, _ := NewSealer(s, Options{})
		typ, msg, err := r.Open(make([]byte, n), b[:n])
		if err != nil {
			return
		}
		if typ != Data || !bytes.Equal(w.record(Data, msg), b[:n]) {
			t.Fatalf("opened %x from %x", msg, b[:n])
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	w, r := pair(b, testSecret(b, "x"), Options{})
	rec, dst := make([]byte, MaxRecord), make([]byte, MaxRecord)
	b.Run("Seal", func(b *testing.B) {
		b.SetBytes(MaxContent)
		for b.Loop() {
			w.Seal(rec, Data, MaxContent)
		}
	})
	w, _ = NewSealer(testSecret(b, "x"), Options{})
	b.Run("SealOpen", func(b *testing.B) {
		b.SetBytes(MaxContent)
		for b.Loop() {
			r.Open(dst, rec[:w.Seal(rec, Data, MaxContent)])
		}
	})
}
