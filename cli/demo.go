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
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/spf13/cobra"
)

func newDemo(s streams) *cobra.Command {
	var o demoOptions
	c := &cobra.Command{
		Use:   "demo",
		Short: "Two processes of this machine move real tensors by every path that exists here and check each byte",
		Long: `Starts a second process, moves the tensors of a safetensors file (or made ones with the shapes of GPT-2 small) between
the memories of the two by every path that this machine has, has the receiver check each byte, and prints how fast that was
beside a plain Go socket and beside what copying memory costs here. With -v it explains the table, each transfer, and the paths
that this machine lacks.

With --memory device the tensors lie in the memory of an accelerator in both processes, and with --memory pinned in memory that is
page-locked for one; the receiver reads the bytes back, has a kernel of the device sum them as well, and each move stands beside
the same one between host memories. A machine without a GPU uses a substitute, and says what and why.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runDemo(c.Context(), s, o) },
	}
	c.Flags().StringVar(&o.file, "file", "", "safetensors file to move (default: made tensors)")
	c.Flags().BoolVar(&o.small, "small", false, "made tensors in miniature: under a second, figures without meaning")
	c.Flags().IntVar(&o.repeat, "repeat", 5, "how often each path moves everything; the median counts")
	c.Flags().StringVar(&o.memory, "memory", "host", "where both processes hold the tensors: host, pinned, device")
	o.gpu.flags(c)
	c.Flags().BoolVar(&o.json, "json", false, "print JSON instead of a table")
	c.Flags().BoolVarP(&o.verbose, "verbose", "v", false,
		"explain the table, each transfer and the paths that are missing")
	return c
}

type demoOptions struct {
	file        string
	small, json bool
	verbose     bool
	repeat      int
	memory      string
	gpu         gpuFlags
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

	// Of memory that is not the host's:
	DeviceCopies int           `json:",omitempty"` // by the device, to and from host memory on the way
	HostTook     time.Duration `json:",omitempty"` // median of the same move between host memories
	OfHost       float64       `json:",omitempty"` // that over Took: what is left of the speed
	Refused      string        `json:",omitempty"` // why there are no figures
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
	Memory      string   // where the tensors lie: "host", "pinned", "device"
	Device      string   `json:",omitempty"` // whose memory that is, and what it was taken instead of
	ByKernel    bool     `json:",omitempty"` // a kernel of the device summed what the receiver read back
	Choice      []string // how a put went that was free to take any path
	Unavailable []string
}

type demo struct {
	o       demoOptions
	m       *demoModel
	backing demoMemory
	peer    *transfer.Peer
	sides   []demoSide // the memory that was asked for, and where that is not the host's, host memory to compare with
	in      io.WriteCloser
	out     *json.Decoder
	report  demoReport
}

// demoSide is memory of one kind in both processes.
type demoSide struct {
	name   string      // of the receiver's export
	src    *mem.Region // the tensors here
	remote *transfer.Remote
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
	if d.backing, err = openDemoMemory(o.memory, o.gpu); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.backing.close()) }()
	d.report = demoReport{Model: m.title, Tensors: len(m.tensors), DTypes: m.dtypes(), Bytes: m.bytes(),
		Memory: o.memory, Device: d.backing.String()}
	if !o.json {
		fmt.Fprintf(s.out, "Two processes move %s: %s of %s, %s.\n", m.title,
			count(len(m.tensors), "tensor", "tensors"),
			strings.Join(d.report.DTypes, " "), formatBytes(d.report.Bytes))
		if d.report.Device != "" {
			fmt.Fprintf(s.out, "Both hold them in %s memory: %s\n", o.memory, d.report.Device)
		}
		fmt.Fprintln(s.out)
	}
	stop, err := d.startReceiver(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	closeSources, err := d.sources(ctx)
	defer func() { err = errors.Join(err, closeSources()) }()
	if err != nil {
		return err
	}
	node, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Name: "sender"})
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
		return printJSON(s.out, d.report)
	}
	return d.report.print(s.out, o)
}

// startReceiver starts the second process; stop ends it and returns how it ended.
func (d *demo) startReceiver(ctx context.Context, s streams) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"demo-receiver", "--memory", d.o.memory, "--gpu-runtime", d.o.gpu.runtime, "--gpu",
		strconv.Itoa(d.o.gpu.device)}
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
	if err := printJSONLine(d.in, q); err != nil {
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
	for i := range d.sides {
		if d.sides[i].remote, err = d.peer.Lookup(ctx, d.sides[i].name); err != nil {
			return err
		}
	}
	return nil
}

// ceiling measures what copying memory costs on this machine, on the amounts that are moved.
func (d *demo) ceiling() error {
	host := d.sides[len(d.sides)-1].src
	dst, err := mem.Alloc(mem.Options{Name: "demo ceiling", Size: int(host.Len())})
	if err != nil {
		return err
	}
	defer dst.Close()
	vec.Calibrate()
	src, to := host.All().Bytes(), dst.All().Bytes()
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

// move puts or gets all tensors by one path, several times, and has the receiving side check every
// byte. Where the tensors do not lie in host memory, each move is followed by the same one between
// host memories.
func (d *demo) move(ctx context.Context, kind path.OpKind, name string) (err error) {
	row := demoRow{What: name + " put", Bytes: d.report.Bytes}
	if kind == path.Get {
		row.What = name + " get"
	}
	var moves []*demoMove
	defer func() {
		for _, m := range moves {
			err = errors.Join(err, m.close())
		}
	}()
	for i := range d.sides {
		m, err := d.newMove(kind, name, i)
		if err != nil {
			return err
		}
		moves = append(moves, m)
	}
	var took [2][]time.Duration
	for i := range d.o.repeat + 1 { // the first one warms up
		for k, m := range moves {
			x, err := m.run(ctx)
			if k == 0 && i == 0 && d.backing.a != nil && errors.Is(err, path.ErrUnavailable) {
				// host memory is reached by every path here
				row.Refused = reason(err, name)
				d.add(row)
				return nil
			}
			if err != nil {
				return fmt.Errorf("%s, %s memory: %w", row.What, d.sides[k].name, err)
			}
			if i > 0 {
				took[k] = append(took[k], x.Times.Total-x.Times.Open)
			}
			if k > 0 {
				continue
			}
			if i == 0 {
				row.Setup = x.Times.Open
			}
			row.UserCopies, row.KernelCopies, row.DeviceCopies = x.UserCopies, x.KernelCopies, x.DeviceCopies()
			row.Verified = m.checked
			if i == d.o.repeat && kind == path.Put { // a get goes the same way
				row.Explain = strings.Split(x.String(), "\n")
			}
		}
	}
	row.Took = median(took[0])
	if len(moves) > 1 {
		row.HostTook = median(took[1])
		row.OfHost = float64(row.HostTook) / float64(row.Took)
	}
	d.add(row)
	return nil
}

// demoMove is one direction of one path between memories of one kind.
type demoMove struct {
	d       *demo
	side    *demoSide
	kind    path.OpKind
	copies  []path.Copy
	options transfer.PutOptions
	local   *mem.Region
	checked uint64 // of the last run, by the side that received
}

func (d *demo) newMove(kind path.OpKind, name string, side int) (*demoMove, error) {
	m := &demoMove{d: d, side: &d.sides[side], kind: kind, local: d.sides[side].src}
	if name != "" {
		m.options.Paths = []string{name}
	}
	if kind == path.Get {
		// The receiver has the tensors by now: fetch them into memory of this process that holds
		// something else.
		var err error
		if m.local, err = d.backing.alloc(m.side.name, "demo return", d.m.size); err != nil {
			return nil, err
		}
	}
	for _, t := range d.m.tensors { // each one in local memory with its place in the receiver's
		off := t.source
		if kind == path.Get {
			off = t.off
		}
		span, err := m.local.Span(off, t.size)
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.copies = append(m.copies, m.side.remote.At(t.off, span))
	}
	return m, nil
}

func (m *demoMove) close() error {
	if m.kind == path.Get {
		return m.local.Close()
	}
	return nil
}

// run moves everything once and has it checked.
func (m *demoMove) run(ctx context.Context) (x transfer.Explanation, err error) {
	begin := m.d.peer.Put
	if m.kind == path.Put {
		_, err = m.d.ask(demoRequest{Do: "clear", Memory: m.side.name})
	} else {
		begin, err = m.d.peer.Get, scribble(ctx, m.local)
	}
	if err != nil {
		return x, err
	}
	t, err := begin(ctx, m.copies, m.options)
	if err == nil {
		err = t.Wait(ctx)
	}
	if err != nil {
		return x, err
	}
	if m.kind == path.Put {
		var a demoReply
		a, err = m.d.ask(demoRequest{Do: "verify", Memory: m.side.name})
		m.checked = a.Checked
		m.d.report.ByKernel = m.d.report.ByKernel || a.ByKernel
	} else {
		m.checked, _, err = m.d.m.verify(ctx, m.d.backing.a, m.local)
	}
	return t.Explain(), err
}

// borrow looks at the receiver's memory without copying it, and checks every byte there.
func (d *demo) borrow(ctx context.Context) error {
	row := demoRow{What: "shm borrow", Bytes: d.report.Bytes}
	remote := d.sides[0].remote
	var took []time.Duration
	for i := range max(100, d.o.repeat) {
		t := time.Now()
		v, err := d.peer.Borrow(ctx, remote, 0, remote.Size())
		if i == 0 && d.backing.a != nil && errors.Is(err, path.ErrUnreachable) {
			row.Refused = err.Error()
			break
		}
		if err != nil {
			return fmt.Errorf("shm borrow: %w", err)
		}
		if i == 0 {
			row.Setup = time.Since(t)
			if row.Verified, err = d.m.verifyBytes(v.Bytes); err != nil {
				return fmt.Errorf("shm borrow: %w", err)
			}
		} else {
			took = append(took, time.Since(t))
		}
		v.Release()
	}
	if row.Refused == "" {
		row.Took = median(took)
	}
	d.add(row)
	return nil
}

// choose leaves the choice of the path to the node and keeps its reasons.
func (d *demo) choose(ctx context.Context) error {
	m, err := d.newMove(path.Put, "", 0)
	if err != nil {
		return err
	}
	x, err := m.run(ctx)
	if err != nil {
		return fmt.Errorf("put by any path: %w", err)
	}
	d.report.Choice = strings.Split(x.String(), "\n")[:3] // what, and each candidate
	return nil
}

// plain moves the same bytes over a socket as a Go program would without Penstock: memory that the
// CPU does not reach goes through a buffer on both sides.
func (d *demo) plain(ctx context.Context, network string) (err error) {
	row := demoRow{What: "plain Go " + network, Bytes: d.report.Bytes, KernelCopies: 2, Plain: true}
	if d.sides[0].src.Mover() != nil {
		row.DeviceCopies = 2
	}
	name := d.sides[0].name
	if _, err := d.ask(demoRequest{Do: "clear", Memory: name}); err != nil {
		return err
	}
	a, err := d.ask(demoRequest{Do: "accept", Memory: name, Network: network, Times: d.o.repeat + 1})
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
	w := accel.NewWindow()
	defer func() { err = errors.Join(err, w.Close()) }()
	var took []time.Duration
	for i := range d.o.repeat + 1 { // the first one warms up
		t := time.Now()
		if err := d.sendPlain(ctx, c, w); err != nil {
			return err
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
	v, err := d.ask(demoRequest{Do: "verify", Memory: name})
	if err != nil {
		return err
	}
	row.Verified, row.Took = v.Checked, median(took)
	d.add(row)
	return nil
}

// sendPlain writes every tensor with its padding, which travels too: the receiver reads one block.
func (d *demo) sendPlain(ctx context.Context, c net.Conn, w *accel.Window) error {
	src := d.sides[0].src
	for _, x := range d.m.tensors {
		padded := (x.size + align - 1) &^ (align - 1)
		span, err := src.Span(x.source, min(padded, src.Len()-x.source))
		if err != nil {
			return err
		}
		err = w.Read(ctx, span, func(b []byte, _ uint64) error {
			_, err := c.Write(b)
			return err
		})
		if err != nil {
			return err
		}
		if pad := padded - span.Len; pad > 0 {
			if _, err := c.Write(make([]byte, pad)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *demo) add(row demoRow) {
	if row.What != "shm borrow" && row.Refused == "" { // a reference is not a flow of bytes
		row.GBs = rate(row.Bytes, row.Took)
		row.Share = row.GBs / d.report.CopyGBs
	}
	d.report.Rows = append(d.report.Rows, row)
}

// reason is why a path cannot be taken: what an error that has a line for each path says of this
// one.
func reason(err error, name string) string {
	for line := range strings.Lines(err.Error()) {
		if why, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(why)
		}
	}
	return err.Error()
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
