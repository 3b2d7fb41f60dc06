package shm

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func newToken() (t setup.Token) {
	rand.Read(t[:])
	return t
}

// connect makes both ends of a path in this process; a dials.
func connect(t testing.TB, d Driver, ca, cb setup.Config) (a, b *Path) {
	t.Helper()
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	token := newToken()
	type accepted struct {
		p   path.Path
		err error
	}
	got := make(chan accepted, 1)
	go func() {
		p, err := l.Accept(context.Background(), token, cb)
		got <- accepted{p, err}
	}()
	pa, err := d.Dial(context.Background(), setup.Offer{Addr: l.Addr(), Token: token}, ca)
	if err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	return pa.(*Path), r.p.(*Path)
}

func TestConformance(t *testing.T) {
	for name, d := range map[string]Driver{"Helped": {}, "Alone": {NoHelp: true}} {
		t.Run(name, func(t *testing.T) {
			pathtest.Run(t, pathtest.Factory{
				New: func(t testing.TB, a, b setup.Config) (path.Path, path.Path) {
					return connect(t, d, a, b)
				},
				Boundaries: []int{64, wholeBlocks, inlineBytes, chunkBytes, longBytes, quantum, helpBytes},
			})
		})
	}
}

func TestProcesses(t *testing.T) { pathtest.RunProcess(t, Driver{}) }

func TestProcessesAlone(t *testing.T) { pathtest.RunProcess(t, Driver{NoHelp: true}) }
