package system

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/verbs"
)

// standIn is the file of the stand-in for libibverbs.
func standIn(t *testing.T) string {
	t.Helper()
	lib, err := fake.Build()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// What a configuration says of paths is what its plan shows, and the drivers of its node are made
// of.
func TestPathOptions(t *testing.T) {
	lib := standIn(t)
	for text, want := range map[string]string{
		"transfers: {}": "shm tcp verbs",
		"transfers: {paths: [tcp]}\n  security: {insecure: true}": "tcp, insecure",
		"transfers: {paths: [verbs, shm], verbs: {queue_pairs: 2, library: " + lib + "}}": "verbs?library=" + lib +
			"&queue_pairs=2 shm",
	} {
		p, err := MakePlan(mustLoad(t, "penstock:\n  "+text+"\n"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(p.Node.Paths, " ")
		if p.insecure() {
			got += ", insecure"
		}
		if err := p.Err(); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

// A node of a configuration moves bytes over RDMA as its section says, and its plan shows it.
func TestNodeOverRDMA(t *testing.T) {
	lib := standIn(t)
	served := filepath.Join(t.TempDir(), "served")
	want := bytes.Repeat([]byte("over RDMA "), 20_000)
	if err := os.WriteFile(served, want, 0o600); err != nil {
		t.Fatal(err)
	}
	section := "verbs: {library: " + lib + ", queue_pairs: 2, piece: 64KiB}"
	a := mustOpen(t, "penstock: {transfers: {name: a, listen: [\"tcp://127.0.0.1:0\"], paths: [verbs], share: {path: "+
		served+"}, "+section+"}}", Options{})
	b := mustOpen(t, "penstock: {transfers: {name: b, peers: [{name: a, address: \""+a.Node().Addrs()[0]+
		"\"}], paths: [shm, tcp, verbs], "+section+"}}", Options{})
	if text := b.Plan().Text(); !strings.Contains(text, "&piece=64KiB&queue_pairs=2") {
		t.Errorf("the plan does not say how paths over RDMA are shaped:\n%s", text)
	}
	peer, err := b.Link("a").Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := peer.Lookup(t.Context(), "served")
	if err != nil {
		t.Fatal(err)
	}
	got, err := mem.Alloc(mem.Options{Size: len(want)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { got.Close() })
	span, err := got.Span(0, uint64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	x, err := peer.Get(t.Context(), []path.Copy{r.At(0, span)}, transfer.PutOptions{Paths: []string{verbs.Name}})
	if err == nil {
		err = x.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	e := x.Explain()
	if !bytes.Equal(span.Bytes(), want) || e.Path != verbs.Name || !strings.HasSuffix(e.Carrier, "port 1, RC") ||
		!strings.Contains(e.String(), "over verbs ("+e.Carrier+")") {
		t.Errorf("%v", e)
	}
	if all := strings.Join(e.Setup, "\n"); !strings.Contains(all, "2 queue pairs") ||
		!strings.Contains(all, "pieces of up to 64 KiB") {
		t.Errorf("the section did not reach the path:\n%s", all)
	}
}

// Who shapes paths over RDMA, or has no other, hears what is missing before anything is opened.
func TestRDMAIsMissing(t *testing.T) {
	lib := standIn(t)
	for _, c := range []struct{ text, at, want string }{
		{"verbs: {library: /nowhere/libibverbs.so.1}", "transfers.verbs", "libibverbs"},
		{"verbs: {library: " + lib + ", device: mlx5_9}", "transfers.verbs", `no RDMA device "mlx5_9", only [`},
		{"paths: [verbs], verbs: {library: " + lib + ", port: 77}", "transfers.verbs", "port 77"},
	} {
		p, err := MakePlan(mustLoad(t, "penstock: {transfers: {"+c.text+"}}"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Missing) != 1 || p.Missing[0].Path != c.at || p.Missing[0].Code != config.CodeHost ||
			!strings.Contains(p.Missing[0].Message, c.want) ||
			!strings.Contains(p.Missing[0].Hint, "penstock doctor rdma") {
			t.Errorf("%s: %v", c.text, p.Missing)
		}
	}
	// Without the section only a node that has no other path needs RDMA.
	gone := verbs.New(verbs.Options{}).Probe() != nil // of this machine
	for text, want := range map[string]bool{"paths: [verbs]": gone, "paths: [shm, verbs]": false, "": false} {
		p, err := MakePlan(mustLoad(t, "penstock: {transfers: {"+text+"}}"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(p.Missing) == 1 && p.Missing[0].Path == "transfers.paths"; got != want || len(p.Missing) > 1 {
			t.Errorf("%s: %v", text, p.Missing)
		}
	}
}
