package transfer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
	"github.com/penstock-io/penstock/transfer/path/verbs"
)

// Options that cannot be are refused by Open, in words that name the field, its value and what was
// expected.
func TestBadOptions(t *testing.T) {
	var none setup.Driver
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{Options{Name: strings.Repeat("x", 256)}, []string{"Options.Name", "256 bytes", "at most 255"}},
		{Options{Window: -1}, []string{"Options.Window is -1", "2 to 4096"}},
		{Options{Window: 1}, []string{"Options.Window is 1", "2 to 4096"}},
		{Options{Window: 1 << 20}, []string{"Options.Window is 1048576", "2 to 4096"}},
		{Options{Streams: -1}, []string{"Options.Streams is -1", "1 to 16"}},
		{Options{Streams: 17}, []string{"Options.Streams is 17", "1 to 16"}},
		{Options{HeartbeatEvery: -1}, []string{"Options.HeartbeatEvery is -1ns", "positive"}},
		{Options{DeadAfter: -time.Second}, []string{"Options.DeadAfter is -1s", "positive"}},
		{Options{DeadAfter: time.Second, HeartbeatEvery: time.Second}, []string{"Options.DeadAfter is 1s", "twice HeartbeatEvery (1s)"}},
		{Options{Security: path.SecurityEncrypted + 1}, []string{"Options.Security", "SecurityEncrypted"}},
		{Options{Staging: 1}, []string{"Options.Staging is 1", "at least 524288"}},
		{Options{Paths: []setup.Driver{shm.Driver{}, none}}, []string{"Options.Paths[1] is nil", "expected a driver"}},
		{Options{Paths: []setup.Driver{shm.Driver{}, shm.Driver{}}}, []string{`Options.Paths[1] is "shm" again`, "once"}},
		{Options{Paths: []setup.Driver{tcp.New(tcp.Options{CongestionControl: "cubik"})}}, []string{"Options.Paths[0]", `"cubik"`, "this kernel has"}},
		{Options{Paths: []setup.Driver{tcp.New(tcp.Options{Addr: "localhost"})}}, []string{"Options.Paths[0]", "Options.Addr", `"localhost"`}},
		{Options{Paths: []setup.Driver{verbs.New(verbs.Options{QueuePairs: -1})}}, []string{"Options.Paths[0]", "Options.QueuePairs is -1"}},
		{Options{Listen: []string{"http://x"}}, []string{"http://x"}},
	} {
		n, err := Open(ctx(t), c.o)
		if err == nil {
			n.Close()
			t.Errorf("%+v is taken", c.o)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: expected %q in it", err, w)
			}
		}
	}
}

func TestBadQueueOptions(t *testing.T) {
	p := newPair(t, Options{})
	for _, c := range []struct {
		o    QueueOptions
		want string
	}{
		{QueueOptions{Window: -1}, "QueueOptions.Window is -1: expected 1 to 4096"},
		{QueueOptions{Window: 4097}, "QueueOptions.Window is 4097"},
		{QueueOptions{Streams: -1}, "QueueOptions.Streams is -1: expected 1 to 16"},
		{QueueOptions{Streams: 17}, "QueueOptions.Streams is 17"},
		{QueueOptions{Security: path.SecurityEncrypted + 1}, "QueueOptions.Security is"},
		{QueueOptions{Name: strings.Repeat("x", 256)}, "QueueOptions.Name has 256 bytes"},
		{QueueOptions{Path: "tpc"}, "tpc"},
	} {
		if q, err := p.ab.OpenQueue(ctx(t), c.o); err == nil {
			q.Close()
			t.Errorf("%+v is taken", c.o)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: expected %q in it", err, c.want)
		}
	}
}

// oneOfEach is one of each type of this package that has methods, from a pair of nodes between
// which something was moved.
func oneOfEach(t *testing.T) (p *pair, all []any) {
	p = newPair(t, Options{})
	dst, src := region(t, 4096), region(t, 4096)
	x := export(t, p.b, dst, "dst", path.Read|path.Write)
	rem := lookup(t, p.ab, "dst")
	tr, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, tr, nil)
	p.b.AcceptQueues("")
	q, err := p.ab.OpenQueue(ctx(t), QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return p, []any{p.a, p.ab, rem, x, tr, q, p.a.Events(t.Context(), 1)}
}

// arguments of a call: plausible ones, with the context given.
func arguments(t *testing.T, m reflect.Type, ctx context.Context, p *pair) []reflect.Value {
	var in []reflect.Value
	for i := 1; i < m.NumIn(); i++ { // 0 is the receiver
		switch a := m.In(i); a {
		case reflect.TypeFor[context.Context]():
			if ctx == nil {
				in = append(in, reflect.Zero(a))
			} else {
				in = append(in, reflect.ValueOf(ctx))
			}
		case reflect.TypeFor[*Remote]():
			in = append(in, reflect.ValueOf(&Remote{Peer: p.ab}))
		case reflect.TypeFor[func(context.Context, *Peer) error]():
			in = append(in, reflect.ValueOf(func(context.Context, *Peer) error { return nil }))
		case reflect.TypeFor[[]path.Event]():
			in = append(in, reflect.ValueOf(make([]path.Event, 4)))
		case reflect.TypeFor[string]():
			in = append(in, reflect.ValueOf("name"))
		default:
			if a.Kind() == reflect.Func {
				in = append(in, reflect.MakeFunc(a, func([]reflect.Value) (out []reflect.Value) {
					for k := range a.NumOut() {
						out = append(out, reflect.Zero(a.Out(k)))
					}
					return out
				}))
			} else {
				in = append(in, reflect.Zero(a))
			}
		}
	}
	return in
}

// call calls a method and returns its error, if it has one, and what it panics with.
func call(v reflect.Value, m reflect.Method, in []reflect.Value) (panicked any, err error) {
	defer func() { panicked = recover() }()
	for _, out := range m.Func.Call(append([]reflect.Value{v}, in...)) {
		if e, ok := out.Interface().(error); ok {
			err = e
		}
	}
	return nil, err
}

// Every exported method of every type is called with a nil context, where it takes one, and after
// everything is closed. A nil context is an error that says so, and a panic that does in builds
// with -tags invariants; nothing else panics, and nothing hangs.
func TestMisuse(t *testing.T) {
	t.Run("nil context", func(t *testing.T) {
		p, all := oneOfEach(t)
		n := 0
		for _, x := range all {
			v := reflect.ValueOf(x)
			for i := range v.NumMethod() {
				m := v.Type().Method(i)
				if m.Type.NumIn() < 2 || m.Type.In(1) != reflect.TypeFor[context.Context]() {
					continue
				}
				n++
				name := fmt.Sprintf("%T.%s", x, m.Name)
				panicked, err := call(v, m, arguments(t, m.Type, nil, p))
				// what has ended is over, whatever the context is
				over := m.Name == "Wait" && name != "*transfer.Queue.Wait"
				switch {
				case over && err == nil && panicked == nil:
				case m.Name == "Events":
					if panicked != nil && !invariants.Enabled {
						t.Errorf("%s panics: %v", name, panicked)
					}
				case invariants.Enabled:
					if s := fmt.Sprint(panicked); !strings.Contains(s, "the context is nil") {
						t.Errorf("%s: %v, panic %v", name, err, panicked)
					}
				case panicked != nil:
					t.Errorf("%s panics: %v", name, panicked)
				case !errors.Is(err, ErrContext):
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if n < 25 {
			t.Errorf("only %d methods take a context", n)
		}
	})
	t.Run("after Close", func(t *testing.T) {
		p, all := oneOfEach(t)
		for _, x := range all {
			if c, ok := x.(interface{ Close() error }); ok {
				if err := c.Close(); err != nil {
					t.Errorf("%T.Close: %v", x, err)
				}
			}
		}
		p.b.Close()
		// What only waits waits for something that does not come any more: that ends with the
		// context, if with nothing else.
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for _, x := range all {
			v := reflect.ValueOf(x)
			for i := range v.NumMethod() {
				m := v.Type().Method(i)
				panicked, err := call(v, m, arguments(t, m.Type, over, p))
				name := fmt.Sprintf("%T.%s", x, m.Name)
				if panicked != nil {
					t.Errorf("%s after Close panics: %v", name, panicked)
				}
				t.Logf("%s: %v", name, err)
			}
		}
		live := ctx(t)
		for name, f := range map[string]func() error{
			"Node.Dial": func() error { _, err := p.a.Dial(live, "tcp://127.0.0.1:1"); return err },
			"Node.Export": func() error {
				_, err := p.a.Export(region(t, 4096).All(), ExportOptions{})
				return err
			},
			"Node.Receive":     func() error { _, err := p.a.Receive(live, "x"); return err },
			"Node.AcceptQueue": func() error { _, err := p.a.AcceptQueue(live, "x"); return err },
		} {
			if err := f(); err == nil {
				t.Errorf("%s after Close succeeds", name)
			}
		}
		for name, f := range map[string]func() error{
			"Peer.Lookup":    func() error { _, err := p.ab.Lookup(live, "dst"); return err },
			"Peer.Notify":    func() error { _, err := p.ab.Notify(live, nil, PutOptions{}); return err },
			"Peer.OpenQueue": func() error { _, err := p.ab.OpenQueue(live, QueueOptions{}); return err },
			"Peer.Borrow": func() error {
				_, err := p.ab.Borrow(live, &Remote{Peer: p.ab, Desc: path.Desc{Rights: path.Read}}, 0, 1)
				return err
			},
		} {
			if err := f(); !errors.Is(err, ErrClosed) {
				t.Errorf("%s after Close: %v, expected ErrClosed", name, err)
			}
		}
	})
}

// Builds with -tags invariants find two goroutines inside a queue, and name both methods.
func TestQueueHasOneOwner(t *testing.T) {
	q := &Queue{name: "q"}
	q.own(&inWait)
	func() {
		defer func() {
			if s := fmt.Sprint(recover()); !strings.Contains(s,
				`queue "q": Post while another goroutine is inside Wait`) {
				t.Errorf("panic: %s", s)
			}
		}()
		q.own(&inPost)
	}()
	q.leave()
	q.own(&inPoll)
}
