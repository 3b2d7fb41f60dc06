//go:build dpdk && !race && !asan

package dpdk

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// childOf is the variable of the environment of a child with ports of its own: a []trial.
const childOf = "PENSTOCK_TEST_DPDK_PORTS"

// trial is a port that a child opens.
type trial struct {
	Address string
	EAL     EAL
}

// init has a child open its ports one after the other, say of each what came of it in a line, and
// keep them until its input ends.
func init() {
	text, ok := os.LookupEnv(childOf)
	if !ok {
		return
	}
	var all []trial
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		panic(err)
	}
	var ports []engine.Port
	for _, x := range all {
		if p, err := x.open(); err != nil {
			kind := "other"
			for _, e := range []error{engine.ErrUnavailable, engine.ErrNotFound, engine.ErrInUse, engine.ErrInvalid} {
				if errors.Is(err, e) {
					kind = e.Error()
				}
			}
			fmt.Printf("refused (%s): %s\n", kind, strings.ReplaceAll(err.Error(), "\n", "; "))
		} else {
			fmt.Println("open")
			ports = append(ports, p)
		}
	}
	fmt.Println("alive")
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, p := range ports {
		if err := p.Close(); err != nil {
			panic(err)
		}
	}
	os.Exit(0)
}

// open opens the port with a receive queue, so that its driver starts.
func (x trial) open() (engine.Port, error) {
	p, err := New().OpenPort(context.Background(),
		engine.PortSpec{Address: x.Address, RxQueues: 1, TxQueues: 1, Options: Options{EAL: x.EAL}})
	if err != nil {
		return nil, err
	}
	into, err := mem.NewPool(mem.PoolOptions{Name: "receive", SlotSize: 2048, Slots: 512})
	if err == nil {
		_, err = p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}, Depth: 64})
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// child is a process that has opened ports.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
}

// startChild starts a process that opens ports, by another program if one is given, and returns
// what it said of each. run starts it.
func startChild(t *testing.T, run func(*exec.Cmd) error, by []string, ports ...trial) (*child, []string) {
	t.Helper()
	text, err := json.Marshal(ports)
	if err != nil {
		t.Fatal(err)
	}
	argv := append(by, os.Args[0])
	c := &child{cmd: exec.Command(argv[0], argv[1:]...)}
	c.cmd.Env = append(os.Environ(), childOf+"="+string(text))
	var noise strings.Builder
	c.cmd.Stderr = &noise
	c.in, err = c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run(c.cmd); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch line := lines.Text(); {
		case line == "alive":
			t.Cleanup(func() { c.kill() })
			return c, said
		case line == "open" || strings.HasPrefix(line, "refused"): // libxdp writes there as well
			said = append(said, line)
		}
	}
	t.Fatalf("the process ended (%v) behind %q: %s", c.cmd.Wait(), said, noise.String())
	return nil, nil
}

// kill kills the process, where it has not ended.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// end has the process end in order.
func (c *child) end() error {
	_ = c.in.Close()
	return c.cmd.Wait()
}
