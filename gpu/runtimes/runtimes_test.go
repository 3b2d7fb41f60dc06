package runtimes

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/gpu"
)

// TestTable opens each runtime by its name: it is here under that name, or says why it is not.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range Table().Names() {
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		c, err := Table().Open(name)
		if err != nil {
			if !errors.Is(err, gpu.ErrUnavailable) || name == "host" {
				t.Errorf("%s: %v", name, err)
			}
			t.Logf("%s: %v", name, err)
			continue
		}
		for _, d := range c.Devices() {
			f := d.Info()
			t.Logf("%s %s: %s, %d bytes, %s", c.Name(), c.Version(), d, f.Memory, f.Capabilities.String())
		}
		if c.Name() != name {
			t.Errorf("the runtime %s says that it is %s", name, c.Name())
		}
		if err := c.Close(); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	}
	if names := Table().Names(); len(names) < 2 || names[len(names)-1] != "host" {
		t.Errorf("the table is %v: expected the host at its end", names)
	}
	c, err := Table().Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", c)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
