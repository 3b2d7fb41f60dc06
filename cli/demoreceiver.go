package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/spf13/cobra"
)

// demoRequest is a line that the sender writes to the receiver's standard input.
type demoRequest struct {
	Do      string // "clear", "verify", "accept" (a plain connection), "quit"
	Memory  string `json:",omitempty"` // the export that it is about
	Network string `json:",omitempty"`
	Times   int    `json:",omitempty"`
}

// demoReply is a line of the receiver.
type demoReply struct {
	Addr     string `json:",omitempty"`
	Checked  uint64 `json:",omitempty"`
	ByKernel bool   `json:",omitempty"` // a kernel of the device saw the same bytes
	Err      string `json:",omitempty"`
}

func newDemoReceiver(s streams) *cobra.Command {
	var o demoOptions
	c := &cobra.Command{
		Use:    "demo-receiver",
		Short:  "The second process of the demo",
		Hidden: true,
		Args:   noArgs,
		RunE:   func(c *cobra.Command, _ []string) error { return runDemoReceiver(c.Context(), s, o) },
	}
	c.Flags().StringVar(&o.file, "file", "", "")
	c.Flags().BoolVar(&o.small, "small", false, "")
	c.Flags().StringVar(&o.memory, "memory", "host", "")
	o.gpu.flags(c)
	return c
}

// demoReceiver is the second process of the demo.
type demoReceiver struct {
	m       *demoModel
	backing demoMemory
	memory  map[string]*mem.Region // by the name of its export
}

func runDemoReceiver(ctx context.Context, s streams, o demoOptions) (err error) {
	m, err := loadDemoModel(o.file, o.small)
	if err != nil {
		return err
	}
	defer m.close()
	r := &demoReceiver{m: m, memory: map[string]*mem.Region{}}
	if r.backing, err = openDemoMemory(o.memory, o.gpu); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.backing.close()) }()
	vec.Calibrate() // so that it is not part of the first path's set-up time
	node, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Name: "receiver",
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		return err
	}
	defer func() {
		node.Close()
		for _, x := range r.memory {
			err = errors.Join(err, x.Close())
		}
	}()
	for _, name := range r.backing.names() {
		x, err := r.backing.alloc(name, "demo destination", m.size)
		if err != nil {
			return err
		}
		r.memory[name] = x
		if _, err := node.Export(x.All(), transfer.ExportOptions{Name: name,
			Rights: path.Read | path.Write}); err != nil {
			return err
		}
	}
	return r.serve(ctx, s, node.Addrs()[0])
}

// serve answers the sender until it says quit or is gone.
func (r *demoReceiver) serve(ctx context.Context, s streams, addr string) error {
	if err := printJSONLine(s.out, demoReply{Addr: addr}); err != nil {
		return err
	}
	in := bufio.NewScanner(s.in)
	for in.Scan() {
		var q demoRequest
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			return fmt.Errorf("demo receiver: %w", err)
		}
		var a demoReply
		var err error
		x := r.memory[q.Memory]
		switch {
		case q.Do == "quit":
			return nil
		case x == nil:
			err = fmt.Errorf("%s: no memory %q", q.Do, q.Memory)
		case q.Do == "clear":
			err = scribble(ctx, x)
		case q.Do == "verify":
			a.Checked, a.ByKernel, err = r.m.verify(ctx, r.backing.a, x)
		case q.Do == "accept":
			err = acceptPlain(ctx, s.out, q, mem.Span{Region: x, Len: r.m.size})
		default:
			err = fmt.Errorf("unknown request %q", q.Do)
		}
		if err != nil {
			a.Err = err.Error()
		}
		if err := printJSONLine(s.out, a); err != nil {
			return err
		}
	}
	return in.Err()
}

// acceptPlain is the other half of what a Go program does without Penstock: one connection,
// io.ReadFull, one byte back.
func acceptPlain(ctx context.Context, out io.Writer, q demoRequest, memory mem.Span) (err error) {
	addr := "127.0.0.1:0"
	if q.Network == "unix" {
		addr = "@" // the kernel chooses an abstract name
	}
	l, err := net.Listen(q.Network, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := printJSONLine(out, demoReply{Addr: l.Addr().String()}); err != nil {
		return err
	}
	c, err := path.Users{}.Accept(l)
	if err != nil {
		return err
	}
	defer c.Close()
	w := accel.NewWindow()
	defer func() { err = errors.Join(err, w.Close()) }()
	for range q.Times {
		err := w.Write(ctx, memory, func(b []byte, _ uint64) error {
			_, err := io.ReadFull(c, b)
			return err
		})
		if err != nil {
			return err
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
	}
	return nil
}
