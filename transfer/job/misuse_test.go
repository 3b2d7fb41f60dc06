package job

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// call calls a function with that context where it takes one, a name for a string, functions that
// do nothing, and zero values. It returns its error, if it has one, and what it panics with.
func call(f reflect.Value, c context.Context) (panicked any, err error) {
	var in []reflect.Value
	for a := range f.Type().Ins() {
		v := reflect.Zero(a)
		switch {
		case a == reflect.TypeFor[context.Context]() && c != nil:
			v = reflect.ValueOf(c)
		case a.Kind() == reflect.String:
			v = reflect.ValueOf("x")
		case a.Kind() == reflect.Func:
			v = reflect.MakeFunc(a, func([]reflect.Value) (out []reflect.Value) {
				for r := range a.Outs() {
					out = append(out, reflect.Zero(r))
				}
				return out
			})
		}
		in = append(in, v)
	}
	defer func() { panicked = recover() }()
	for _, out := range f.Call(in) {
		if e, ok := out.Interface().(error); ok {
			err = e
		}
	}
	return nil, err
}

// PutAll and every exported method of every type are called with a nil context, where they take
// one, and after everything is closed. A nil context is an error that says so, and a panic that
// does in builds with -tags invariants; nothing else panics, and nothing hangs.
func TestMisuse(t *testing.T) {
	s := newServer(t, 4096, transfer.ExportOptions{Rights: path.Read | path.Write})
	n := open(t, transfer.Options{})
	l := link(t, n, s.addr(), LinkOptions{})
	src := region(t, 4096)
	j, err := l.Fetch(ctx(t), "x", src.All(), Options{})
	waitJob(t, j, err)
	p, err := l.Peer(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	f, err := PutAll(ctx(t), []Target{{Peer: p, Name: "x", Local: src.All()}}, FanoutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	all := map[string]reflect.Value{"PutAll": reflect.ValueOf(PutAll)}
	for _, x := range []any{f, f.Legs()[0], l, j} {
		for m, v := range reflect.ValueOf(x).Methods() {
			all[fmt.Sprintf("%T.%s", x, m.Name)] = v
		}
	}
	contexts := 0
	for name, v := range all {
		if v.Type().NumIn() == 0 || v.Type().In(0) != reflect.TypeFor[context.Context]() {
			continue
		}
		contexts++
		panicked, err := call(v, nil)
		switch over := strings.HasSuffix(name, ".Wait"); { // what has ended is over, whatever the context is
		case over && err == nil && panicked == nil:
		case invariants.Enabled:
			if s := fmt.Sprint(panicked); !strings.Contains(s, "the context is nil") {
				t.Errorf("%s: %v, panic %v", name, err, panicked)
			}
		case panicked != nil || !errors.Is(err, transfer.ErrContext):
			t.Errorf("%s: %v, panic %v", name, err, panicked)
		}
	}
	if contexts < 9 {
		t.Errorf("only %d functions take a context", contexts)
	}
	if err := errors.Join(l.Close(), n.Close(), s.node.Close()); err != nil {
		t.Error(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, v := range all {
		if panicked, err := call(v, over); panicked != nil {
			t.Errorf("%s after Close panics: %v, %v", name, panicked, err)
		}
	}
}
