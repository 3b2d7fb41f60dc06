package transfer

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

func callPair(t *testing.T) (ctx context.Context, n *Node, p *Peer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	n, err := Open(ctx, Options{Anonymous: identity.All, Name: "server", Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	c, err := Open(ctx, Options{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if p, err = c.Dial(ctx, n.Addrs()[0]); err != nil {
		t.Fatal(err)
	}
	return ctx, n, p
}

func TestCall(t *testing.T) {
	ctx, n, p := callPair(t)
	if _, err := p.Call(ctx, "echo", nil); !errors.Is(err, control.Unsupported) {
		t.Errorf("without a handler: %v", err)
	}
	remove, err := n.Handle("echo", func(_ context.Context, from *Peer, b []byte) ([]byte, error) {
		switch string(b) {
		case "no":
			return nil, control.Errorf(control.NotPermitted, "no")
		case "broken":
			return nil, errors.New("broken")
		case "huge":
			return make([]byte, MaxCall+1), nil
		}
		return append([]byte(from.Name()+" "), b...), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Handle("echo", nil); err == nil {
		t.Error("a second handler is taken")
	}
	if b, err := p.Call(ctx, "echo", []byte("x")); err != nil || string(b) != "client x" {
		t.Errorf("%q, %v", b, err)
	}
	large := bytes.Repeat([]byte{7}, MaxCall-len("client "))
	if b, err := p.Call(ctx, "echo", large); err != nil || len(b) != MaxCall {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := p.Call(ctx, "echo", make([]byte, MaxCall+1)); err == nil {
		t.Error("a body above MaxCall is sent")
	}
	for body, code := range map[string]control.Code{"no": control.NotPermitted, "broken": control.Internal,
		"huge": control.Internal} {
		if _, err := p.Call(ctx, "echo", []byte(body)); !errors.Is(err, code) {
			t.Errorf("%s: %v", body, err)
		}
	}
	remove()
	if _, err := p.Call(ctx, "echo", nil); !errors.Is(err, control.Unsupported) {
		t.Errorf("after remove: %v", err)
	}
	// The context of a handler ends with its peer.
	ended, entered := make(chan struct{}), make(chan struct{})
	if _, err = n.Handle("wait", func(ctx context.Context, _ *Peer, _ []byte) ([]byte, error) {
		close(entered)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}); err != nil {
		t.Fatal(err)
	}
	go p.Call(ctx, "wait", nil)
	<-entered
	p.Close()
	<-ended
}

func TestOnLookup(t *testing.T) {
	ctx, n, p := callPair(t)
	r, err := mem.Alloc(mem.Options{Size: 4096, Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	lists := 0
	remove := n.OnLookup(func(_ context.Context, from *Peer, name string) {
		if name == "" {
			lists++
		}
		if from.Name() == "client" && name == "made" {
			n.Export(r.All(), ExportOptions{Name: name})
		}
	})
	if _, err := p.Lookup(ctx, "other"); !errors.Is(err, control.NotFound) {
		t.Errorf("other: %v", err)
	}
	if x, err := p.Lookup(ctx, "made"); err != nil || x.Size() != 4096 {
		t.Errorf("%v, %v", x, err)
	}
	if _, err := p.List(ctx, ""); err != nil || lists != 1 {
		t.Errorf("%d calls before a list, %v", lists, err)
	}
	if _, err := p.Names(ctx, ""); err != nil || lists != 2 {
		t.Errorf("%d calls before two lists, %v", lists, err)
	}
	remove()
	n.names["made"].Revoke(ctx)
	if _, err := p.Lookup(ctx, "made"); !errors.Is(err, control.NotFound) {
		t.Errorf("after remove: %v", err)
	}
}

// TestCloseInHandler closes a node from what it calls.
func TestCloseInHandler(t *testing.T) {
	for _, what := range []string{"call", "lookup"} {
		t.Run(what, func(t *testing.T) {
			b := open(t, Options{Listen: []string{loopback}})
			closed := make(chan error, 1)
			if _, err := b.Handle("quit", func(context.Context, *Peer, []byte) ([]byte, error) {
				closed <- b.Close()
				return nil, nil
			}); err != nil {
				t.Fatal(err)
			}
			b.OnLookup(func(context.Context, *Peer, string) {
				closed <- b.Close()
			})
			p, err := open(t, Options{}).Dial(ctx(t), b.Addrs()[0])
			if err != nil {
				t.Fatal(err)
			}
			if what == "call" {
				p.Call(ctx(t), "quit", nil)
			} else {
				p.Lookup(ctx(t), "x")
			}
			select {
			case err := <-closed:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("Close does not return")
			}
		})
	}
}
