//go:build !noasm

package convert

import (
	"testing"

	"github.com/penstock-io/penstock/tensor"
)

// No kernel loads a byte behind the input: the last block begins where as many bytes are left as it loads.
func TestLoadsWithin(t *testing.T) {
	for _, f := range formats() {
		x := fastOf(f, tensor.F32, 1, 0)
		if x.kernel == nil {
			continue
		}
		for n := range 200 {
			if k := x.run(make([]byte, 200*x.out), make([]byte, n)); k > 0 && k-x.in+x.load > n {
				t.Errorf("%v: the last block of %d bytes of %d loads up to %d", f, k, n, k-x.in+x.load)
			}
		}
	}
}
