//go:build noasm || (!amd64 && !arm64)

package vec

func detect() (a [kernels]bool) { return }

// run is never reached: no kernel but Builtin is available.
func (k Kernel) run(dst, src []byte) { copy(dst, src) }

func flush(b []byte) {}

const canFlush = false
