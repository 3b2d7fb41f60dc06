package cudatest

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/dl"
)

// processes: another process of this machine opens memory by handle and by descriptor, and an
// event, and writes; it has a driver of its own.
func processes(r *rig) {
	if r.older(cuda.IPC) || r.older(cuda.VirtualMemory) || r.lacks(r.info.VirtualMemory && r.info.ShareDescriptor,
		"virtual memory that is shared by descriptors") ||
		r.lacks(must[int](r)(r.dev.Attribute(cuda.IPCEvents)) != 0, "events between processes") {
		return
	}
	c := r.open()
	const n = 2 << 20
	p := r.alloc(c, n)
	s := r.stream(c)
	r.ok(s.Fill(p, 4, 0x11111111, n/4))
	e := r.event(c, cuda.EventSpec{Share: true})
	r.ok(e.Record(s))
	mh, eh := must[cuda.Handle](r)(c.Share(p)), must[cuda.Handle](r)(e.Handle())
	g := must[uint64](r)(c.Granularity(cuda.PhysicalSpec{Share: true}))
	m := must[*cuda.Physical](r)(c.Create(g, cuda.PhysicalSpec{Share: true}))
	defer func() { r.ok(m.Release()) }()
	file := os.NewFile(uintptr(must[int](r)(m.Export())), "memory")
	defer file.Close()

	cmd := r.process("sharer")
	cmd.ExtraFiles = []*os.File{file}
	in := must[io.WriteCloser](r)(cmd.StdinPipe())
	out := must[io.ReadCloser](r)(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	fmt.Fprintf(in, "%x\n%x\n%d\n", mh, eh, g)
	answer, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(answer) != "done" || err != nil {
		r.Errorf("the other process says %q, %v", answer, err)
	}
	if got := r.content(c, p, 8); !bytes.Equal(got, []byte{0x22, 0x22, 0x22, 0x22, 0x11, 0x11, 0x11, 0x11}) {
		r.Errorf("after the other process: % x", got)
	}
	r.ok(in.Close(), cmd.Wait())
	at := must[cuda.Pointer](r)(c.Reserve(g, 0))
	r.ok(c.Map(at, m, g), c.Access(at, g, false, c.Device()))
	if got := r.content(c, at, 4); !bytes.Equal(got, []byte{0x33, 0x33, 0x33, 0x33}) {
		r.Errorf("in the memory of the descriptor: % x", got)
	}
	r.ok(c.Unmap(at, g), c.Unreserve(at, g))
}

// child is the driver and a context in a process that the suite started.
func child() (*cuda.Context, error) {
	d, err := cuda.Load(os.Getenv("PENSTOCK_CUDATEST_LIBRARY"))
	if err != nil {
		return nil, err
	}
	dev, err := d.Device(0)
	if err != nil {
		return nil, err
	}
	return dev.Retain()
}

// status prints what a process of the suite found, for its parent.
func status(err error) int {
	if err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	return 0
}

func sharer() int { return status(share(bufio.NewReader(os.Stdin))) }

func share(stdin *bufio.Reader) (err error) {
	var handles [2]cuda.Handle
	for i := range handles {
		line, err := stdin.ReadString('\n')
		if err != nil {
			return err
		}
		if _, err := hex.Decode(handles[i][:], []byte(strings.TrimSpace(line))); err != nil {
			return err
		}
	}
	var g uint64
	if _, err := fmt.Fscanln(stdin, &g); err != nil {
		return err
	}
	c, err := child()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	e, err := c.OpenEvent(handles[1])
	if err != nil {
		return err
	}
	s, err := c.NewStream(0)
	if err != nil {
		return err
	}
	p, err := c.OpenShared(handles[0])
	if err != nil {
		return err
	}
	b, err := dl.Alloc(4)
	if err != nil {
		return err
	}
	defer dl.Free(b)
	// Not before the other process' work is done.
	if err := errors.Join(s.Wait(e), s.FromDevice(dl.Address(b), p, 4), s.Synchronize()); err != nil {
		return err
	}
	if b[3] != 0x11 {
		return fmt.Errorf("found % x", b)
	}
	if err := errors.Join(s.Fill(p, 1, 0x22, 4), s.Synchronize(), c.CloseShared(p), e.Close()); err != nil {
		return err
	}
	m, err := c.Import(3)
	if err != nil {
		return err
	}
	at, err := c.Reserve(g, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(c.Map(at, m, g), c.Access(at, g, true, c.Device()), s.Fill(at, 1, 0x33, g), s.Synchronize(),
		c.Unmap(at, g), c.Unreserve(at, g),
		m.Release(), s.Close()); err != nil {
		return err
	}
	fmt.Println("done")
	_, err = io.Copy(io.Discard, stdin) // until the parent has looked
	return err
}

// lost: a kernel that writes where nothing is loses the device, in a process of its own, and every
// later call there says so. This process goes on.
func lost(r *rig) {
	cmd := r.process("loser")
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "lost" {
		r.Errorf("the process that loses its device: %v, %q", err, out)
	}
	c := r.open()
	r.ok(c.Free(must[cuda.Pointer](r)(c.Alloc(4096))))
}

func loser() int { return status(lose()) }

func lose() error {
	c, err := child()
	if err != nil {
		return err
	}
	m, _, err := c.Load(Kernels)
	if err != nil {
		return err
	}
	f, err := m.Function("increment")
	if err != nil {
		return err
	}
	l, err := f.NewLaunch(8, 4)
	if err != nil {
		return err
	}
	s, err := c.NewStream(0)
	if err != nil {
		return err
	}
	l.Set(0, 1<<45+4096)
	l.Set(1, 1)
	if err := l.Run(s, cuda.Dim{X: 1}, cuda.Dim{X: 1}, 0); err != nil {
		return err
	}
	if err := s.Synchronize(); !errors.Is(err, cuda.ErrLost) {
		return fmt.Errorf("after a write to nowhere: %w", errors.Join(err, errors.New("not lost")))
	}
	if _, err := c.Alloc(1); !errors.Is(err, cuda.ErrLost) {
		return fmt.Errorf("afterwards memory was given, or: %w", errors.Join(err, errors.New("not lost")))
	}
	if err := s.Fill(4096, 4, 1, 1); !errors.Is(err, cuda.ErrLost) {
		return fmt.Errorf("afterwards a fill was taken, or: %w", errors.Join(err, errors.New("not lost")))
	}
	fmt.Println("lost")
	return nil
}
