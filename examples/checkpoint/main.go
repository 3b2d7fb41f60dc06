// Checkpoint puts the bytes of one file into the memory of several receivers at once, each of which
// compares the SHA-256. The file is mapped, so nothing reads it into a buffer first; the receivers'
// memory is written in place. As it is, everything is in this process, with a file that it makes;
// as several programs:
//
//	go run ./examples/checkpoint
//	go run ./examples/checkpoint -receive tcp://127.0.0.1:7070 -size 8388608
//	go run ./examples/checkpoint -send model.safetensors -to tcp://127.0.0.1:7070,tcp://127.0.0.1:7071
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

func main() {
	listen := flag.String("receive", "", "be a receiver at this address, for one checkpoint")
	size := flag.Int("size", 8<<20, "bytes that the receiver has room for")
	file := flag.String("send", "", "put this file")
	to := flag.String("to", "", "into the memory of the receivers at these addresses, with commas between them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *listen != "":
		err = receive(ctx, os.Stdout, *listen, *size, func(addr string) { fmt.Println("at", addr) })
	case *file != "":
		err = send(ctx, os.Stdout, *file, strings.Split(*to, ","))
	default:
		err = all(ctx, os.Stdout, 3)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "checkpoint:", err)
		os.Exit(1)
	}
}

// receive has one checkpoint put into its memory.
func receive(ctx context.Context, out io.Writer, listen string, size int, ready func(addr string)) (err error) {
	region, err := mem.Alloc(mem.Options{Name: "weights", Size: size})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	arrived := make(chan transfer.Incoming, 1)
	node, err := transfer.Open(ctx, transfer.Options{Listen: []string{listen},
		Anonymous: identity.Read | identity.Write,
		OnTransfer: func(in transfer.Incoming) {
			select {
			case arrived <- in:
			default: // one is enough
			}
		}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	// The sender has the digest compared, which reads.
	if _, err := node.Export(region.All(), transfer.ExportOptions{Name: "weights",
		Rights: path.Read | path.Write}); err != nil {
		return err
	}
	ready(node.Addrs()[0])
	select {
	case in := <-arrived:
		sum := sha256.Sum256(region.All().Bytes()[:in.Bytes])
		fmt.Fprintf(out, "received %s: %d bytes, SHA-256 %x...\n", in.Msg, in.Bytes, sum[:4])
		<-in.Peer.Gone() // the sender still learns the digest
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send puts a file into the memory of all receivers.
func send(ctx context.Context, out io.Writer, file string, receivers []string) (err error) {
	region, err := mem.AdoptFile(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	node, err := transfer.Open(ctx, transfer.Options{Name: "trainer", Anonymous: identity.All})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	var targets []job.Target
	for _, addr := range receivers {
		peer, err := node.Dial(ctx, addr)
		if err != nil {
			return err
		}
		targets = append(targets, job.Target{Peer: peer, Name: "weights", Local: region.All()})
	}
	// The file is leased and registered once for all receivers. One that fails does not hold up the
	// others.
	fanout, err := job.PutAll(ctx, targets, job.FanoutOptions{Put: transfer.PutOptions{Digest: true,
		Msg: []byte(filepath.Base(file))}})
	if err != nil {
		return err
	}
	err = fanout.Wait(ctx)
	whole := 0
	for _, leg := range fanout.Legs() {
		if leg.Err() == nil {
			whole++
		}
	}
	fmt.Fprintf(out, "%d of %d receivers have %d bytes with the same SHA-256\n", whole, len(targets), region.Len())
	return err
}

// all runs one sender and so many receivers in this process.
func all(ctx context.Context, out io.Writer, receivers int) (err error) {
	dir, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "step1000.bin")
	weights := make([]byte, 1<<20)
	for i := range weights {
		weights[i] = byte(i * i >> 3)
	}
	if err := os.WriteFile(file, weights, 0o600); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	at, failed := make(chan string, receivers), make(chan error, receivers)
	for range receivers {
		wg.Go(func() {
			if err := receive(ctx, io.Discard, "tcp://127.0.0.1:0", 2<<20, func(addr string) {
				at <- addr
			}); err != nil {
				failed <- err
			}
		})
	}
	var addrs []string
	for range receivers {
		select {
		case addr := <-at:
			addrs = append(addrs, addr)
		case err := <-failed:
			return err
		}
	}
	return send(ctx, out, file, addrs)
}
