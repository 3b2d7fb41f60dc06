package transfer

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

type countedListener struct {
	setup.Listener
	open *atomic.Int32
}

func (l countedListener) Close() error {
	l.open.Add(-1)
	return l.Listener.Close()
}

// While a driver opens its devices, the node does everything else. Those that ask for the same
// driver share what comes of it.
func TestListenHoldsNobodyUp(t *testing.T) {
	for _, end := range []string{"opened", "failed", "closed"} {
		t.Run(end, func(t *testing.T) {
			d := over("slow")
			begun, release := make(chan struct{}), make(chan struct{})
			var open, listens atomic.Int32
			refused := errors.New("the device is away")
			d.opens = func(listen func() (setup.Listener, error)) (setup.Listener, error) {
				if listens.Add(1) > 1 { // it is tried again
					return listen()
				}
				close(begun)
				<-release
				if end == "failed" {
					return nil, refused
				}
				l, err := listen()
				open.Add(1)
				return countedListener{l, &open}, err
			}
			p := newPair(t, Options{Paths: []setup.Driver{d}})
			errs := make(chan error, 4)
			ask := func() {
				_, err := p.b.accepting.Open(d, false)
				errs <- err
			}
			go ask()
			<-begun
			for range 3 {
				go ask()
			}
			// All this needs the node's mutex.
			if n := len(p.b.Peers()); n != 1 {
				t.Errorf("%d peers", n)
			}
			export(t, p.b, region(t, 4096), "dst", path.Write)
			lookup(t, p.ab, "dst")
			p.b.Snapshot()
			switch end {
			case "closed":
				closed := make(chan error, 1)
				go func() { closed <- p.b.Close() }()
				<-p.b.ctx.Done()
				close(release)
				for range 4 {
					if err := <-errs; !errors.Is(err, ErrClosed) {
						t.Errorf("listener: %v", err)
					}
				}
				if err := <-closed; err != nil {
					t.Error(err)
				}
			case "failed":
				close(release)
				for range 4 { // one that came late tried again
					if err := <-errs; err != nil && !errors.Is(err, refused) {
						t.Error(err)
					}
				}
				if _, err := p.b.accepting.Open(d, false); err != nil {
					t.Errorf("the next one: %v", err)
				}
			default:
				close(release)
				for range 4 {
					if err := <-errs; err != nil {
						t.Error(err)
					}
				}
				if n := listens.Load(); n != 1 {
					t.Errorf("the driver listens %d times", n)
				}
				if err := p.b.Close(); err != nil {
					t.Error(err)
				}
			}
			if n := open.Load(); n != 0 {
				t.Errorf("%d listeners are open", n)
			}
		})
	}
}
