package procmem

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

const size = 3<<20 + 100

func TestMain(m *testing.M) {
	if os.Getenv("PROCMEM_CHILD") != "" {
		child()
		return
	}
	os.Exit(m.Run())
}

// child says where its memory is, and prints the sum of it whenever it is asked.
func child() {
	b, err := sys.MmapAnonymous(size)
	if err != nil {
		panic(err)
	}
	for i := range b {
		b[i] = byte(i * 7)
	}
	fmt.Println(sys.Address(b))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		sum := uint64(0)
		for _, x := range b {
			sum += uint64(x)
		}
		fmt.Println(sum)
	}
}

// started is the child: its memory, a function that asks it for a sum, and one that ends it.
func started(t *testing.T) (p *Process, address uint64, sum func() string, end func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PROCMEM_CHILD=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	ended := false
	end = func() {
		if !ended {
			ended = true
			in.Close()
			cmd.Wait()
		}
	}
	t.Cleanup(end)
	lines.Scan()
	if address, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
		t.Fatal(err)
	}
	fd, err := sys.OpenProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p = Of(cmd.Process.Pid, fd)
	t.Cleanup(func() { p.Close() })
	return p, address, func() string {
		io.WriteString(in, "\n")
		lines.Scan()
		return lines.Text()
	}, end
}

// Memory of another process is put, and got into, by transfers, which say that it was copied on its
// way.
func TestTransfer(t *testing.T) {
	p, address, sum, end := started(t)
	r, err := p.Region("theirs", address, size)
	if err != nil {
		t.Fatal(err)
	}
	a, err := transfer.Open(t.Context(), transfer.Options{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := transfer.Open(t.Context(), transfer.Options{Anonymous: identity.All, Name: "b",
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	there, err := mem.Alloc(mem.Options{Name: "there", Size: size})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if _, err := b.Export(there.All(), transfer.ExportOptions{Name: "x", Rights: path.Read | path.Write}); err != nil {
		t.Fatal(err)
	}
	peer, err := a.Dial(t.Context(), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	far, err := peer.Lookup(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	put, err := peer.Put(t.Context(), []path.Copy{far.At(0, r.All())}, transfer.PutOptions{Digest: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := put.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7)
	}
	if !bytes.Equal(there.All().Bytes()[:size], want) {
		t.Error("the bytes are not those of the process")
	}
	if text := put.Explain().String(); !strings.Contains(text, "staged here") || !strings.Contains(text, "process ") {
		t.Errorf("the copies are not explained: %s", text)
	}

	total := uint64(0)
	for i := range there.All().Bytes()[:size] {
		there.All().Bytes()[i] = byte(i*11 + 3)
		total += uint64(byte(i*11 + 3))
	}
	get, err := peer.Get(t.Context(), []path.Copy{far.At(0, r.All())}, transfer.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := get.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sum(); got != fmt.Sprint(total) {
		t.Errorf("the sum of the process's bytes is %s, expected %d", got, total)
	}

	end()
	if put, err = peer.Put(t.Context(), []path.Copy{far.At(0, r.All())}, transfer.PutOptions{}); err == nil {
		err = put.Wait(context.Background())
	}
	if !errors.Is(err, mem.ErrClosed) {
		t.Errorf("a put of memory of a process that has ended: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	p, address, _, _ := started(t)
	for name, c := range map[string]struct {
		address, size uint64
		is            error
	}{
		"nothing there":   {4096, 10, mem.ErrUnavailable},
		"ends elsewhere":  {address, 1 << 46, mem.ErrUnavailable},
		"no address":      {0, 10, mem.ErrBounds},
		"no bytes":        {address, 0, mem.ErrBounds},
		"beyond all":      {1<<64 - 10, 20, mem.ErrBounds},
		"of the kernel's": {1 << 63, 20, mem.ErrUnavailable},
	} {
		if r, err := p.Region(name, c.address, c.size); !errors.Is(err, c.is) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	r, err := p.Region("", address, size)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p.Close()
	if _, err := p.Region("", address, size); !errors.Is(err, mem.ErrClosed) {
		t.Errorf("after the close: %v", err)
	}
}
