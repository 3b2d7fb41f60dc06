package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/seal"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestGuestKTLS: the kernel's TLS at either end and at both, against this package's own and itself:
// bytes, conformance, damage on the way, and the end of a key that the kernel cannot change.
func TestGuestKTLS(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Net, Timeout: 8 * time.Minute}) {
		return
	}
	with := func(s Switch) Options { return Options{CongestionControl: "reno", KTLS: s} }
	for _, c := range []struct {
		name string
		a, b Switch
	}{{"KernelToProcess", On, Off}, {"ProcessToKernel", Off, On}, {"KernelToKernel", Auto, Auto}} {
		t.Run(c.name, func(t *testing.T) { ktlsTransfer(t, with(c.a), with(c.b)) })
	}
	t.Run("Conformance", func(t *testing.T) {
		f := sealedFactory(Options{}, 2)
		f.Boundaries, f.Large, f.Patience = []int{seal.MaxContent}, 1<<20, 2*time.Minute
		f.Checks = []string{"Sizes", "HighOffsets", "PartOfRegion", "Empty", "Notify", "Refusals", "Cancel", "Fence",
			"Close", "CloseDelivers", "PeerGone", "Wake"}
		f.New = func(t testing.TB, ca, cb setup.Config) (path.Path, path.Path) {
			ca.Secret, cb.Secret, ca.Streams = aSecret(), aSecret(), 2
			a, b, ea, eb := meet(t, with(On), with(Off), ca, cb, nil)
			if ea != nil || eb != nil {
				t.Fatal(ea, eb)
			}
			return a, b
		}
		pathtest.Run(t, f)
	})
	t.Run("Damage", func(t *testing.T) {
		ca, cb := sealedConfigs(1)
		la, lb := region(t, 1<<16), region(t, 1<<16)
		e, err := cb.Exports.Add(lb.All(), path.Read|path.Write)
		if err != nil {
			t.Fatal(err)
		}
		a, b, ea, eb := meet(t, with(Off), with(On), ca, cb, func(m *middle) {
			m.edit = func(w *wire, up bool, n int, r []byte) bool {
				if up && n == 2 {
					r[9] ^= 1
				}
				w.pass(r)
				return true
			}
		})
		if ea != nil || eb != nil {
			t.Fatal(ea, eb)
		}
		defer a.Close()
		defer b.Close()
		op := path.Op{Kind: path.Put, Copies: []path.Copy{{Local: mem.Span{Region: la, Len: 5000}, Key: e.Key()}}}
		var ev [4]path.Event
		var down error
		for posted, done := 0, 0; down == nil; {
			if posted == done && posted < 5 {
				if n, _ := a.Post([]path.Op{op}); n == 1 {
					posted++
				}
			}
			for _, x := range ev[:a.Poll(ev[:])] {
				if x.Kind == path.EventDone {
					done++
				}
			}
			for _, x := range ev[:b.Poll(ev[:])] {
				if x.Kind == path.EventDown {
					down = x.Err
				}
			}
		}
		if !errors.Is(down, path.ErrIntegrity) || !errors.Is(down, path.ErrDown) {
			t.Errorf("a changed record: %v", down)
		}
	})
	t.Run("SpentKey", func(t *testing.T) {
		o := with(On)
		o.sealLimit = spentMargin + 1<<15
		ca, cb := sealedConfigs(1)
		la, lb := region(t, 1<<20), region(t, 1<<20)
		e, err := cb.Exports.Add(lb.All(), path.Read|path.Write)
		if err != nil {
			t.Fatal(err)
		}
		p := o
		p.KTLS = Off
		a, b, ea, eb := meet(t, o, p, ca, cb, nil)
		if ea != nil || eb != nil {
			t.Fatal(ea, eb)
		}
		defer b.Close()
		defer a.Close()
		downA, downB := putUntilDown(t, a, b, la.All(), e.Key())
		if !strings.Contains(downA.Error(), "as much as is safe") || !errors.Is(downB, errBye) {
			t.Errorf("%v\n%v", downA, downB)
		}
	})
}

// ktlsTransfer moves bytes of many sizes both ways and looks that the ends are what they were asked
// to be.
func ktlsTransfer(t *testing.T, oa, ob Options) {
	const size = 6<<20 + 777
	ca, cb := sealedConfigs(2)
	la, lb := region(t, size), region(t, size)
	e, err := cb.Exports.Add(lb.All(), path.Read|path.Write)
	if err != nil {
		t.Fatal(err)
	}
	a, b, ea, eb := meet(t, oa, ob, ca, cb, nil)
	if ea != nil || eb != nil {
		t.Fatal(ea, eb)
	}
	defer b.Close()
	defer a.Close()
	for _, x := range []struct {
		p *Path
		o Options
	}{{a, oa}, {b, ob}} {
		kernel := x.o.KTLS != Off
		for _, s := range x.p.streams {
			if s.kernelOut != kernel || s.kernelIn != kernel || (s.tx == nil) != kernel || (s.rx == nil) != kernel {
				t.Fatalf("connection %d: kernel out %v, in %v; expected %v", s.index, s.kernelOut, s.kernelIn, kernel)
			}
		}
		want := map[bool]string{true: "sent by the kernel (kTLS), received by the kernel (kTLS)",
			false: "no kTLS: as configured"}[kernel]
		if s := strings.Join(x.p.Explain(), "\n"); !strings.Contains(s, want) {
			t.Errorf("it does not explain %q:\n%s", want, s)
		}
		if c := x.p.Capabilities(); c.Security != path.SecurityEncrypted || (c.UserCopies == 0) != kernel {
			t.Errorf("capabilities %+v", c)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for i, n := range []uint64{1, 100, 4096, 16384, 70_000, 1 << 20, size} {
		for _, kind := range []path.OpKind{path.Put, path.Get} {
			src, dst := la, lb
			if kind == path.Get {
				src, dst = lb, la
			}
			pathtest.Fill(src.All().Bytes(), rng.Uint64())
			clear(dst.All().Bytes())
			if _, err := a.Post([]path.Op{{Kind: kind,
				Copies: []path.Copy{{Local: mem.Span{Region: la, Len: n}, Key: e.Key()}}}}); err != nil {
				t.Fatal(err)
			}
			var ev [4]path.Event
			for done, deadline := false, time.Now().Add(time.Minute); !done; {
				for _, x := range ev[:a.Poll(ev[:])] {
					if x.Err != nil || x.Proof != path.ProofAEAD {
						t.Fatalf("%+v", x)
					}
					done = true
				}
				for _, x := range ev[:b.Poll(ev[:])] {
					t.Fatalf("%+v", x)
				}
				if time.Now().After(deadline) {
					t.Fatal("it does not end")
				}
			}
			if !bytes.Equal(src.All().Bytes()[:n], dst.All().Bytes()[:n]) {
				t.Fatal(fmt.Sprint("bytes differ: operation ", i, ", kind ", kind, ", ", n, " bytes"))
			}
		}
	}
}
