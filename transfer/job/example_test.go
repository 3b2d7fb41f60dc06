package job_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// A fetch that goes on when the connection is lost, and says how far it is.
func ExampleLink_Fetch() {
	ctx := context.Background()
	weights, err := mem.Alloc(mem.Options{Name: "weights", Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer weights.Close()
	copy(weights.All().Bytes(), bytes.Repeat([]byte("penstock"), 1<<17))
	server, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Name: "server",
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	// The tag says that a server that is restarted has the same bytes.
	if _, err := server.Export(weights.All(), transfer.ExportOptions{Name: "weights", Tag: [16]byte{1}}); err != nil {
		log.Fatal(err)
	}

	node, err := transfer.Open(ctx, transfer.Options{Name: "worker"})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	dst, err := mem.Alloc(mem.Options{Name: "dst", Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer dst.Close()
	link := job.NewLink(node, server.Addrs()[0], job.LinkOptions{})
	defer link.Close()
	var verified uint64
	job, err := link.Fetch(ctx, "weights", dst.All(), job.Options{OnVerified: func(off uint64) { verified = off }})
	if err != nil {
		log.Fatal(err)
	}
	if err := job.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(verified, job.Progress(), bytes.Equal(dst.All().Bytes(), weights.All().Bytes()))
	// Output: 1048576 1 true
}

// workers opens nodes with room for the weights and dials them.
func workers(ctx context.Context, node *transfer.Node, n int) (peers []*transfer.Peer, stop func()) {
	var all []*transfer.Node
	for i := range n {
		w, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Name: fmt.Sprintf("worker-%d", i),
			Listen: []string{"tcp://127.0.0.1:0"}})
		if err != nil {
			log.Fatal(err)
		}
		all = append(all, w)
		r, _ := mem.Alloc(mem.Options{Size: 1 << 20})
		w.Export(r.All(), transfer.ExportOptions{Name: "weights", Rights: path.Read | path.Write})
		r.Close() // goes with its export
		p, err := node.Dial(ctx, w.Addrs()[0])
		if err != nil {
			log.Fatal(err)
		}
		peers = append(peers, p)
	}
	return peers, func() {
		for _, w := range all {
			w.Close()
		}
	}
}

// New weights go to all workers; one of them has no room for them, which is its own error only.
func ExamplePutAll() {
	ctx := context.Background()
	node, _ := transfer.Open(ctx, transfer.Options{Name: "trainer"})
	defer node.Close()
	peers, stop := workers(ctx, node, 3)
	defer stop()
	weights, _ := mem.Alloc(mem.Options{Size: 1 << 20})
	defer weights.Close()

	var targets []job.Target
	for _, p := range peers {
		targets = append(targets, job.Target{Peer: p, Name: "weights", Local: weights.All()})
	}
	targets[1].Name = "biases"
	all, err := job.PutAll(ctx, targets, job.FanoutOptions{})
	if err != nil {
		log.Fatal(err)
	}
	err = all.Wait(ctx)
	for _, l := range all.Legs() {
		fmt.Println(l.Peer(), l.Progress(), l.Err() == nil)
	}
	fmt.Println(errors.Is(err, control.NotFound))
	// Output:
	// "worker-0" 1 true
	// "worker-1" 0 false
	// "worker-2" 1 true
	// true
}
