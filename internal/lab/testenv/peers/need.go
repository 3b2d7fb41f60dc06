package peers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/peers"
)

// Need is how a test says that it uses a peer: it returns the peer's version and records the use in
// the lab's ledger. A peer that is absent ends the test as [testenv.Missing] says; one that is here
// and broken fails it.
func Need(t testenv.TB, name string) (version string) {
	t.Helper()
	version, err := versionOf(name)
	need(t, name, version, err)
	return version
}

func versionOf(name string) (string, error) {
	p, err := peers.Get(name)
	if err != nil {
		return "", err
	}
	return p.Version(context.Background())
}

func need(t testenv.TB, name, version string, err error) {
	t.Helper()
	switch {
	case errors.Is(err, peers.ErrAbsent):
		testenv.Missing(t, name, err)
	case err != nil:
		t.Fatalf("%v", err)
	default:
		testenv.Record(t, "peer", name, version)
	}
}

// NeedPython is [Need] for a peer that is a module of Python.
func NeedPython(t testenv.TB, name string) *peers.Python {
	t.Helper()
	p, err := peers.Get(name)
	if err != nil || len(p.Modules) == 0 {
		t.Fatalf("peers: %s is no module of Python: %v", name, err)
		return nil
	}
	py, err := peers.FindPython(context.Background(), p.Modules[0])
	version := ""
	if py != nil {
		version = py.Version
	}
	need(t, name, version, err)
	return py
}

// PoCL is Need for tests that load OpenCL into their own process: what PoCL compiles there goes to
// the lab's cache and not to the user's. The machine may have other devices as well; those of PoCL
// are on the platform whose name is returned.
func PoCL(t testenv.TB) (platform string) {
	t.Helper()
	version, err := poclVersion()
	need(t, "pocl", version, err)
	dir, err := testenv.CacheDir()
	if err == nil {
		dir = filepath.Join(dir, "pocl")
		err = errors.Join(os.MkdirAll(dir, 0o755), os.Setenv("POCL_CACHE_DIR", dir))
	}
	if err != nil {
		t.Fatalf("peers: %v", err)
	}
	return "Portable Computing Language"
}

// poclVersion asks once: it is another process.
var poclVersion = sync.OnceValues(func() (string, error) { return versionOf("pocl") })
