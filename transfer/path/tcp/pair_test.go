package tcp

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/seal"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func newToken() (t setup.Token) {
	rand.Read(t[:])
	return t
}

// dialPair connects two ends inside this process; a dials.
func dialPair(t testing.TB, o Options, ca, cb setup.Config) (*Path, *Path) {
	t.Helper()
	d := New(o)
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tok := newToken()
	type result struct {
		p   path.Path
		err error
	}
	acc := make(chan result, 1)
	go func() {
		p, err := l.Accept(ctx, tok, cb)
		acc <- result{p, err}
	}()
	pa, err := d.Dial(ctx, setup.Offer{Addr: l.Addr(), Token: tok}, ca)
	r := <-acc
	if err != nil || r.err != nil {
		t.Fatalf("dial: %v; accept: %v", err, r.err)
	}
	return pa.(*Path), r.p.(*Path)
}

// aSecret is what two ends share in tests.
func aSecret() []byte { return []byte("0123456789abcdefghijklmnopqrstuv") }

// sealedFactory is factory with encryption.
func sealedFactory(o Options, streams int) pathtest.Factory {
	f := factory(o, streams, false)
	plain := f.New
	f.New = func(t testing.TB, a, b setup.Config) (path.Path, path.Path) {
		a.Secret, b.Secret = aSecret(), aSecret()
		return plain(t, a, b)
	}
	f.Boundaries = append(f.Boundaries, directMin, seal.MaxContent, 2*seal.MaxContent, sealBytes)
	return f
}

func factory(o Options, streams int, noCRC bool) pathtest.Factory {
	return pathtest.Factory{
		New: func(t testing.TB, a, b setup.Config) (path.Path, path.Path) {
			a.Streams, b.Streams = streams, streams
			a.NoChecksum = a.NoChecksum || noCRC
			return dialPair(t, o, a, b)
		},
		Boundaries: []int{inlineMax, stageSize - headerSize, bulk, crcBytes, frameBytes, batchBytes, stripeMin,
			moveBudget},
	}
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name    string
		o       Options
		streams int
		noCRC   bool
	}{
		{"OneStream", Options{CongestionControl: CongestionSystem, ZeroCopy: true}, 1, false},
		{"FiveStreams", Options{}, 5, true},
	} {
		t.Run(c.name, func(t *testing.T) { pathtest.Run(t, factory(c.o, c.streams, c.noCRC)) })
	}
	t.Run("Sealed", func(t *testing.T) { pathtest.Run(t, sealedFactory(Options{}, 2)) })
	t.Run("SealedOneStream", func(t *testing.T) {
		pathtest.Run(t, sealedFactory(Options{CongestionControl: CongestionSystem}, 1))
	})
}

// buffers sets the sizes of the buffers of a path's sockets, in bytes.
func buffers(t testing.TB, p *Path, size int) {
	t.Helper()
	for _, fd := range p.fds {
		for _, opt := range []int{sys.SoSndBuf, sys.SoRcvBuf} {
			if err := sys.SetOption(fd, sys.SolSocket, opt, size); err != nil {
				t.Fatal(err)
			}
		}
	}
}
