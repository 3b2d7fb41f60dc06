package pathtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// childEnv tells a test binary that it is the other side.
const childEnv = "PENSTOCK_PATHTEST_CHILD"

// child is the other side of a path, in a process of its own: this test binary, started again. It
// serves its path asleep on FD and does what it is asked over its standard input, one line of JSON
// for each request, and answers on its standard output. It ends when its input does.
type child struct {
	*proc.Process
	t       testing.TB
	in      *json.Encoder
	replies chan reply
}

// request is what the child is to do.
type request struct {
	Do    string // listen, dial, export, change, verify, op, notices, close
	Addr  string
	Token setup.Token
	Size  int    // export: bytes
	Index int    // change, verify: which of its exports
	Off   int    // change, verify: bytes from the start
	N     int    // change, verify, op: bytes
	Seed  uint64 // export, change: the pattern to write; verify, op: the pattern expected or sent
	Kind  path.OpKind
	Key   []byte // op: the wire form of the parent's export key
	Imm   uint64 // op: with a notification
	Want  int    // notices: the answer comes when so many have been received
}

// reply is what came of it.
type reply struct {
	Err     string
	Addr    string // listen
	Key     []byte // export: the key's wire form
	Bad     int    // verify, op (get): offset of the first wrong byte, or -1
	Notices int    // notices: received until now
}

// startChild runs this test binary again, up to the call of RunProcess with which the calling test
// is named. The child is killed at the end of the test.
func startChild(t testing.TB) *child {
	t.Helper()
	c := &child{t: t, replies: make(chan reply, 16)}
	spec := proc.Self(t, childEnv+"="+t.Name())
	spec.Input = true
	spec.OnLine = func(line string) {
		var r reply
		if json.Unmarshal([]byte(line), &r) == nil { // else it is of the testing package
			c.replies <- r
		}
	}
	c.Process = proc.Start(t, spec)
	c.in = json.NewEncoder(c.Input())
	return c
}

// send asks for something without waiting for the answer.
func (c *child) send(q request) {
	c.t.Helper()
	if err := c.in.Encode(q); err != nil {
		c.t.Fatalf("asking the child to %s: %v", q.Do, err)
	}
}

// receive waits for the next answer, while the parent's side is served if there is one. Its error
// is the child's.
func (c *child) receive(s *Side) (r reply, err error) {
	c.t.Helper()
	for start := time.Now(); ; {
		select {
		case r = <-c.replies:
			if r.Err != "" {
				err = errors.New(r.Err)
			}
			return r, err
		default:
			if s != nil {
				s.Poll()
			}
			runtime.Gosched()
			if time.Since(start) > 30*time.Second {
				c.t.Fatalf("the child does not answer\n%s", c.Output())
			}
		}
	}
}

// ask sends a request and waits for the answer while the parent's side is served.
func (c *child) ask(s *Side, q request) reply {
	c.t.Helper()
	c.send(q)
	r, err := c.receive(s)
	if err != nil {
		c.t.Fatalf("the child could not %s: %v\n%s", q.Do, err, s.pair.Dump())
	}
	return r
}

// must ends the test if something could not be done with the child.
func (c *child) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// connect makes a path between this process and a child. The child dials, or listens if
// childListens.
func connect(t testing.TB, d setup.ListenDriver, childListens bool) (*Side, *child) {
	t.Helper()
	f := Factory{}.defaults()
	c := startChild(t)
	p := &Pair{t: t, f: f}
	s := &Side{Name: "parent", Exports: new(path.Exports), t: t, pair: p, ops: map[uint64]*Result{}}
	p.A = s
	cfg := setup.Config{Rights: path.Read | path.Write, Exports: s.Exports}
	ctx, cancel := context.WithTimeout(t.Context(), f.Patience)
	defer cancel()
	offer := setup.Offer{}
	rand.Read(offer.Token[:])
	var err error
	if childListens {
		c.send(request{Do: "listen", Token: offer.Token})
		var r reply
		if r, err = c.receive(nil); err != nil {
			t.Fatalf("the child could not listen: %v", err)
		}
		offer.Addr = r.Addr
		s.Path, err = d.Dial(ctx, offer, cfg)
	} else {
		var l setup.Listener
		if l, err = d.Listen(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		offer.Addr = l.Addr()
		c.send(request{Do: "dial", Addr: offer.Addr, Token: offer.Token})
		s.Path, err = l.Accept(ctx, offer.Token, cfg)
	}
	if err != nil {
		t.Fatalf("connecting to the child: %v", err)
	}
	if _, err := c.receive(nil); err != nil {
		t.Fatalf("the child could not connect: %v", err)
	}
	t.Cleanup(p.finish)
	return s, c
}

// childSide is the child's part.
type childSide struct {
	driver  setup.ListenDriver
	path    path.Path
	exports path.Exports
	regions []*mem.Region
	notices int
	want    int // notices after which the answer to a request goes out
	out     *json.Encoder
	op      request // under way
	local   *mem.Region
}

// childMain is the child process; it never returns.
func childMain(d setup.ListenDriver) {
	w, err := path.NewWaiter()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pathtest child:", err)
		os.Exit(1)
	}
	c := &childSide{driver: d, out: json.NewEncoder(os.Stdout)}
	requests := make(chan request, 16)
	go func() {
		in := json.NewDecoder(os.Stdin)
		for {
			var q request
			if err := in.Decode(&q); err != nil {
				if errors.Is(err, io.EOF) {
					os.Exit(0)
				}
				os.Exit(2)
			}
			requests <- q
			w.Interrupt()
		}
	}()
	events := make([]path.Event, 16)
	for {
		if c.path == nil {
			c.handle(<-requests)
			continue
		}
		select {
		case q := <-requests:
			c.handle(q)
			continue
		default:
		}
		n, err := w.Wait(context.Background(), c.path, events, 0)
		if err != nil {
			fmt.Fprintln(os.Stderr, "pathtest child:", err)
			os.Exit(1)
		}
		for _, e := range events[:n] {
			switch e.Kind {
			case path.EventNotify:
				if c.notices++; c.notices == c.want {
					c.out.Encode(reply{Bad: -1, Notices: c.notices})
				}
			case path.EventDown:
				c.path.Close()
				c.path = nil
			case path.EventDone:
				r := reply{Bad: -1}
				if e.Err != nil {
					r.Err = e.Err.Error()
				} else if c.op.Kind == path.Get {
					r.Bad = Verify(c.local.All().Bytes()[:c.op.N], c.op.Seed)
				}
				c.out.Encode(r)
				c.local.Close()
			}
		}
	}
}

func (c *childSide) handle(q request) {
	r, later, err := c.do(q)
	if err != nil {
		r.Err = err.Error()
	}
	if err != nil || !later {
		c.out.Encode(r)
	}
}

func (c *childSide) do(q request) (r reply, later bool, err error) {
	r.Bad = -1
	cfg := setup.Config{Rights: path.Read | path.Write, Exports: &c.exports}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if c.path == nil && q.Do != "listen" && q.Do != "dial" {
		return r, false, path.ErrDown
	}
	switch q.Do {
	case "listen": // two answers: the address, and that it is connected
		var l setup.Listener
		if l, err = c.driver.Listen(); err == nil {
			c.out.Encode(reply{Addr: l.Addr()})
			c.path, err = l.Accept(ctx, q.Token, cfg)
		}
	case "dial":
		c.path, err = c.driver.Dial(ctx, setup.Offer{Addr: q.Addr, Token: q.Token}, cfg)
	case "export":
		var m *mem.Region
		if m, err = mem.Alloc(mem.Options{Size: q.Size, Lazy: true}); err != nil {
			return r, false, err
		}
		Fill(m.All().Bytes(), q.Seed)
		var e *path.Export
		if e, err = c.exports.Add(m.All(), path.Read|path.Write); err == nil {
			c.regions = append(c.regions, m)
			r.Key = e.Key().Append(nil)
		}
	case "change":
		Fill(c.regions[q.Index].All().Bytes()[q.Off:q.Off+q.N], q.Seed)
	case "verify":
		r.Bad = Verify(c.regions[q.Index].All().Bytes()[q.Off:q.Off+q.N], q.Seed)
	case "op":
		if c.local, err = mem.Alloc(mem.Options{Size: max(q.N, 1), Lazy: true}); err != nil {
			return r, false, err
		}
		op := path.Op{Kind: q.Kind, Token: 1, Imm: q.Imm, Notify: q.Imm != 0}
		if q.Kind != path.Notify {
			if q.Kind == path.Put {
				Fill(c.local.All().Bytes()[:q.N], q.Seed)
			}
			op.Copies = []path.Copy{{Local: mem.Span{Region: c.local, Len: uint64(q.N)}, Key: path.ParseKey(q.Key),
				RemoteOff: uint64(q.Off)}}
		}
		c.op = q
		_, err = c.path.Post([]path.Op{op})
		later = true
	case "notices":
		r.Notices, later = c.notices, c.notices < q.Want
		if later {
			c.want = q.Want
		}
	case "close":
		err = c.path.Close()
		c.path = nil
	default:
		err = fmt.Errorf("unknown request %q", q.Do)
	}
	return r, later, err
}
