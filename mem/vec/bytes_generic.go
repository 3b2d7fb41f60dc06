//go:build noasm || !amd64

package vec

// hasBytes is false: there are no kernels, and what follows is never reached.
const (
	hasBytes = false
	turn     = 256
)

func set(dst []byte, pattern uint64, nt bool)           {}
func xor(dst, a, b []byte, nt bool)                     {}
func sum(p []byte) uint64                               { return 0 }
func swap(dst, src []byte, order *[16]byte)             {}
func find(p *byte, n, first, second int, a, b byte) int { return n }
