package prog

import (
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
)

// TestGuestKernel: the verifier of Debian's kernel takes the programs too, and they do the same. It
// is older than that of most hosts.
func TestGuestKernel(t *testing.T) {
	testenv.Once(t)
	if guest.Enter(t, guest.Spec{Profile: guest.Net}) {
		return
	}
	t.Run("mixes", TestMixes)
	t.Run("edges", TestEdges)
	t.Run("large", TestLarge)
	t.Run("native", func(t *testing.T) { veth(t, Native, false) })
	// AF_XDP takes frames in several buffers since Linux 6.6
	t.Run("generic", func(t *testing.T) { veth(t, Generic, false) })
	t.Run("modes", TestModes)
	t.Run("gone", TestInterfaceGone)
	t.Run("hints", func(t *testing.T) { hinted(t, Native, false) }) // they came with Linux 6.3
}
