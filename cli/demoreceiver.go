package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/vec"
	"github.com/spf13/cobra"
)

// demoRequest is a line that the sender writes to the receiver's standard input.
type demoRequest struct {
	Do      string // "clear", "verify", "accept" (a plain connection), "quit"
	Network string `json:",omitempty"`
	Times   int    `json:",omitempty"`
}

// demoReply is a line of the receiver.
type demoReply struct {
	Addr    string `json:",omitempty"`
	Checked uint64 `json:",omitempty"`
	Err     string `json:",omitempty"`
	PID     int    `json:",omitempty"`
}

// exportName is the name of the receiver's memory.
const exportName = "demo"

func newDemoReceiver(s streams) *cobra.Command {
	var file string
	var small bool
	c := &cobra.Command{
		Use:    "demo-receiver",
		Short:  "The second process of the demo",
		Hidden: true,
		Args:   noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m, err := loadDemoModel(file, small)
			if err != nil {
				return err
			}
			defer m.close()
			vec.Calibrate() // so that it is not part of the first path's set-up time
			node, err := transfer.Open(c.Context(), transfer.Options{Name: "receiver", Listen: []string{"tcp://127.0.0.1:0"}})
			if err != nil {
				return err
			}
			defer node.Close()
			r, err := mem.Alloc(mem.Options{Name: "demo destination", Size: int(max(m.size, 1))})
			if err != nil {
				return err
			}
			defer r.Close()
			if _, err := node.Export(r.All(), transfer.ExportOptions{Name: exportName, Rights: path.Read | path.Write}); err != nil {
				return err
			}
			return serveDemo(s, m, r.All().Bytes(), node.Addrs()[0])
		},
	}
	c.Flags().StringVar(&file, "file", "", "")
	c.Flags().BoolVar(&small, "small", false, "")
	return c
}

// serveDemo answers the sender until it says quit or is gone.
func serveDemo(s streams, m *demoModel, memory []byte, addr string) error {
	out := json.NewEncoder(s.out)
	if err := out.Encode(demoReply{Addr: addr}); err != nil {
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
		switch q.Do {
		case "clear":
			for i := range memory {
				memory[i] = 0xEE
			}
		case "verify":
			a.Checked, err = m.verify(memory)
		case "accept":
			err = acceptPlain(out, q, memory[:m.size])
		case "quit":
			return nil
		default:
			err = fmt.Errorf("unknown request %q", q.Do)
		}
		if err != nil {
			a.Err = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return in.Err()
}

// acceptPlain is the other half of what a Go program does without Penstock: one connection, io.ReadFull, one byte back.
func acceptPlain(out *json.Encoder, q demoRequest, memory []byte) error {
	addr := "127.0.0.1:0"
	if q.Network == "unix" {
		addr = "@" // the kernel chooses an abstract name
	}
	l, err := net.Listen(q.Network, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := out.Encode(demoReply{Addr: l.Addr().String()}); err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	for range q.Times {
		if _, err := io.ReadFull(c, memory); err != nil {
			return err
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
	}
	return nil
}
