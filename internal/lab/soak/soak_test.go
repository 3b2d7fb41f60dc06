package soak

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// A few seconds of everything. make soak runs for longer.
func TestSoak(t *testing.T) {
	rep, err := Run(t.Context(), Options{Duration: 4 * time.Second, MaxBytes: 4 << 20, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	good := uint64(0)
	for _, k := range rep.Kinds {
		good += k.Good
		if k.Begun != k.Good+k.Failed+k.Killed || !checkedBySender[k.Name] && k.Good != k.Heard+k.Unheard {
			t.Errorf("the sums are wrong: %+v", k)
		}
	}
	if good == 0 || len(rep.Faults) == 0 {
		t.Errorf("%d transfers succeeded under %d kinds of faults", good, len(rep.Faults))
	}
	testenv.Record(t, "soak", "short", fmt.Sprintf("seed %d, %d processes, %d nodes", rep.Seed, rep.Lives, rep.Nodes))
}

// Run finds a worker that does something wrong.
func TestSoakNotices(t *testing.T) {
	testenv.Once(t)
	for what, want := range map[string]string{
		BreakLost:  `transfers did not end`,
		BreakTwice: `ended 2 times|came twice`,
		BreakByte:  `byte \d+ .*is wrong`,
		BreakLease: `1 lease of`,
		BreakCount: `never heard of it`,
	} {
		t.Run(what, func(t *testing.T) {
			rep, err := Run(t.Context(), Options{Duration: 1500 * time.Millisecond, Seed: 5, Workers: 2,
				MaxBytes: 256 << 10,
				Patience: 3 * time.Second, Calm: true, Break: what})
			all := strings.Join(rep.Wrong, "\n")
			if err == nil || !regexp.MustCompile(want).MatchString(all) {
				t.Errorf("complaints %q, want %q", all, want)
			}
			if err != nil && !strings.Contains(err.Error(), "SEED=5") {
				t.Errorf("error %q does not say how to run again", err)
			}
		})
	}
}

// Without faults nothing fails but what was canceled, withdrawn, too much for a limit, or to be
// more secure than its session.
func TestCalm(t *testing.T) {
	testenv.Once(t)
	rep, err := Run(t.Context(), Options{Duration: time.Second, Workers: 2, MaxBytes: 1 << 20, Calm: true,
		Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range rep.Kinds {
		for why, n := range k.Reasons {
			switch why {
			case "canceled", "revoked", "peer: revoked", "unknown key", "peer: over budget", "peer: canceled",
				"peer: not found", "not found", "peer: busy",
				"security floor", "too large", "too many", "too many bytes", "peer: too many", "peer: too many bytes",
				"peer: too large":
			default:
				// What is under way when the run ends may meet a peer that has gone already: only
				// acknowledgements are.
				if k.Name != "ack" {
					t.Errorf("%d of %d %s failed: %s", n, k.Begun, k.Name, why)
				}
			}
		}
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{Workers: 1}, {MaxBytes: 100}} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestPatterns(t *testing.T) {
	for n := range 200 {
		b := make([]byte, n)
		fill(b, 7)
		if at := verify(b, 7); at >= 0 {
			t.Fatalf("%d bytes: byte %d is wrong", n, at)
		}
		for i := range b {
			b[i] ^= 1
			if at := verify(b, 7); at != i {
				t.Fatalf("%d bytes, byte %d damaged: %d", n, i, at)
			}
			b[i] ^= 1
		}
	}
	b := make([]byte, 500)
	label(b, "w1.2#3")
	if key, at := readLabel(b); key != "w1.2#3" || at >= 0 {
		t.Errorf("label %q, %d", key, at)
	}
	b[499]++
	if _, at := readLabel(b); at != 499 {
		t.Errorf("first wrong byte %d", at)
	}
	if _, at := readLabel(b[:10]); at < 0 {
		t.Error("no label is as good as one")
	}
}

// The accounts complain of everything that does not balance, and of nothing else.
func TestAccounts(t *testing.T) {
	begin := line{T: tBegin, Key: "w0.1#1", To: "w1.1/1", Kind: "put", Bytes: 5}
	end := line{T: tEnd, Key: "w0.1#1", Path: "tcp"}
	failed := line{T: tEnd, Key: "w0.1#1", Err: "canceled"}
	heard := line{T: tHeard, Key: "w0.1#1", Node: "w1.1/1", Bytes: 5}
	wrong, short := heard, heard
	wrong.Text, short.Bytes = "byte 3 is wrong", 4
	open, closed := line{T: tOpen, Node: "w1.1/1"}, line{T: tClosed, Node: "w1.1/1"}
	left := closed
	left.Text = "a region"
	for name, c := range map[string]struct {
		lines  []line
		killed string
		want   string
	}{
		"good":             {lines: []line{open, begin, end, heard, closed}},
		"heard first":      {lines: []line{open, heard, begin, end, closed}},
		"failed":           {lines: []line{open, begin, failed, closed}},
		"failed but heard": {lines: []line{open, begin, failed, heard, closed}},
		"failed, damaged":  {lines: []line{open, begin, failed, wrong, closed}},
		"sender killed":    {lines: []line{open, begin, closed}, killed: "w0.1"},
		"receiver killed":  {lines: []line{open, begin, end}, killed: "w1.1"},
		"not ended":        {lines: []line{open, begin, heard, closed}, want: "ended 0 times"},
		"ended twice":      {lines: []line{open, begin, end, end, heard, closed}, want: "ended 2 times"},
		"ended later":      {lines: []line{open, begin, end, heard, end, closed}, want: "was reported twice"},
		"never began":      {lines: []line{open, end, closed}, want: "never began"},
		"not heard":        {lines: []line{open, begin, end, closed}, want: "never heard"},
		"heard twice":      {lines: []line{open, begin, heard, heard, end, closed}, want: "heard of 2 times"},
		"heard later":      {lines: []line{open, begin, heard, end, heard, closed}, want: "was reported twice"},
		"damaged":          {lines: []line{open, begin, end, wrong, closed}, want: "byte 3 is wrong"},
		"wrong size":       {lines: []line{open, begin, end, short, closed}, want: "heard of 4 bytes"},
		"left over":        {lines: []line{open, begin, end, heard, left}, want: "left over: a region"},
		"not closed":       {lines: []line{open, begin, end, heard}, want: "was not closed"},
		"no name": {lines: []line{open, begin, {T: tEnd, Key: "w0.1#1", Err: "?", Text: "boom"}, closed},
			want: "boom"},
		"checked by itself": {lines: []line{open, {T: tBegin, Key: "w0.1#1", To: "w1", Kind: kindStore, Bytes: 5}, end,
			closed}},
		"ended twice, job": {lines: []line{open, {T: tBegin, Key: "w0.1#1", To: "w1", Kind: kindStore, Bytes: 5}, end,
			end, closed}, want: "was reported twice"},
		"began twice": {lines: []line{open, begin, begin, end, heard, closed}, want: "began twice"},
	} {
		b := newAccounts()
		if c.killed != "" {
			b.killed[c.killed] = true
		}
		for _, l := range c.lines {
			b.take(&l)
		}
		b.close()
		if got := strings.Join(b.wrong, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: complaints %q, want %q", name, got, c.want)
		}
	}
}

// What a node says by its events and by its totals must be what the futures said.
func TestLedger(t *testing.T) {
	testenv.Once(t)
	for name, c := range map[string]struct {
		spoil func(b *ledger, id observe.ID)
		want  string
	}{
		"good":           {spoil: func(*ledger, observe.ID) {}},
		"future differs": {func(b *ledger, id observe.ID) { b.told[id] = false }, "or another outcome"},
		"unknown":        {func(b *ledger, id observe.ID) { b.ended(observe.ID{1}, nil) }, "which no event says"},
		"lost begin":     {func(b *ledger, id observe.ID) { b.kind("notify").begun-- }, "by the events 0, 1, 0"},
		"never ended":    {func(b *ledger, id observe.ID) { b.open[observe.ID{2}] = true }, "never ended"},
		"failover":       {func(b *ledger, id observe.ID) { b.hops++ }, "0 failovers by the totals, 1"},
	} {
		a, err := transfer.Open(t.Context(), transfer.Options{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := transfer.Open(t.Context(), transfer.Options{Anonymous: identity.All, Name: "b",
			Listen: []string{"tcp://127.0.0.1:0"}})
		if err != nil {
			t.Fatal(err)
		}
		h := &host{w: &worker{c: config{Patience: time.Minute}, out: t.Output()}, n: a}
		h.ledger.follow(h)
		p, err := a.Dial(t.Context(), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		x, err := p.Notify(t.Context(), []byte("m"), transfer.PutOptions{})
		if err == nil {
			err = x.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		h.ledger.done.Wait()
		c.spoil(&h.ledger, x.ID())
		h.ledger.ended(x.ID(), nil)
		sums, wrong := h.ledger.balance(h)
		if got := strings.Join(wrong, "; "); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: complaints %q, want %q", name, got, c.want)
		}
		if sums["transfers"] != 1 {
			t.Errorf("%s: %v", name, sums)
		}
	}
}

// Each way in which the other side's trust can be missing has a name.
func TestReasons(t *testing.T) {
	for want, err := range map[string]error{
		"":  nil,
		"?": path.ErrIntegrity,
		"denied": fmt.Errorf("dial: %w",
			&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}),
		"security floor":      errors.Join(path.ErrUnavailable, transfer.ErrSecurity),
		"no path":             path.ErrUnavailable,
		"too many":            &sched.Refusal{Code: control.TooMany},
		"peer: not permitted": &control.Error{Code: control.NotPermitted, Remote: true},
	} {
		if got := reason(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
