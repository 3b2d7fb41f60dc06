package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

type named struct {
	name string
	err  error
}

func (n named) Name() string               { return n.name }
func (n named) Available() error           { return n.err }
func (n named) Capabilities() Capabilities { return Capabilities{} }
func (n named) OpenPort(context.Context, PortSpec) (Port, error) {
	return nil, n.err
}

func TestTable(t *testing.T) {
	verbs := named{"verbs", fmt.Errorf("libibverbs is missing: apt install libibverbs1: %w", ErrUnavailable)}
	tab, err := NewTable(named{"socket", nil}, named{"afpacket", nil}, verbs, NotBuilt("dpdk", "build with -tags dpdk"))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := tab.Get("socket"); err != nil || e.Name() != "socket" || len(tab.Engines()) != 4 {
		t.Error(e, err)
	}
	for _, c := range []struct {
		name  string
		is    error
		words []string
	}{
		{"verbs", ErrUnavailable, []string{`"verbs"`, "apt install libibverbs1"}},
		{"dpdk", ErrNotBuilt, []string{"-tags dpdk"}},
		{"sokcet", ErrNotFound, []string{`"sokcet"`, `did you mean "socket"?`, "there is: socket, afpacket;",
			"not here: verbs (libibverbs", "dpdk (engine: not in this build"}},
		{"AFPacket", ErrNotFound, []string{`did you mean "afpacket"?`}},
		{"", ErrNotFound, []string{"there is"}},
	} {
		e, err := tab.Get(c.name)
		if e != nil || !errors.Is(err, c.is) {
			t.Errorf("%q: %v, %v", c.name, e, err)
			continue
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: the error does not say %q: %v", c.name, w, err)
			}
		}
	}
	if _, err := tab.Get("unheard-of"); strings.Contains(err.Error(), "did you mean") {
		t.Error(err)
	}
	e := tab.Engines()[3]
	if _, err := e.OpenPort(t.Context(), PortSpec{}); !errors.Is(err, ErrNotBuilt) || len(e.Capabilities().Notes) != 1 {
		t.Error(err)
	}
	empty, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := empty.Get("x"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	for _, c := range []struct {
		engines []Engine
		is      error
	}{{[]Engine{nil}, ErrNil}, {[]Engine{named{}}, ErrInvalid}, {[]Engine{verbs, named{"verbs", nil}}, ErrExists}} {
		if _, err := NewTable(c.engines...); !errors.Is(err, c.is) {
			t.Error(err)
		}
	}
}

func TestDrops(t *testing.T) {
	names := map[string]Drop{}
	var d, e Drops
	var c DropCounters
	for r := Drop(0); r < NumDrops; r++ {
		s := r.String()
		if other, ok := names[s]; ok || s == "" || s != strings.ToLower(s) || strings.ContainsAny(s, " _") {
			t.Errorf("reason %d is called %q, as %d", r, s, other)
		}
		names[s] = r
		c.Inc(r)
		c.Add(r, uint64(r))
		e[r] = 100
	}
	c.AddTo(&d)
	d.Add(&e)
	for r, n := range d {
		if n != uint64(r)+101 {
			t.Errorf("%v: %d", Drop(r), n)
		}
	}
	if got, want := d.Total(), uint64(NumDrops)*101+uint64(NumDrops)*uint64(NumDrops-1)/2; got != want {
		t.Errorf("%d drops, want %d", got, want)
	}
	if NumDrops.String() != fmt.Sprintf("drop %d", NumDrops) {
		t.Error(NumDrops.String())
	}
	two := Drops{DropKernel: 3, DropLate: 1}
	if two.String() != "kernel 3, late 1" || (&Drops{}).String() != "none" {
		t.Errorf("%q", two.String())
	}
}

// The sums leave no field out.
func TestStatsAdd(t *testing.T) {
	fill := func(v reflect.Value, from uint64) {
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Uint64:
				f.SetUint(from + uint64(i))
			case reflect.Array:
				for k := range f.Len() {
					f.Index(k).SetUint(from + uint64(k))
				}
			default:
				t.Fatalf("field %s is new here", v.Type().Field(i).Name)
			}
		}
	}
	check := func(v reflect.Value) {
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().Field(i).Name
			for k := range 1 {
				got, want := uint64(0), uint64(300+2*i)
				if f.Kind() == reflect.Array {
					k = f.Len() - 1
					got, want = f.Index(k).Uint(), uint64(300+2*k)
				} else {
					got = f.Uint()
				}
				if name == "LateMax" {
					want = uint64(200 + i)
				}
				if got != want {
					t.Errorf("%v: field %s is %d, want %d", v.Type(), name, got, want)
				}
			}
		}
	}
	var r, r2 RxStats
	fill(reflect.ValueOf(&r).Elem(), 100)
	fill(reflect.ValueOf(&r2).Elem(), 200)
	r.Add(&r2)
	check(reflect.ValueOf(r))
	var x, x2 TxStats
	fill(reflect.ValueOf(&x).Elem(), 100)
	fill(reflect.ValueOf(&x2).Elem(), 200)
	x.Add(&x2)
	check(reflect.ValueOf(x))
}
