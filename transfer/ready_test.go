package transfer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// openPaths are the paths of a peer's session that are set up.
func openPaths(p *Peer) (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ch := range p.paths {
		names = append(names, ch.p.Name())
	}
	slices.Sort(names)
	return names
}

// Ready sets up the path that it is asked for, once, and the one that a put takes if it is asked
// for none.
func TestReady(t *testing.T) {
	p := newPair(t, Options{})
	for _, c := range []struct {
		name string
		want []string
	}{{"tcp", []string{"tcp"}}, {"", []string{"shm", "tcp"}}, {"shm", []string{"shm", "tcp"}},
		{"tcp", []string{"shm", "tcp"}}} {
		if err := p.ab.Ready(ctx(t), c.name); err != nil {
			t.Fatalf("%q: %v", c.name, err)
		}
		if got := openPaths(p.ab); !slices.Equal(got, c.want) {
			t.Errorf("after %q: %v are open, want %v", c.name, got, c.want)
		}
	}
}

// A path that is not available is refused with the reason.
func TestReadyUnavailable(t *testing.T) {
	broken := over("broken")
	cause := errors.New("out of order")
	broken.dial = func(context.Context) error { return cause }
	p := newPair(t, Options{Paths: []setup.Driver{broken, over("works")}})
	c := open(t, Options{Name: "c", Paths: []setup.Driver{over("other")}})
	ca, err := c.Dial(ctx(t), p.b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		peer       *Peer
		name, says string
	}{
		{p.ab, "broken", "broken: set up broken: out of order"},
		{p.ab, "nothing", `this node has no path "nothing"`},
		{ca, "other", "other: the peer does not have it"},
		{ca, "", "other: the peer does not have it"},
	} {
		err := x.peer.Ready(ctx(t), x.name)
		if !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%q: %v: expected path.ErrUnavailable and %q", x.name, err, x.says)
		}
	}
	if err := p.ab.Ready(ctx(t), "broken"); !errors.Is(err, cause) {
		t.Errorf("the cause is not in %v", err)
	}
	if err := p.ab.Ready(ctx(t), ""); err != nil { // as a put would do
		t.Errorf("beside a path that works: %v", err)
	}
	p.ab.Close()
	if err := p.ab.Ready(ctx(t), "works"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Ready ends with its context; the path is set up all the same.
func TestReadyContext(t *testing.T) {
	slow := over("slow")
	begun, proceed := make(chan struct{}), make(chan struct{})
	slow.dial = func(context.Context) error {
		close(begun)
		<-proceed
		return nil
	}
	p := newPair(t, Options{Paths: []setup.Driver{slow}})
	done, cancel := context.WithCancelCause(ctx(t))
	why := errors.New("no time")
	result := make(chan error, 1)
	go func() { result <- p.ab.Ready(done, "slow") }()
	<-begun
	cancel(why)
	if err := <-result; !errors.Is(err, context.Canceled) || !errors.Is(err, why) ||
		errors.Is(err, path.ErrUnavailable) {
		t.Errorf("canceled: %v", err)
	}
	if err := p.ab.Ready(done, "slow"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled before: %v", err)
	}
	close(proceed)
	if err := p.ab.Ready(ctx(t), "slow"); err != nil {
		t.Error(err)
	}
}
