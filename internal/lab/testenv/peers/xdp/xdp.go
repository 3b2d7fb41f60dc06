// Package xdp runs xdpref, a program in C on libxdp: an AF_XDP that is not ours, at the other end
// of ours. It sends and receives on the first queue of an interface, and checks every byte of what
// it gets.
//
//	p, err := xdp.Start(host.Start, xdp.Config{Interface: "eth0", Size: 64})
//	if err != nil { ... }
//	defer p.Close()
//	r, err := p.Do(ctx, xdp.Receive, 0, 300) // the packets with the numbers from 0 on
//
// The program is compiled on first use and needs libxdp's and libbpf's headers (Debian: libxdp-dev,
// libbpf-dev), root or CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_IPC_LOCK. Its XDP program has
// five instructions and goes with the process.
//
// A packet is Ethernet, IPv4, UDP to port 5001, a sequence number of 8 bytes at offset 42, the
// number of the slot that it was made in at offset 50, and from offset 56 words that follow from
// that number. All integers are little-endian but for the headers.
package xdp

import (
	"bufio"
	"bytes"
	"context"
	"embed"
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

// ErrRefused is wrapped by errors of a program that ended by itself: the system refused it
// something, which the error tells in the program's words.
var ErrRefused = errors.New("xdpref ended")

// Op is what the program is to do.
type Op string

// Commands of the program.
const (
	Receive Op = "recv"
	Send    Op = "send"
)

// Config says how the program is started.
type Config struct {
	Interface   string
	Size        int  // bytes of a packet, 56 to 9216
	MultiBuffer bool // packets in several chunks (XDP_USE_SG)
}

// Result is what came of one command.
type Result struct {
	Packets uint64
	Checked uint64 // bytes that were right, each one looked at
	Bad     uint64 // packets with a wrong byte
	Gaps    uint64 // packets that did not follow the one before, by their numbers
}

// Peer is a running program. One goroutine uses it.
type Peer struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

//go:embed xdpref/*.c xdpref/*.h
var source embed.FS

// program compiles the program, or finds it in the lab's cache, and returns its path. The error
// wraps [peers.ErrAbsent] without libxdp's headers.
func program() (path string, err error) {
	for _, f := range []string{"/usr/include/xdp/xsk.h", "/usr/include/bpf/bpf.h"} {
		if _, err := os.Stat(f); err != nil {
			return "", fmt.Errorf("peers/xdp: the headers of libxdp and libbpf are %w: %w; on Debian: apt-get install "+
				"libxdp-dev libbpf-dev, or run scripts/deps.sh", peers.ErrAbsent, err)
		}
	}
	dir, err := os.MkdirTemp("", "penstock-xdpref-")
	if err != nil {
		return "", fmt.Errorf("peers/xdp: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.CopyFS(dir, source); err != nil {
		return "", fmt.Errorf("peers/xdp: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "xdpref", "*.c"))
	if err != nil {
		return "", err
	}
	if path, err = testenv.Compile("xdpref", files, "-O2", "-Wall", "-lxdp", "-lbpf"); err != nil {
		return "", fmt.Errorf("peers/xdp: %w", err)
	}
	return path, nil
}

// Need is how a test says that it uses the program: without it the test ends as [testenv.Missing]
// says.
func Need(t testenv.TB) {
	t.Helper()
	_, err := program()
	switch {
	case errors.Is(err, peers.ErrAbsent):
		testenv.Missing(t, "xdpref", err)
	case err != nil:
		t.Fatalf("%v", err)
	default:
		testenv.Record(t, "peer", "xdpref", "libxdp")
	}
}

// Start starts the program by start, which is netns.Host.Start for a host, and returns when its
// socket is bound. The caller closes the Peer.
func Start(start func(*exec.Cmd) error, c Config) (_ *Peer, err error) {
	bin, err := program()
	if err != nil {
		return nil, err
	}
	chunk, sg := 2048, "0"
	if c.MultiBuffer {
		chunk, sg = 4096, "1"
	}
	p := &Peer{cmd: exec.Command(bin, c.Interface, fmt.Sprint(c.Size), fmt.Sprint(chunk), "1024", sg)}
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("peers/xdp: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("peers/xdp: %w", err)
	}
	if err := start(p.cmd); err != nil {
		return nil, fmt.Errorf("peers/xdp: %w", err)
	}
	p.out = bufio.NewReader(out)
	if line, err := p.out.ReadString('\n'); err != nil || line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("peers/xdp: %w: %q: %w", ErrRefused, line, err), p.Close())
	}
	return p, nil
}

// Do has the program send or receive so many packets with the numbers from seq on. When the context
// ends, the program is killed.
func (p *Peer) Do(ctx context.Context, op Op, seq, packets uint64) (r Result, err error) {
	stop := context.AfterFunc(ctx, func() { p.cmd.Process.Kill() })
	defer stop()
	if _, err := fmt.Fprintln(p.in, op, seq, packets); err != nil {
		return r, fmt.Errorf("peers/xdp: %w: %w", ErrRefused, err)
	}
	line, err := p.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &r.Packets, &r.Checked, &r.Bad, &r.Gaps)
	}
	if err != nil {
		return r, fmt.Errorf("peers/xdp: %w: %s: %q: %w", ErrRefused, op, line, errors.Join(err, context.Cause(ctx)))
	}
	return r, nil
}

// Close ends the program. Its socket and its XDP program are gone when it returns, but for what the
// kernel frees late: a queue may be busy for another moment.
func (p *Peer) Close() error {
	p.in.Close()
	io.Copy(io.Discard, p.out) // Wait closes what is not read
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("peers/xdp: %w: %w: %s", ErrRefused, err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}
