//go:build !amd64 && !arm64

package ibv

//lint:file-ignore U1000 a structure has all its fields, also those that no code reads

// mutexSize is that of most processors. The package builds on them, and internal/dl says that
// nothing can be called there.
const mutexSize = 40
