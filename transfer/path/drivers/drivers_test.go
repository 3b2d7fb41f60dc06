package drivers_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
	"github.com/penstock-io/penstock/transfer/path/verbs"
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
	all, err := drivers.New(drivers.Options{})
	if err != nil || !slices.Equal(names(all), drivers.Names()) || len(all) != 3 {
		t.Errorf("%v, %v", names(all), err)
	}
	all, err = drivers.New(drivers.Options{Names: []string{"verbs", "shm"}})
	if err != nil || !slices.Equal(names(all), []string{"verbs", "shm"}) {
		t.Errorf("%v, %v", names(all), err)
	}
	if all, err = drivers.New(drivers.Options{Names: []string{}}); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", names(all), err)
	}
	for want, o := range map[string]drivers.Options{
		`path "rdma": expected shm or tcp or verbs`: {Names: []string{"tcp", "rdma"}},
		`path "tcp" is there twice`:                 {Names: []string{"tcp", "shm", "tcp"}},
		"Options.Depth is 5":                        {Verbs: verbs.Options{Depth: 5}},
	} {
		if all, err := drivers.New(o); err == nil || all != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, all, err)
		}
	}
}

// dialRefused is what dialing another machine without encryption says, before anything is sent.
func dialRefused(t *testing.T, o drivers.Options, name string, to setup.Offer) error {
	t.Helper()
	o.Names = []string{name}
	all, err := drivers.New(o)
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

// Insecure reaches each driver: without it none leaves the machine unencrypted, whatever the
// driver's own options say.
func TestInsecure(t *testing.T) {
	away := setup.Offer{Addr: "192.0.2.1:9"} // TEST-NET-1
	if err := dialRefused(t, drivers.Options{TCP: tcp.Options{Insecure: true}}, "tcp", away); !errors.Is(err,
		path.ErrUnavailable) {
		t.Errorf("tcp: %v", err)
	}
	if err := dialRefused(t, drivers.Options{Insecure: true}, "tcp", away); errors.Is(err, path.ErrUnavailable) {
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
	// which New does not listen to
	o := drivers.Options{Names: []string{"verbs"}, Verbs: verbs.Options{Library: lib, Insecure: true}}
	endpoint := func(peer []byte) (setup.Endpoint, error) {
		all, err := drivers.New(o)
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
	o.Insecure = true
	if e, err := endpoint(elsewhere); err == nil {
		e.Close()
	} else if strings.Contains(err.Error(), "not encrypted") {
		t.Errorf("verbs, insecure: %v", err)
	}
}
