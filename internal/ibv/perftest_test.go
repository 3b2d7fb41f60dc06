package ibv

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// perftest's programs at the other end of our queue pairs. They agree over TCP on what they have to
// know, the client speaking first each time: version (16 bytes), two numbers about buffers (32
// bits, big-endian), the MTU (two characters), and then, as text, where each one can be reached.
// That text is exchanged again whenever one is to wait for the other. So much is known of perftest
// 4.5 (src/perftest_communication.c); later ones have longer texts where a device has keys of 64
// bits.

// perfPeer is a program and the connection over which the two agree.
type perfPeer struct {
	testing.TB
	conn   net.Conn
	client bool // this side is
	mine   perfKeys
	theirs perfKeys
}

// perfKeys is where one side can be reached.
type perfKeys struct {
	reads, qpn, psn, rkey uint32
	addr                  uint64
	gid                   [16]byte
}

const perfText = 108

func (k *perfKeys) text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "0000:%04x:%06x:%06x:%08x:%016x:", k.reads, k.qpn, k.psn, k.rkey, k.addr)
	for _, x := range k.gid {
		fmt.Fprintf(&b, "%02x:", x)
	}
	b.WriteString("00000000:\x00")
	return b.Bytes()
}

func (k *perfKeys) parse(text string) error {
	f := strings.Split(text, ":")
	if len(f) < 22 {
		return fmt.Errorf("expected 22 fields: %q", text)
	}
	for i, to := range []*uint32{&k.reads, &k.qpn, &k.psn, &k.rkey} {
		n, err := strconv.ParseUint(f[i+1], 16, 32)
		if err != nil {
			return err
		}
		*to = uint32(n)
	}
	var err error
	if k.addr, err = strconv.ParseUint(f[5], 16, 64); err != nil {
		return err
	}
	for i := range k.gid {
		n, err := strconv.ParseUint(f[6+i], 16, 8)
		if err != nil {
			return err
		}
		k.gid[i] = byte(n)
	}
	return nil
}

// swap exchanges so many bytes: answer makes ours, of theirs where this side is the server.
func (p *perfPeer) swap(n int, answer func(theirs []byte) []byte) (theirs []byte) {
	p.Helper()
	theirs = make([]byte, n)
	if p.client {
		p.write(answer(nil))
		p.read(theirs)
		return theirs
	}
	p.read(theirs)
	p.write(answer(theirs))
	return theirs
}

func (p *perfPeer) read(b []byte) {
	p.Helper()
	if _, err := io.ReadFull(p.conn, b); err != nil {
		p.Fatalf("reading %d bytes of the program: %v", len(b), err)
	}
}

func (p *perfPeer) write(b []byte) {
	p.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.Fatalf("writing to the program: %v", err)
	}
}

// wait is where each waits for the other.
func (p *perfPeer) wait() {
	p.Helper()
	theirs := p.swap(perfText, func([]byte) []byte { return p.mine.text() })
	if err := p.theirs.parse(string(theirs)); err != nil {
		p.Fatal(err)
	}
}

// begin agrees with the program and connects the queue pair.
func (p *perfPeer) begin(e *end, mtu MTU) {
	p.Helper()
	same := func(b []byte) []byte { return b }
	if p.client {
		p.swap(16, func([]byte) []byte { return append([]byte("6.06"), make([]byte, 12)...) })
		for range 2 {
			p.swap(4, func([]byte) []byte { return []byte{0, 0, 0x10, 0} })
		}
	} else {
		p.swap(16, same)
		for range 2 {
			p.swap(4, same)
		}
	}
	if theirs := p.swap(2, func([]byte) []byte { return []byte{'0' + byte(mtu), 0} }); theirs[0] < '0'+byte(mtu) {
		mtu = MTU(theirs[0] - '0')
	}
	p.mine = perfKeys{reads: 4, qpn: e.qp.Num(), psn: 0x123, rkey: e.mr.RKey(), addr: e.mr.Addr(),
		gid: e.gid.Addr.As16()}
	p.wait()
	to := Address{DGID: e.gid.Addr, SGIDIndex: uint8(e.gid.Index)} // both are on this machine
	if p.theirs.gid != p.mine.gid {
		p.Fatalf("the program is at %x, expected %x", p.theirs.gid, p.mine.gid)
	}
	rtr := RTRAttr{To: to, RemoteQPN: p.theirs.qpn, PSN: p.theirs.psn, PathMTU: mtu, MaxDestRdAtomic: 4,
		MinRNRTimer: 12}
	if err := e.qp.ReadyToReceive(rtr); err != nil {
		p.Fatal(err)
	}
	rts := RTSAttr{PSN: p.mine.psn, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: uint8(min(4, p.theirs.reads))}
	if err := e.qp.ReadyToSend(rts); err != nil {
		p.Fatal(err)
	}
	p.wait()
	p.wait()
}

// reports exchanges what each of the two measured, which is nothing here: size, count, peak, mean,
// rate.
func (p *perfPeer) reports() (count uint64) {
	p.Helper()
	for i := range 5 {
		b := p.swap(8, func([]byte) []byte { return make([]byte, 8) })
		if i == 1 {
			for _, x := range b {
				count = count<<8 | uint64(x)
			}
		}
	}
	return count
}

func (p *perfPeer) done() {
	p.Helper()
	p.wait()
	p.write([]byte("done\x00"))
}

const (
	perfPort  = 18600
	perfCount = 40
	perfSize  = 16 << 10
)

// perfTests are the programs, with what our end does when the two are connected.
var perfTests = []struct {
	program string
	client  bool // our end is: it makes the requests
	size    int
	run     func(t *testing.T, p *perfPeer, e *end)
}{
	{"ib_write_bw", false, perfSize, func(t *testing.T, p *perfPeer, e *end) {
		p.wait() // the program has made all its writes
		if n := p.reports(); n != perfCount {
			t.Errorf("the program made %d writes, expected %d", n, perfCount)
		}
		p.done()
		written(t, e.buf[:perfSize])
	}},
	{"ib_read_bw", false, perfSize, func(t *testing.T, p *perfPeer, e *end) {
		p.wait()
		if n := p.reports(); n != perfCount {
			t.Errorf("the program made %d reads, expected %d", n, perfCount)
		}
		p.done()
	}},
	{"ib_send_bw", false, perfSize, func(t *testing.T, p *perfPeer, e *end) {
		for i := range perfCount {
			e.recv.Recv(uint64(i), e.mr.SGE(0, perfSize))
		}
		if n, err := e.qp.PostRecv(e.recv); n != perfCount || err != nil {
			t.Fatal(n, err)
		}
		p.wait()
		for i, wc := range e.wait(t, perfCount) {
			one(t, wc, uint64(i), Success)
			if wc.Len() != perfSize {
				t.Errorf("message %d has %d bytes", i, wc.Len())
			}
		}
		p.done()
		written(t, e.buf[:perfSize])
	}},
	{"ib_write_lat", false, 8, func(t *testing.T, p *perfPeer, e *end) {
		p.wait() // it has one more than the others
		theirs, mine := &words(e.buf)[0], &words(e.buf)[1]
		for i := 1; i <= perfCount; i++ { // the server begins
			*mine = uint64(i) << 56 // its last byte is what the program looks at
			e.send.Write(uint64(i), Signaled, p.theirs.addr, p.theirs.rkey, e.mr.SGE(8, 8))
			e.post(t)
			one(t, e.wait(t, 1)[0], uint64(i), Success)
			for end := time.Now().Add(perfPatience); byte(atomic.LoadUint64(theirs)>>56) != byte(i); {
				if time.Now().After(end) {
					t.Fatalf("write %d of the program does not come: %#x", i, atomic.LoadUint64(theirs))
				}
			}
		}
	}},
	{"ib_read_bw", true, perfSize, func(t *testing.T, p *perfPeer, e *end) {
		half := len(e.buf) / 2
		for i, at := range []uint64{0, uint64(half)} {
			e.send.Read(uint64(i), Signaled, p.theirs.addr, p.theirs.rkey, e.mr.SGE(at, perfSize))
			e.post(t)
			one(t, e.wait(t, 1)[0], uint64(i), Success)
		}
		p.wait()
		p.reports()
		p.done()
		written(t, e.buf[:perfSize])
		sameBytes(t, e.buf[:perfSize], e.buf[half:half+perfSize])
	}},
	{"ib_send_bw", true, perfSize, func(t *testing.T, p *perfPeer, e *end) {
		p.wait() // it has posted its receives
		for i := range perfCount {
			e.send.Send(uint64(i), Signaled, e.mr.SGE(0, perfSize))
			e.post(t)
			one(t, e.wait(t, 1)[0], uint64(i), Success)
		}
		p.done() // which the program says only after so many messages
	}},
}

const perfPatience = time.Minute

// written looks that these are random bytes, which perftest fills its memory with, and no rest of
// what was there before.
func written(t *testing.T, b []byte) {
	t.Helper()
	var seen [256]int
	for _, x := range b {
		seen[x]++
	}
	for x, n := range seen {
		if n > len(b)/64 {
			t.Errorf("byte %#x is there %d times in %d: these are not random bytes", x, n, len(b))
			return
		}
	}
}

// testPerftest has the programs as clients and as servers of queue pairs of ours.
func testPerftest(t *testing.T, w *world) {
	for i, c := range perfTests {
		role := "client"
		if c.client {
			role = "server"
		}
		t.Run(c.program+" as "+role, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), perfPatience)
			defer cancel()
			dev := w.open(t)
			e := w.newEnd(t, dev, options{qp: QPSpec{SendWRs: 64, RecvWRs: 64}})
			port := strconv.Itoa(perfPort + i)
			args := []string{"-d", w.device, "-x", strconv.Itoa(e.gid.Index), "-n", strconv.Itoa(perfCount), "-s",
				strconv.Itoa(c.size), "-p", port, "-F"}
			p := &perfPeer{TB: t, client: c.client}
			var l net.Listener
			if !c.client {
				var err error
				if l, err = net.Listen("tcp", "127.0.0.1:"+port); err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				args = append(args, "127.0.0.1")
			}
			cmd := exec.CommandContext(ctx, c.program, args...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			over := make(chan error, 1)
			go func() {
				over <- cmd.Wait()
				if l != nil {
					l.Close() // Accept waits for a program that is no more
				}
			}()
			defer func() {
				if t.Failed() {
					cancel()
					t.Logf("%s: %v\n%s", strings.Join(cmd.Args, " "), <-over, &out)
				}
			}()
			var err error
			if c.client {
				for p.conn, err = net.Dial("tcp", "127.0.0.1:"+port); err != nil && ctx.Err() == nil; p.conn,
					err = net.Dial("tcp", "127.0.0.1:"+port) {
					time.Sleep(50 * time.Millisecond) // another program, which does not say when it listens
				}
			} else {
				p.conn, err = l.Accept()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer p.conn.Close()
			if end, ok := ctx.Deadline(); ok {
				p.conn.SetDeadline(end)
			}
			p.begin(e, must(dev.Port(1))(t).ActiveMTU)
			c.run(t, p, e)
			if t.Failed() {
				return
			}
			if err := <-over; err != nil {
				t.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, &out)
			}
		})
	}
}
