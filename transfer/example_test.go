package transfer_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

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

// A put whose bytes are proven end to end: the peer reads its memory again.
func ExamplePutOptions_digest() {
	ctx := context.Background()
	node, _ := transfer.Open(ctx, transfer.Options{Name: "trainer"})
	defer node.Close()
	peers, stop := workers(ctx, node, 1)
	defer stop()
	weights, _ := mem.Alloc(mem.Options{Size: 1 << 20})
	defer weights.Close()
	copy(weights.All().Bytes(), "weights")

	remote, err := peers[0].Lookup(ctx, "weights")
	if err != nil {
		log.Fatal(err)
	}
	put, err := peers[0].Put(ctx, []path.Copy{remote.At(0, weights.All())}, transfer.PutOptions{Digest: true})
	if err != nil {
		log.Fatal(err)
	}
	err = put.Wait(ctx)
	fmt.Println(put.Explain().Digest == sha256.Sum256(weights.All().Bytes()), err)
	// Output: true <nil>
}
