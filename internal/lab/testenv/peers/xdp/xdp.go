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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/peers"
)

// ErrRefused is wrapped by errors of a program that ended by itself: the system refused it
// something, which the error tells in the program's words.
var ErrRefused = errors.New("xdpref ended")

// ErrInvalid is wrapped by errors about a Config or a Command that makes no sense.
var ErrInvalid = errors.New("invalid")

// Op is what the program is to do.
type Op string

// Commands of the program.
const (
	Receive Op = "recv"
	Send    Op = "send"
	Forward Op = "fwd"
)

// Config says how the program is started. Zero values get defaults.
type Config struct {
	Interfaces []string // one, or two that share the UMEM
	Queue      int
	CPU        int // that the program is bound to; negative: none
	Size       int // bytes of a packet, 56 to 9216; 0: 64
	Batch      int // packets taken or given at a time; 0: 64
	Chunk      int // bytes of a chunk of the UMEM, 2048 or 4096; 0: 2048, or 4096 with MultiBuffer
	Slots      int // chunks to receive into for each interface, and as many to send from; 0: 4096
	Ring       int // descriptors of each ring; 0: the power of two that Slots needs
	// packets that one system call sends, where the kernel has a setting (Linux 6.17); 0: 256,
	// negative: the kernel's own
	Budget int

	Poll          bool // sleep in poll when there is nothing, in place of looking again and again
	NoWakeup      bool // bind without need_wakeup: a system call for each batch
	MultiBuffer   bool // XDP_USE_SG: packets in several chunks
	Generic       bool // XDP in the stack, for drivers that have none
	ZeroCopy      bool // bind for zero-copy and nothing else
	Huge          bool // huge pages
	NoPrefetch    bool // touched packets are not fetched ahead
	LibxdpProgram bool // libxdp's default XDP program
}

func (c *Config) complete() error {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Size, 64)
	def(&c.Batch, 64)
	if c.MultiBuffer {
		def(&c.Chunk, 4096)
	}
	def(&c.Chunk, 2048)
	def(&c.Slots, 4096)
	if c.Ring == 0 {
		for c.Ring = 64; c.Ring < c.Slots || c.Ring < c.Batch; {
			c.Ring *= 2
		}
	}
	def(&c.Budget, 256)
	if n := len(c.Interfaces); n < 1 || n > 2 {
		return fmt.Errorf("peers/xdp: %w: %d interfaces: expected one or two", ErrInvalid, n)
	}
	for _, s := range c.Interfaces {
		if s == "" || strings.ContainsAny(s, " \n\x00") {
			return fmt.Errorf("peers/xdp: %w: interface %q", ErrInvalid, s)
		}
	}
	return nil
}

// args are the program's arguments; c is complete.
func (c *Config) args() []string {
	var a []string
	add := func(key string, v int) { a = append(a, key+"="+strconv.Itoa(v)) }
	flag := func(key string, v bool) { add(key, map[bool]int{true: 1}[v]) }
	for _, s := range c.Interfaces {
		a = append(a, "if="+s)
	}
	add("queue", c.Queue)
	if c.CPU >= 0 {
		add("cpu", c.CPU)
	}
	add("size", c.Size)
	add("batch", c.Batch)
	add("chunk", c.Chunk)
	add("slots", c.Slots)
	add("ring", c.Ring)
	add("budget", max(0, c.Budget))
	flag("poll", c.Poll)
	flag("wakeup", !c.NoWakeup)
	flag("sg", c.MultiBuffer)
	flag("generic", c.Generic)
	flag("zero", c.ZeroCopy)
	flag("copy", !c.ZeroCopy)
	flag("huge", c.Huge)
	flag("prefetch", !c.NoPrefetch)
	flag("libxdp_prog", c.LibxdpProgram)
	return a
}

// Command is one piece of work. Without Live, Receive and Forward take what is in the ring and end.
type Command struct {
	Op       Op
	From, To int           // interfaces, counted from 0; To is for Forward
	Packets  uint64        // Send: how many; 0: until Time or Stop. Receive, live: ends when so many have come, too
	Time     time.Duration // Send: how long, in milliseconds; 0: no limit
	Live     bool          // Receive, Forward: until Stop, and then what is in the ring
	Touch    bool          // headers are read; Forward swaps the MAC addresses, Send writes headers and sequence number
	Check    bool          // Receive: every byte is checked. Send: the sequence number is written
	Brief    bool          // Receive with Check: only length and headers are, HeaderSize bytes of each packet
	Seq      uint64        // the sequence number that the first packet has, or is expected to have
}

func (c Command) String() string {
	b := map[bool]int{true: 1}
	s := fmt.Sprintf("%s if=%d touch=%d check=%d seq=%d", c.Op, c.From, b[c.Touch], b[c.Check], c.Seq)
	switch c.Op {
	case Send:
		return s + fmt.Sprintf(" packets=%d ms=%d", c.Packets, c.Time.Milliseconds())
	case Forward:
		return s + fmt.Sprintf(" to=%d live=%d", c.To, b[c.Live])
	}
	return s + fmt.Sprintf(" live=%d brief=%d packets=%d", b[c.Live], b[c.Brief], c.Packets)
}

// Peer is a running program. Its methods are called by one goroutine at a time; Stop by any.
type Peer struct {
	c    Config
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said limited

	running Op // the command that has no answer yet
	end     sync.Once
	ended   error // of the process, after end
}

// limited keeps the beginning of what a program prints as errors. It is read when the program has
// ended.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if room := 4096 - l.Len(); room > 0 {
		l.Buffer.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

//go:embed xdpref/*.c xdpref/*.h
var source embed.FS

// Program compiles the program, or finds it in the lab's cache, and returns its path. The error
// wraps [peers.ErrAbsent] without libxdp's headers.
func Program() (path string, err error) {
	for _, f := range []string{"/usr/include/xdp/xsk.h", "/usr/include/bpf/bpf.h"} {
		if _, err := os.Stat(f); err != nil {
			return "", fmt.Errorf("peers/xdp: the headers of libxdp and libbpf are %w: %w; on Debian: apt-get "+
				"install libxdp-dev libbpf-dev, or run scripts/deps.sh",
				peers.ErrAbsent, err)
		}
	}
	dir, err := os.MkdirTemp("", "penstock-xdpref-")
	if err != nil {
		return "", fmt.Errorf("peers/xdp: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	names, err := source.ReadDir("xdpref")
	if err != nil {
		return "", err
	}
	var files []string
	for _, n := range names {
		b, err := source.ReadFile("xdpref/" + n.Name())
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, n.Name())
		if err := os.WriteFile(to, b, 0o644); err != nil {
			return "", fmt.Errorf("peers/xdp: %w", err)
		}
		if strings.HasSuffix(to, ".c") {
			files = append(files, to)
		}
	}
	path, err = testenv.Compile("xdpref", files, "-O3", "-Wall", "-lxdp", "-lbpf", "-lpthread")
	if err != nil {
		return "", fmt.Errorf("peers/xdp: %w", err)
	}
	return path, nil
}

// Version is that of libxdp by pkg-config's file; "unknown" without one.
func Version() string {
	found, _ := filepath.Glob("/usr/lib/*/pkgconfig/libxdp.pc")
	for _, f := range found {
		b, _ := os.ReadFile(f)
		for l := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(l, "Version:"); ok {
				return strings.TrimSpace(v)
			}
		}
	}
	return "unknown"
}

// Need is how a test says that it uses the program: without it the test ends as [testenv.Missing]
// says.
func Need(t testenv.TB) {
	t.Helper()
	_, err := Program()
	switch {
	case errors.Is(err, peers.ErrAbsent):
		testenv.Missing(t, "xdpref", err)
	case err != nil:
		t.Fatalf("%v", err)
	default:
		testenv.Record(t, "peer", "xdpref", "libxdp "+Version())
	}
}

// Start starts the program by start, which is netns.Host.Start for a host, and returns when its
// sockets are bound. The caller closes the Peer.
func Start(start func(*exec.Cmd) error, c Config) (*Peer, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	bin, err := Program()
	if err != nil {
		return nil, err
	}
	p := &Peer{c: c, cmd: exec.Command(bin, c.args()...)}
	p.cmd.Stderr = &p.said
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
	p.out = bufio.NewReaderSize(out, 4096)
	b, err := p.read()
	if err == nil {
		err = parseReady(b, &p.c)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// Args are the program's arguments, for a report.
func (p *Peer) Args() []string { return p.c.args() }

// Size is the number of bytes of a packet, Capacity how many packets the receive ring of an
// interface holds at most.
func (p *Peer) Size() int { return p.c.Size }

// Capacity is the number of packets that fit into the chunks to receive into, of one interface.
func (p *Peer) Capacity() int {
	const headroom = 256 // XDP_PACKET_HEADROOM
	room := p.c.Chunk - headroom
	return p.c.Slots / ((p.c.Size + room - 1) / room)
}

// Begin gives the program a command. Wait waits for its end.
func (p *Peer) Begin(c Command) error {
	switch {
	case p.running != "":
		return fmt.Errorf("peers/xdp: %w: %s while %s has not ended", ErrInvalid, c.Op, p.running)
	case c.Op != Receive && c.Op != Send && c.Op != Forward:
		return fmt.Errorf("peers/xdp: %w: command %q", ErrInvalid, c.Op)
	case c.From < 0 || c.From >= len(p.c.Interfaces) || c.To < 0 || c.To >= len(p.c.Interfaces):
		return fmt.Errorf("peers/xdp: %w: from interface %d to %d of %d", ErrInvalid, c.From, c.To, len(p.c.Interfaces))
	case c.Time < 0 || c.Time%time.Millisecond != 0:
		return fmt.Errorf("peers/xdp: %w: a time of %v: expected whole milliseconds", ErrInvalid, c.Time)
	}
	p.running = c.Op
	if _, err := fmt.Fprintln(p.in, c); err != nil {
		return p.failed(err)
	}
	return nil
}

// Stop ends a command that runs until then. What came before it is still received.
func (p *Peer) Stop() error {
	if _, err := io.WriteString(p.in, "stop\n"); err != nil {
		return fmt.Errorf("peers/xdp: stop: %w", err)
	}
	return nil
}

// Wait waits for the end of a command. When the context ends, the program is killed.
func (p *Peer) Wait(ctx context.Context) (Result, error) {
	if p.running == "" {
		return Result{}, fmt.Errorf("peers/xdp: %w: there is no command to wait for", ErrInvalid)
	}
	op := p.running
	p.running = ""
	stop := context.AfterFunc(ctx, func() { p.cmd.Process.Kill() })
	defer stop()
	b, err := p.read()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return Result{}, err
	}
	return parse(b, op, p.c.Size)
}

// Do gives a command and waits for its end.
func (p *Peer) Do(ctx context.Context, c Command) (Result, error) {
	if err := p.Begin(c); err != nil {
		return Result{}, err
	}
	return p.Wait(ctx)
}

// Close ends the program. Its sockets and its XDP program are gone when it returns, but for what
// the kernel frees late: a queue may be busy for another moment.
func (p *Peer) Close() error {
	p.in.Close()
	if p.running != "" { // it may run until a command stops it
		p.cmd.Process.Kill()
	}
	p.wait()
	if p.ended != nil && p.running == "" {
		return fmt.Errorf("peers/xdp: %w: %w: %s", ErrRefused, p.ended, bytes.TrimSpace(p.said.Bytes()))
	}
	return nil
}

func (p *Peer) wait() {
	p.end.Do(func() {
		io.Copy(io.Discard, p.out) // Wait closes what is not read
		p.ended = p.cmd.Wait()
	})
}

func (p *Peer) kill() {
	p.in.Close()
	p.cmd.Process.Kill()
	p.wait()
}

// read reads a line.
func (p *Peer) read() ([]byte, error) {
	b, err := p.out.ReadSlice('\n')
	if err != nil {
		return nil, p.failed(err)
	}
	return b, nil
}

// failed is the error of a program that does not listen or answer any more.
func (p *Peer) failed(err error) error {
	p.kill()
	return fmt.Errorf("peers/xdp: %w: %w: %v: %s", ErrRefused, err, p.ended, bytes.TrimSpace(p.said.Bytes()))
}
