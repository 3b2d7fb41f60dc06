package xdp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/peers"
)

// errRefused is wrapped by errors of xdpref when it ended by itself: the system refused it
// something, which the error tells in the program's words.
var errRefused = errors.New("xdpref ended")

// Commands of xdpref.
const (
	refReceive = "recv"
	refSend    = "send"
)

// refConfig says how xdpref is started.
type refConfig struct {
	iface       string
	size        int  // bytes of a packet, 56 to 9216
	multiBuffer bool // packets in several chunks (XDP_USE_SG)
}

// refResult is what came of one command.
type refResult struct {
	packets uint64
	checked uint64 // bytes that were right, each one looked at
	bad     uint64 // packets with a wrong byte
	gaps    uint64 // packets that did not follow the one before, by their numbers
}

// xdpref is a running program in C on libxdp: an AF_XDP that is not ours, at the other end of ours.
// It sends and receives on the first queue of an interface, and checks every byte of what it gets.
// Its XDP program has five instructions and goes with the process. One goroutine uses it.
//
// A packet is Ethernet, IPv4, UDP to port 5001, a sequence number of 8 bytes at offset 42, the
// number of the slot that it was made in at offset 50, and from offset 56 words that follow from
// that number. All integers are little-endian but for the headers.
type xdpref struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

// refProgram compiles xdpref, or finds it in the lab's cache, and returns its path. The error wraps
// [peers.ErrAbsent] without libxdp's headers.
func refProgram() (string, error) {
	for _, f := range []string{"/usr/include/xdp/xsk.h", "/usr/include/bpf/bpf.h"} {
		if _, err := os.Stat(f); err != nil {
			return "", fmt.Errorf("the headers of libxdp and libbpf are %w: %w; on Debian: apt-get install "+
				"libxdp-dev libbpf-dev, or run scripts/deps.sh", peers.ErrAbsent, err)
		}
	}
	files, err := filepath.Glob("testdata/xdpref/*.c")
	if err != nil {
		return "", err
	}
	return testenv.Compile("xdpref", files, "-O2", "-Wall", "-lxdp", "-lbpf")
}

// needRef is how a test says that it uses xdpref: without it the test ends as [testenv.Missing]
// says.
func needRef(t testenv.TB) {
	t.Helper()
	_, err := refProgram()
	switch {
	case errors.Is(err, peers.ErrAbsent):
		testenv.Missing(t, "xdpref", err)
	case err != nil:
		t.Fatalf("%v", err)
	default:
		testenv.Record(t, "peer", "xdpref", "libxdp")
	}
}

// startRef starts the program by start, which is netns.Host.Start for a host, and returns when its
// socket is bound. The caller closes it.
func startRef(start func(*exec.Cmd) error, c refConfig) (_ *xdpref, err error) {
	bin, err := refProgram()
	if err != nil {
		return nil, err
	}
	chunk, sg := 2048, "0"
	if c.multiBuffer {
		chunk, sg = 4096, "1"
	}
	p := &xdpref{cmd: exec.Command(bin, c.iface, fmt.Sprint(c.size), fmt.Sprint(chunk), "1024", sg)}
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := start(p.cmd); err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if line, err := p.out.ReadString('\n'); err != nil || line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("%w: %q: %w", errRefused, line, err), p.close())
	}
	return p, nil
}

// do has the program send or receive so many packets with the numbers from seq on. When the context
// ends, the program is killed.
func (p *xdpref) do(ctx context.Context, op string, seq, packets uint64) (r refResult, err error) {
	stop := context.AfterFunc(ctx, func() { p.cmd.Process.Kill() })
	defer stop()
	if _, err := fmt.Fprintln(p.in, op, seq, packets); err != nil {
		return r, fmt.Errorf("%w: %w", errRefused, err)
	}
	line, err := p.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &r.packets, &r.checked, &r.bad, &r.gaps)
	}
	if err != nil {
		return r, fmt.Errorf("%w: %s: %q: %w", errRefused, op, line, errors.Join(err, context.Cause(ctx)))
	}
	return r, nil
}

// close ends the program. Its socket and its XDP program are gone when it returns, but for what the
// kernel frees late: a queue may be busy for another moment.
func (p *xdpref) close() error {
	p.in.Close()
	io.Copy(io.Discard, p.out) // Wait closes what is not read
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %w: %s", errRefused, err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}
