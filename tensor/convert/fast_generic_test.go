//go:build noasm || !amd64

package convert

import "testing"

// each makes a conversion: there are no kernels.
func each(t *testing.T, s Spec) []*Converter {
	c, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	return []*Converter{c}
}
