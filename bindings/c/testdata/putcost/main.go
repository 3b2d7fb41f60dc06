// Putcost measures how long a put of 1 MiB and its wait take in Python beside Go: the same node, in
// another process, gets the bytes of all of them, and they take turns of 20 puts. Its arguments are
// libraries, each with the directory of the package that is to use it, and parts of what is
// measured:
//
//	go run ./bindings/c/testdata/putcost /tmp/libpenstock.so=python
//	go run ./bindings/c/testdata/putcost blocks /tmp/libpenstock.so=python
//
// "blocks" is a list of 1,024 blocks of 4 KiB, prepared in Python and in the second client in Go,
// and one operation of a transfer.Queue in the first one.
//
// For each of them, and for Go with its goroutine bound to a thread, as a call of C is, it prints
// the median in us and the median of the ratios to Go's, with their quartiles.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

const (
	size   = 1 << 20
	turns  = 80
	inTurn = 20

	block, blocks = 4 << 10, 1024
)

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

func memory(name string) *mem.Region {
	if strings.HasSuffix(name, " blocks") {
		return must(mem.Alloc(mem.Options{Size: block * blocks}))
	}
	if name == "shm" {
		return must(mem.Alloc(mem.Options{Size: size}))
	}
	return must(mem.Adopt(name, make([]byte, size), nil))
}

func server() {
	n := must(transfer.Open(context.Background(), transfer.Options{Name: "b", Anonymous: identity.All,
		Listen: []string{"tcp://127.0.0.1:0"}}))
	n.AcceptQueues("")
	go func() {
		for {
			go serve(must(n.AcceptQueue(context.Background(), "")))
		}
	}()
	for _, name := range []string{"shm", "tcp", "shm blocks", "tcp blocks"} {
		must(n.Export(memory(name).All(), transfer.ExportOptions{Name: name, Rights: path.Read | path.Write}))
	}
	fmt.Println(n.Addrs()[0])
	io.Copy(io.Discard, os.Stdin)
}

func serve(q *transfer.Queue) {
	var events [16]path.Event
	for {
		if _, err := q.Wait(context.Background(), events[:], transfer.DefaultSpin); err != nil {
			return
		}
	}
}

// queued puts the list by a queue.
func queued(q *transfer.Queue, op []path.Op) {
	var events [16]path.Event
	must(q.Post(op))
	for n := 0; n == 0; {
		n = must(q.Wait(context.Background(), events[:], transfer.DefaultSpin))
		for _, e := range events[:n] {
			if e.Err != nil {
				panic(e.Err)
			}
		}
	}
}

func client(addr string, bound bool) {
	if bound {
		runtime.LockOSThread()
	}
	ctx := context.Background()
	p := must(must(transfer.Open(ctx, transfer.Options{Name: "a"})).Dial(ctx, addr))
	far, near := map[string]*transfer.Remote{}, map[string]*mem.Region{}
	for _, name := range []string{"shm", "tcp"} {
		far[name], near[name] = must(p.Lookup(ctx, name)), memory(name)
		for b, i := near[name].All().Bytes(), 0; i < size; i++ {
			b[i] = 7
		}
	}
	queues, ops, lists := map[string]*transfer.Queue{}, map[string][]path.Op{}, map[string]*transfer.Prepared{}
	for _, name := range []string{"shm", "tcp"} {
		r, l := must(p.Lookup(ctx, name+" blocks")), memory(name+" blocks")
		op := path.Op{Kind: path.Put}
		for i := range uint64(blocks) {
			op.Copies = append(op.Copies, r.At((blocks-1-i)*block, must(l.Span(i*block, block))))
		}
		lists[name] = must(p.Prepare(path.Put, op.Copies, transfer.PutOptions{Paths: []string{name}}))
		queues[name], ops[name] = must(p.OpenQueue(ctx, transfer.QueueOptions{Path: name})), []path.Op{op}
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var name, how string
		var count int
		fmt.Sscan(in.Text(), &name, &how, &count)
		took := make([]float64, count)
		for i := range took {
			begun := time.Now()
			r, l := far[name], near[name]
			switch how {
			case "blocks":
				if !bound {
					queued(queues[name], ops[name])
				} else if err := must(lists[name].Post(ctx)).Wait(ctx); err != nil {
					panic(err)
				}
				took[i] = float64(time.Since(begun)) / 1e3
				continue
			case "name":
				r = must(p.Lookup(ctx, name))
			case "fresh":
				l = memory(name)
				for b, i := l.All().Bytes(), 0; i < size; i++ {
					b[i] = 7
				}
			}
			t := must(p.Put(ctx, []path.Copy{r.At(0, l.All())}, transfer.PutOptions{}))
			if err := t.Wait(ctx); err != nil {
				panic(err)
			}
			if how == "fresh" {
				l.Close()
			}
			took[i] = float64(time.Since(begun)) / 1e3
		}
		fmt.Println(at(took, 2))
	}
}

// at is the median, by 2, or another quartile.
func at(x []float64, quarter int) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[(len(x)-1)*quarter/4]
}

type child struct {
	name string
	in   io.Writer
	out  *bufio.Reader
}

func start(name, program string, args ...string) child {
	c := exec.Command(program, args...)
	in, out := must(c.StdinPipe()), must(c.StdoutPipe())
	if err := c.Start(); err != nil {
		panic(err)
	}
	return child{name, in, bufio.NewReader(out)}
}

func (c child) line() string { return strings.TrimSpace(must(c.out.ReadString('\n'))) }

func main() {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		server()
		return
	}
	if len(os.Args) > 2 && strings.HasPrefix(os.Args[1], "client") {
		client(os.Args[2], os.Args[1] == "client-bound")
		return
	}
	self := must(os.Executable())
	addr := start("", self, "server").line()
	clients := []child{start("Go", self, "client", addr), start("Go, bound", self, "client-bound", addr)}
	only := ""
	for _, arg := range os.Args[1:] {
		library, pkg, is := strings.Cut(arg, "=")
		if !is {
			only = arg
			continue
		}
		clients = append(clients, start(arg, "/usr/bin/env", "PENSTOCK_LIBRARY="+library, "PYTHONPATH="+pkg,
			"/usr/bin/python3", "bindings/c/testdata/putcost/client.py", addr))
	}
	for _, c := range clients {
		c.line()
	}
	for _, what := range []string{"shm region", "tcp region", "tcp array", "tcp name", "tcp fresh", "shm blocks",
		"tcp blocks"} {
		if !strings.Contains(what, only) {
			continue
		}
		took, ratios := make([][]float64, len(clients)), make([][]float64, len(clients))
		for range turns {
			var base float64
			for i, c := range clients {
				fmt.Fprintln(c.in, what, inTurn)
				var us float64
				fmt.Sscan(c.line(), &us)
				if i == 0 {
					base = us
				}
				took[i], ratios[i] = append(took[i], us), append(ratios[i], us/base)
			}
		}
		for i, c := range clients {
			fmt.Printf("%-10s  %7.1f us  %.3f (%.3f-%.3f)  %s\n", what, at(took[i], 2), at(ratios[i], 2),
				at(ratios[i], 1), at(ratios[i], 3), c.name)
		}
	}
}
