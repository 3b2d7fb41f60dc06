package penstock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer"
)

// Two nodes, here in one process: one exports memory, the other puts bytes into it.
func Example() {
	ctx := context.Background()
	worker, _ := transfer.Open(ctx, transfer.Options{Listen: []string{"tcp://127.0.0.1:0"}})
	defer worker.Close()
	inbox, _ := mem.Alloc(mem.Options{Size: 1 << 20})
	defer inbox.Close()
	worker.Export(inbox.All(), transfer.ExportOptions{Name: "inbox", Rights: path.Write})

	node, _ := transfer.Open(ctx, transfer.Options{})
	defer node.Close()
	peer, err := node.Dial(ctx, worker.Addrs()[0])
	if err != nil {
		log.Fatal(err)
	}
	remote, err := peer.Lookup(ctx, "inbox")
	if err != nil {
		log.Fatal(err)
	}
	local, _ := mem.Alloc(mem.Options{Size: 1 << 20})
	defer local.Close()
	copy(local.All().Bytes(), "hello")
	put, err := peer.Put(ctx, []path.Copy{remote.At(0, local.All())}, transfer.PutOptions{})
	if err != nil {
		log.Fatal(err)
	}
	err = put.Wait(ctx) // the bytes are in the worker's memory, verified
	fmt.Println(put.Explain().Path, string(inbox.All().Bytes()[:5]), err)
	// Output: shm hello <nil>
}
