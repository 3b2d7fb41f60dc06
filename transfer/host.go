package transfer

import (
	"crypto/rand"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
)

// hostID tells whether two nodes can share memory: they run under the same boot of the same kernel
// and in the same network namespace (which the abstract sockets of transfer/path/shm need). It is a
// hash, so that nothing of it can be read by peers.
func hostID() [16]byte {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		// Without it two hosts could look alike, and shared memory would then fail at set-up: a
		// random id forgoes it instead.
		boot = make([]byte, 16)
		rand.Read(boot)
	}
	ns, _ := os.Readlink("/proc/self/ns/net")
	sum := sha256.Sum256([]byte("penstock host\n" + strings.TrimSpace(string(boot)) + "\n" + ns))
	return [16]byte(sum[:16])
}

func shortProgram() string { return filepath.Base(os.Args[0]) }
