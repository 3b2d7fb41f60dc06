package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Drivers makes the paths that are measured; tests put a broken one in. nil means those of
// Penstock: drivers.New.
type Drivers func(paths []string, insecure bool) ([]setup.Driver, error)

// server is the second process of a benchmark.
type server struct {
	ctx      context.Context
	drivers  Drivers
	node     *transfer.Node
	memory   map[string]*memory
	memories memories
	session  *session
}

type memory struct {
	region *mem.Region
	export *transfer.Export
}

// ServePeer is the second process of a benchmark: it answers requests on in until that ends. make
// is nil except in tests of this package.
func ServePeer(ctx context.Context, in io.Reader, out io.Writer, make Drivers) error {
	s := &server{ctx: ctx, drivers: make, memory: map[string]*memory{}}
	defer s.close()
	enc, lines := json.NewEncoder(out), bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var q request
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return fmt.Errorf("bench: request %.100q: %w", lines.Bytes(), err)
		}
		var a reply
		if err := s.do(&q, &a); err != nil {
			a.Err = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (s *server) close() {
	if s.session != nil {
		s.session.stop()
	}
	if s.node != nil {
		s.node.Close()
	}
	for _, m := range s.memory {
		m.region.Close()
	}
	s.memories.close()
}

func (s *server) do(q *request, a *reply) (err error) {
	switch q.Do {
	case "start":
		paths, err := q.Node.drivers(s.drivers)
		if err != nil {
			return err
		}
		s.node, err = transfer.Open(s.ctx, transfer.Options{Anonymous: identity.All, Name: "bench-peer",
			Listen: []string{"tcp://127.0.0.1:0"},
			Paths:  paths, Budget: budget, NoChecksum: q.Node.NoChecksum, Spin: q.Node.Spin})
		if err == nil {
			a.Addr = s.node.Addrs()[0]
		}
		return err
	case "alloc":
		m := &memory{}
		if m.region, err = s.memories.allocate(q.Name, q.Size, q.Huge, q.Place); err != nil {
			return err
		}
		if m.export, err = s.node.Export(m.region.All(),
			transfer.ExportOptions{Name: q.Name, Rights: path.Read | path.Write}); err != nil {
			m.region.Close()
			return err
		}
		s.memory[q.Name] = m
		a.Note = m.region.Note()
		a.Device, a.Why = s.memories.device(q.Place)
		return nil
	case "accept":
		s.session = newSession(s, q)
		return nil
	case "ready":
		return s.session.ready()
	case "stop":
		a.Checked, err = s.session.stop()
		s.session = nil
		return err
	case "rest", "resume":
		if s.session == nil {
			return errors.New("bench: no session")
		}
		if q.Do == "rest" {
			s.session.brake.rest()
		} else {
			s.session.brake.resume()
		}
		return nil
	case "usage":
		return s.usage(a)
	case "answer":
		a.Addr, err = answer(q.Name, q.Size)
		return err
	}
	m := s.memory[q.Name]
	if m == nil {
		return fmt.Errorf("bench: %s of %q: no such memory", q.Do, q.Name)
	}
	b := m.region.All().Bytes()
	switch q.Do {
	case "free":
		delete(s.memory, q.Name)
		err = m.export.Revoke(s.ctx)
		return errors.Join(err, m.region.Close())
	case "fill":
		q.Area.fill(b)
	case "scribble":
		err = scribble(s.ctx, m.region)
	case "draw":
		err = q.Pattern.fill(s.ctx, m.region)
	case "check":
		a.Checked, err = q.Pattern.verify(s.ctx, &s.memories, m.region)
	case "verify":
		a.Checked, err = q.Area.verify(b)
	default:
		err = fmt.Errorf("bench: unknown request %q", q.Do)
	}
	return err
}

// Allocate makes memory for a benchmark: size bytes of the host, on huge pages if huge, where small
// sizes may get others. The caller closes it.
func Allocate(name string, size uint64, huge bool) (*mem.Region, error) {
	o := mem.Options{Name: "bench " + name, Size: int(size)}
	if huge {
		o.Kind = mem.Huge
		if size < 2<<20 {
			o.AllowFallback = true
		}
	}
	return mem.Alloc(o)
}

func (s *server) usage(a *reply) error {
	var err error
	if a.CPU, err = sys.ProcessCPU(); err != nil {
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	a.Mallocs = m.Mallocs
	if s.session != nil {
		a.Syscalls = s.session.syscalls()
	}
	return nil
}
