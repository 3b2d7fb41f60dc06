package cm

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
)

// ErrUnavailable is wrapped by errors of a machine that has no librdmacm, no RDMA device, or none
// that this process may use.
var ErrUnavailable = errors.New("RDMA connections are not available")

// Options say which library to load.
type Options struct {
	Path string // a file, for tests and for libraries in unusual places; "" is the loader's librdmacm.so.1
}

// Library is a loaded librdmacm. It stays loaded until the process ends, since it keeps devices
// open. It may be used by several goroutines.
type Library struct {
	lib *dl.Library
	f   functions
}

// functions are the symbols of librdmacm that this package calls.
type functions struct {
	createChannel, destroyChannel, getEvent, ackEvent       dl.Func
	createID, destroyID, bind, resolveAddress, resolveRoute dl.Func
	listen, connect, accept, reject, disconnect, establish  dl.Func
	initQPAttr, setOption, createEP, migrate                dl.Func
}

// Load loads librdmacm. Errors wrap ErrUnavailable and name the package to install.
func Load(o Options) (*Library, error) {
	name := "librdmacm.so.1"
	if o.Path != "" {
		name = o.Path
	}
	lib, err := dl.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cm: %w: librdmacm cannot be loaded: install it (Debian: apt-get install librdmacm1; "+
			"Fedora: dnf install librdmacm): %w", ErrUnavailable, err)
	}
	l := &Library{lib: lib}
	f := &l.f
	for _, s := range []struct {
		to            *dl.Func
		name, version string
	}{
		{&f.createChannel, "rdma_create_event_channel", "RDMACM_1.0"},
		{&f.destroyChannel, "rdma_destroy_event_channel", "RDMACM_1.0"},
		{&f.getEvent, "rdma_get_cm_event", "RDMACM_1.0"},
		{&f.ackEvent, "rdma_ack_cm_event", "RDMACM_1.0"},
		{&f.createID, "rdma_create_id", "RDMACM_1.0"},
		{&f.destroyID, "rdma_destroy_id", "RDMACM_1.0"},
		{&f.bind, "rdma_bind_addr", "RDMACM_1.0"},
		{&f.resolveAddress, "rdma_resolve_addr", "RDMACM_1.0"},
		{&f.resolveRoute, "rdma_resolve_route", "RDMACM_1.0"},
		{&f.listen, "rdma_listen", "RDMACM_1.0"},
		{&f.connect, "rdma_connect", "RDMACM_1.0"},
		{&f.accept, "rdma_accept", "RDMACM_1.0"},
		{&f.reject, "rdma_reject", "RDMACM_1.0"},
		{&f.disconnect, "rdma_disconnect", "RDMACM_1.0"},
		{&f.establish, "rdma_establish", "RDMACM_1.2"},
		{&f.initQPAttr, "rdma_init_qp_attr", "RDMACM_1.2"},
		{&f.setOption, "rdma_set_option", "RDMACM_1.0"},
		{&f.createEP, "rdma_create_ep", "RDMACM_1.0"},
		{&f.migrate, "rdma_migrate_id", "RDMACM_1.0"},
	} {
		if *s.to, err = lib.SymbolVersion(s.name, s.version); err != nil {
			err = fmt.Errorf("cm: %w: %s is too old: expected librdmacm of rdma-core 22 or later: %w", ErrUnavailable,
				lib.Name(), err)
			return nil, errors.Join(err, lib.Close())
		}
	}
	return l, nil
}
