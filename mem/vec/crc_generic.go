//go:build noasm || !amd64

package vec

// folds is false: on arm64 hash/crc32 uses the CRC32CX instruction, elsewhere there is no kernel.
const folds = false

func foldCRC(state *[foldBlock]byte, k *[2]uint64, p []byte)              {}
func copyFoldCRC(state *[foldBlock]byte, k *[2]uint64, dst, src []byte)   {}
func copyFoldCRCNT(state *[foldBlock]byte, k *[2]uint64, dst, src []byte) {}
