package cuda

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// The controls do what fake.h says.
func TestControl(t *testing.T) {
	lib, err := Build()
	compiled(t, err)
	c, err := Load(lib)
	if err != nil {
		t.Fatal(err)
	}
	l, err := dl.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	call := func(name string, args ...uintptr) int32 {
		f, err := l.Symbol(name)
		if err != nil {
			t.Fatal(err)
		}
		return int32(f.Call(args...))
	}
	if err := c.Script("devices 3\nfail cuInit INVALID_VALUE"); err != nil {
		t.Fatal(err)
	}
	if err := c.Script("devices 3\n devices x"); err == nil || !strings.Contains(err.Error(), "line 2, column 10") {
		t.Errorf("a script that is wrong: %v", err)
	}
	if first, second := call("cuInit", 0), call("cuInit", 0); first != 1 || second != 0 || c.Calls("cuInit") != 2 ||
		c.Calls("cuNothing") != -1 {
		t.Errorf("cuInit gave %d and %d, was called %d times; cuNothing %d times", first, second, c.Calls("cuInit"),
			c.Calls("cuNothing"))
	}
	b, err := dl.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	defer dl.Free(b)
	if r := call("cuDevicePrimaryCtxRetain", dl.Address(b), 2); r != 0 || c.Live() != 1 {
		t.Errorf("result %d, %d alive", r, c.Live())
	}
	if r := call("cuMemFree_v2", 12345); r == 0 || c.Violations() != 1 {
		t.Errorf("result %d, %d violations", r, c.Violations())
	}
	report, err := c.Report()
	if err != nil || !strings.Contains(report, "violation: ") || !strings.Contains(report, "live: ") {
		t.Errorf("%v: %s", err, report)
	}
	if err := c.Restart(); err != nil || c.Live() != 0 || c.Violations() != 0 || c.Calls("cuInit") != 0 {
		t.Errorf("after a new start: %v, %d alive", err, c.Live())
	}
	other, err := testenv.Compile("no-fake", []string{"testdata/other.c"}, "-shared")
	compiled(t, err)
	if _, err := Load(other); err == nil || !strings.Contains(err.Error(), "no fake driver") {
		t.Errorf("another library: %v", err)
	}
}
