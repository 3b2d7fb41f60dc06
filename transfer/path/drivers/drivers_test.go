package drivers_test

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/internal/option"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func names(all []setup.Driver) (out []string) {
	for _, d := range all {
		out = append(out, d.Name())
	}
	return out
}

// The list has the drivers that were asked for, in that order, each by its own name.
func TestNames(t *testing.T) {
	all, err := drivers.New(nil, false)
	if err != nil || !slices.Equal(names(all), drivers.Names()) || len(all) != 4 {
		t.Errorf("%v, %v", names(all), err)
	}
	all, err = drivers.New([]string{"verbs", "shm"}, false)
	if err != nil || !slices.Equal(names(all), []string{"verbs", "shm"}) {
		t.Errorf("%v, %v", names(all), err)
	}
	if all, err = drivers.New([]string{}, false); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", names(all), err)
	}
	for want, paths := range map[string][]string{
		`path "rdma": expected shm or tcp or verbs`:              {"tcp", "rdma"},
		`path "tcp" is there twice`:                              {"tcp", "shm", "tcp?ktls=off"},
		`path "verbs?depth=5": depth is "5": it is out of range`: {"verbs?depth=5"},
		`path "tcp?address=here": address is "here"`:             {"tcp?address=here"},
		`path "tcp?congestion=cubik": tcp: congestion control`:   {"tcp?congestion=cubik"},
	} {
		if all, err := drivers.New(paths, false); err == nil || all != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, all, err)
		}
	}
}

// Each path has a Spec that is sound, and a driver that says the same of itself.
func TestSpecs(t *testing.T) {
	for _, s := range drivers.Table {
		options, _ := s.New(false)
		made := func(option.Of, string) any { return options }
		if err := option.List(s.Options).Check(nil, made); err != nil || s.Doc == "" {
			t.Errorf("%s: %q, %v", s.Name, s.Doc, err)
		}
		if d, err := s.Driver(nil, false); err != nil || d.Name() != s.Name {
			t.Errorf("%s: its driver is %v, %v", s.Name, d, err)
		}
		if options == nil {
			continue
		}
		for _, f := range reflect.VisibleFields(reflect.TypeOf(options).Elem()) {
			found := slices.ContainsFunc(s.Options, func(o option.Option) bool {
				return slices.Contains(strings.Fields(strings.ReplaceAll(o.Field, "!", "")), f.Name)
			})
			if f.IsExported() && !f.Anonymous && !found && f.Name != "Insecure" {
				t.Errorf("%s: no option sets %s", s.Name, f.Name)
			}
		}
	}
}

// dialRefused is what dialing another machine without encryption says, before anything is sent.
func dialRefused(t *testing.T, insecure bool, name string, to setup.Offer) error {
	t.Helper()
	all, err := drivers.New([]string{name}, insecure)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	p, err := all[0].(setup.ListenDriver).Dial(ctx, to,
		setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
	if err == nil {
		p.Close()
		t.Fatal("somebody answered")
	}
	return err
}

// Insecure reaches each driver: without it none leaves the machine unencrypted.
func TestInsecure(t *testing.T) {
	away := setup.Offer{Addr: "192.0.2.1:9"} // TEST-NET-1
	if err := dialRefused(t, false, "tcp", away); !errors.Is(err, path.ErrUnavailable) {
		t.Errorf("tcp: %v", err)
	}
	if err := dialRefused(t, true, "tcp", away); errors.Is(err, path.ErrUnavailable) {
		t.Errorf("tcp, insecure: %v", err)
	}
	lib, err := fake.Build()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	// A description as transfer/path/verbs has it, with the GID of another machine.
	insecure := false
	endpoint := func(peer []byte) (setup.Endpoint, error) {
		all, err := drivers.New([]string{"verbs?library=" + lib}, insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := drivers.Probe(all[0]); err != nil {
			t.Fatal(err)
		}
		return all[0].(setup.EndpointDriver).Endpoint(setup.Config{Rights: path.Read | path.Write,
			Exports: new(path.Exports)}, peer)
	}
	e, err := endpoint(nil)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := slices.Clone(e.Description())
	e.Close()
	gid := netip.MustParseAddr("::ffff:198.51.100.9").As16() // TEST-NET-2
	copy(elsewhere[6:], gid[:])                              // behind mark and version
	if _, err := endpoint(elsewhere); !errors.Is(err, path.ErrUnavailable) ||
		!strings.Contains(err.Error(), "not encrypted") {
		t.Errorf("verbs: %v", err)
	}
	insecure = true
	if e, err := endpoint(elsewhere); err == nil {
		e.Close()
	} else if strings.Contains(err.Error(), "not encrypted") {
		t.Errorf("verbs, insecure: %v", err)
	}
}
