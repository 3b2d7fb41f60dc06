package cuda

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
)

// Control is the fake as the process has it loaded: what is scripted, counted and reported. Its
// functions are those of fake.h. All who load the library by the same path share one fake.
type Control struct {
	lib                                                                   *dl.Library
	script, scriptError, report, violations, live, calls, restart, kernel dl.Func
}

// Load loads a library that [Build] made, for the caller who also gives its path to the code under
// test. It stays loaded: threads of the fake run in it.
func Load(path string) (*Control, error) {
	lib, err := dl.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	c := &Control{lib: lib}
	for name, f := range map[string]*dl.Func{"script": &c.script, "script_error": &c.scriptError, "report": &c.report,
		"violations": &c.violations,
		"live":       &c.live, "calls": &c.calls, "restart": &c.restart, "kernel": &c.kernel} {
		if *f, err = lib.Symbol("penstock_fake_cuda_" + name); err != nil {
			return nil, fmt.Errorf("cuda: %s is no fake driver: %w", path, err)
		}
	}
	return c, nil
}

// text calls f with s as a C string and nothing that C keeps.
func text(f dl.Func, s string, more ...uintptr) (uintptr, error) {
	b, err := dl.Alloc(len(s) + 1)
	if err != nil {
		return 0, err
	}
	defer dl.Free(b)
	copy(b, s)
	return f.Call(append([]uintptr{dl.Address(b)}, more...)...), nil
}

// Script obeys the lines of a script (see the package's documentation), all or none. "" removes
// what earlier ones ordered, except what describes devices.
func (c *Control) Script(script string) error {
	r, err := text(c.script, script)
	if err == nil && int32(r) != 0 {
		err = fmt.Errorf("cuda: script: %s", dl.GoString(c.scriptError.Call0()))
	}
	return err
}

// Report is the report so far: lines that begin with "violation: ", "warning: " or "live: ".
func (c *Control) Report() (string, error) {
	for n := 64 << 10; ; n *= 2 {
		b, err := dl.Alloc(n)
		if err != nil {
			return "", err
		}
		if need := int(c.report.Call2(dl.Address(b), uintptr(n))); need < n {
			defer dl.Free(b)
			return dl.GoString(dl.Address(b)), nil
		}
		dl.Free(b)
	}
}

// Violations is how many there were since the start.
func (c *Control) Violations() int { return int(int32(c.violations.Call0())) }

// Live is how many objects are alive: contexts, memory, streams and so on.
func (c *Control) Live() int { return int(int32(c.live.Call0())) }

// Calls is how often a function of the driver was called, by its exported name; -1 when there is
// none of that name.
func (c *Control) Calls(name string) int {
	r, err := text(c.calls, name)
	if err != nil {
		return -1
	}
	return int(int64(r))
}

// Restart makes the process new to the fake: no objects, no script, no errors that stay. No thread
// may be in a call of it.
func (c *Control) Restart() error {
	if int32(c.restart.Call0()) != 0 {
		return fmt.Errorf("cuda: the fake cannot start again: a kernel does not end")
	}
	return nil
}

// Kernel gives the kernel of that name its body: a C function as fake.h has it, of a library that
// stays loaded. A resident one runs until the host lets it go.
func (c *Control) Kernel(name string, body dl.Func, resident bool) error {
	flags := uintptr(0)
	if resident {
		flags = 1
	}
	b, err := dl.Alloc(len(name) + 1)
	if err != nil {
		return err
	}
	defer dl.Free(b)
	copy(b, name)
	if r := int32(c.kernel.Call3(dl.Address(b), uintptr(body), flags)); r != 0 {
		return fmt.Errorf("cuda: kernel %s: result %d", name, r)
	}
	return nil
}
