package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/vec"
	"github.com/spf13/cobra"
)

func newDemo(s streams) *cobra.Command {
	var o demoOptions
	c := &cobra.Command{
		Use:   "demo",
		Short: "Two processes of this machine move real tensors by every path that exists here and check each byte",
		Long: `Starts a second process, moves the tensors of a safetensors file (or made ones with the shapes of GPT-2 small) between
the memories of the two by every path that this machine has, has the receiver check each byte, and prints how fast that was
beside a plain Go socket and beside what copying memory costs here.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runDemo(c.Context(), s, o) },
	}
	c.Flags().StringVar(&o.file, "file", "", "safetensors file to move (default: made tensors)")
	c.Flags().BoolVar(&o.small, "small", false, "made tensors in miniature: under a second, figures without meaning")
	c.Flags().IntVar(&o.repeat, "repeat", 5, "how often each path moves everything; the median counts")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON instead of a table")
	return c
}

type demoOptions struct {
	file        string
	small, json bool
	repeat      int
}

// demoRow is one line of the table.
type demoRow struct {
	What         string
	Bytes        uint64
	GBs          float64 // 0: does not apply
	Share        float64 // of the copy bandwidth
	UserCopies   int
	KernelCopies int
	Setup        time.Duration
	Took         time.Duration // median of one move
	Verified     uint64        // bytes that the side that received them checked
	Plain        bool          // without Penstock
	Explain      []string      `json:",omitempty"`
}

// demoReport is everything that the demo prints.
type demoReport struct {
	Model       string
	Tensors     int
	DTypes      []string
	Bytes       uint64
	CopyGBs     float64 // all cores that the demo uses copy memory, nothing else
	CopyOneGBs  float64 // one core
	Rows        []demoRow
	Choice      []string // how a put went that was free to take any path
	Unavailable []string
}

type demo struct {
	o      demoOptions
	m      *demoModel
	src    *mem.Region
	peer   *transfer.Peer
	remote *transfer.Remote
	in     io.WriteCloser
	out    *json.Decoder
	report demoReport
}

func runDemo(ctx context.Context, s streams, o demoOptions) (err error) {
	if o.repeat < 1 || o.repeat > 1000 {
		return &usageError{fmt.Errorf("--repeat %d: expected 1 to 1000", o.repeat)}
	}
	m, err := loadDemoModel(o.file, o.small)
	if err != nil {
		return err
	}
	defer m.close()
	d := &demo{o: o, m: m}
	d.report = demoReport{Model: m.title, Tensors: len(m.tensors), DTypes: m.dtypes(), Bytes: m.bytes()}
	if !o.json {
		fmt.Fprintf(s.out, "Moving %s:\n%d tensors of %s, %s, from this process (%d) to a second one.\n\n", m.title, len(m.tensors),
			strings.Join(d.report.DTypes, " "), formatBytes(d.report.Bytes), os.Getpid())
	}
	stop, err := d.startReceiver(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if d.src, err = m.region(); err != nil {
		return err
	}
	if m.file == nil {
		defer d.src.Close()
	}
	node, err := transfer.Open(ctx, transfer.Options{Name: "sender"})
	if err != nil {
		return err
	}
	defer node.Close()
	if err := d.connect(ctx, node); err != nil {
		return err
	}
	if err := d.ceiling(); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return d.plain(ctx, "tcp") },
		func(ctx context.Context) error { return d.plain(ctx, "unix") },
		func(ctx context.Context) error { return d.move(ctx, path.Put, "tcp") },
		func(ctx context.Context) error { return d.move(ctx, path.Get, "tcp") },
		func(ctx context.Context) error { return d.move(ctx, path.Put, "shm") },
		func(ctx context.Context) error { return d.move(ctx, path.Get, "shm") },
		d.borrow,
		d.choose,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.report.Unavailable = unavailable()
	if o.json {
		e := json.NewEncoder(s.out)
		e.SetIndent("", "  ")
		return e.Encode(d.report)
	}
	return d.report.print(s.out)
}

// startReceiver starts the second process; stop ends it and returns how it ended.
func (d *demo) startReceiver(ctx context.Context, s streams) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"demo-receiver"}
	if d.o.file != "" {
		args = append(args, "--file", d.o.file)
	}
	if d.o.small {
		args = append(args, "--small")
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = s.err
	if d.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d.out = json.NewDecoder(bufio.NewReader(out))
	return func() error {
		d.in.Close() // the receiver ends at the end of its input
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("the receiving process: %w", err)
		}
		return nil
	}, nil
}

// ask sends a request to the receiver and reads the answer.
func (d *demo) ask(q demoRequest) (demoReply, error) {
	b, _ := json.Marshal(q)
	if _, err := d.in.Write(append(b, '\n')); err != nil {
		return demoReply{}, fmt.Errorf("ask the receiver to %s: %w", q.Do, err)
	}
	return d.answer()
}

func (d *demo) answer() (demoReply, error) {
	var a demoReply
	if err := d.out.Decode(&a); err != nil {
		return a, fmt.Errorf("the receiver ended: %w", err)
	}
	if a.Err != "" {
		return a, fmt.Errorf("receiver: %s", a.Err)
	}
	return a, nil
}

func (d *demo) connect(ctx context.Context, node *transfer.Node) error {
	hello, err := d.answer()
	if err != nil {
		return err
	}
	if d.peer, err = node.Dial(ctx, hello.Addr); err != nil {
		return err
	}
	d.remote, err = d.peer.Lookup(ctx, exportName)
	return err
}

// ceiling measures what copying memory costs on this machine, on the amounts that are moved.
func (d *demo) ceiling() error {
	dst, err := mem.Alloc(mem.Options{Name: "demo ceiling", Size: int(d.src.Len())})
	if err != nil {
		return err
	}
	defer dst.Close()
	vec.Calibrate()
	src, to := d.src.All().Bytes(), dst.All().Bytes()
	half := len(src) / 2
	var one, two []time.Duration
	for range max(3, d.o.repeat) {
		t := time.Now()
		vec.Copy(to, src)
		one = append(one, time.Since(t))
		done := make(chan struct{})
		t = time.Now()
		go func() {
			vec.Copy(to[half:], src[half:])
			close(done)
		}()
		vec.Copy(to[:half], src[:half])
		<-done
		two = append(two, time.Since(t))
	}
	d.report.CopyOneGBs = rate(uint64(len(src)), median(one))
	d.report.CopyGBs = max(rate(uint64(len(src)), median(two)), d.report.CopyOneGBs)
	return nil
}

// move puts or gets all tensors by one path, several times, and has the receiving side check every byte.
func (d *demo) move(ctx context.Context, kind path.OpKind, name string) error {
	row := demoRow{What: name + " put", Bytes: d.report.Bytes}
	local := d.src
	if kind == path.Get {
		row.What = name + " get"
		// The receiver has the tensors by now: fetch them into memory of this process that holds something else.
		var err error
		if local, err = mem.Alloc(mem.Options{Name: "demo return", Size: int(max(d.m.size, 1))}); err != nil {
			return err
		}
		defer local.Close()
	}
	copies, err := d.copies(kind, local)
	if err != nil {
		return err
	}
	var took []time.Duration
	for i := range d.o.repeat + 1 { // the first one warms up
		if kind == path.Put {
			if _, err := d.ask(demoRequest{Do: "clear"}); err != nil {
				return err
			}
		} else {
			clear(local.All().Bytes())
		}
		begin := d.peer.Put
		if kind == path.Get {
			begin = d.peer.Get
		}
		t, err := begin(ctx, copies, transfer.PutOptions{Paths: []string{name}})
		if err == nil {
			err = t.Wait(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", row.What, err)
		}
		x := t.Explain()
		if i == 0 {
			row.Setup = x.Times.Open
		}
		if i > 0 {
			took = append(took, x.Times.Total-x.Times.Open)
		}
		row.UserCopies, row.KernelCopies = x.UserCopies, x.KernelCopies
		if i == d.o.repeat && kind == path.Put { // a get goes the same way
			row.Explain = strings.Split(x.String(), "\n")
		}
		checked, err := d.verify(kind, local)
		if err != nil {
			return fmt.Errorf("%s: %w", row.What, err)
		}
		row.Verified = checked
	}
	row.Took = median(took)
	d.add(row)
	return nil
}

func (d *demo) verify(kind path.OpKind, local *mem.Region) (uint64, error) {
	if kind == path.Get {
		return d.m.verify(local.All().Bytes())
	}
	a, err := d.ask(demoRequest{Do: "verify"})
	return a.Checked, err
}

// borrow looks at the receiver's memory without copying it, and checks every byte there.
func (d *demo) borrow(ctx context.Context) error {
	row := demoRow{What: "shm borrow", Bytes: d.report.Bytes}
	var took []time.Duration
	for i := range max(100, d.o.repeat) {
		t := time.Now()
		v, err := d.peer.Borrow(ctx, d.remote, 0, d.remote.Size())
		if err != nil {
			return fmt.Errorf("shm borrow: %w", err)
		}
		if i == 0 {
			row.Setup = time.Since(t)
			if row.Verified, err = d.m.verify(v.Bytes); err != nil {
				return fmt.Errorf("shm borrow: %w", err)
			}
		} else {
			took = append(took, time.Since(t))
		}
		v.Release()
	}
	row.Took = median(took)
	d.add(row)
	return nil
}

// choose leaves the choice of the path to the node and keeps its reasons.
func (d *demo) choose(ctx context.Context) error {
	if _, err := d.ask(demoRequest{Do: "clear"}); err != nil {
		return err
	}
	copies, err := d.copies(path.Put, d.src)
	if err != nil {
		return err
	}
	t, err := d.peer.Put(ctx, copies, transfer.PutOptions{})
	if err == nil {
		err = t.Wait(ctx)
	}
	if err == nil {
		_, err = d.verify(path.Put, d.src)
	}
	if err != nil {
		return fmt.Errorf("put by any path: %w", err)
	}
	d.report.Choice = strings.Split(t.Explain().String(), "\n")[:3] // what, and each candidate
	return nil
}

// copies pairs every tensor in local memory with its place in the receiver's.
func (d *demo) copies(kind path.OpKind, local *mem.Region) ([]path.Copy, error) {
	out := make([]path.Copy, 0, len(d.m.tensors))
	for _, t := range d.m.tensors {
		off := t.source
		if kind == path.Get {
			off = t.off
		}
		span, err := local.Span(off, t.size)
		if err != nil {
			return nil, err
		}
		out = append(out, d.remote.At(t.off, span))
	}
	return out, nil
}

// plain moves the same bytes over a socket as a Go program would without Penstock.
func (d *demo) plain(ctx context.Context, network string) error {
	row := demoRow{What: "plain Go " + network, Bytes: d.report.Bytes, KernelCopies: 2, Plain: true}
	if _, err := d.ask(demoRequest{Do: "clear"}); err != nil {
		return err
	}
	a, err := d.ask(demoRequest{Do: "accept", Network: network, Times: d.o.repeat + 1})
	if err != nil {
		return err
	}
	begin := time.Now()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, network, a.Addr)
	if err != nil {
		return err
	}
	defer c.Close()
	row.Setup = time.Since(begin)
	src := d.src.All().Bytes()
	var took []time.Duration
	for i := range d.o.repeat + 1 { // the first one warms up
		t := time.Now()
		for _, x := range d.m.tensors {
			n := (x.size + align - 1) &^ (align - 1)
			n = min(n, uint64(len(src))-x.source) // padding travels too: the receiver reads one block
			if _, err := c.Write(src[x.source : x.source+n]); err != nil {
				return err
			}
			if pad := (x.size+align-1)&^(align-1) - n; pad > 0 {
				if _, err := c.Write(make([]byte, pad)); err != nil {
					return err
				}
			}
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return err
		}
		if i > 0 {
			took = append(took, time.Since(t))
		}
	}
	if _, err := d.answer(); err != nil {
		return err
	}
	v, err := d.ask(demoRequest{Do: "verify"})
	if err != nil {
		return err
	}
	row.Verified, row.Took = v.Checked, median(took)
	d.add(row)
	return nil
}

func (d *demo) add(row demoRow) {
	if row.What != "shm borrow" { // a reference is not a flow of bytes
		row.GBs = rate(row.Bytes, row.Took)
		row.Share = row.GBs / d.report.CopyGBs
	}
	d.report.Rows = append(d.report.Rows, row)
}

func rate(bytes uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(bytes) / d.Seconds() / 1e9
}

func median(d []time.Duration) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[len(s)/2]
}
