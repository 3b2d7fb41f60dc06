//go:build !noasm

package vec

import "golang.org/x/sys/cpu"

// folds reports whether the CRC kernels below can run.
var folds = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// The lengths of p, dst and src are non-zero multiples of 256; for copyFoldCRCNT dst is aligned to
// 64 bytes.

//go:noescape
func foldCRC(state *[foldBlock]byte, k *[2]uint64, p []byte)

//go:noescape
func copyFoldCRC(state *[foldBlock]byte, k *[2]uint64, dst, src []byte)

//go:noescape
func copyFoldCRCNT(state *[foldBlock]byte, k *[2]uint64, dst, src []byte)
