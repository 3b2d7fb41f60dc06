package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/spf13/cobra"
)

type pingOptions struct {
	clientFlags
	count int
	json  bool
}

func newPing(s streams) *cobra.Command {
	var o pingOptions
	c := &cobra.Command{
		Use:   "ping ADDR",
		Short: "Reach a node, and say by which path, how soon, what that path costs, and why not another one",
		Long: `Connects to the node at ADDR and sends it small requests over the control connection, one after the other; then notifications without
bytes over the path that a transfer would take. It prints the median and the 99th percentile of both, how the path copies, and each
path with its expected latency and rate or the reason why it is not taken.

Any right at the node is enough for the control connection. A path opens only to peers with the right to read or write; without it
ping says so, and succeeds. A program at the other end sees the notifications, which are empty; penstock serve ignores them.`,
		Example: `  penstock ping 127.0.0.1:7070
  penstock ping unix:///run/penstock.sock --count 1000
  penstock ping tcp://gpu-7@10.0.0.7:7070 --path tcp --json`,
		Args: argsBetween(1, 1, "one address, such as tcp://127.0.0.1:7070"),
		RunE: func(c *cobra.Command, args []string) error { return runPing(c.Context(), s, o, args[0]) },
	}
	o.clientFlags.add(c)
	c.Flags().IntVar(&o.count, "count", 100, "how many requests, and how many notifications")
	c.Flags().BoolVar(&o.json, "json", false, "print one JSON object")
	return c
}

// pingReport is what ping prints.
type pingReport struct {
	Addr     string      `json:"addr"`
	Peer     string      `json:"peer"`
	SameHost bool        `json:"same_host"`
	Security string      `json:"security"`
	Connect  float64     `json:"connect_seconds"`
	Control  pingLatency `json:"control"`
	Path     *pingPath   `json:"path,omitempty"`
	Refused  string      `json:"no_path,omitempty"` // why Path is not there
}

type pingLatency struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	Max   float64 `json:"max_seconds"`
}

type pingPath struct {
	Name         string          `json:"name"`
	Carrier      string          `json:"carrier,omitempty"`
	Why          string          `json:"why"`
	Security     string          `json:"security"`
	Open         float64         `json:"open_seconds"`
	Latency      pingLatency     `json:"notification"`
	UserCopies   int             `json:"user_copies"`
	KernelCopies int             `json:"kernel_copies"`
	Setup        []string        `json:"setup,omitempty"`
	Candidates   []pingCandidate `json:"candidates"`
}

type pingCandidate struct {
	Path           string  `json:"path"`
	Usable         bool    `json:"usable"`
	Reason         string  `json:"reason"` // why not, or whether the figures are measured
	Latency        float64 `json:"latency_seconds,omitempty"`
	BytesPerSecond float64 `json:"bytes_per_second,omitempty"`
}

// timed calls f so many times, one after the other.
func timed(count int, f func() error) (l pingLatency, err error) {
	took := make([]time.Duration, count)
	for i := range took {
		begin := time.Now()
		if err := f(); err != nil {
			return l, err
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	at := func(percent int) float64 { return took[(count*percent+99)/100-1].Seconds() } // nearest rank
	return pingLatency{Count: count, P50: at(50), P99: at(99), Max: at(100)}, nil
}

func runPing(ctx context.Context, s streams, o pingOptions, addr string) error {
	if o.count < 1 || o.count > 1e6 {
		return &usageError{fmt.Errorf("--count %d: expected 1 to 1000000", o.count)}
	}
	t, err := parseTarget(addr)
	if err != nil {
		return err
	}
	if t.name != "" {
		return &usageError{fmt.Errorf("%s: expected an address without a name", addr)}
	}
	begin := time.Now()
	c, err := o.dial(ctx, newDisplay(s, displayFlags{}), t.addr)
	if err != nil {
		return err
	}
	defer c.close()
	r := pingReport{Addr: c.addr, Peer: nameOf(c.peer), SameHost: c.peer.SameHost(),
		Security: c.peer.Security().String(), Connect: time.Since(begin).Seconds()}
	if r.Control, err = timed(o.count, func() error { return roundTrip(ctx, c.peer) }); err != nil {
		return err
	}
	r.Path, err = pingOver(ctx, c.peer, o.count)
	if errors.Is(err, control.NotPermitted) {
		r.Refused, err = err.Error(), nil
	}
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(s.out, r)
	}
	return r.print(s.out)
}

// roundTrip is a request and its answer. No node has the service: that it says so is the answer,
// which takes no right in particular.
func roundTrip(ctx context.Context, p *transfer.Peer) error {
	_, err := p.Call(ctx, "ping", nil)
	if errors.Is(err, control.Unsupported) {
		return nil
	}
	return err
}

// pingOver sends notifications over the path that the node takes.
func pingOver(ctx context.Context, p *transfer.Peer, count int) (*pingPath, error) {
	var x transfer.Explanation
	notify := func() error {
		t, err := p.Notify(ctx, nil, transfer.PutOptions{})
		if err == nil {
			err = t.Wait(ctx)
			x = t.Explain()
		}
		return err
	}
	if err := notify(); err != nil { // opens the path
		return nil, err
	}
	out := &pingPath{Open: x.Times.Open.Seconds()}
	var err error
	if out.Latency, err = timed(count, notify); err != nil {
		return nil, err
	}
	out.Name, out.Carrier, out.Why, out.Security, out.Setup = x.Path, x.Carrier, x.Why, x.Security.String(), x.Setup
	out.UserCopies, out.KernelCopies = x.UserCopies, x.KernelCopies
	for _, c := range x.Candidates {
		k := pingCandidate{Path: c.Path, Usable: c.Usable, Reason: c.Reason}
		if c.Usable {
			k.Latency, k.BytesPerSecond = c.Cost.Latency.Seconds(), c.Cost.BytesPerSec
		}
		out.Candidates = append(out.Candidates, k)
	}
	return out, nil
}

// seconds is a time for people.
func seconds(s float64) string { return formatTime(time.Duration(s * 1e9)) }

func (l pingLatency) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, at most %s, of %d", seconds(l.P50), seconds(l.P99), seconds(l.Max), l.Count)
}

func (r *pingReport) print(w io.Writer) error {
	p := &paired.Lines{W: w, Label: deviceLabel, Width: deviceWidth}
	field := func(name, text string) { p.Field(name, escapeControls(text)) }
	where := "another host"
	if r.SameHost {
		where = "this host"
	}
	field(r.Addr, "")
	field("peer", fmt.Sprintf("%s on %s, %s, connected in %s", r.Peer, where, r.Security, seconds(r.Connect)))
	field("control", r.Control.String())
	if r.Path == nil {
		field("path", "none opens: "+r.Refused)
		return p.Err
	}
	x := r.Path
	name := x.Name
	if x.Carrier != "" {
		name += " (" + x.Carrier + ")"
	}
	field("path", fmt.Sprintf("%s: %s; %s, opened in %s", name, x.Why, x.Security, seconds(x.Open)))
	field("latency", x.Latency.String())
	field("cost", fmt.Sprintf("each byte is copied %s in user space and %s in the kernel", times(x.UserCopies),
		times(x.KernelCopies)))
	for _, c := range x.Candidates {
		text := "not taken: " + c.Reason
		switch {
		case c.Usable && c.Reason == "measured":
			text = fmt.Sprintf("measured: %s and %s", seconds(c.Latency), formatRate(c.BytesPerSecond))
		case c.Usable:
			text = fmt.Sprintf("expected, not measured: %s and %s", seconds(c.Latency), formatRate(c.BytesPerSecond))
		}
		field("  "+c.Path, text)
	}
	return p.Err
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
